"""Which commit made a command slower, or faster: halves the range, and confirms what it finds from fresh starts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

from hotlap.experiment.side import Bench
from hotlap.experiment.statistics import effects
from hotlap.experiment.turns import LEAST_ROUNDS, take_turns
from hotlap.experiment.watch import Listener
from hotlap.records.check import STEP_TIME, Attempt, Bisected, Judged, Version
from hotlap.records.errors import CommandFailed, NothingMeasured, RecordError

from .check import Request, bench_for, compare, shown
from .rule import SIZEABLE
from .versions import Repository, at_commit, workplace

STARTS: Final = 3
"""Of each version, for each commit that is looked at."""
CLEAR: Final = 5.0
"""Times what starts of the baseline differ by, from which on one of each says enough."""
MOST_COMMITS: Final = 4096
MOST_SKIPPED: Final = 8


@dataclass
class Halved:
    """What halving a range came to. at: the first commit that is as the new version; before: the last one that is not,
    -1 for the baseline; sure: none between them was skipped."""

    at: int
    before: int = -1
    sure: bool = True
    tried: int = 0
    skipped: list[str] = field(default_factory=list)


def changed(made: Attempt) -> Judged | None:
    """The step time of an attempt that shows that it has changed, by as much as counts."""
    step = next((one for one in made.judged if one.what == STEP_TIME), None)
    if step is None or step.change is None or step.interval is None:
        return None
    faster = step.interval.high < 0 and step.change <= -SIZEABLE * step.limit
    return step if faster or step.call == "slower" else None


def halve(commits: Sequence[str], changed_at: Callable[[str], bool | None]) -> Halved:
    """Of commits of which the last is as the new version. changed_at: whether one is, None where it does not run."""
    found = Halved(at=len(commits) - 1)
    while found.at - found.before > 1:
        middle = (found.before + found.at) / 2
        able = [at for at in range(found.before + 1, found.at) if commits[at] not in found.skipped]
        if not able or len(found.skipped) > MOST_SKIPPED:
            found.sure = False
            return found
        at = min(able, key=lambda one: abs(one - middle))
        new = changed_at(commits[at])
        if new is None:
            found.skipped.append(commits[at])
            continue
        found.tried += 1
        if new:
            found.at = at
        else:
            found.before = at
    return found


def bisect(
    repository: Repository, request: Request, command: Sequence[str], failed: Attempt, folder: Path, listener: Listener
) -> Bisected:
    """Of a check whose step time has changed. command: as the user gave it. Raises RecordError."""
    base, head = request.base.commit, request.head.commit
    step = changed(failed)
    if base is None or head is None or step is None:
        return Bisected(commit=None, why="the step time was not shown to have changed")
    faster = (step.change or 0.0) < 0
    commits = repository.between(base, head)
    if not commits:
        return Bisected(commit=None, why="the new version does not descend from the baseline along first parents")
    if len(commits) > MOST_COMMITS:
        return Bisected(
            commit=None, why=f"{len(commits)} commits lie between, more than {MOST_COMMITS}", of=len(commits)
        )
    clear = failed.null is not None and abs(step.change or 0.0) > CLEAR * failed.null
    looks = 0

    def changed_at(commit: str) -> bool | None:
        nonlocal looks
        looks += 1
        listener.result(f"bisect  {commit[:10]} {repository.subject(commit)}")
        place = folder / f"bisect-{looks:02d}"
        try:
            with (
                workplace() as work,
                at_commit(repository, commit[:10], commit, command, work / "mids") as middle,
                bench_for(request, place, listener) as bench,
            ):
                return nearer(bench, (request.base, request.head, middle), 1 if clear else STARTS)
        except RecordError as error:
            listener.result(f"skip  {commit[:10]}: {error}")
            return None

    found = halve(commits, changed_at)
    commit, before = commits[found.at], commits[found.before] if found.before >= 0 else base
    known = {"faster": faster, "tried": found.tried, "of": len(commits), "skipped": tuple(found.skipped)}
    if not found.sure:
        why = f"commits between {before[:10]} and {commit[:10]} do not run"
        return Bisected(commit=None, why=why, **known)  # type: ignore[arg-type]
    subject = repository.subject(commit)
    pair = (commit, before) if faster else (before, commit)
    if not _confirmed(repository, request, pair, command, folder / "bisect-confirm", listener):
        word = "faster" if faster else "slower"
        why = f"{commit[:10]} alone was not shown to be {word} than its parent; the change may be spread over several"
        return Bisected(commit=None, subject=subject, why=why, **known)  # type: ignore[arg-type]
    return Bisected(commit=commit, subject=subject, **known)  # type: ignore[arg-type]


def nearer(bench: Bench, versions: tuple[Version, Version, Version], starts: int) -> bool | None:
    """Whether the last of three versions is nearer to the second than to the first; None where it does not run. Raises
    CommandFailed where the others do not."""
    sides = []
    for _ in range(starts):
        begun = [
            bench.start(
                one.name, one.levers, timeout_s=900.0, command=one.command, cwd=Path(one.cwd), variables=one.variables
            )
            for one in versions
        ]
        bench.ready(*begun)
        for which, side in enumerate(begun):
            if side.measured.outcome == "measured":
                sides.append((which, side))
            elif which == 2:
                bench.listener.result(f"skip  {versions[2].name}: {side.measured.outcome}: {side.measured.why}")
                return None
            else:
                raise CommandFailed(f"{versions[which].name} did run, and does not now: {side.measured.why}")
    rounds = take_turns(bench, [side for _, side in sides], LEAST_ROUNDS)
    if len(rounds) >= LEAST_ROUNDS:
        known = {number: effect.log for number, effect in effects(rounds).items()}
    else:  # the command ended by itself
        known = {side.number: math.log(side.measured.step_ms or math.nan) for _, side in sides}
    base, head, here = (fmean(known[side.number] for one, side in sides if one == which) for which in range(3))
    bench.listener.result(f"step  {math.expm1(here - base):+.1%}, of {math.expm1(head - base):+.1%} in the new version")
    return abs(here - head) < abs(here - base)


def _confirmed(
    repository: Repository, request: Request, commits: tuple[str, str], command: Sequence[str], folder: Path,
    listener: Listener,
) -> bool:  # fmt: skip
    """Whether the second of two commits is shown to be slower than the first, from fresh starts."""
    listener.result(f"confirm  {commits[1][:10]} is slower than {commits[0][:10]}")
    with (
        workplace() as place,
        at_commit(repository, commits[0][:10], commits[0], command, place / "base") as one,
        at_commit(repository, commits[1][:10], commits[1], command, place / "head") as two,
    ):
        pair = Request(one, two, request.limit, False, request.seconds, request.steps)
        try:
            with bench_for(pair, folder, listener) as bench:
                found = compare(bench, pair, again=False)
        except (CommandFailed, NothingMeasured):
            return False
    return any(judged.what == STEP_TIME for judged in shown(found.attempts[0]))
