"""Trials: short runs of the command with some levers, each in a fresh process and a folder of its own.

A trial that was made before (same levers, same purpose) is not made again: `--resume` replays the journal.
"""

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Protocol

import msgspec

from hotlap.diagnose.diagnose import Rank, diagnose, read_ranks
from hotlap.diagnose.steps import step_time
from hotlap.launch.command import PACKAGE
from hotlap.launch.run import Request, output_tail, run_apart
from hotlap.launch.supervise import Ended
from hotlap.levers import _compile_cache
from hotlap.records.diagnosis import Diagnosis, Place
from hotlap.records.errors import NothingMeasured, RecordError
from hotlap.records.files import (
    new_folder,
    rank_folders,
    read_lines,
    read_problems,
    read_record,
    write_atomic,
)
from hotlap.records.run import REFUSED, Environment, LeftOut, Lever, Step
from hotlap.records.tune import LeverLine, Outcome, OutputError, Trial, Tune
from hotlap.records.whose import users

from .evidence import Evidence, read_evidence
from .recipe import variables_of
from .watch import NONE, SLOW_STEPS, Refusal, Spare, TooSlow, Watch, left_out, spared

STEPS: Final = 2000
SECONDS: Final = 3.0
"""Steady steps of a trial, and seconds of them, at most."""
SEED: Final = 81649
PROBE_STEPS: Final = 4
OUT_OF_MEMORY: Final = ("OutOfMemoryError", "out of memory", "Cannot allocate memory", "MemoryError")
EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(:|$)")
WITHIN: Final = re.compile(r"\): got (\w+\(.+\))$", re.MULTILINE)
"""The error that an op raised as it was traced by the compiler, whose own says nothing."""
FRAME: Final = re.compile(r'\s*File "(.+)", line (\d+), in (.+)')
STANDARD: Final = f"{Path(os.__file__).parent}{os.sep}"
HEAD: Final = "Traceback (most recent call last):"
MOST_LINES: Final = 400
"""Of output that are looked through for a traceback; those of the compiler are long."""
RANK: Final = re.compile(r"^\[(rank)?\d+\]:\s?")
"""What torchrun and torch put before the lines of a process."""
MOST_BELOW: Final = 40
"""Lines at the end of the output among which the error is that the command ended with."""
LEAST_STEPS: Final = 20
"""Steady steps of a trial, however long they take, where the budget is large enough; at most `Plan.steps`, and about
`Plan.seconds` of them."""
BRIEF: Final = (10, 1.0)
"""The same of a brief trial, and the seconds."""
PROFILED_STEPS: Final = 3
LEAST_STEADY: Final = 5
Reading = tuple[Outcome, str, dict[str, Any]]
"""What came of a trial: outcome, why, and fields of its record."""


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
    after the steps that are timed. longer_s: more seconds of steps than others measure. trying: the levers that the
    trial is about, of which some may leave themselves out. slow_ms: it is ended when SLOW_STEPS take longer than this.
    """

    nudge: float = 0.0
    redraw: int | None = None
    brief: bool = False
    profiled: bool = False
    longer_s: float = 0.0
    trying: tuple[str, ...] = ()
    slow_ms: float | None = None


@dataclass
class Trials:
    """Runs trials and remembers them. session: 0, or how often the tune was resumed.

    least_steps: steady steps of a trial, however long they take. long_s: see `records.session.Session`.
    """

    plan: Plan
    listener: Listener
    done: list[Trial] = field(default_factory=list)
    earlier: list[Trial] = field(default_factory=list)
    confirmed: list[Trial] = field(default_factory=list)
    """Runs of confirmations of earlier sessions."""
    proved: bool = False
    """Whether the last session's confirmation showed a gain."""
    recalled: set[int] = field(default_factory=set)
    """Trials of an earlier session, by id."""
    session: int = 0
    least_steps: int = LEAST_STEPS
    long_s: float | None = None

    def resume(self) -> None:
        """Take over what an earlier session of this tune measured.

        A baseline that failed is made anew: the command may have been mended. Of confirmations see `earlier`.
        """
        path = self.plan.folder / "trials.jsonl"
        for trial in read_lines(path, Trial):
            self.session = max(self.session, trial.session + 1)
            failed = trial.purpose == "baseline" and trial.outcome != "measured"
            if not failed:
                (self.confirmed if trial.purpose == "confirm" else self.earlier).append(trial)
        self.proved = _showed_a_gain(self.plan.folder / "tune.json")
        if path.exists():
            with path.open("ab") as journal:
                journal.write(b"\n")  # a killed tune may have left part of a line

    def run(
        self, purpose: str, levers: Sequence[Lever], special: Special | None = None, timeout_s: float = 600.0
    ) -> Trial:
        """Make a trial, or recall it."""
        special = special or Special()
        known = self._find(purpose, levers)
        if known is not None:
            self.earlier.remove(known)
            self.take(known)
            return known
        number = len(list(self.plan.folder.glob("trials/*")))
        folder = new_folder(self.plan.folder / "trials" / f"{number:03d}")
        self.listener.trial(purpose, " + ".join(lever.name for lever in levers) or "bare command")
        trial = self._make(number, purpose, tuple(levers), folder, special, timeout_s)
        self.done.append(trial)
        with (self.plan.folder / "trials.jsonl").open("ab") as journal:
            journal.write(msgspec.json.encode(trial) + b"\n")
        return trial

    def take(self, trial: Trial) -> None:
        """A trial of an earlier session is one of this."""
        self.done.append(trial)
        self.recalled.add(trial.id)

    def knows(self, purpose: str, levers: Sequence[Lever]) -> bool:
        """Whether an earlier session made this trial, which then costs nothing."""
        return self._find(purpose, levers) is not None

    def amend(self, trial: Trial, **changes: object) -> Trial:
        """Replace a trial by one with more known about it."""
        amended = msgspec.structs.replace(trial, **changes)
        self.done[self.done.index(trial)] = amended
        lines = b"".join(msgspec.json.encode(known) + b"\n" for known in self._journal())
        write_atomic(self.plan.folder / "trials.jsonl", lines)
        return amended

    def _journal(self) -> list[Trial]:
        """Every trial that is known, once."""
        taken = {trial.id for trial in self.done}
        return [*self.done, *self.earlier, *(trial for trial in self.confirmed if trial.id not in taken)]

    def evidence(self, trial: Trial) -> Evidence:
        """What a trial computed."""
        return read_evidence(self.plan.folder / trial.folder)

    def diagnosis(self, trial: Trial) -> Diagnosis:
        """The verdict of a trial's run."""
        return diagnose(self.plan.folder / trial.folder)

    def rank(self, trial: Trial) -> Rank:
        """The first process of a trial."""
        return read_ranks(self.plan.folder / trial.folder)[0]

    def _find(self, purpose: str, levers: Sequence[Lever]) -> Trial | None:
        there = (trial for trial in self.earlier if (self.plan.folder / trial.folder).is_dir())
        return next((trial for trial in there if is_trial(trial, purpose, levers)), None)

    def _make(
        self, number: int, purpose: str, levers: tuple[Lever, ...], folder: Path, special: Special, timeout_s: float
    ) -> Trial:
        plan = self.plan
        least, seconds = BRIEF if special.brief else (self.least_steps, plan.seconds)
        request = Request(
            command=plan.command,
            folder=folder,
            environment=plan.environment,
            steps=plan.steps,
            seconds=min(seconds, plan.seconds) + special.longer_s,
            least_steps=min(plan.steps, least, self.least_steps),
            long_s=self.long_s,
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
        outcome, why, known = self._outcome(request, special, timeout_s)
        left = known.pop("left_out", {})
        trial = Trial(
            id=number,
            purpose=purpose,
            levers=tuple(lever for lever in levers if lever.name not in left),
            left_out=tuple(
                LeftOut(lever=lever, why=left[lever.name].why, was_in=left[lever.name].was_in)
                for lever in levers
                if lever.name in left
            ),
            folder=str(folder.relative_to(plan.folder)),
            outcome=outcome,
            why=why,
            wall_s=time.monotonic() - begun,
            session=self.session,
        )
        return msgspec.structs.replace(trial, **known)

    def _outcome(self, request: Request, special: Special, timeout_s: float) -> Reading:
        spare = spared(request.levers, special.trying)
        watch = Watch(request.folder, self.listener, self.plan.steps, spare, special.slow_ms)
        ended = None
        try:
            _, ended = run_apart(request, timeout_s, watch)
        except Refusal:
            return "refused", *(_refusal(request.folder, {}) or ("", {}))
        except TooSlow as slow:
            why = f"ended after {SLOW_STEPS} slow steps"
            return "measured", why, {"step_ms": slow.step_ms, "left_out": left_out(request.folder, spare)}
        finally:
            if ended is None or ended.code is None or ended.timed_out:
                _compile_cache.mend()
        return read_outcome(request.folder, ended, timeout_s, spare)


def _showed_a_gain(result: Path) -> bool:
    try:
        return result.is_file() and read_record(result, Tune).gain
    except RecordError:  # it is written anew at the end
        return False


def read_outcome(folder: Path, ended: Ended, timeout_s: float, spare: Spare = NONE) -> Reading:
    """What came of a trial: the numbers where it was measured, the lever that could not be put in where one was not,
    and those that left themselves out, of those that may (spare)."""
    left = left_out(folder, spare)
    outcome, why, known = _came_of(folder, ended, timeout_s, left)
    return outcome, why, {**known, "left_out": left} if left else known


def _came_of(folder: Path, ended: Ended, timeout_s: float, left: Mapping[str, object]) -> Reading:
    refused = _refusal(folder, left)
    stopped = any(rank.facts is not None and rank.facts.stopped for rank in read_ranks(folder))
    tail = output_tail(folder, MOST_BELOW)
    if ended.timed_out and not stopped:
        return "timeout", f"did not end within {timeout_s:.0f} s", {}
    if refused and refused[1]:  # whatever came of the rest, it was not run with that lever
        return "refused", *refused
    if ended.out_of_memory:
        return "memory", "the machine ran out of host memory", {}
    if not stopped and (ended.code or ended.signal):
        last = error_in(tail)
        if any(word in line for line in tail for word in OUT_OF_MEMORY):
            return "memory", last[:300], {}
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        where = raised_at(output_tail(folder, MOST_LINES))
        return "crashed", f"{how}: {last[:300]}" if last else how, {"where": where} if where else {}
    if refused:
        return "refused", *refused
    try:
        diagnose(folder)
    except NothingMeasured as error:
        return "too few steps", str(error), {}
    return _measure(folder)


def error_in(tail: Sequence[str]) -> str:
    """What the end of a command's output says of its error: the exception below the last traceback, with the one that
    it names in turn; else the last line. torchrun's own, that a process failed, comes after those of the processes."""
    lines = [RANK.sub("", line) for line in tail]
    at = _exception(lines)
    if at is None:
        return next((line for line in reversed(lines) if line.strip()), "")
    said = lines[at].strip()
    within = WITHIN.search("\n".join(lines[at:]))
    if within:
        return f"{said.partition(':')[0]}: {within[1]}"
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    return f"{said} {below}" if said.endswith(":") and below else said


def raised_at(tail: Sequence[str]) -> Place | None:
    """The user's innermost line in the traceback of that exception, and in what the compiler says below it of the code
    that it compiled; None where there is none."""
    lines = [RANK.sub("", line) for line in tail]
    at = _exception(lines)
    heads = [number for number, line in enumerate(lines[:at]) if line.endswith(HEAD)]
    if at is None or at < len(lines) - MOST_BELOW or not heads:
        return None
    frames = [frame for line in lines[heads[-1] :] if (frame := FRAME.match(line))]
    own = [frame for frame in frames if users(frame[1], (f"{PACKAGE}{os.sep}",), (STANDARD,), "")]
    return Place(file=own[-1][1], line=int(own[-1][2]), function=own[-1][3]) if own else None


def _exception(lines: Sequence[str]) -> int | None:
    """Where the last exception below a traceback stands."""
    found = [
        at
        for at, (above, line) in enumerate(zip(["", *lines], lines, strict=False))
        if above.startswith("  ") and EXCEPTION.match(line) and "ChildFailedError" not in line
    ]
    return found[-1] if found else None


def _refusal(folder: Path, left: Mapping[str, object]) -> tuple[str, dict[str, Any]] | None:
    """A lever that could not be put in, in any rank, or another problem of hotlap's: why, and the lever. left: levers
    that left themselves out, which is none."""
    every = (problem for rank in rank_folders(folder) for problem in read_problems(rank))
    problems = [problem for problem in every if problem.lever not in left]
    for problem in problems:
        if problem.lever is not None:
            why = problem.what.removeprefix(REFUSED)[:300]
            return f"{problem.lever} could not be put in: {why}", {"lever": problem.lever}
    return next(((f"hotlap's own problem in {one.where}: {one.what[:300]}", {}) for one in problems), None)


def _measure(folder: Path) -> Reading:
    ranks = read_ranks(folder)
    times = [step_time(rank.steady.times, rank.steady.period) for rank in ranks]
    steady = ranks[0].steady
    if (
        len(steady.steps) < LEAST_STEADY
        or all(step.probe for step in steady.steps)
        or not all(math.isfinite(t) for t in times)
    ):
        return "too few steps", _too_few(ranks[0]), {}
    warmup = sum(step.wall_ms for step in ranks[0].steps[: steady.warmup]) / 1000
    facts = [rank.facts for rank in ranks if rank.facts]
    rows = [_rows(rank.steady.steps) for rank in ranks]
    measured = {
        "step_ms": max(times),
        "mean_ms": max(fmean(rank.steady.times) for rank in ranks),
        "warmup_s": warmup,
        "peak_memory_bytes": max((one.peak_memory_bytes or 0 for one in facts), default=0) or None,
        "peak_rss_bytes": max((one.peak_rss_bytes or 0 for one in facts), default=0) or None,
        "rows": sum(one for one in rows if one) if all(rows) else None,
        "output_errors": _output_errors(folder),
    }
    return "measured", "" if steady.settled else "no steady state was reached", measured


def _too_few(rank: Rank) -> str:
    """Why the steps of a trial can't be measured, who ended it, and what to do."""
    steady = rank.steady
    held = f", as {steady.evaluations} held an evaluation, which are left out" if steady.evaluations else ""
    if rank.facts is not None and rank.facts.stopped:
        ended = "hotlap ended the command itself; with a larger --budget it runs longer"
    else:
        rarer = ", or evaluate less often" if held else ""
        ended = f"the command ended by itself; let it make more steps{rarer}"
    return f"only {len(steady.steps)} steady steps of {steady.seen}{held}; {ended}"


def _output_errors(folder: Path) -> dict[str, OutputError]:
    """What levers measured of the output's error, by lever, the largest of the ranks."""
    found: dict[str, OutputError] = {}
    for rank in rank_folders(folder):
        for line in read_lines(rank / "levers.jsonl", LeverLine):
            error, known = line.output_error, found.get(line.lever)
            if error is not None and (known is None or error.largest > known.largest):
                found[line.lever] = error
    return found


def _rows(steps: Sequence[Step]) -> float | None:
    """Mean rows of a step, None unless all are known."""
    known = [step.samples for step in steps if step.samples is not None]
    return fmean(known) if known and len(known) == len(steps) else None


def same_levers(one: Sequence[Lever], other: Sequence[Lever]) -> bool:
    """Whether both say the same: in which order levers are named says nothing, they are put in in one of their own."""
    return sorted(one, key=_by_name) == sorted(other, key=_by_name)


def is_trial(trial: Trial, purpose: str, levers: Sequence[Lever]) -> bool:
    """Whether a trial was made for this purpose and with these levers."""
    return _words(trial.purpose) == _words(purpose) and same_levers(trial.asked, levers)


def _words(purpose: str) -> list[str]:
    """A purpose names levers too, in any order."""
    return sorted(purpose.split())


def _by_name(lever: Lever) -> str:
    return lever.name


def names(levers: Sequence[Lever]) -> str:
    """Lever names for a line of text."""
    return " + ".join(lever.name for lever in levers) or "bare command"
