"""Trials: short runs of the command with some levers, each in a fresh process and a folder of its own.

A trial that was made before (same levers, same purpose) is not made again: `--resume` replays the journal.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final, Protocol

import msgspec

from hotlap.diagnose.diagnose import Rank, diagnose, read_ranks
from hotlap.diagnose.steps import step_time
from hotlap.launch.run import Request, output_tail, run_apart
from hotlap.launch.supervise import Ended
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import AgentError, NothingMeasured
from hotlap.records.files import new_folder, rank_folders, read_lines, read_problems, read_words, write_atomic
from hotlap.records.run import Environment, Lever, Step
from hotlap.records.tune import Outcome, Trial

from .evidence import Evidence, read_evidence
from .recipe import variables_of

STEPS: Final = 400
SECONDS: Final = 3.0
"""Steady steps of a trial, and seconds of them, at most."""
SEED: Final = 81649
PROBE_STEPS: Final = 4
OUT_OF_MEMORY: Final = ("OutOfMemoryError", "out of memory", "Cannot allocate memory", "MemoryError")
LEAST_STEPS: Final = 20
"""Steady steps of a trial, however long they take; at most `Plan.steps`, and about `Plan.seconds` of them."""
BRIEF: Final = (10, 1.0)
"""The same of a brief trial, and the seconds."""
PROFILED_STEPS: Final = 3
LEAST_STEADY: Final = 5


class Listener(Protocol):
    """Who is told of progress (a screen, or nobody)."""

    def trial(self, purpose: str, levers: str) -> None:
        """A trial begins."""

    def step(self, done: int, of: int | None, step_ms: float | None) -> None:
        """A trial has made this many steps."""

    def result(self, text: str) -> None:
        """Something is known."""


@dataclass(frozen=True)
class Plan:
    """How trials are run. seconds: of steady steps a trial measures at most; timeout_s: of a whole trial."""

    command: tuple[str, ...]
    folder: Path
    environment: Environment
    steps: int
    seconds: float
    seed: int
    cwd: Path


@dataclass(frozen=True)
class Special:
    """What sets a trial apart beside its levers.

    brief: fewer steps, for what is only compared with a trial made before. profiled: with a window of torch.profiler
    after the steps that are timed. longer_s: more seconds of steps than others measure.
    """

    nudge: float = 0.0
    redraw: int | None = None
    brief: bool = False
    profiled: bool = False
    longer_s: float = 0.0


@dataclass
class Trials:
    """Runs trials and remembers them."""

    plan: Plan
    listener: Listener
    done: list[Trial] = field(default_factory=list)
    earlier: list[Trial] = field(default_factory=list)
    recalled: set[int] = field(default_factory=set)
    """Trials of an earlier session, by id."""

    def resume(self) -> None:
        """Take over what an earlier, interrupted tune of this folder measured.

        The confirmation is made anew, and a baseline that failed: the command may have been mended.
        """
        path = self.plan.folder / "trials.jsonl"
        for trial in read_lines(path, Trial):
            failed = trial.purpose == "baseline" and trial.outcome != "measured"
            if trial.purpose != "confirm" and not failed:
                self.earlier.append(trial)
        if path.exists():
            with path.open("ab") as journal:
                journal.write(b"\n")  # a killed tune may have left part of a line

    def run(
        self, purpose: str, levers: Sequence[Lever], special: Special | None = None, timeout_s: float = 600.0
    ) -> Trial:
        """Make a trial, or recall it."""
        special = special or Special()
        known = self._recall(purpose, levers)
        if known is not None:
            self.done.append(known)
            self.recalled.add(known.id)
            return known
        number = len(list(self.plan.folder.glob("trials/*")))
        folder = new_folder(self.plan.folder / "trials" / f"{number:03d}")
        self.listener.trial(purpose, " + ".join(lever.name for lever in levers) or "bare command")
        trial = self._make(number, purpose, tuple(levers), folder, special, timeout_s)
        self.done.append(trial)
        with (self.plan.folder / "trials.jsonl").open("ab") as journal:
            journal.write(msgspec.json.encode(trial) + b"\n")
        return trial

    def amend(self, trial: Trial, **changes: object) -> Trial:
        """Replace a trial by one with more known about it."""
        amended = msgspec.structs.replace(trial, **changes)
        self.done[self.done.index(trial)] = amended
        lines = b"".join(msgspec.json.encode(known) + b"\n" for known in [*self.done, *self.earlier])
        write_atomic(self.plan.folder / "trials.jsonl", lines)
        return amended

    def evidence(self, trial: Trial) -> Evidence:
        """What a trial computed."""
        return read_evidence(self.plan.folder / trial.folder)

    def diagnosis(self, trial: Trial) -> Diagnosis:
        """The verdict of a trial's run."""
        return diagnose(self.plan.folder / trial.folder)

    def rank(self, trial: Trial) -> Rank:
        """The first process of a trial."""
        return read_ranks(self.plan.folder / trial.folder)[0]

    def _recall(self, purpose: str, levers: Sequence[Lever]) -> Trial | None:
        for index, trial in enumerate(self.earlier):
            same = trial.purpose == purpose and trial.levers == tuple(levers)
            if same and (self.plan.folder / trial.folder).is_dir():
                return self.earlier.pop(index)
        return None

    def _make(
        self, number: int, purpose: str, levers: tuple[Lever, ...], folder: Path, special: Special, timeout_s: float
    ) -> Trial:
        plan = self.plan
        least, seconds = BRIEF if special.brief else (LEAST_STEPS, plan.seconds)
        request = Request(
            command=plan.command,
            folder=folder,
            environment=plan.environment,
            steps=plan.steps,
            seconds=min(seconds, plan.seconds) + special.longer_s,
            least_steps=min(plan.steps, least),
            levers=levers,
            variables={"PYTHONHASHSEED": "0", **variables_of(levers)},
            seed=plan.seed,
            probe_steps=PROBE_STEPS,
            nudge=special.nudge,
            redraw=special.redraw,
            profile_steps=PROFILED_STEPS if special.profiled else 0,
            cwd=plan.cwd,
        )
        begun = time.monotonic()
        _, ended = run_apart(request, timeout_s, self._watcher(folder))
        outcome, why, measured = read_outcome(folder, ended, timeout_s)
        trial = Trial(
            id=number,
            purpose=purpose,
            levers=levers,
            folder=str(folder.relative_to(plan.folder)),
            outcome=outcome,
            why=why,
            wall_s=time.monotonic() - begun,
        )
        return msgspec.structs.replace(trial, **measured)

    def _watcher(self, folder: Path) -> Callable[[], None]:
        path = folder / "rank-0" / "steps.jsonl"
        state = {"at": 0, "steps": 0, "next": 0.0}

        failure = folder / "session.json.error"

        def watch() -> None:
            if failure.exists():
                raise AgentError(f"hotlap's agent can't start in this command: {read_words(failure)}")
            if time.monotonic() < state["next"] or not path.exists():
                return
            state["next"] = time.monotonic() + 0.3
            with path.open("rb") as file:
                file.seek(int(state["at"]))
                new = file.read(1 << 20)
            state["at"] += len(new)
            state["steps"] += new.count(b"\n")
            self.listener.step(int(state["steps"]), self.plan.steps, None)

        return watch


def read_outcome(folder: Path, ended: Ended, timeout_s: float) -> tuple[Outcome, str, dict[str, float | int | None]]:
    """What came of a trial: outcome, why, and the numbers where it was measured."""
    refused = _refusal(folder)
    stopped = any(rank.facts is not None and rank.facts.stopped for rank in read_ranks(folder))
    tail = output_tail(folder, 40)
    if ended.timed_out and not stopped:
        return "timeout", f"did not end within {timeout_s:.0f} s", {}
    if ended.out_of_memory:
        return "memory", "the machine ran out of host memory", {}
    if not stopped and (ended.code or ended.signal):
        last = next((line for line in reversed(tail) if line.strip()), "")
        if any(word in line for line in tail for word in OUT_OF_MEMORY):
            return "memory", last[:300], {}
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        return "crashed", f"{how}: {last[:300]}", {}
    if refused:
        return "refused", refused, {}
    try:
        diagnose(folder)
    except NothingMeasured as error:
        return "too few steps", str(error), {}
    return _measure(folder)


def _refusal(folder: Path) -> str | None:
    """A lever that could not be put in, in any rank."""
    for rank in rank_folders(folder):
        for problem in read_problems(rank):
            if problem.lever is not None:
                return f"{problem.lever} could not be put in: {problem.what[:300]}"
            return f"hotlap's own problem in {problem.where}: {problem.what[:300]}"
    return None


def _measure(folder: Path) -> tuple[Outcome, str, dict[str, float | int | None]]:
    ranks = read_ranks(folder)
    times = [step_time(rank.steady.times, rank.steady.period) for rank in ranks]
    steady = ranks[0].steady
    if len(steady.steps) < LEAST_STEADY or not all(math.isfinite(t) for t in times):
        return "too few steps", f"only {len(steady.steps)} steady steps of {steady.seen}", {}
    warmup = sum(step.wall_ms for step in ranks[0].steps[: steady.warmup]) / 1000
    facts = [rank.facts for rank in ranks if rank.facts]
    rows = [_rows(rank.steady.steps) for rank in ranks]
    measured: dict[str, float | int | None] = {
        "step_ms": max(times),
        "warmup_s": warmup,
        "peak_memory_bytes": max((one.peak_memory_bytes or 0 for one in facts), default=0) or None,
        "peak_rss_bytes": max((one.peak_rss_bytes or 0 for one in facts), default=0) or None,
        "rows": sum(one for one in rows if one) if all(rows) else None,
    }
    return "measured", "" if steady.settled else "no steady state was reached", measured


def _rows(steps: Sequence[Step]) -> float | None:
    """Mean rows of a step, None unless all are known."""
    known = [step.samples for step in steps if step.samples is not None]
    return fmean(known) if known and len(known) == len(steps) else None


def names(levers: Sequence[Lever]) -> str:
    """Lever names for a line of text."""
    return " + ".join(lever.name for lever in levers) or "bare command"
