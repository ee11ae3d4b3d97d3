"""Tensors that live on the host from step to step, and are copied to the device in each."""

from collections import Counter
from typing import Any, Final, NamedTuple

import torch

from .op_call import OpCall, Place, tensors, version
from .torch_internals import is_plain, storage, storage_reference

COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::to"})
STAGED: Final = 0.5
"""Of what is copied, from which on a step that writes as much there has other numbers to copy."""
MOST_COPIES: Final = 1000
BY_INDEX: Final = ("index", "scatter")
"""In the names of ops that write only where an index says."""
VALUES: Final = ("values", "source", "src", "value")
"""What they write, as an argument."""

View = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class Copy(NamedTuple):
    """Of what is on the host. reference: weak, so that no other storage gets its address. size: bytes."""

    place: Place
    reference: Any
    size: int
    version: int


class CopiedAgain:
    """Of a step op by op, and of the step after it."""

    def __init__(self) -> None:
        self._copies: dict[View, Copy] = {}
        self._written: Counter[int] = Counter()
        """Bytes, by storage."""
        self._copied: dict[View, bool] = {}
        """Of these, what the second step copies too, and whether others than this thread write to it."""

    def op(self, place: Place, call: OpCall, again: bool) -> None:
        """An op is about to be called. again: in the second step."""
        if (of := _copied(call)) is not None:
            at = storage(of), of.storage_offset(), tuple(of.shape), tuple(of.stride())
            if again and at in self._copies:
                self._copied[at] = version(of) != self._copies[at].version and not self._written[at[0]]
            elif not again and len(self._copies) < MOST_COPIES and storage_reference is not None:
                reference = storage_reference(of.untyped_storage())
                self._copies[at] = Copy(place, reference, of.numel() * of.element_size(), version(of))
        for to in filter(_is_on_host, tensors(call.written)):
            self._written[storage(to)] += _bytes_written(call, to)

    def rows(self) -> list[tuple[Any, ...]]:
        """Lines that copy the same part of the same storage in both steps, little of which these write: bytes."""
        sizes: Counter[Place] = Counter()
        for view, by_others in self._copied.items():
            one = self._copies[view]
            if not by_others and not one.reference.expired() and self._written[view[0]] < STAGED * one.size:
                sizes[one.place] += one.size
        return [(*place, size) for place, size in sizes.most_common()]


def _is_on_host(one: Any) -> bool:
    return is_plain(one) and one.device.type == "cpu"


def _copied(call: OpCall) -> Any:
    """What an op copies from the host to a device; None where it does not. Not memory that numpy or other processes
    write to, as workers of a loader do."""
    if call.name not in COPIES:
        return None
    given = call.given
    of: Any = given.get("src", given.get("self"))
    to = given["self"].device if "src" in given else given.get("device")
    if to is None or torch.device(to).type == "cpu" or not _is_on_host(of):
        return None
    return of if of.untyped_storage().resizable() and of.numel() else None


def _bytes_written(call: OpCall, to: Any) -> int:
    """Into a tensor; by an index no more than there are values."""
    count = int(to.numel())
    if any(part in call.name for part in BY_INDEX):
        values = tensors(*(call.given.get(of) for of in VALUES))
        count = min(count, max((int(one.numel()) for one in values), default=count))
    return count * int(to.element_size())
