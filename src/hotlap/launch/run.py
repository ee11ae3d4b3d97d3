"""One execution of a command under hotlap: a run folder from beginning to end."""

import contextlib
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import psutil

from hotlap.records.errors import CommandError
from hotlap.records.mlperf import PrintedLine
from hotlap.records.run import Run, Status
from hotlap.records.session import Session
from hotlap.records.telemetry import TelemetrySample
from hotlap.runs.folder import RunFolder
from hotlap.runs.plan import RunPlan

from . import cgroups, perf, py_spy, supervise, telemetry
from .command import environment_for, prepared, start
from .nsight import Nsight
from .packages import versions_of
from .printed import VARIABLES, Printed
from .supervise import Ended, Started


class ForegroundRun:
    """The command in our own terminal, behind its profiler where that starts it; the folder must exist. keep_printed:
    what it prints goes through pipes of ours, and is kept with its times. Raises CommandError, RecordError, before it
    starts."""

    def __init__(self, plan: RunPlan, nsight: Nsight | None = None, keep_printed: bool = False) -> None:
        self.plan = plan
        self._record, self._run = plan.record(), RunFolder(plan.folder)
        self._printed = Printed(self._run.file(PrintedLine)) if keep_printed else None
        self._run.write(self._record)
        self._begun = time.monotonic()
        self._oom_kills = cgroups.oom_kills()
        try:
            self._process = _begun(plan, nsight, self._run.file(Session).resolve(), self._printed)
        except CommandError as error:
            ended = Ended(code=error.exit_code, signal=None)
            self._run.write(_closed(self._record, self._run, ended, "failed", self._begun))
            raise

    def finish(self) -> tuple[Run, Ended]:
        """Wait for its end. The caller writes the run: a disk that is full by then must not hide how it ended."""
        plan, process = self.plan, self._process
        with (
            telemetry.sampling(process.pid, self._run.file(TelemetrySample)),
            perf.counting(plan.perf, process.pid, plan.folder / perf.PERF_FILE),
            py_spy.looking(plan.py_spy, process.pid, plan.folder),
        ):
            ended = supervise.wait_in_foreground(process)
        self._rest()
        status: Status = "interrupted" if ended.interrupted else "finished" if ended.code == 0 else "failed"
        closed = _closed(self._record, self._run, ended, status, self._begun)
        if status == "failed":
            closed = msgspec.structs.replace(closed, **_host_memory(self._oom_kills))
        return closed, ended

    def ended(self) -> Ended:
        """How it ended, also where `finish` failed: what still runs then is waited for."""
        while self._process.returncode is None:
            with contextlib.suppress(KeyboardInterrupt):  # the command had that too
                self._process.wait()
        self._rest()
        return supervise.ended_with(self._process.returncode)

    def _rest(self) -> None:
        """What it has printed and nobody has passed on yet."""
        if self._printed is not None:
            self._printed.finish()


def _begun(plan: RunPlan, nsight: Nsight | None, session_file: Path, printed: Printed | None) -> Started:
    """The command, behind its profiler where that starts it. Raises CommandError, RecordError."""
    session = plan.session()
    if nsight is not None:
        program = prepared(plan.command, session, session_file, plan.cwd)
        environment = environment_for(session_file, plan.variables)
        behind = nsight.start(plan.command, program, plan.cwd, environment)
        if behind is not None:
            return behind
        session = replace(session, capture="", capture_steps=0)
    if printed is None:
        return start(plan.command, session, session_file, plan.variables, cwd=plan.cwd)
    try:
        variables = {**VARIABLES, **plan.variables}
        return start(plan.command, session, session_file, variables, cwd=plan.cwd, streams=printed.streams)
    finally:
        printed.begun()


def _host_memory(kills_before: int | None) -> dict[str, int | None]:
    """Of a command that failed: how much there was, and whether the kernel killed for lack of it."""
    kills = cgroups.oom_kills()
    return {
        "memory_limit_bytes": min(filter(None, (cgroups.memory_limit(), psutil.virtual_memory().total))),
        "oom_kills": None if kills is None or kills_before is None else max(0, kills - kills_before),
    }


class BackgroundRun:
    """The command with its output in `output.txt`, beside others; see `supervise.Supervised`."""

    def __init__(self, plan: RunPlan, least_free_gib: float = 0.5) -> None:
        self._run, self._record, self._begun = RunFolder(plan.folder), plan.record(), time.monotonic()
        self._run.write(self._record)
        with self._run.output.open("wb") as output:
            begin = partial(
                start, plan.command, plan.session(), self._run.file(Session).resolve(), plan.variables, output, plan.cwd
            )
            self.processes = supervise.Supervised(begin, least_free_gib)

    def over(self) -> bool:
        """Whether it has ended, or has to be ended."""
        return self.processes.over()

    def end(self, timed_out: bool = False) -> tuple[Run, Ended]:
        """End what is left of it; the run is written."""
        ended = self.processes.end(timed_out)
        status: Status = "finished" if ended.code == 0 else "failed"
        if ended.timed_out:
            status = "timeout"
        done = _closed(self._record, self._run, ended, status, self._begun)
        self._run.write(done)
        return done, ended


def _closed(record: Run, run: RunFolder, ended: Ended, status: Status, begun: float) -> Run:
    return msgspec.structs.replace(
        record, status=status, exit_code=ended.code, signal=ended.signal, wall_s=time.monotonic() - begun,
        versions=versions_of(run.ranks),
    )  # fmt: skip
