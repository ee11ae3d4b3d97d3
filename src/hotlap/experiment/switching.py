"""Levers switched on and off in one live process, in blocks of steps: what each is worth, for the price of one start.

The variants of a cycle come in an order drawn anew, so drift and neighbours hit all alike; the first step of a block is
not counted, nor are steps in which something is compiled.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from hotlap.records.run import Lever

from .side import BY_ITSELF, Bench, Side
from .statistics import Ratio, within_process

BLOCK_S: Final = 0.3
LONG_MS: Final = 1000.0
LEAST_BLOCK: Final = 2
"""Steps of a block that count: as many as take BLOCK_S, or at least so many, or one of LONG_MS or more."""
SETTLING: Final = (4, 2)
"""Steps of a block of a variant that is new, and where they take LONG_MS or more."""
MOST_BLOCKS: Final = 4
CYCLES: Final = (6, 24)
"""The fewest and the most: six are the fewest of which the signed-rank test makes a 95% interval."""
Variant = tuple[str, ...]
"""Names of the levers that are in."""


class SideLost(Exception):
    """The process ended. by_itself: as scripts come to their end."""

    def __init__(self, by_itself: bool) -> None:
        self.by_itself = by_itself


class Switching:
    """Blocks of variants in one side. levers: beside those that the side started with, what variants may name."""

    def __init__(self, bench: Bench, side: Side, levers: Sequence[Lever] = ()) -> None:
        self.bench, self.side = bench, side
        self.known: dict[str, Lever] = {lever.name: lever for lever in (*side.measured.levers, *levers)}
        self.cycles: list[dict[Variant, float]] = []
        self.last_ms: dict[Variant, float] = {}
        self.rows: float | None = None
        """Of a step in the last block."""

    def settle(self, variant: Variant, seconds: float) -> float | None:
        """Have these levers in until steps are at their pace: the first calls compile, search and allocate. Returns ms
        a step. Raises SideLost where the process ends, or takes longer than so many seconds, or than MOST_BLOCKS
        blocks of the steps before where these are long. A block that the time left is too short for is not begun."""
        begun = time.monotonic()
        seconds = max(seconds, MOST_BLOCKS * (self.settling + 1) * self.side.step_ms / 1000)
        before: float | None = None
        while (left := seconds - (time.monotonic() - begun)) > (self.settling + 1) * (before or 0.0) / 1000:
            now = self._block(variant, self.settling, left)
            if now is not None and before is not None and abs(math.log(now / before)) < math.log(1.25):
                return min(now, before)
            before = now or before
        return before

    def now_ms(self, variant: Variant) -> float:
        """Ms a step of one more block of a variant that has settled. Raises SideLost."""
        return self._block(variant, self.settling, 60.0) or self.last_ms[variant]

    def measure(
        self,
        variants: Sequence[Variant],
        decided: Callable[["Switching"], bool] = lambda so_far: False,
        seconds: float = 60.0,
    ) -> None:
        """Cycles of a block of each, until it is decided what they are worth, or the time is up. Raises SideLost."""
        self.cycles = []
        for variant in variants:  # its first calls may compile, search or allocate
            if variant not in self.last_ms:
                self._block(variant, self.settling, max(60.0, seconds))
        begun = time.monotonic()
        while len(self.cycles) < CYCLES[1]:
            late = time.monotonic() - begun > seconds
            if len(self.cycles) >= CYCLES[0] and (late or decided(self)):
                break
            order = list(variants)
            self.bench.shuffle.shuffle(order)
            blocks = len(order) * max(1, CYCLES[0] - len(self.cycles))
            taken = {
                variant: self._block(variant, self._steps(variant, blocks - at), max(60.0, seconds))
                for at, variant in enumerate(order)
            }
            if all(taken.values()):
                self.cycles.append({variant: ms for variant, ms in taken.items() if ms})
            elif late:
                break
            self.bench.listener.step(len(self.cycles), CYCLES[1])

    def ratio(self, before: Variant, after: Variant) -> Ratio | None:
        """Step time of one variant over the other's; None where there is nothing to tell it by."""
        logs = [math.log(cycle[before] / cycle[after]) for cycle in self.cycles if before in cycle and after in cycle]
        return within_process(logs) if logs else None

    def clear(self, pairs: Iterable[tuple[Variant, Variant]], least: float = 1.0) -> bool:
        """Whether it is known of each pair, before and after, that the second is faster, or wins less than least."""
        ratios = [self.ratio(before, after) for before, after in pairs]
        known = [one.interval for one in ratios if one is not None and one.interval is not None]
        return len(known) == len(ratios) and all(one.low > 1 or one.high < least for one in known)

    @property
    def settling(self) -> int:
        """Steps of a block of a variant that is new."""
        return SETTLING[self.side.step_ms >= LONG_MS]

    @property
    def block_s(self) -> float:
        """Seconds that one takes at most, by the last block of each variant."""
        longest = max(self.last_ms.values(), default=self.side.step_ms)
        return (self._wanted(longest) + 1) * longest / 1000

    def _steps(self, variant: Variant, blocks: int) -> int:
        """Of its next block. blocks: that are still to come, at least."""
        return self.bench.placed(self.side, self._wanted(self.last_ms.get(variant) or self.side.step_ms), blocks)

    def _wanted(self, step_ms: float) -> int:
        least = 1 if step_ms >= LONG_MS else LEAST_BLOCK
        return max(least, self.side.least_steps, min(2000, math.ceil(BLOCK_S * 1000 / step_ms)))

    def _block(self, variant: Variant, steps: int, seconds: float) -> float | None:
        levers: Mapping[str, Mapping[str, object]] = {name: self.known[name].settings for name in variant}
        turn = self.bench.turn(self.side, steps, levers, seconds)
        if turn is None:
            raise SideLost(self.side.measured.ended == BY_ITSELF)
        if turn.step_ms:
            self.last_ms[variant] = turn.step_ms
        self.rows = turn.rows
        return turn.step_ms
