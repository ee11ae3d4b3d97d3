"""One execution of a command under hotlap: a run folder from beginning to end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from hotlap.records.errors import CommandError
from hotlap.records.files import rank_folders, write_record
from hotlap.records.run import Environment, Lever, Run, Status
from hotlap.records.session import LeverUse, Session

from . import perf, py_spy, supervise, telemetry
from .command import PACKAGE, environment_for, prepared, start
from .nsight import Nsight
from .packages import versions_of
from .supervise import Ended, Started


@dataclass(frozen=True)
class Request:
    """What to run and how. Times in seconds. perf, py_spy: their paths, to attach to a command in the foreground;
    nsight: to put in front of it, for `capture_steps`. See `records.session.Session` for the fields of the same name.
    """

    command: tuple[str, ...]
    folder: Path
    environment: Environment
    steps: int | None = None
    seconds: float | None = None
    least_steps: int = 10
    long_s: float | None = None
    levers: tuple[Lever, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    probe_steps: int = 0
    nudge: float = 0.0
    redraw: int | None = None
    profile_steps: int = 0
    profile_memory: bool = False
    profile_stacks: bool = False
    capture_steps: int = 0
    every_step: bool = True
    turns: str = ""
    grace_s: float = 20.0
    hard_code: int = 0
    recipe: str | None = None
    perf: str | None = None
    py_spy: str | None = None
    nsight: Nsight | None = None
    cwd: Path = field(default_factory=Path.cwd)

    def session(self) -> Session:
        """What the agent is told."""
        return Session(
            folder=str(self.folder.resolve()),
            package=str(PACKAGE),
            steps=self.steps,
            seconds=self.seconds,
            least_steps=self.least_steps,
            long_s=self.long_s,
            levers=tuple(LeverUse(lever.name, dict(lever.settings)) for lever in self.levers),
            seed=self.seed,
            probe_steps=self.probe_steps,
            nudge=self.nudge,
            redraw=self.redraw,
            profile_steps=self.profile_steps,
            profile_memory=self.profile_memory,
            profile_stacks=self.profile_stacks,
            capture=self.nsight.name if self.nsight else "",
            capture_steps=self.capture_steps if self.nsight else 0,
            every_step=self.every_step,
            turns=self.turns,
            grace_s=self.grace_s,
            hard_code=self.hard_code,
        )

    def record(self) -> Run:
        """The run as it begins."""
        return Run(
            command=self.command,
            cwd=str(self.cwd),
            environment=self.environment,
            started=time.time(),
            seed=self.seed,
            levers=self.levers,
            recipe=self.recipe,
        )


def run_in_foreground(request: Request) -> tuple[Run, Ended]:
    """Run the command in our own terminal; the folder must exist. Raises CommandError, RecordError, before it starts.

    The caller writes the run that is returned: a disk that is full by then must not hide how the command ended.
    """
    record = request.record()
    write_record(request.folder / "run.json", record)
    begun = time.monotonic()
    session_file = request.folder.resolve() / "session.json"
    try:
        process = _begun(request, session_file)
    except CommandError as error:
        ended = Ended(code=error.exit_code, signal=None)
        write_record(request.folder / "run.json", _closed(record, ended, "failed", begun))
        raise
    with (
        telemetry.sampling(process.pid, request.folder / "telemetry.jsonl"),
        perf.counting(request.perf, process.pid, request.folder / perf.PERF_FILE),
        py_spy.looking(request.py_spy, process.pid, request.folder),
    ):
        ended = supervise.wait_in_foreground(process)
    status: Status = "finished" if ended.code == 0 else "failed"
    if ended.interrupted:
        status = "interrupted"
    return _closed(_with_versions(record, request.folder), ended, status, begun), ended


def _begun(request: Request, session_file: Path) -> Started:
    """The command, behind its profiler where that starts it. Raises CommandError, RecordError."""
    session = request.session()
    if request.nsight is not None:
        program = prepared(request.command, session, session_file, request.cwd)
        environment = environment_for(session_file, request.variables)
        behind = request.nsight.start(request.command, program, request.cwd, environment)
        if behind is not None:
            return behind
        session = replace(session, capture="", capture_steps=0)
    return start(request.command, session, session_file, request.variables, cwd=request.cwd)


class BackgroundRun:
    """The command with its output in `output.txt`, beside others; see `supervise.Supervised`."""

    def __init__(self, request: Request, least_free_gib: float = 0.5) -> None:
        self.request, self._record, self._begun = request, request.record(), time.monotonic()
        write_record(request.folder / "run.json", self._record)
        with (request.folder / "output.txt").open("wb") as output:
            session_file = request.folder.resolve() / "session.json"
            begin = partial(
                start, request.command, request.session(), session_file, request.variables, output, request.cwd
            )
            self._supervised = supervise.Supervised(begin, least_free_gib)

    def over(self) -> bool:
        """Whether it has ended, or has to be ended."""
        return self._supervised.over()

    def end(self, timed_out: bool = False) -> tuple[Run, Ended]:
        """End what is left of it; the run is written."""
        return self._written(self._supervised.end(timed_out))

    def wait(self, timeout_s: float) -> tuple[Run, Ended]:
        """Wait for it at most `timeout_s`, and leave no process of it behind."""
        return self._written(self._supervised.wait(timeout_s))

    def _written(self, ended: Ended) -> tuple[Run, Ended]:
        status: Status = "finished" if ended.code == 0 else "failed"
        if ended.timed_out:
            status = "timeout"
        done = _closed(_with_versions(self._record, self.request.folder), ended, status, self._begun)
        write_record(self.request.folder / "run.json", done)
        return done, ended


def _with_versions(record: Run, folder: Path) -> Run:
    return msgspec.structs.replace(record, versions=versions_of(rank_folders(folder)))


def _closed(record: Run, ended: Ended, status: Status, begun: float) -> Run:
    return msgspec.structs.replace(
        record, status=status, exit_code=ended.code, signal=ended.signal, wall_s=time.monotonic() - begun
    )


def output_tail(folder: Path, lines: int = 12, limit: int = 65536) -> Sequence[str]:
    """The end of what a run apart printed."""
    path = folder / "output.txt"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit))
        return file.read().decode("utf-8", "replace").splitlines()[-lines:]
