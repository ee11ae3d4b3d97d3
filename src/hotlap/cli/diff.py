"""`hotlap diff`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ._common import print_json


def diff(
    before: Annotated[Path, typer.Argument(help="A trace, or a folder or tar with one for each rank.")],
    after: Annotated[Path, typer.Argument(help="Another one of the same job.")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="Rows of each table.")] = 6,
    json: Annotated[bool, typer.Option(help="Print the document instead.")] = False,
) -> int:
    """Say what changed between two traces: the step, device time, kernels, waits, launches, host time.

    Examples:

      hotlap diff before.json.gz after.json.gz

      hotlap diff hotlap-runs/1121-103000-run-train hotlap-runs/1121-110000-run-train
    """
    from hotlap.trace.answer import view_of  # polars takes a moment to import; `hotlap run` does without it
    from hotlap.trace.diff import diff as compared
    from hotlap.trace.files import trace_files

    views = [[view_of(file.load(lambda at: None)) for file in trace_files(path)] for path in (before, after)]
    found = compared(views[0], views[1], rows=max(top, 30))
    if json:
        print_json(found)
        return 0
    from hotlap.report.trace_screen import diff_screen

    Console(highlight=False, markup=False, emoji=False).print(diff_screen(found, top))
    return 0
