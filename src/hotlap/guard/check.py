"""A whole check: two versions of a command, compared until a slowdown is ruled out, or shown twice."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hotlap.experiment.judge import Judge, Run
from hotlap.experiment.parity import Rule
from hotlap.experiment.side import SECONDS, SEED, STEPS, Bench, Special
from hotlap.experiment.watch import Listener
from hotlap.launch.environment import environment
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import all_levers
from hotlap.records import run
from hotlap.records.check import LOSSES, STEP_TIME, Attempt, Bisected, Cause, Check, Judged, Target, Version
from hotlap.records.check import Verdict as Said
from hotlap.records.files import new_folder
from hotlap.records.run import Environment
from hotlap.records.tune import Parity, Trial
from hotlap.runs.folder import RunFolder, TuneFolder
from hotlap.runs.plan import RunPlan

from . import attempt as attempts
from .cause import cause

LIMIT: Final = 0.05
FIRST_SHARE: Final = 0.6
"""Of the time, that the first attempt takes at most: what it shows has to be shown again."""
TOLERANCE: Final = 0.01
"""Of the loss, by which a version may differ where its rounding does: else it learns something else."""


@dataclass(frozen=True)
class Request:
    """What is compared, and how. limit: a slowdown as a fraction. losses: other losses fail the check. seconds: it may
    take. steps: see `hotlap tune --steps`."""

    base: Version
    head: Version
    limit: float = LIMIT
    losses: bool = False
    seconds: float = 600.0
    steps: int = STEPS


@dataclass
class Found:
    """What a check knows."""

    attempts: list[Attempt] = field(default_factory=list)
    parity: Parity | None = None
    cause: Cause | None = None
    trials: tuple[Trial, ...] = ()
    notes: list[str] = field(default_factory=list)
    imported: tuple[str, ...] = ()
    """Files of no installed package that either version imported."""


class OfVersions(Judge):
    """Parity of the new version: as of a lever that may round otherwise."""

    def rule(self, levers: Sequence[run.Lever]) -> Rule:
        """How it is judged."""
        return Rule(numeric=True, tolerance=TOLERANCE, redraws=False)


@contextlib.contextmanager
def bench_for(request: Request, folder: Path, listener: Listener) -> Iterator[Bench]:
    """A bench for both versions; the folder is made. Raises RecordError."""
    adopt_orphans()
    new_folder(folder)
    new_folder(TuneFolder(folder).trials)
    cwd = Path(request.base.cwd)
    plan = RunPlan(
        request.base.command, folder, environment(cwd), steps=request.steps, seconds=SECONDS, seed=SEED, cwd=cwd
    )
    with Bench(plan, listener) as bench:
        yield bench


def compare(
    bench: Bench,
    request: Request,
    found: Found | None = None,
    again: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Compare two versions. found: is filled, so that Ctrl-C loses nothing. again: what was shown is looked at again.
    Raises CommandFailed, NothingMeasured, RecordError."""
    begun = clock()
    found = Found() if found is None else found
    try:
        ends = (begun + FIRST_SHARE * request.seconds, begun + request.seconds)
        for number, deadline in enumerate(ends if again else ends[1:], 1):
            trying = attempts.Attempt(bench, request.base, request.head, request.limit, deadline, number, clock)
            watched = {one.what for one in shown(found.attempts[-1])} if found.attempts else None
            try:
                made = trying.run(lambda so_far, watched=watched: decided(so_far, watched))  # type: ignore[misc]
            except KeyboardInterrupt:
                found.attempts.append(trying.so_far())
                raise
            found.attempts.append(made)
            if number == 1:
                if trying.why:
                    how = "one after another" if trying.mode == "alone" else "two at a time"
                    found.notes.append(f"{how}: {trying.why}")
                found.parity = _parity(bench, trying, request)
                found.imported = _imported(bench)
            if not shown(made):
                break
            if number == 1:
                before, after = (bench.diagnosis(two[0].measured) for two in trying.sides)
                found.cause = cause(before, after, request.base, request.head)
                bench.listener.result(f"slower  {', '.join(one.what for one in shown(made))}")
    finally:
        found.trials = tuple(bench.done)
    return found


def shown(made: Attempt) -> list[Judged]:
    """What is slower, or more, by the limit."""
    return [one for one in made.judged if one.call == "slower"]


def decided(so_far: Attempt, watched: set[str] | None = None) -> bool:
    """Whether more starts are not needed: what counts is told either way. watched: what the attempt is about."""
    about = [one for one in so_far.judged if (one.what in watched if watched is not None else one.counts)]
    if watched is None and any(one.call == "slower" for one in so_far.judged):
        return all(one.call != "open" for one in about)
    return bool(about) and all(one.call != "open" for one in about)


def _parity(bench: Bench, trying: attempts.Attempt, request: Request) -> Parity | None:
    """Whether both compute the same, of the first attempt."""
    base, head = trying.sides
    if len(base) < 2 or not head:
        return None

    def again(purpose: str, levers: Sequence[run.Lever], special: Special) -> Trial:
        side = bench.start(
            purpose,
            request.base.levers,
            special,
            command=request.base.command,
            cwd=Path(request.base.cwd),
            variables=request.base.variables,
        )
        bench.ready(side)
        bench.end(side)
        return side.measured

    run_again: Run = again
    judge = OfVersions(bench, all_levers(), run_again)
    judge.base, judge.again, *judge.more = (bench.evidence(side.measured) for side in base)
    return judge.judge((), head[0].measured)


def _imported(bench: Bench) -> tuple[str, ...]:
    facts = (RunFolder(side.folder).facts for side in bench.sides)
    return tuple({file for one in facts if one is not None for file in one.own_files})


def verdict(found: Found, request: Request, target: Target | None = None) -> tuple[Said, str]:
    """What a check says, and why."""
    if target is not None and target.value is not None and not target.met:
        return "fail", f"{target.metric} is {target.value:g}, and {target.compare} {target.wanted:g} is wanted"
    if not found.attempts or not found.attempts[0].judged:
        return "inconclusive", "it ended before anything was measured"
    first, last = found.attempts[0], found.attempts[-1]
    suspects = shown(first)
    twice = (
        [one for one in shown(last) if one.what in {other.what for other in suspects}]
        if len(found.attempts) > 1
        else []
    )
    if twice:
        return "fail", "; ".join(map(_more, twice))
    if request.losses and found.parity is not None and not found.parity.ok:
        return "fail", f"{LOSSES}: {found.parity.why}"
    if suspects:
        names = ", ".join(one.what for one in suspects)
        again = [one.call for one in last.judged if one.what in {other.what for other in suspects}]
        told = len(found.attempts) > 1 and "open" not in again
        late = "fresh starts did not show it again" if told else "the time ended before it was shown again"
        return "inconclusive", f"{names}: shown once, and {late}"
    missing = [one for one in first.judged if one.counts and one.call in {"open", "unknown"}]
    if missing:
        return "inconclusive", "; ".join(f"{one.what}: {_open(one, request)}" for one in missing)
    if request.losses and found.parity is None:
        return "inconclusive", f"{LOSSES}: they were not compared"
    if target is not None and target.value is None:
        return "inconclusive", f"{target.metric}: the command printed no such number"
    step = next(one for one in first.judged if one.what == STEP_TIME)
    return "pass", f"more than {request.limit:.0%} slower is ruled out ({percent(step.change)})"


def _more(one: Judged) -> str:
    how = f"{percent(one.change)} {one.why}".strip() if one.unit else f"{one.change:+g}"
    return f"{one.what} {how}"


def _open(one: Judged, request: Request) -> str:
    if one.call == "unknown":
        return "not measured"
    between = f"{percent(one.interval.low)} to {percent(one.interval.high)}" if one.interval else "one start of each"
    return f"{between} with {request.limit:.0%} allowed: starts differ too much to tell within the time"


def percent(change: float | None) -> str:
    """`+5.2%`."""
    return "unknown" if change is None else f"{change:+.1%}"


def record(
    found: Found, request: Request, folder: Path, made_in: Environment, seconds: float,
    target: Target | None = None, bisected: Bisected | None = None,
) -> Check:  # fmt: skip
    """The record, and as a file. Raises RecordError."""
    said, why = verdict(found, request, target)
    check = Check(
        verdict=said, why=why, base=request.base, head=request.head, limit=request.limit,
        attempts=tuple(found.attempts), parity=found.parity, parity_counts=request.losses,
        cause=found.cause if said == "fail" else None, environment=made_in, trials=found.trials,
        notes=tuple(found.notes), seconds=seconds, target=target, bisected=bisected,
    )  # fmt: skip
    TuneFolder(folder).write(check)
    return check
