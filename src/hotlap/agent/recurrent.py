"""Recurrent nets that a step calls with a longer and longer sequence, in place of carrying their state; or once a time,
though all of their inputs are there before.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, Final

import torch

from .dead import Dead
from .op_call import Chain, Place, recording, tensors
from .same_rows import is_hashed, numbers_of
from .torch_internals import is_plain

KINDS: Final = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
MOST_CALLS, LEAST_LONGER = 1000, 2
"""Of a module: calls that are looked at, and those that go on from the one before, as what grows has."""
LEAST_TIMES: Final = 8
"""Of a module: calls of one time each."""


class Recurrent:
    """Of the calls in a step. dead: its ops."""

    def __init__(self, dead: Dead) -> None:
        self._dead = dead
        self._single: defaultdict[int, list[tuple[Chain, list[int], list[int], int]]] = defaultdict(list)
        """By module: of each call of one time that has gradients, from where it came; what it got and made, as `Dead`
        numbers it; and how many ops there were."""
        self._begun: defaultdict[int, list[tuple[Place, Any]]] = defaultdict(list)
        """By module: of each call without a state, a number for each time of its sequence."""
        self._calls: Counter[Place] = Counter()
        self._times: Counter[Place] = Counter()

    def called(self, chain: Chain, made: Any, module: Any, x: Any, state: Any = None) -> None:
        """One of KINDS was called, and made this. What runs backwards needs the whole sequence."""
        if not is_plain(x) or x.dim() not in (2, 3):
            return
        times, place = x.transpose(0, 1) if module.batch_first and x.dim() > 2 else x, chain[-1]
        single, begun = self._single[id(module)], self._begun[id(module)]
        if len(times) == 1 and len(single) < MOST_CALLS and torch.is_grad_enabled():
            got, gave = self._dead.numbers([x]), self._dead.numbers(tensors(*made))
            single.append((chain, got, gave, len(self._dead.ops)))
        if is_hashed(x):
            self._calls[place] += 1
            self._times[place] += len(times)
            if state is None and not module.bidirectional and len(begun) < MOST_CALLS and not recording():
                begun.append((place, numbers_of(times)))

    def stepwise(self) -> list[tuple[Any, ...]]:
        """Of each line with calls of one time, none of which gets what one before gave: the line; how many calls; 1, as
        all there is of these; and the user's frames."""
        found: Counter[Chain] = Counter()
        for calls in self._single.values():
            if len(calls) >= LEAST_TIMES and not self._needs(calls):
                found.update(chain for chain, *_ in calls)
        return [(*chain[-1], times, 1.0, chain) for chain, times in found.most_common() if times >= LEAST_TIMES]

    def _needs(self, calls: list[tuple[Chain, list[int], list[int], int]]) -> bool:
        """Whether one gets what hangs on what others gave, or may: the host had read of it."""
        of_them = {number for _, _, gave, _ in calls for number in gave}
        for made in self._dead.ops[: calls[-1][3]]:
            if not of_them.isdisjoint(made.reads):
                if made.kept:
                    return True
                of_them.update(made.writes)
        return any(not of_them.isdisjoint(got) for _, got, _, _ in calls)

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
