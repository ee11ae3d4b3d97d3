"""Recurrent nets that a step calls with a longer and longer sequence, in place of carrying their state."""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, Final

import torch

from .op_call import Place, recording
from .same_rows import is_hashed, numbers_of
from .torch_internals import is_plain

KINDS: Final = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
MOST_CALLS, LEAST_LONGER = 1000, 2
"""Of a module: calls that are looked at, and those that go on from the one before, as what grows has."""


class Recurrent:
    """Of the calls in a step."""

    def __init__(self) -> None:
        self._begun: defaultdict[int, list[tuple[Place, Any]]] = defaultdict(list)
        """By module: of each call without a state, a number for each time of its sequence."""
        self._calls: Counter[Place] = Counter()
        self._times: Counter[Place] = Counter()

    def called(self, place: Place, module: Any, x: Any, state: Any = None) -> None:
        """One of KINDS was called. What runs backwards needs the whole sequence."""
        if not is_plain(x) or x.dim() not in (2, 3) or not is_hashed(x):
            return
        times = x.transpose(0, 1) if module.batch_first and x.dim() > 2 else x
        self._calls[place] += 1
        self._times[place] += len(times)
        begun = self._begun[id(module)]
        if state is None and not module.bidirectional and len(begun) < MOST_CALLS and not recording():
            begun.append((place, numbers_of(times)))

    def rows(self) -> list[tuple[Any, ...]]:
        """Of each line with such calls: the line; how many; the part of all times there that the call before had."""
        again: Counter[Place] = Counter()
        for calls in self._begun.values():
            had = [(place, len(one)) for (_, one), (place, two) in pairwise(calls) if _goes_on(one, two)]
            for place, times in had if len(had) >= LEAST_LONGER else ():
                again[place] += times
        return [(*at, self._calls[at], times / self._times[at], *at) for at, times in again.most_common()]


def _goes_on(before: Any, after: Any) -> bool:
    """Whether a sequence begins with another, and has more."""
    return len(after) > len(before) and torch.equal(after[: len(before)], before)
