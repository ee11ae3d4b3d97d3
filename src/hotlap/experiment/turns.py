"""Sides that are alive at once take turns: one makes steps while the others stand still."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .side import Bench, Side

ROUNDS: Final = 16
"""Of turns, each side one in each round, in an order drawn anew: dozens of looks at both, at the same moments."""
HUNG_S: Final = 300.0
"""A turn that takes longer, evaluations and all, has hung."""
LEAST_ROUNDS: Final = 6
"""For an interval of what the turns of two sides say."""
PLACED_ROUNDS: Final = LEAST_ROUNDS + 2
"""That are to come before a pause (`Pauses`)."""


def log_ratios(rounds: Sequence[Mapping[int, float]], before: Side, after: Side) -> list[float]:
    """Of one side's step time over the other's, by round."""
    return [math.log(turn[before.number] / turn[after.number]) for turn in rounds]


def take_turns(
    bench: Bench,
    sides: Sequence[Side],
    rounds: int = ROUNDS,
    seconds: float = 60.0,
    enough: Callable[[list[dict[int, float]]], bool] = lambda so_far: False,
    per_row: bool = False,
    most_s: float | None = None,
    least: int = LEAST_ROUNDS,
) -> list[dict[int, float]]:
    """Ms a step by side in each round; as far as all of them live; `least` at least, unless that takes more than
    most_s (three times as many seconds), or there is no time for what pauses take. per_row: ms over the rows of a step,
    where sides have other batches. enough: may end it earlier."""
    found: list[dict[int, float]] = []
    most_s = 3 * seconds if most_s is None else most_s
    begun = time.monotonic()
    while len(found) < rounds:
        passed = time.monotonic() - begun
        late = seconds if len(found) >= least else most_s
        if passed > late or enough(found):
            break
        paused = bench.pauses_s(sides, 1)
        if paused and (len(found) >= least or passed + paused > late):
            break
        order = list(sides)
        bench.shuffle.shuffle(order)
        taken: dict[int, float] = {}
        for side in order:
            steps = bench.turn_steps(side, max(1, PLACED_ROUNDS - len(found)))
            turn = bench.turn(side, steps, timeout_s=HUNG_S)
            if turn is None:
                return found
            if turn.step_ms and (turn.rows or not per_row):
                taken[side.number] = turn.step_ms / (turn.rows or 1.0) if per_row else turn.step_ms
        bench.listener.step(len(found) + 1, rounds)
        if len(taken) == len(order):
            found.append(taken)
        elif passed > seconds:
            break
    return found
