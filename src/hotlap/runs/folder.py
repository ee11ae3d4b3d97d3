"""The folder of a run: what its files are called, and the objects through which everybody reads them.

The agent writes some of them in the user's process, where nothing of this is imported, and names those itself.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from hotlap.records.check import Check
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import RecordError
from hotlap.records.files import read_lines, read_record, read_words, write_record
from hotlap.records.memory import MemorySeries, MemoryWindow, When
from hotlap.records.mlperf import PrintedLine
from hotlap.records.profile import Lines, LongSamples, Profile, Samples, WorkerSamples
from hotlap.records.profilers import NSYS_FILE, Capture
from hotlap.records.run import Facts, Problem, Run, Step
from hotlap.records.session import Session
from hotlap.records.suite import Suite
from hotlap.records.telemetry import TelemetrySample
from hotlap.records.tune import LeverLine, ProbeLine, Trial, Tune

T = TypeVar("T")
Version = tuple[int, int]
FILES: Final[Mapping[type, str]] = {
    Run: "run.json",
    Diagnosis: "diagnosis.json",
    TelemetrySample: "telemetry.jsonl",
    Tune: "tune.json",
    Check: "check.json",
    Suite: "bench.json",
    PrintedLine: "printed.jsonl",
    Facts: "facts.json",
    Step: "steps.jsonl",
    Problem: "problems.jsonl",
    LeverLine: "levers.jsonl",
    ProbeLine: "probe.jsonl",
    Profile: "profile.json",
    Lines: "lines.json",
    Samples: "samples.json",
    LongSamples: "long.json",
    Capture: "capture.json",
    Session: "session.json",
    MemorySeries: "memory-steps.json",
}
"""The file of each kind of record."""
LATER_STEPS: Final = ("steps-before.jsonl", "steps-last.jsonl")
"""Of a long run, whose first steps are in `steps.jsonl`: the last ones (`agent.recorder.MOST_BYTES`)."""
TRACE: Final = "trace.json.gz"
REQUEST: Final = "request.json"
"""What a tune was asked for (`tune.objective.TuneRequest`)."""
TAIL: Final = 1 << 16
"""Bytes at the end of an output that are read."""


@dataclass(frozen=True)
class _Folder:
    """Records in a folder. A document is read when it is asked for, and again only once its file was replaced. Files of
    lines grow while a run goes on, and are read anew each time."""

    path: Path
    _read: dict[Path, tuple[Version, Any]] = field(default_factory=dict, repr=False, compare=False)

    def file(self, kind: type) -> Path:
        """Where records of a kind are, if there are any."""
        return self.path / FILES[kind]

    def write(self, record: msgspec.Struct) -> None:
        """Write a document, over the old one. Raises RecordError."""
        write_record(self.file(type(record)), record)

    def document(self, kind: type[T]) -> T | None:
        """The document of a kind; None where there is none. Raises RecordError where it can't be read."""
        return self._at(self.file(kind), kind)

    def _at(self, path: Path, kind: type[T]) -> T | None:
        if not path.is_file():
            return None
        try:
            found = path.stat()
        except FileNotFoundError:  # since then
            return None
        version = (found.st_ino, found.st_mtime_ns)  # writers put a new file in place of the old one
        if path not in self._read or self._read[path][0] != version:
            self._read[path] = version, read_record(path, kind)
        document: T = self._read[path][1]
        return document

    def lines(self, kind: type[T]) -> list[T]:
        """The lines of a kind; broken ones are passed over. Raises RecordError."""
        return list(read_lines(self.file(kind), kind))

    def text(self, name: str, limit: int = 1 << 20) -> list[str]:
        """The lines of a text, without empty ones; none where it can't be read."""
        try:
            with (self.path / name).open(encoding="utf-8", errors="replace") as file:
                return [line.strip() for line in file.read(limit).splitlines() if line.strip()]
        except OSError:
            return []


class RankFolder(_Folder):
    """What one training process left. All of it may be missing, and reading what is broken raises RecordError."""

    @property
    def number(self) -> int:
        """The K of `rank-K`."""
        return int(self.path.name.removeprefix("rank-"))

    @property
    def steps(self) -> Iterator[Step]:
        """The steps in order, one at a time: of a long run the first and the last ones."""
        yield from read_lines(self.file(Step), Step)
        for name in LATER_STEPS:
            yield from read_lines(self.path / name, Step)

    def new_steps(self, at: int) -> tuple[list[bytes], int]:
        """The whole lines of `steps.jsonl` from a byte on, which a live process adds to, and the byte behind them."""
        if not self.file(Step).exists():
            return [], at
        with self.file(Step).open("rb") as file:
            file.seek(at)
            whole, end, _ = file.read().rpartition(b"\n")
        return whole.split(b"\n") if end else [], at + len(whole + end)

    @property
    def facts(self) -> Facts | None:
        """What the agent saw of the script; None where the process died before it wrote any."""
        return self.document(Facts)

    @property
    def problems(self) -> list[Problem]:
        """hotlap's own problems."""
        return self.lines(Problem)

    @property
    def levers(self) -> list[LeverLine]:
        """Which levers took hold or left themselves out, in order."""
        return self.lines(LeverLine)

    @property
    def workers(self) -> list[WorkerSamples]:
        """What the first worker of each of its loaders was seen at; none where there were none, or no profile."""
        facts = self.facts
        return [] if facts is None else list(read_lines(self.path.parent / f"workers-{facts.pid}.jsonl", WorkerSamples))

    @property
    def profiled(self) -> bool:
        """Whether a profile was asked for, also where it came to nothing."""
        return any(self.file(kind).exists() for kind in (Profile, Lines, Samples))

    def memory(self, when: When = "steady") -> MemoryWindow | None:
        """Memory over a window of steps; None where none was taken."""
        return self._at(self.path / f"memory-{when}.json", MemoryWindow)

    @property
    def memory_series(self) -> MemorySeries | None:
        """Memory at the ends of steps; None where it was not asked for."""
        return self.document(MemorySeries)

    @property
    def trace(self) -> Path:
        """The file of its trace, if one was taken."""
        return self.path / TRACE


class RunFolder(_Folder):
    """What one run left. It may still go on; reading what is broken raises RecordError."""

    @property
    def is_run(self) -> bool:
        """Whether this is the folder of a run at all."""
        return self.file(Run).is_file()

    @property
    def record(self) -> Run:
        """The command, where and how it ran, and how it ended. Raises RecordError where there is none."""
        found = self.document(Run)
        if found is None:
            what = "holds no run.json" if self.path.is_dir() else "is not a folder"
            raise RecordError(f"{self.path} {what}; give the folder of a run, as printed at its end")
        return found

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The verdict as of the end of the run; None where none was written."""
        return self.document(Diagnosis)

    @property
    def telemetry(self) -> list[TelemetrySample]:
        """Samples of the machine, in order."""
        return self.lines(TelemetrySample)

    def rank(self, number: int) -> RankFolder:
        """One training process, whether it left something or not."""
        return RankFolder(self.start / f"rank-{number}", self._read)

    @property
    def restarts(self) -> int:
        """How often torchrun had restarted the ranks that left what is here."""
        starts = (path.parent.name.removeprefix("start-") for path in self.path.glob("start-*/rank-*"))
        return max((int(start) for start in starts if start.isdecimal()), default=0)

    @property
    def start(self) -> Path:
        """Where these ranks are: those of the first start in the run's own folder, of a later one in `start-N`."""
        return self.path / f"start-{restarts}" if (restarts := self.restarts) else self.path

    @property
    def ranks(self) -> list[RankFolder]:
        """The training processes that left something, in order: those of the last start."""
        found = [RankFolder(path, self._read) for path in self.start.glob("rank-*") if path.name[5:].isdecimal()]
        return sorted(found, key=lambda rank: rank.number)

    @property
    def observed(self) -> list[RankFolder]:
        """Those of them that made a step."""
        return [rank for rank in self.ranks if rank.file(Step).exists()]

    @property
    def facts(self) -> Facts | None:
        """What the agent saw of the script in the first rank; None where that left none."""
        return next((rank.facts for rank in self.ranks), None)

    @property
    def problems(self) -> list[Problem]:
        """hotlap's own problems in any rank."""
        return [problem for rank in self.ranks for problem in rank.problems]

    @property
    def traces(self) -> list[Path]:
        """The traces of the ranks, or what nsys recorded of all of them."""
        report = self.path / NSYS_FILE
        return sorted(self.start.glob(f"rank-*/{TRACE}")) or ([report] if report.is_file() else [])

    @property
    def profiled(self) -> bool:
        """Whether a profile was asked for, also where it came to nothing."""
        session = self.document(Session)
        requested = session is not None and session.profile_steps > 0
        return requested or bool(self.traces) or any(rank.profiled for rank in self.ranks)

    @property
    def seen(self) -> list[Path]:
        """The facts of processes that made no step."""
        return sorted(self.path.glob("seen-*.json"))

    @property
    def agent_error(self) -> str | None:
        """Why the agent could not start; None where it could."""
        path = self.path / "session.json.error"
        return read_words(path) if path.exists() else None

    @property
    def output(self) -> Path:
        """What a command in the background prints."""
        return self.path / "output.txt"

    def output_tail(self, lines: int) -> list[str]:
        """The end of it."""
        if not self.output.exists():
            return []
        with self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - TAIL))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]


class TuneFolder(_Folder):
    """What a tune, a check or a bench left: its result, and the runs of its trials."""

    @property
    def tune(self) -> Tune | None:
        """The result so far; None where there is none. Raises RecordError."""
        return self.document(Tune)

    @property
    def check(self) -> Check | None:
        """The result of a check, which has trials too; None where there is none. Raises RecordError."""
        return self.document(Check)

    @property
    def bench(self) -> Suite | None:
        """The result so far of a suite of commands; None where there is none. Raises RecordError."""
        return self.document(Suite)

    @property
    def request(self) -> Path:
        """The file of what it was asked for."""
        return self.path / REQUEST

    @property
    def trials(self) -> Path:
        """Where the runs of its trials are."""
        return self.path / "trials"

    def trial(self, trial: Trial) -> RunFolder:
        """The run of a trial."""
        return RunFolder(self.path / trial.folder)


def recipe_tune(run: Run) -> Tune | None:
    """The tune that made a run's recipe, where that is there."""
    with contextlib.suppress(RecordError):
        return TuneFolder(Path(run.cwd, run.recipe).parent).tune if run.recipe else None
    return None


def open_run(path: str | PathLike[str]) -> RunFolder:
    """The run in a folder. Raises RecordError where there is none, or its `run.json` can't be read."""
    run = RunFolder(Path(path))
    _ = run.record
    return run
