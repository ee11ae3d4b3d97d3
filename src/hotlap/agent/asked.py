"""Batches that workers make ahead, and whether they were there when asked for: those that a step is made of."""

import weakref
from typing import Any

from .torch_internals import batches_there


class Asked:
    """By loader, of batches that no step was made of yet: its facts, how many came, how many were waited for. starved:
    one of them was late, and hardly any other there. last: the iterator of the last one."""

    __slots__ = ("by_loader", "last", "starved")

    def __init__(self) -> None:
        self.by_loader: dict[int, tuple[dict[str, Any], int, int]] = {}
        self.last: Any = None
        self.starved = False

    def came(self, iterator: Any, facts: dict[str, Any], late: bool, starved: bool) -> None:
        """One did. late: it was not there; starved: and hardly any other was."""
        loader = id(iterator)
        _, came, waited = self.by_loader.get(loader, (facts, 0, 0))
        self.by_loader[loader] = facts, came + 1, waited + late
        self.starved = self.starved or starved
        self.last = weakref.ref(iterator)

    def count(self) -> bool:
        """A step is made of them. Returns whether it was starved."""
        for facts, came, waited in self.by_loader.values():
            facts["asked"] += came
            facts["late"] += waited
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
