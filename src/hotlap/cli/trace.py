"""`hotlap trace`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hotlap.report.console import Screen, columns, plain, stderr_console

from ._common import print_json

if TYPE_CHECKING:
    from hotlap.trace.files import TraceFile

MOST_ROWS: Final = 1000


def trace(
    path: Annotated[list[Path], typer.Argument(help="A trace (.json, .json.gz), a folder or tar of them, or a run.")],
    sql: Annotated[str | None, typer.Option(help="A SELECT over the tables (docs/trace.md), instead.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Rows of each table.")] = 6,
    unprofiled_ms: Annotated[
        float | None, typer.Option(min=0.001, help="The step without the profiler, in ms; a run knows it itself.")
    ] = None,
    what_if: Annotated[bool, typer.Option(help="Replay the steps and predict what removing a cause would win.")] = True,
    json: Annotated[bool, typer.Option(help="Print the document (with --sql: a JSON line a row) instead.")] = False,
) -> int:
    """Read torch.profiler traces, hotlap's or not: where the device's time goes, why it is idle, which lines wait.

    Many files are the ranks of one run. Large files are kept decoded in ~/.cache/hotlap (HOTLAP_CACHE), so that
    reading one again takes no time.

    Examples:

      hotlap trace trace.json.gz

      hotlap trace hotlap-runs/1121-103000-run-train

      hotlap trace rank0.json.gz rank1.json.gz

      hotlap trace trace.json --sql "select name, sum(dur) / 1e6 as ms from device group by name order by ms desc"
    """
    from hotlap.diagnose.profiled import asked_of  # polars takes a moment to import; `hotlap run` does without it
    from hotlap.trace.answer import report
    from hotlap.trace.files import trace_files

    files = [file for one in path for file in trace_files(one)]
    with _progress() as shown:
        task = shown.add_task("", total=sum(file.size for file in files))
        done: dict[str, int] = {}

        def told(name: str, at: int) -> None:
            done[name] = at
            shown.update(task, completed=sum(done.values()), description=name[:60])

        if sql is not None:
            return _query(files, sql, json, told)
        found = report(files, asked_of(path[0], max(top, 10), what_if, unprofiled_ms), told)
    if json:
        print_json(found)
        return 0
    from hotlap.report.trace_screen import trace_screen

    Console(highlight=False, markup=False, emoji=False).print(trace_screen(found, top))
    return 0


def _progress() -> Progress:
    """A bar on stderr, on terminals only."""
    console = stderr_console()
    return Progress(
        TextColumn("reading {task.description}"),
        BarColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _query(files: list["TraceFile"], text: str, json: bool, told: Callable[[str, int], None]) -> int:
    """The rows of a query as a table, or a JSON line each."""
    from hotlap.trace.sql import query

    traces = []
    for index, file in enumerate(files):
        read = file.load(lambda at, name=file.name: told(name, at))  # type: ignore[misc]
        traces.append((next(r for r in (read.rank, file.rank, index) if r is not None), read))
    rows = query(traces, text)
    if json:
        sys.stdout.write(rows.write_ndjson())
        return 0
    table = columns(*rows.columns, wide=rows.columns)
    for row in rows.head(MOST_ROWS).iter_rows():
        table.add_row(*(plain("" if cell is None else cell) for cell in row))
    Console(highlight=False, markup=False, emoji=False).print(Screen(table))
    if len(rows) > MOST_ROWS:
        stderr_console().print(plain(f"{len(rows) - MOST_ROWS} more rows; --json prints them all", "dim"))
    return 0
