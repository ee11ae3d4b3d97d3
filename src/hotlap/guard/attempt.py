"""One comparison of two versions from fresh starts.

Alive at once and taking turns: as many as are looked at; two at a time where memory does not hold more; else whole runs
one after another.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final, Literal

from hotlap.experiment.side import TURN_S, Bench, Side, Special
from hotlap.experiment.statistics import center, effects
from hotlap.experiment.turns import LEAST_ROUNDS, take_turns
from hotlap.records import check as records
from hotlap.records.durations import ms
from hotlap.records.errors import CommandFailed, NothingMeasured

from .quantities import Start, judge_all, step_time
from .rule import STARTS, Told, fraction, told, told_of_pairs

Mode = Literal["together", "two", "alone"]
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
LEAST_TURNS_S: Final = 5.0
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
        self.mode: Mode = "together"
        self.why = ""
        """It is in this mode."""
        self.turns: list[dict[int, float]] = []
        """Ms a step by side, in each round."""
        self.logs: list[float] = []
        """Of pairs: the new version's step over the baseline's."""
        self.short = False
        """Whether the time ended it."""
        self.told = OPEN
        self._start_s = 0.0
        self._begun = self.clock()

    def run(self, enough: Callable[[records.Attempt], bool]) -> records.Attempt:
        """Looks, until `enough` says so or no time is left. Raises CommandFailed where a version does not run."""
        found = self.so_far()
        for starts in STARTS:
            looks = {"together": self._together, "two": self._two, "alone": self._alone}
            while not looks[self.mode](starts):  # in another mode
                pass
            known = found.starts, found.turns
            if self.sides[0] and self.sides[1]:
                found = self.so_far()
            if (found.starts, found.turns) != known:
                self._say(found)
            if self.short or enough(found):
                break
        self.bench.end_all()
        return found

    def _fall_back(self, mode: Mode, why: str) -> None:
        """From here on in another mode. What was measured so far is let go: it is no part of pairs."""
        self.mode, self.why = mode, why
        how = {"two": "two at a time", "alone": "one after another"}[mode]
        self.bench.listener.result(f"{how}  {why}")
        self.bench.end_all()
        self.told = OPEN
        for known in (*self.sides, self.turns, self.logs):
            known.clear()

    # looks: each says whether it was made, in this mode

    def _together(self, starts: int) -> bool:
        """So many starts of each, of which several are alive at once."""
        standing = [[side for side in sides if side.ready] for sides in self.sides]
        together = [side for sides in standing for side in sides]
        wanted = 2 * (starts - len(self.sides[0]))
        if len(together) + wanted > MOST_ALIVE:
            together = [sides[0] for sides in standing if sides]
        self.bench.end_all(keep=together)
        known = len(self.sides[0])
        while len(self.sides[0]) < starts and self._affords(len(together) + wanted):
            pair = self._pair()
            if pair is None:
                return False
            together += pair
        if len(self.sides[0]) == known:
            return True
        rounds = self._take_turns(together, self._sure)
        if rounds is None:
            return False
        self.turns += rounds
        if self.turns and all(any(side.number in turn for turn in self.turns for side in two) for two in self.sides):
            effect = effects(self.turns)
            base, head = ([effect[side.number] for side in two if side.number in effect] for two in self.sides)
            self.told = told(base, head, math.log1p(self.limit))
        return True

    def _sure(self, rounds: list[dict[int, float]]) -> bool:
        if len(rounds) < LEAST_ROUNDS:
            return False
        known = effects([*self.turns, *rounds])
        base, head = (fmean(known[side.number].log for side in two if side.number in known) for two in self.sides)
        return all(one.error < max(SURE, OF_CHANGE * abs(head - base)) for one in known.values())

    def _two(self, starts: int) -> bool:
        """So many pairs, each alive at once."""
        while len(self.logs) < starts and (not self.logs or self._affords(2)):
            pair = self._pair()
            if pair is None:
                return False
            rounds = self._take_turns(pair)
            if rounds is None:
                return False
            self.bench.end_all()
            if len(rounds) < LEAST_ROUNDS:
                break
            self.turns += rounds
            before, after = (side.number for side in pair)
            self.logs.append(center([math.log(turn[after] / turn[before]) for turn in rounds]))
        self._tell_pairs()
        return True

    def _alone(self, starts: int) -> bool:
        """So many pairs of whole runs, ABBA."""
        while len(self.logs) < starts and (not self.logs or self._affords(0)):
            taken: dict[int, float] = {}
            begun = self.clock()
            for which in (0, 1) if len(self.logs) % 2 == 0 else (1, 0):
                side = self._start(which)
                self.bench.ready(side)
                self.bench.end(side)
                self._failed(which, side)
                self.sides[which].append(side)
                taken[which] = side.measured.step_ms or math.nan
            self._start_s = self.clock() - begun
            self.logs.append(math.log(taken[1] / taken[0]))
        self._tell_pairs()
        return True

    def _tell_pairs(self) -> None:
        if self.logs:
            self.told = told_of_pairs(self.logs, math.log1p(self.limit))

    # sides

    def _take_turns(
        self, sides: list[Side], enough: Callable[[list[dict[int, float]]], bool] = lambda so_far: False
    ) -> list[dict[int, float]] | None:
        """Rounds of these; None where one of them ended before there were enough, so that runs are compared alone."""
        seconds = max(LEAST_TURNS_S, self.deadline - self.clock())
        rounds = take_turns(self.bench, sides, ROUNDS, seconds, enough=enough)
        ended = next((side for side in sides if not side.alive), None)
        if len(rounds) < LEAST_ROUNDS and ended is not None:
            self._fall_back("alone", f"a process ended before its turns were over: {ended.measured.ended}")
            return None
        self.short = self.short or len(rounds) < LEAST_ROUNDS
        return rounds

    def _pair(self) -> list[Side] | None:
        """One start of each version, at once, in an order drawn anew; None where that can't be, and the mode is another
        now. Raises CommandFailed, NothingMeasured."""
        order = [0, 1]
        self.bench.shuffle.shuffle(order)
        begun, others = self.clock(), any(side.alive for side in self.bench.sides)
        made = {which: self._start(which) for which in order}
        self.bench.ready(*made.values())
        self._start_s = max(self._start_s, self.clock() - begun)
        bad = next((which for which in order if made[which].measured.outcome != "measured"), None)
        if bad is not None:
            self._not_at_once(bad, made[bad], others)
            return None
        for which, side in made.items():
            self.sides[which].append(side)
        return [made[0], made[1]]

    def _not_at_once(self, which: int, side: Side, others: bool) -> None:
        """A start came to nothing beside another. Raises CommandFailed, NothingMeasured where it does by itself."""
        if side.measured.outcome == "memory":
            self._fall_back("two" if others else "alone", "more do not fit in memory together")
            return
        self.bench.end_all()  # it may be in the other's way: a port, a file that both write
        again = self._start(which)
        self.bench.ready(again)
        self._failed(which, again)
        self._fall_back("alone", f"two at once do not work: {side.measured.outcome}: {side.measured.why}")

    def _start(self, which: int) -> Side:
        version = self.versions[which]
        caches = self.bench.plan.folder / "compiled" / f"{version.name.replace('/', '_')[:40]}-{which}-{self.number}"
        timeout_s = PLENTY * self._start_s + FIRST_S / 10 if self._start_s else FIRST_S
        return self.bench.start(
            _name(which), version.levers, Special(), timeout_s=timeout_s, command=version.command,
            cwd=Path(version.cwd),
            variables={**version.variables, "TORCHINDUCTOR_CACHE_DIR": str(caches.resolve())},
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

    def _affords(self, turning: int) -> bool:
        """Whether there is time for another start of each, and turns of so many; the first are made anyway."""
        if not self.sides[0]:
            return True
        turns = [turn.wall_ms / 1000 for _, turn in self.bench.turns] or [TURN_S]
        needed = self._start_s + LEAST_ROUNDS * turning * fmean(turns)
        self.short = self.short or self.clock() + needed > self.deadline
        return not self.short

    # what is known

    def so_far(self) -> records.Attempt:
        """What is known by now."""
        base, head = ([Start.of(self.bench, side) for side in two] for two in self.sides)
        logs = self._before()
        judged = []
        if logs:
            before_ms = math.exp(center(logs))
            judged = [step_time(self.told, before_ms, self.limit), *judge_all(base, head, self.limit, before_ms)]
        turns = len(self.turns) // (len(self.logs) or 1)
        return records.Attempt(
            starts=min(map(len, self.sides)), turns=turns, how="one after another" if self.mode == "alone" else "turns",
            null=self._null(), judged=tuple(judged), seconds=self.clock() - self._begun,
        )  # fmt: skip

    def _before(self) -> list[float]:
        """Of steps of the baseline, logarithms of ms: of all turns, or of runs."""
        mine = {side.number for side in self.sides[0]}
        turns = [math.log(taken) for turn in self.turns for side, taken in turn.items() if side in mine]
        return turns or [math.log(side.measured.step_ms) for side in self.sides[0] if side.measured.step_ms]

    def _null(self) -> float | None:
        """What starts of the baseline differ by."""
        if self.mode == "together":
            known = effects(self.turns) if self.turns else {}
            logs = [known[side.number].log for side in self.sides[0] if side.number in known]
        else:
            logs = [math.log(side.measured.step_ms) for side in self.sides[0] if side.measured.step_ms]
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
