"""The time a tune may take, and what is held back of it for the confirmation."""

import math
from collections.abc import Callable, Iterable
from typing import Final

from hotlap.records import run as records
from hotlap.records.session import FEWEST_STEPS

COMPILE_TIMEOUT_S: Final = 300.0
COMPILE_SHARE: Final = 0.45
"""Seconds that a trial which compiles may take longer than others, and the share of the budget that it may take: a
model that compiles longer leaves no time to prove what it wins."""
LEAST_TIMEOUT_S: Final = 30.0
MARGIN: Final = 1.1
"""On the measured seconds of a trial, when it is planned again."""
CACHED: Final = 0.75
CACHED_LOOP: Final = 0.5
"""Of the warm-up of a trial that compiles, what the compiler's cache saves the next one, somewhat cautiously: on H200s
0.8 of a U-Net's 37 s, a small GPT's 27 and a DLRM's 17, on H100s 0.9 of a ResNet's 65; and 0.55 of the 27 of a decode
loop with `kv-cache` that compiles."""
FEWEST_PAIRS: Final = 2
LONGER: Final = 0.15
"""Of what a pair takes, how much longer its runs measure than those of the search: where starting takes long, a few
more seconds of steps cost little, and hiccups of the machine weigh less."""
RUNS_AFTER_FIRST: Final = 2 + 2 * FEWEST_PAIRS
"""The least that follows the first baseline: the second, one try, and the fewest pairs."""
LONG: Final = 1 / 40
"""Of the budget: the first baseline ends with fewer steps than others where its steady ones take longer than this."""
QUIET: Final = 0.01
"""Two runs of the bare command that differ by less than 1% (as a logarithm): the machine is still. Then two ABBA pairs
are enough, else three at least; trials that only say what a lever is worth beside the others are shorter; and the
baseline may stand in the confirmation."""
HALF_INTERVAL: Final = {2: 8.98, 3: 2.48, 4: 1.59, 5: 1.24, 6: 1.05}
"""Of so many pairs, half of the 95% interval, in standard deviations of one: Student's t at 97.5%, with a degree of
freedom less than pairs, over the root of their number."""


class BudgetSpent(Exception):
    """No time is left for another trial."""


class Budget:
    """Seconds in all, on an injected clock. noise: of the baselines, None before they are known."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds, self.clock = seconds, clock
        self.deadline = clock() + seconds
        self.noise: float | None = None
        self.bare_s = self.best_s = 0.0
        """Wall time of a trial of the bare command, and of the incumbent."""
        self.bare_warmup_s = 0.0
        self.gain = False
        """Whether a gain was measured, which is worth nothing until it is confirmed."""
        self.speedup = 1.0
        """Of the incumbent over the bare command, as the search measured it."""
        self.nothing_else = False
        """Whether nothing else is left to do with the time."""
        self.timeout_s = 600.0

    @property
    def quiet(self) -> bool:
        """Whether the machine is known to be still."""
        return self.noise is not None and self.noise < QUIET

    @property
    def least_pairs(self) -> int:
        """ABBA pairs that the confirmation takes at least, where there is time."""
        return FEWEST_PAIRS if self.quiet else FEWEST_PAIRS + 1

    def held_pairs(self, likely: float = 1.0) -> int:
        """Those that time is held back for: as many as show the gain, if they differ as much as the runs of the bare
        command did. Where so small a gain would take more than a handful, the search has to find a larger one.

        likely: the ratio to reckon with of what is to be tried first.
        """
        if self.noise is None:
            return self.least_pairs
        gain = math.log(self.speedup * likely)
        return next((pairs for pairs, half in HALF_INTERVAL.items() if gain > half * self.noise), self.least_pairs)

    def left(self) -> float:
        """Seconds."""
        return self.deadline - self.clock()

    def reserve(self, likely: float = 1.0) -> float:
        """Seconds that the confirmation of the incumbent needs; none while there is nothing to confirm: a gain that is
        found too late to be confirmed is still one that `--resume` goes on from, and time that is left over is not.

        likely: as in `held_pairs`. What wins much more needs fewer pairs, and is worth that the incumbent gets no more
        if it fails.
        """
        return self.pairs_s(min(self.held_pairs(), self.held_pairs(likely))) if self.gain else 0.0

    def pairs_s(self, pairs: int) -> float:
        """Seconds that so many pairs are planned to take."""
        made_s = self.bare_s if self.quiet else 0.0  # the baseline may be one of them
        return MARGIN * (pairs * (1 + LONGER) * (self.bare_s + self.best_s) - made_s)

    def afford(self, likely: float = 1.0) -> None:
        """Raises BudgetSpent where a trial's seconds are not left beside the confirmation. likely: as in `reserve`."""
        if self.left() < self.reserve(likely) + self.trial_s:
            raise BudgetSpent

    def affordable(self) -> int:
        """How many trials fit in what is left beside the confirmation."""
        return max(0, math.floor((self.left() - self.reserve()) / max(self.trial_s, 1e-9)))

    def afford_second_look(self, seconds: float) -> None:
        """The same for runs that only tell whether what was measured is a gain, which then has to be confirmed."""
        pairs_s = self.pairs_s(self.held_pairs() if self.gain else FEWEST_PAIRS)
        if self.left() < seconds + (0.0 if self.nothing_else and not self.gain else pairs_s):
            raise BudgetSpent

    def afford_proof(self) -> None:
        """The same for a run of the bare command without which parity can't be judged."""
        if self.left() < MARGIN * self.bare_s:
            raise BudgetSpent

    @property
    def trial_s(self) -> float:
        """Seconds that a trial is planned to take."""
        return MARGIN * max(self.bare_s, self.best_s)

    def least_steps(
        self, wall_s: float, step_s: float, made: int, most: int, seconds: float, each_s: float | None = None
    ) -> int:
        """Steady steps of a trial, at most `most`, so that what has to follow the first baseline fits in what is left.

        wall_s, step_s, made: of the first baseline, and its steady steps. seconds: of steps that a trial measures
        anyway, however many that are. each_s: what passes for each of them, where there are others between, in which an
        evaluation runs. Never fewer than FEWEST_STEPS.
        """
        fits = made + (self.left() / (RUNS_AFTER_FIRST * MARGIN) - wall_s) / max(each_s or step_s, 1e-9)
        anyway = math.ceil(seconds / max(step_s, 1e-9))
        return most if fits >= most or anyway >= most else max(FEWEST_STEPS, anyway, math.floor(fits))

    def patience(self, levers: Iterable[records.Lever]) -> float:
        """After how many seconds a trial counts as hung; compiling takes longer."""
        longest = self.timeout_s
        if compiles(levers):
            longest = max(longest, min(longest + COMPILE_TIMEOUT_S, COMPILE_SHARE * self.seconds))
        return max(LEAST_TIMEOUT_S, longest)

    def timeout(self, levers: Iterable[records.Lever], beside_s: float = 0.0) -> float:
        """The same, but no longer than the budget lasts. beside_s: what else it has to last for."""
        least = min(LEAST_TIMEOUT_S, 2 * self.trial_s) if self.bare_s else LEAST_TIMEOUT_S
        return max(least, min(self.patience(levers), self.left() - beside_s))

    def best_took(
        self, wall_s: float, warmup_s: float | None, speedup: float, levers: Iterable[records.Lever] = ()
    ) -> None:
        """A gain was measured, with these levers: most of a first compilation is in the cache when it runs again.
        speedup: over the bare command. A later one found some of that there already, so it is taken for no shorter than
        the incumbent before it."""
        before_s = self.best_s if self.gain else 0.0
        self.gain, self.speedup = True, max(1.0, speedup)
        cached = CACHED_LOOP if any(lever.settings.get("compile") is True for lever in levers) else CACHED
        again_s = wall_s - cached * max(0.0, (warmup_s or 0.0) - self.bare_warmup_s)
        self.best_s = max(again_s, min(before_s, wall_s))

    def like_best_took(self, wall_s: float) -> None:
        """A trial of nearly the incumbent's levers ran, with what was compiled by then."""
        self.best_s = min(self.best_s, MARGIN * wall_s)

    def baseline_took(self, wall_s: float, warmup_s: float | None) -> None:
        """The first baselines set the measure of the others."""
        self.bare_s = self.best_s = wall_s
        self.bare_warmup_s = warmup_s or 0.0
        self.timeout_s = 4 * wall_s + 30


def compiles(levers: Iterable[records.Lever]) -> bool:
    """Whether any of them has something compiled."""
    return any("compile" in lever.name or lever.settings.get("compile") is True for lever in levers)


def log_ratio(one: float, two: float) -> float:
    """How far two positive numbers differ, as a logarithm without its sign."""
    return abs(math.log(one / two))
