"""The time a tune may take, and what is set aside of it for proof."""

from collections.abc import Callable
from typing import Final

from hotlap.experiment.side import TURN_S
from hotlap.experiment.turns import LEAST_ROUNDS, ROUNDS
from hotlap.records.tune import Trial

MARGIN: Final = 1.2
"""On the seconds that something took, when it is planned again."""
COMPILE_SHARE: Final = 0.3
"""Of the budget, that one compilation may take: what compiles longer leaves no time to prove what it wins."""
STARTS: Final = 3
"""Of each side, for which a proof has its time set aside: on hosts that others share, two have not told 1.9 from what
processes differ by."""
NARROW_SHARE: Final = 0.15
"""Of the budget, that is set aside at most for more starts of what is proved, which narrow its interval."""
NARROW_STARTS: Final = (2, 1)
"""How many of each side: the first of these whose time is not more."""
NARROW_ROUNDS: Final = 8
"""Of turns, that are planned for them."""
FEWEST: Final = 2
"""Of each side, with which a proof is begun where no more time is left."""
LONGER: Final = 1.125
"""In the mean, and half a step more: turns are drawn (`experiment.side.drawn`)."""
LEAST_TIMEOUT_S: Final = 30.0
AT_ONCE: Final = (2, 7)
"""Sides that start at once: on few cores, which they share, and on many. Each has two cores between."""


class BudgetSpent(Exception):
    """No time is left for what was to be done next, which is the message."""


class Budget:
    """Seconds in all, on an injected clock. cores: that may be used."""

    def __init__(self, seconds: float, clock: Callable[[], float], cores: int = 1) -> None:
        self.seconds, self.clock = seconds, clock
        self.begun = clock()
        self.at_once = max(AT_ONCE[0], min(cores // 2, AT_ONCE[1]))
        self.crowded = self.crowded_steps = False
        """Whether sides that start at once have to wait for each other's threads: before their loops, and in steps that
        they make together."""
        self.alone = False
        """Whether no two sides are alive at once: whole runs come in pairs, and there are no turns."""
        self.boot_s = LEAST_TIMEOUT_S
        """Seconds until a process begins its loop."""
        self.best_first_s = 0.0
        """From there until it has made the first steps that are made together: of the best set, whose compiled code is
        cached."""
        self.warmup_s = self.best_warmup_s = 5.0
        """From where it stands until it is ready, by itself: of the bare command, and of the best set."""
        self.step_s = 0.0
        """Of a step, about."""
        self.turn_s = 0.0
        """Of a turn, in the mean of all so far: longer than its steps where evaluations come between, or workers that
        were stopped are waited for."""
        self._turns = 0
        self.least_steps = 1
        self.bare = 0
        """Processes of the bare command that wait for the next proof."""
        self.to_prove = False
        """Whether a gain was measured that is not proved."""
        self.proved = False
        """Whether a gain is proved."""
        self.narrow_s = 0.0
        """Set aside to narrow the interval of what is proved."""

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.begun

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - self.spent

    def baseline_took(self, boot_s: float, warmup_s: float, step_ms: float, least_steps: int = 1) -> None:
        """The bare command began its loop after so long, is ready so long after that, and a step takes so many ms. A
        turn has so many steps at least."""
        self.least_steps = least_steps
        self.boot_s = max(1.0, boot_s)
        self.warmup_s = warmup_s
        self.best_took(0.0, warmup_s)
        self.step_s = step_ms / 1000

    def run_took(self, trial: Trial) -> None:
        """The same, of a run of it that is over."""
        warmup_s = trial.warmup_s or 0.0
        self.baseline_took(trial.wall_s - warmup_s, warmup_s, trial.step_ms or 0.0)

    def turns_took(self, seconds: float, turns: int) -> None:
        """So many turns took so long."""
        if turns:
            self._turns += turns
            self.turn_s += (seconds - turns * self.turn_s) / self._turns

    def start_took(self, boot_s: float) -> None:
        """Another one did: later ones find files in memory that the first had to read."""
        self.boot_s = min(self.boot_s, max(1.0, boot_s))

    def best_took(self, first_s: float, warmup_s: float) -> None:
        """The best set takes so long in first steps that are made together, and from there until it is ready."""
        self.best_first_s, self.best_warmup_s = first_s, warmup_s

    @property
    def best_start_s(self) -> float:
        """Seconds until one side with the best set is ready."""
        return self.starts_s(1)

    def starts_s(self, sides: int) -> float:
        """Seconds until so many sides are ready: they start and compile at once, and warm up one after another."""
        waves = sides if self.alone else -(-sides // self.at_once)
        boots = sides if self.crowded else waves
        firsts = sides if self.crowded or self.crowded_steps else waves
        return boots * self.boot_s + firsts * self.best_first_s + sides * self.best_warmup_s

    def turns_s(self, sides: int, rounds: int = ROUNDS) -> float:
        """Seconds that turns of so many sides take."""
        if self.alone:
            return 0.0
        planned = LONGER * max(TURN_S, self.least_steps * self.step_s) + 1.5 * self.step_s
        return rounds * sides * max(planned, self.turn_s)

    @property
    def proof_s(self) -> float:
        """Seconds set aside for a proof."""
        return self.proof_of(STARTS) if self.to_prove else 0.0

    @property
    def least_proof_s(self) -> float:
        """Seconds that one takes at least."""
        return self.proof_of(FEWEST) if self.to_prove else 0.0

    @property
    def first_proof_s(self) -> float:
        """Seconds that what is measured now has to leave: for the proof that is planned, or the least one of what may
        turn out to be the first gain."""
        return self.proof_s if self.to_prove or self.proved else self.proof_of(FEWEST)

    def proof_of(self, sides: int) -> float:
        """Seconds that one takes with so many starts with the levers, as many of the bare command less those that wait,
        and few turns; or one pair more than that."""
        starts = 2 * (sides + 1) if self.alone else sides + max(0, sides - self.bare)
        return MARGIN * (self.starts_s(starts) + self.turns_s(2 * sides, LEAST_ROUNDS))

    def affords(self, seconds: float, narrowing: bool = True) -> bool:
        """Whether so many are left beside what is set aside. narrowing: also for narrowing an interval."""
        return self.left >= MARGIN * seconds + self.proof_s + (self.narrow_s if narrowing else 0.0)

    def afford(self, seconds: float, what: str, narrowing: bool = True) -> None:
        """Raises BudgetSpent where `affords` says no. what: the seconds are for."""
        if not self.affords(seconds, narrowing):
            raise BudgetSpent(what)

    def narrowing_s(self, new: int) -> float:
        """Seconds that so many more starts of each side take, with turns beside as many that stand."""
        return self.starts_s(2 * new) + self.turns_s(4 * new, NARROW_ROUNDS)

    def set_aside(self, wide: bool) -> None:
        """Set time aside to narrow the interval of what is proved, where it is wide."""
        known = (MARGIN * self.narrowing_s(new) for new in NARROW_STARTS if wide)
        self.narrow_s = next((seconds for seconds in known if seconds < NARROW_SHARE * self.seconds), 0.0)

    def timeout(self, compiles: bool) -> float:
        """After how many seconds a start counts as hung."""
        usual = 3 * (self.boot_s + self.warmup_s) + LEAST_TIMEOUT_S
        longest = usual + COMPILE_SHARE * self.seconds if compiles else usual
        return max(LEAST_TIMEOUT_S, min(longest, self.left))
