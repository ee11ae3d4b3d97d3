"""One comparison of two versions from fresh starts: alive at once and taking turns, else in pairs."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final

from hotlap.experiment.side import TURN_S, Bench, Side, Special
from hotlap.experiment.statistics import center, effects
from hotlap.experiment.turns import LEAST_ROUNDS, take_turns
from hotlap.records import check as records
from hotlap.records.durations import ms
from hotlap.records.errors import CommandFailed, NothingMeasured

from .quantities import Start, judge_all, step_time
from .rule import STARTS, Told, fraction, told, told_of_pairs

ROUNDS: Final = 8
"""Of turns, for each look."""
MOST_ALIVE: Final = 6
"""Processes, of both versions. Of those before, one of each stays, so that later ones can be told beside them."""
SURE: Final = 0.004
"""Standard error of what turns say of a process, as a logarithm: more tell nothing beside what starts differ by."""
OF_CHANGE: Final = 0.1
"""Of the change, likewise."""
FIRST_S: Final = 900.0
"""That a first start may take; later ones five times as long as that took."""
PLENTY: Final = 5.0
OPEN: Final = Told(0.0, -math.inf, math.inf, "open")


class Attempt:
    """base, head: the versions. limit: the change that matters, as a fraction. deadline: by the clock. number:
    of the attempt, from 1: each compiles anew."""

    def __init__(
        self,
        bench: Bench,
        base: records.Version,
        head: records.Version,
        limit: float,
        deadline: float,
        number: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bench, self.versions, self.limit = bench, (base, head), limit
        self.deadline, self.number, self.clock = deadline, number, clock
        self.sides: tuple[list[Side], list[Side]] = ([], [])
        """All starts that were measured, of each version."""
        self.turns: list[dict[int, float]] = []
        self.alone = ""
        """Why no two are alive at once; "" where they are."""
        self.short = False
        """Whether the time ended it."""
        self.pairs: list[tuple[float, float]] = []
        self.told = OPEN
        self._start_s = 0.0
        self._begun = self.clock()

    def run(self, enough: Callable[[records.Attempt], bool]) -> records.Attempt:
        """Looks, until `enough` says so or no time is left. Raises CommandFailed where a version does not run."""
        found = self._record()
        for starts in STARTS:
            if not self.alone:
                self._side_by_side(starts)
            if self.alone and not self.short:
                self._in_pairs(starts)
            if self.sides[0] and self.sides[1]:
                found = self._record()
                self._say(found)
            if self.short or enough(found):
                break
        self.bench.end_all()
        return found

    # alive at once

    def _side_by_side(self, starts: int) -> bool:
        """One look; whether there was one. `alone` says from here on where it can't be."""
        standing = [[side for side in sides if side.ready] for sides in self.sides]
        keep = [side for sides in standing for side in sides]
        wanted = 2 * (starts - len(self.sides[0]))
        if len(keep) + wanted > MOST_ALIVE:
            keep = [sides[0] for sides in standing if sides]
        self.bench.end_all(keep=keep)
        new: list[Side] = []
        while len(self.sides[0]) < starts:
            if not self._affords(2, len(keep) + wanted):
                break
            pair = self._pair()
            if pair is None:
                return False
            new += pair
        together = [*keep, *new]
        if not new and self.turns:
            return False
        seconds = max(5.0, self.deadline - self.clock())
        rounds = take_turns(self.bench, together, ROUNDS, seconds, enough=self._sure)
        self.turns += rounds
        if len(rounds) < LEAST_ROUNDS and any(not side.alive for side in together):
            ended = next(side for side in together if not side.alive)
            self._from_here_alone(f"a process ended before its turns were over: {ended.measured.ended}")
            return False
        self.short = self.short or len(rounds) < LEAST_ROUNDS
        if self.turns and all(any(side.number in turn for turn in self.turns for side in two) for two in self.sides):
            known = effects(self.turns)
            base, head = ([known[side.number] for side in two if side.number in known] for two in self.sides)
            self.told = told(base, head, math.log1p(self.limit))
        return True

    def _sure(self, rounds: list[dict[int, float]]) -> bool:
        if len(rounds) < LEAST_ROUNDS:
            return False
        known = effects([*self.turns, *rounds])
        base, head = (fmean(known[side.number].log for side in two if side.number in known) for two in self.sides)
        return all(one.error < max(SURE, OF_CHANGE * abs(head - base)) for one in known.values())

    def _pair(self) -> list[Side] | None:
        """One start of each version, at once, in an order drawn anew; None where memory does not hold them beside the
        others. Raises CommandFailed."""
        order = [0, 1]
        self.bench.shuffle.shuffle(order)
        begun = self.clock()
        made = {which: self._start(which) for which in order}
        self.bench.ready(*made.values())
        self._start_s = max(self._start_s, self.clock() - begun)
        for which, side in made.items():
            if side.measured.outcome == "measured":
                continue
            if any(one.alive for one in self.bench.sides) or len(made) > 1:
                if side.measured.outcome == "memory":
                    self._from_here_alone("several do not fit in memory together")
                    return None
                # It may be in the other's way: a port, a file that both write. By itself it says more.
                self.bench.end_all()
                again = self._start(which)
                self.bench.ready(again)
                self._failed(which, again)
                self._from_here_alone(f"two at once do not work: {side.measured.outcome}: {side.measured.why}")
                return None
        for which, side in made.items():
            self.sides[which].append(side)
        return [made[0], made[1]]

    def _start(self, which: int) -> Side:
        version = self.versions[which]
        caches = self.bench.plan.folder / "compiled" / f"{version.name.replace('/', '_')[:40]}-{which}-{self.number}"
        timeout_s = PLENTY * self._start_s + FIRST_S / 10 if self._start_s else FIRST_S
        return self.bench.start(
            _name(which), version.levers, Special(), timeout_s=timeout_s, command=version.command,
            cwd=Path(version.cwd), variables={"TORCHINDUCTOR_CACHE_DIR": str(caches.resolve())},
        )  # fmt: skip

    def _failed(self, which: int, side: Side) -> None:
        """Raises CommandFailed, NothingMeasured where a start came to nothing."""
        trial = side.measured
        if trial.outcome == "measured":
            return
        what = f"{_name(which)} ({self.versions[which].name})"
        output = self.bench.run(trial).output
        if trial.outcome == "too few steps":
            raise NothingMeasured(f"{what}: {trial.why} (see {output})")
        raise CommandFailed(f"{what} does not run: {trial.outcome}: {trial.why} (see {output})")

    def _affords(self, starts: int, turning: int) -> bool:
        """Whether there is time for so many starts, and turns of so many; the first are made whatever there is."""
        if not self.sides[0]:
            return True
        turns = [turn.wall_ms / 1000 for _, turn in self.bench.turns] or [TURN_S]
        needed = self._start_s * starts / 2 + LEAST_ROUNDS * turning * fmean(turns)
        self.short = self.short or self.clock() + needed > self.deadline
        return not self.short

    # one after another

    def _from_here_alone(self, why: str) -> None:
        self.alone = why
        self.bench.listener.result(f"one after another  {why}; from here on each process runs alone, in pairs")
        self.bench.end_all()
        for sides in self.sides:
            sides.clear()
        self.turns.clear()
        self.told = OPEN

    def _in_pairs(self, starts: int) -> bool:
        """Whole runs, ABBA."""
        while len(self.pairs) < starts:
            if self.pairs and not self._affords(4, 0):
                return False
            took: dict[int, float] = {}
            for which in (0, 1) if len(self.pairs) % 2 == 0 else (1, 0):
                begun = self.clock()
                side = self._start(which)
                self.bench.ready(side)
                self.bench.end(side)
                self._failed(which, side)
                self._start_s = self.clock() - begun
                self.sides[which].append(side)
                took[which] = side.measured.step_ms or math.nan
            self.pairs.append((took[0], took[1]))
        logs = [math.log(after / before) for before, after in self.pairs]
        self.told = told_of_pairs(logs, math.log1p(self.limit))
        return True

    # what is known

    def _record(self) -> records.Attempt:
        base, head = ([Start.of(self.bench, side) for side in two] for two in self.sides)
        before_ms = self._before_ms()
        judged = []
        if before_ms is not None:
            judged = [step_time(self.told, before_ms, self.limit), *judge_all(base, head, self.limit, before_ms)]
        return records.Attempt(
            starts=min(map(len, self.sides)), turns=len(self.turns), how="one after another" if self.alone else "turns",
            null=self._null(), judged=tuple(judged), seconds=self.clock() - self._begun,
        )  # fmt: skip

    def _before_ms(self) -> float | None:
        mine = {side.number for side in self.sides[0]}
        turns = [taken for turn in self.turns for side, taken in turn.items() if side in mine]
        logs = [math.log(one) for one in [before for before, _ in self.pairs] or turns]
        return math.exp(center(logs)) if logs else None

    def _null(self) -> float | None:
        """What starts of the baseline differ by."""
        known = effects(self.turns) if self.turns else {}
        logs = [known[side.number].log for side in self.sides[0] if side.number in known]
        logs = logs or [math.log(before) for before, _ in self.pairs]
        return fraction(max(logs) - min(logs), logs=True) if len(logs) > 1 else None

    def _say(self, found: records.Attempt) -> None:
        first = next(iter(found.judged), None)
        if first is None or first.change is None:
            return
        wide = f" ({first.interval.low:+.1%} to {first.interval.high:+.1%})" if first.interval else ""
        beside = f"{found.starts} starts of each" + (f", {found.turns} turns" if found.turns else "")
        self.bench.listener.result(f"step  {ms(first.before or 0)}, {first.change:+.1%}{wide}  {beside}")


def _name(which: int) -> str:
    return ("baseline", "new version")[which]
