"""Names of steps and phases for whoever records them."""

from collections.abc import Callable

import torch

from hotlap.records.phases import PHASES

Begin = Callable[[str], Callable[[], None]]


class Labels:
    """Named ranges around steps and phases, for whoever records them. kinds: what begins one, and returns its end."""

    def __init__(self) -> None:
        self.kinds: list[Begin] = []
        self.phases: list[list[Callable[[], None]]] = []
        self.step: list[Callable[[], None]] = []

    def begin_step(self, number: int) -> None:
        """Begin the ranges of a step, by its number."""
        self.step = [begin(f"ProfilerStep#{number}") for begin in self.kinds]

    def end_step(self) -> None:
        """End them."""
        ends, self.step = self.step, []
        _end(ends)

    def enter(self, phase: int) -> None:
        """Begin the ranges of a phase, one of `records.phases`."""
        self.phases.append([begin(f"hotlap:{PHASES[phase]}") for begin in self.kinds])

    def leave(self) -> None:
        """End those of the innermost phase."""
        if self.phases:  # else the phase began before the labels
            _end(self.phases.pop())

    def unwind(self) -> None:
        """End those of all phases."""
        while self.phases:
            _end(self.phases.pop())

    def clear(self) -> None:
        """End all."""
        self.unwind()
        self.end_step()


def _end(ends: list[Callable[[], None]]) -> None:
    for end in reversed(ends):
        end()


def recorded(name: str) -> Callable[[], None]:
    """A range in the trace."""
    record = torch.profiler.record_function(name)
    record.__enter__()
    return lambda: record.__exit__(None, None, None)
