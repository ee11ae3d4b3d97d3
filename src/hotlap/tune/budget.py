"""The time a tune may take, and what is held back of it for the confirmation."""

import math
from collections.abc import Callable, Iterable
from typing import Final

COMPILE_TIMEOUT_S: Final = 300.0
LEAST_TIMEOUT_S: Final = 30.0
MARGIN: Final = 1.1
"""On the measured seconds of a trial, when it is planned again."""
CACHED: Final = 0.5
"""Of the warm-up of a trial that compiles, what the compiler's cache saves the next one; a cautious guess."""
FEWEST_PAIRS: Final = 2
LONGER: Final = 0.15
"""Of what a pair takes, how much longer its runs measure than those of the search: where starting takes long, a few
more seconds of steps cost little, and hiccups of the machine weigh less."""
QUIET: Final = 0.01
"""Two runs of the bare command that differ by less than 1% (as a logarithm): the machine is still. Then two ABBA pairs
are held back for, else three; trials that only say what a lever is worth beside the others are shorter; and the
baseline may stand in the confirmation."""


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
        self.kept = False
        self.timeout_s = 600.0

    @property
    def quiet(self) -> bool:
        """Whether the machine is known to be still."""
        return self.noise is not None and self.noise < QUIET

    @property
    def least_pairs(self) -> int:
        """ABBA pairs that the confirmation takes at least."""
        return FEWEST_PAIRS if self.quiet else FEWEST_PAIRS + 1

    def left(self) -> float:
        """Seconds."""
        return self.deadline - self.clock()

    def reserve(self) -> float:
        """Seconds that the confirmation needs, at most half of the budget; while there is nothing to confirm yet, for
        as few pairs as will do."""
        pairs = self.least_pairs if self.kept else FEWEST_PAIRS
        pairs_s = pairs * (1 + LONGER) * (self.bare_s + max(self.bare_s, self.best_s))
        made_s = self.bare_s if self.quiet else 0.0  # the baseline may be one of them
        return min(MARGIN * (pairs_s - made_s), 0.5 * self.seconds)

    def afford(self, seconds: float | None = None) -> None:
        """Raises BudgetSpent where so many seconds (by default a trial's) are not left beside the confirmation."""
        wanted = MARGIN * max(self.bare_s, self.best_s) if seconds is None else seconds
        if self.left() < self.reserve() + wanted:
            raise BudgetSpent

    def patience(self, levers: Iterable[str]) -> float:
        """After how many seconds a trial counts as hung; compiling takes longer."""
        extra = COMPILE_TIMEOUT_S if any("compile" in name for name in levers) else 0.0
        return max(LEAST_TIMEOUT_S, self.timeout_s + extra)

    def timeout(self, levers: Iterable[str], beside_s: float = 0.0) -> float:
        """The same, but no longer than the budget lasts. beside_s: what else it has to last for."""
        return max(LEAST_TIMEOUT_S, min(self.patience(levers), self.left() - beside_s))

    def best_took(self, wall_s: float, warmup_s: float | None) -> None:
        """A new incumbent: most of a first compilation is in the cache when it runs again."""
        self.kept = True
        self.best_s = max(self.bare_s, wall_s - CACHED * (warmup_s or 0.0))

    def like_best_took(self, wall_s: float) -> None:
        """A trial of nearly the incumbent's levers ran, with what was compiled by then."""
        self.best_s = max(self.bare_s, min(self.best_s, MARGIN * wall_s))

    def baseline_took(self, wall_s: float) -> None:
        """The first baseline sets the measure of the others."""
        self.bare_s = self.best_s = wall_s
        self.timeout_s = 4 * wall_s + 30


def log_ratio(one: float, two: float) -> float:
    """How far two positive numbers differ, as a logarithm without its sign."""
    return abs(math.log(one / two))
