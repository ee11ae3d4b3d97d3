"""`hotlap diff`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hotlap.diagnose.compare import compare
from hotlap.records.compare import RunDiff
from hotlap.report.compare_screen import compare_screen
from hotlap.report.console import stdout_console
from hotlap.runs.folder import RunFolder

from ._common import print_json


def diff(
    before: Annotated[Path, typer.Argument(help="A run; or a trace, or a folder or tar with one for each rank.")],
    after: Annotated[Path, typer.Argument(help="The same after a change.")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="Rows of each table.")] = 6,
    json: Annotated[bool, typer.Option(help="Print the document instead.")] = False,
) -> int:
    """Say what changed between two runs (machine, driver, versions, variables, commit, beside their step times), or two
    traces (the step, device time, kernels, waits, launches, host time); of profiled runs both.

    Examples:

      hotlap diff before.json.gz after.json.gz

      hotlap diff hotlap-runs/1121-103000-run-train hotlap-runs/1121-110000-run-train
    """
    folders = RunFolder(before), RunFolder(after)
    runs = compare(before, after) if all(run.is_run for run in folders) else None
    if runs is None or all(run.traces for run in folders):
        _traces(before, after, runs, top, json)
    elif json:
        print_json(runs)
    else:
        stdout_console().print(compare_screen(runs))
    return 0


def _traces(before: Path, after: Path, runs: RunDiff | None, top: int, json: bool) -> None:
    from hotlap.trace.answer import view_of  # polars takes a moment to import; `hotlap run` does without it
    from hotlap.trace.diff import diff as compared
    from hotlap.trace.files import trace_files

    views = [[view_of(file.load(lambda at: None)) for file in trace_files(path)] for path in (before, after)]
    found = msgspec.structs.replace(compared(views[0], views[1], rows=max(top, 30)), runs=runs)
    if json:
        print_json(found)
        return
    from hotlap.report.trace_screen import diff_screen

    screens = [diff_screen(found, top)] if runs is None else [compare_screen(runs), diff_screen(found, top)]
    stdout_console().print(*screens, sep="\n")
