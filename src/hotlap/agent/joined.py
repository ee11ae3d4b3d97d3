"""Products of columns that are joined, some of which are the same for many rows, as in additive attention:
`Linear(torch.cat([hidden.repeat(1, n, 1), outputs], -1))`. With its weights split, what repeats is multiplied once."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .op_call import OpCall, Place
from .torch_internals import is_plain, storage

LEAST: Final = 0.1
"""Of the columns, those that repeat."""


@dataclass(eq=False)
class Part:
    """What an op made. times: how often each row is there; saved: the share of it that is not needed; columns: how many
    it has; of: what it is joined of, where that repeats. made: where it was, and what that took."""

    times: float
    saved: float
    columns: int
    of: Sequence["Part"] = ()
    made: list[tuple[Place, int]] = field(default_factory=list)


class Joined:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self._multiplied: list[tuple[Part, Place, int]] = []

    def begin(self, call: OpCall) -> tuple[Part, bool] | None:
        """What an op is about to make, or to multiply with weights (True)."""
        if call.name == "aten::repeat" and is_plain(call.args[0]):
            times = math.prod(call.args[1])
            return (Part(times, 1 - 1 / times, 0), False) if times > 1 and call.args[1][-1] == 1 else None
        if call.name == "aten::cat" and all(map(is_plain, call.args[0])):
            part = self._joined(call.args[0], call.args[1] if len(call.args) > 1 else 0)
            return (part, False) if part is not None else None
        if not call.has_weights:
            return None
        one = call.args[call.factors or 0]
        known = self._parts.get(storage(one))
        return (known, True) if known is not None and known.columns == one.size(-1) else None

    def _joined(self, those: Sequence[Any], dim: int) -> Part | None:
        """Of tensors that are joined, along the last dimension."""
        if not those or dim % max(1, those[0].dim()) != those[0].dim() - 1:
            return None
        parts = [self._parts.get(storage(one)) or _expanded(one) for one in those]
        columns = sum(one.size(-1) for one in those)
        of = [part for part in parts if part is not None]
        saved = sum(one.size(-1) * part.saved for one, part in zip(those, parts, strict=True) if part is not None)
        if not of or saved < LEAST * columns:
            return None
        return Part(max(part.times for part in of), saved / columns, columns, of)

    def end(self, found: tuple[Part, bool] | None, made: Iterable[int]) -> None:
        """It was called. made: storages that it made, or wrote to."""
        for one in made:
            self._parts.pop(one, None)
            if found is not None and not found[1]:
                self._parts[one] = found[0]

    def called(self, found: tuple[Part, bool] | None, place: Place, work: int) -> None:
        """It computed something. work: what it took."""
        if found is not None and found[1]:
            self._multiplied.append((found[0], place, work))
        elif found is not None:
            found[0].made.append((place, work))

    def rows(self, work: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of each line of such products, or of what they are given: the line, how often a row repeats, and the part of
        the line's work that is not needed. work: of lines."""
        saved: defaultdict[Place, float] = defaultdict(float)
        times: Counter[Place] = Counter()
        known = {id(part): part for joined, *_ in self._multiplied for part in (joined, *joined.of)}
        copies = [(part, *made) for part in known.values() for made in part.made]
        for one, place, took in [*self._multiplied, *copies]:
            saved[place] += took * one.saved
            times[place] = max(times[place], round(one.times))
        return [(*place, times[place], min(1.0, part / work[place]), *place) for place, part in saved.items()]


def _expanded(one: Any) -> Part | None:
    """Of a tensor whose rows are in memory once."""
    times = math.prod(size for size, stride in zip(one.shape[:-1], one.stride()[:-1], strict=True) if not stride)
    return Part(times, 1 - 1 / times, 0) if times > 1 else None
