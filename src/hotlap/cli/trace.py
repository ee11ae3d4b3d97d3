"""`hotlap trace`."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from hotlap.launch.perf import PERF_FILE
from hotlap.records.errors import UsageError
from hotlap.records.profilers import NCU_FILE, PY_SPY_FILE
from hotlap.report.console import Screen, columns, plain, stderr_console, stdout_console
from hotlap.runs.folder import RunFolder

from ._beside import py_spy_of
from ._common import print_json, reading

if TYPE_CHECKING:
    from hotlap.records.trace import TraceReport
    from hotlap.trace.files import TraceFile

MOST_ROWS: Final = 1000


def trace(
    path: Annotated[
        list[Path] | None,
        typer.Argument(help="A trace (.json, .json.gz, .sqlite of nsys), a folder of them, or a run."),
    ] = None,
    sql: Annotated[str | None, typer.Option(help="A SELECT over the tables (docs/trace.md), instead.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Rows of each table.")] = 6,
    unprofiled_ms: Annotated[
        float | None, typer.Option(min=0.001, help="The step without the profiler, in ms; a run knows it itself.")
    ] = None,
    what_if: Annotated[bool, typer.Option(help="Replay the steps and predict what removing a cause would win.")] = True,
    ncu: Annotated[
        Path | None, typer.Option(help="Also what `ncu --csv --page raw` printed; a run knows its own.")
    ] = None,
    perf: Annotated[Path | None, typer.Option(help="Also what `perf stat -x,` wrote; a run knows its own.")] = None,
    json: Annotated[bool, typer.Option(help="Print the document (with --sql: a JSON line a row) instead.")] = False,
) -> int:
    """Read torch.profiler traces, hotlap's or not: where the device's time goes, why it is idle, which lines wait.

    Many files are the ranks of one run; an export of Nsight Systems (nsys export --type sqlite) is read too.

    Examples:

      hotlap trace trace.json.gz

      hotlap trace hotlap-runs/1121-103000-run-train

      hotlap trace rank0.json.gz rank1.json.gz

      hotlap trace report.sqlite --ncu kernels.csv

      hotlap trace trace.json --sql "select name, sum(dur) / 1e6 as ms from device group by name order by ms desc"
    """
    if not path and (sql is not None or (ncu is None and perf is None)):
        raise UsageError("no trace given. Example: hotlap trace trace.json.gz")
    if sql is not None:
        return _query(path or [], sql, json)
    from hotlap.profilers.ncu import read_ncu, with_rooflines
    from hotlap.profilers.perf import read_perf

    ncu, perf = _own(path or [], ncu, NCU_FILE), _own(path or [], perf, PERF_FILE)
    rows = max(top, 50 if ncu is not None else 10)
    found = _report(path or [], rows, what_if, unprofiled_ms)
    found = msgspec.structs.replace(
        found,
        ncu=with_rooflines(read_ncu(ncu), found.ranks) if ncu is not None else (),
        perf=read_perf(perf) if perf is not None else None,
        py_spy=py_spy_of(path[0]) if path else None,
    )
    if json:
        print_json(found)
    else:
        _show(found, top)
    return 0


def _show(found: "TraceReport", top: int) -> None:
    from hotlap.report.profilers_screen import ncu_screen, nsys_screen, perf_screen, py_spy_screen
    from hotlap.report.trace_screen import trace_screen

    console = stdout_console()
    if found.ranks:
        console.print(trace_screen(found, top))
    if any(rank.source.endswith(".sqlite") for rank in found.ranks):
        console.print(nsys_screen(found, top))
    if found.ncu:
        console.print(ncu_screen(found.ncu, top))
    if found.perf is not None:
        console.print(perf_screen(found.perf))
    if found.py_spy is not None:
        console.print(py_spy_screen(found.py_spy, top))


def _report(paths: list[Path], top: int, what_if: bool, unprofiled_ms: float | None) -> "TraceReport":
    """The answers about the traces; none without a path, or of a run that only such profilers measured."""
    from hotlap.records.trace import TraceReport

    if all(_only_counters(path) for path in paths):
        return TraceReport()
    from hotlap.diagnose.profiled import options_of  # polars takes a moment to import; `hotlap run` does without it
    from hotlap.trace.answer import report

    with _reading(paths) as (files, told):
        return report(files, options_of(paths[0], top, what_if, unprofiled_ms), told)


def _only_counters(path: Path) -> bool:
    return any((path / name).is_file() for name in (NCU_FILE, PERF_FILE, PY_SPY_FILE)) and not RunFolder(path).traces


def _own(paths: list[Path], given: Path | None, name: str) -> Path | None:
    """The file that is given, else the run's own."""
    own = paths[0] / name if paths else None
    return own if given is None and own is not None and own.is_file() else given


@contextlib.contextmanager
def _reading(paths: list[Path]) -> Iterator[tuple[list["TraceFile"], Callable[[str, int], None]]]:
    """The files at the paths, and what shows how much of them is read."""
    from hotlap.trace.files import trace_files

    files = [file for one in paths for file in trace_files(one)]
    with reading() as shown:
        task = shown.add_task("", total=sum(file.size for file in files))
        done: dict[str, int] = {}

        def told(name: str, at: int) -> None:
            done[name] = at
            shown.update(task, completed=sum(done.values()), description=name[:60])

        yield files, told


def _query(paths: list[Path], text: str, json: bool) -> int:
    """The rows of a query as a table, or a JSON line each."""
    from hotlap.trace.sql import query

    traces = []
    with _reading(paths) as (files, told):
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
    stdout_console().print(Screen(table))
    if len(rows) > MOST_ROWS:
        stderr_console().print(plain(f"{len(rows) - MOST_ROWS} more rows; --json prints them all", "dim"))
    return 0
