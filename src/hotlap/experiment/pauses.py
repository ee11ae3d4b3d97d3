"""Where in its steps a command does something else for long, such as an evaluation after each 1,000 steps.

All sides make the same steps, so what one of them ran into is known of the others. Turns are made short enough that
the fewest that tell come before the next one: each side would wait for its own.
"""

from collections.abc import Sequence
from typing import Final

from hotlap.records.run import Step

LEAST_S: Final = 2.0
"""Of a step that holds something else, from which turns are placed around it: four usual turns."""
TIMES: Final = 5.0
"""As many times as long as the usual step it is at least."""


class Pauses:
    """Those that were seen. seconds: by the number of the step that held it. total_s: of all sides."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.total_s = 0.0

    def learn(self, steps: Sequence[Step], usual_ms: float) -> None:
        """From steps of any side. usual_ms: of a step. What was compiled or profiled in one is no part of the
        command."""
        least_ms = max(1000 * LEAST_S, TIMES * usual_ms)
        for step in steps:
            own = step.evaluation or not step.probe
            if own and not step.compiles and step.wall_ms >= least_ms:
                self.seconds.setdefault(step.step, step.wall_ms / 1000)
                self.total_s += step.wall_ms / 1000

    def room(self, done: int) -> int | None:
        """Steps that can be made before the next one, after so many were; None where it is not known. Behind the last
        that was seen they are taken to come as often as the last two did."""
        known = sorted(self.seconds)
        ahead = next((step for step in known if step > done), None)
        if ahead is None:
            if not self.period:  # none, or before the first step only
                return None
            ahead = known[-1] + self.period * ((done - known[-1]) // self.period + 1)
        return ahead - done - 1

    @property
    def period(self) -> int:
        """Steps from the last but one to the last, from the beginning where there is but one; 0 where none is known."""
        before, last = [0, 0, *sorted(self.seconds)][-2:]
        return last - before

    @property
    def longest_s(self) -> float:
        """Seconds, 0.0 where none is known."""
        return max(self.seconds.values(), default=0.0)
