"""Batches that workers make ahead, and whether they were there when asked for: those that a step is made of."""

import weakref
from typing import Any

from .torch_internals import batches_there


class PrefetchDepth:
    """By loader, of batches that no step was made of yet: its facts, and how many came, how many of them late, ms that
    the host was at them and at the late ones. starved: one of them was late, and hardly any other there. last: the
    iterator of the last one."""

    __slots__ = ("by_loader", "last", "starved")

    def __init__(self) -> None:
        self.by_loader: dict[int, tuple[dict[str, Any], list[float]]] = {}
        self.last: Any = None
        self.starved = False

    def came(self, iterator: Any, facts: dict[str, Any], late: bool, starved: bool, took_ms: float) -> None:
        """One did. late: it was not there; starved: and hardly any other was."""
        _, sums = self.by_loader.setdefault(id(iterator), (facts, [0, 0, 0.0, 0.0]))
        for at, more in enumerate((1, late, took_ms, took_ms * late)):
            sums[at] += more
        self.starved = self.starved or starved
        self.last = weakref.ref(iterator)

    def count(self) -> bool:
        """A step is made of them. Returns whether it was starved."""
        for facts, sums in self.by_loader.values():
            for name, more in zip(("asked", "late", "asked_ms", "late_ms"), sums, strict=True):
                facts[name] += more
        self.by_loader.clear()
        starved, self.starved = self.starved, False
        return starved

    def there(self) -> int | None:
        """Batches of the last one's workers that nobody took yet; None where that is not known."""
        iterator = self.last() if self.last is not None else None
        return None if iterator is None else batches_there(iterator)

    def ended(self, loader: int) -> None:
        """A loader came to its end: a test, or a look at the data, has learned from none of those that are left."""
        if self.by_loader.pop(loader, None) is not None:
            self.starved = False

    def forget(self) -> None:
        """No step will be made of any."""
        self.by_loader.clear()
        self.starved = False
