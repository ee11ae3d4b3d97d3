"""Weights that are converted to another type several times before a backward, as where autocast is entered anew for
each call and forgets each time what it has converted."""

from collections import Counter
from typing import Any, Final

from .op_call import CASTS, OpCall, Place, is_weight
from .torch_internals import is_plain

COPIES: Final = frozenset({CASTS, "aten::clone", "aten::copy_"})


class Recasts:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._entered: list[Place] = []
        self._before: dict[int, int] = {}
        """Of each cast, how often autocast had been entered when it was made last, since the last backward."""
        self._times: Counter[int] = Counter()
        self._copied: Counter[Place] = Counter()
        self._again: Counter[tuple[Place, Place | None]] = Counter()
        self._most: dict[tuple[Place, Place | None], int] = {}

    def entered(self, place: Place) -> None:
        """Autocast was turned on where it was off."""
        self._entered.append(place)

    def backward(self) -> None:
        """A backward begins: what follows may be another micro-batch."""
        self._before.clear()
        self._times.clear()

    def called(self, place: Place, number: int, cast: bool | None, size: int) -> None:
        """An op copied so many elements. number: of what it made; cast: see `casts`."""
        if cast is None:
            return
        self._copied[place] += size
        if not cast:
            return
        self._times[number] += 1
        if number in self._before:
            since = self._entered[self._before[number] :]
            key = place, since[0] if since else None
            self._again[key] += size
            self._most[key] = max(self._most.get(key, 0), self._times[number])
        self._before[number] = len(self._entered)

    def rows(self) -> list[tuple[Any, ...]]:
        """Of lines that cast weights again, most first: the line; how often the same; the part of all that is copied
        there; and what had turned autocast on in between, if anything."""
        return [
            (*place, self._most[place, entered], size / self._copied[place], [] if entered is None else [entered])
            for (place, entered), size in self._again.most_common()
        ]


def casts(call: OpCall) -> bool | None:
    """Whether an op casts a weight; None of one that copies nothing."""
    if call.name not in COPIES:
        return None
    one, dtype = call.args[0], call.kwargs.get("dtype")
    if call.name != CASTS or not is_plain(one) or dtype is None:
        return False
    floats = one.is_floating_point() and dtype.is_floating_point and dtype != one.dtype
    return bool(floats) and is_weight(one)
