"""What was recorded beside or in front of a command, as screens of a run's folder."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import RenderableType

from hotlap.launch import nsight, perf, py_spy
from hotlap.profilers.ncu import read_ncu
from hotlap.profilers.perf import read_perf
from hotlap.profilers.py_spy import read_py_spy
from hotlap.records.errors import RecordError, UsageError, missing_named
from hotlap.records.profilers import NCU_FILE, NSYS_FILE, PY_SPY_FILE, PY_SPY_SAID, PySpy
from hotlap.report.console import number, plain, stderr_console
from hotlap.report.profilers_screen import ncu_screen, nsys_screen, perf_screen, py_spy_screen
from hotlap.runs.folder import RunFolder
from hotlap.runs.plan import RunPlan

ROWS: Final = 10
NAMES: Final = ("perf", "py-spy", "nsys", "ncu")


class Profiler:
    """That of `--with`, for one run."""

    def __init__(self, name: str) -> None:
        """Raises UsageError, CommandNotFound."""
        if name not in NAMES:
            raise UsageError(f"--with {name}: can be {', '.join(NAMES[:-1])} or {NAMES[-1]}")
        self.name = name
        self.perf = perf.find_perf() if name == "perf" else None
        self.py_spy = py_spy.find_py_spy() if name == "py-spy" else None
        self.program = nsight.find(name) if name in nsight.STEPS else ""
        self.nsight: nsight.Nsight | None = None

    @property
    def steps(self) -> int:
        """Steps that it records by itself; 0: the whole command."""
        return nsight.STEPS.get(self.name, 0)

    def put_in(self, plan: RunPlan) -> RunPlan:
        """What to run, with it beside or in front of the command. What will seem to hang is told."""
        if self.program:
            self.nsight = nsight.Nsight(self.name, self.program, plan.folder)
        if self.name == "ncu":
            launches = f"up to {nsight.LAUNCHES} kernel launches of {number(plan.capture_steps, 'steady step')}"
            takes = "about half a second each on an H200; the command waits meanwhile"
            stderr_console().print(plain(f"hotlap: ncu measures {launches}, {takes}", "dim"))
        return replace(plan, perf=self.perf, py_spy=self.py_spy, capture=self.name if self.program else "")

    def finish(self) -> None:
        """Once the command has ended: what it recorded is written. Ctrl-C ends that."""
        if self.nsight is None:
            return
        console = stderr_console()
        waiting = console.status(f"{self.name} writes what it recorded") if console.is_terminal else None
        with waiting or contextlib.nullcontext():
            self.nsight.finish()


def screens(folder: Path, wanted: str = "") -> Iterator[RenderableType]:
    """Of all that the folder holds. wanted: of this a screen that says why there is none."""
    for name, made in (("nsys", _nsys), ("ncu", _ncu), ("perf", _perf), ("py-spy", _py_spy)):
        try:
            with missing_named():
                screen = made(folder)
        except RecordError as error:
            screen = plain(f"hotlap: {error}", "yellow")
        if screen is not None:
            yield screen
        elif name == wanted:
            yield plain(f"hotlap: {name} {_why_not(folder, name)}", "yellow")


def _why_not(folder: Path, name: str) -> str:
    if name == "perf":
        return f"counted nothing: {perf.why_not(folder)}"
    if name == "py-spy":
        return f"saw nothing: {py_spy.why_not(folder)}"
    return f"recorded nothing: {nsight.why_not(folder, name)}"


def _nsys(folder: Path) -> RenderableType | None:
    if not (folder / NSYS_FILE).is_file():
        return None
    from hotlap.trace.answer import Options, report  # polars takes a moment to import
    from hotlap.trace.files import trace_files

    return nsys_screen(report(trace_files(folder / NSYS_FILE), Options(top=ROWS, what_if=False)), ROWS)


def _ncu(folder: Path) -> RenderableType | None:
    """None where ncu printed no table."""
    try:
        found = read_ncu(folder / NCU_FILE)
    except RecordError:
        return None
    return ncu_screen(found, ROWS, nsight.LAUNCHES) if found else None


def _perf(folder: Path) -> RenderableType | None:
    try:
        return perf_screen(read_perf(folder / perf.PERF_FILE))
    except RecordError:
        return None


def py_spy_of(folder: Path) -> PySpy | None:
    """What py-spy saw of a run; None where it left nothing. Raises RecordError."""
    if not (folder / PY_SPY_FILE).is_file():
        return None
    pids = {facts.pid for rank in RunFolder(folder).ranks if (facts := rank.facts) is not None}
    return read_py_spy(folder / PY_SPY_FILE, folder / PY_SPY_SAID, pids)


def _py_spy(folder: Path) -> RenderableType | None:
    seen = py_spy_of(folder)
    return None if seen is None else py_spy_screen(seen, ROWS)
