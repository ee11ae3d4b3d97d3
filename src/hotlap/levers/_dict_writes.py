"""Not a lever: how often anything was written to some dictionaries, told for all of them at once.

A module's attributes, parameters and parts stand in hundreds of dictionaries, and to look into each of them takes a
step tens of microseconds, several times that where other work has taken the processor's caches. CPython tells of each
write to a dictionary that is watched (PEP 699's `PyDict_Watch`, from 3.12 on), and torch's compiler has it number these
writes. What is written to a dictionary of our own is numbered with them, so the number of that tells of all others.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ._internals import internals


class DictWrites:
    """version: begins to watch a dictionary, and tells the number of the last write to it."""

    def __init__(self, version: Callable[[dict[Any, Any]], int]) -> None:
        self._version = version
        self._own: dict[str, object] = {}
        self._looks = 0
        self._lock = threading.Lock()
        version(self._own)

    def watch(self, dictionaries: Iterable[dict[Any, Any]]) -> None:
        for one in dictionaries:
            self._version(one)

    def count(self) -> int:
        """Of the writes to any dictionary that anybody watches. Where it is what it was, there was none; it may also
        grow without any."""
        with self._lock:
            self._own["look"] = object()  # another one each time, else it would be no write
            number = self._version(self._own)
            self._looks += 1  # last: an interrupt before it makes the count greater, which hides nothing
            return number - self._looks


@cache
def dict_writes() -> DictWrites | None:
    """None where they are not told."""
    if sys.version_info < (3, 12):
        return None
    version = internals().dict_version()
    writes = None if version is None else DictWrites(version)
    return writes if writes is not None and tells(writes) else None


def tells(writes: DictWrites) -> bool:
    """Whether it counts what is written in the ways in which models are changed, and nothing else."""

    class Thing:
        pass

    thing, parts = Thing(), OrderedDict(a=1)
    own: dict[str, object] = {"a": 1}
    vars(thing)["a"] = 1
    writes.watch([vars(thing), parts, own])

    def seen(change: Callable[[], object]) -> bool:
        before = writes.count()
        change()
        return writes.count() > before

    changes: list[Callable[[], object]] = [
        lambda: setattr(thing, "a", 2),
        lambda: setattr(thing, "b", 3),
        lambda: delattr(thing, "b"),
        lambda: vars(thing).update(a=own),
        lambda: own.__setitem__("a", 2),
        lambda: own.update(b=3),
        lambda: own.pop("b"),
        own.clear,
        lambda: parts.__setitem__("b", 2),
        lambda: parts.pop("a"),
        parts.clear,
    ]
    return all(map(seen, changes)) and not any(seen(lambda: vars(thing).get("a")) for _ in range(3))
