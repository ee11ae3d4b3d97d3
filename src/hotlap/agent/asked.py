"""Batches that workers make ahead, and whether they were there when asked for: those that a step is made of."""

from typing import Any


class Asked:
    """By loader, of batches that no step was made of yet: its facts, how many came, how many were waited for."""

    __slots__ = ("by_loader",)

    def __init__(self) -> None:
        self.by_loader: dict[int, tuple[dict[str, Any], int, int]] = {}

    def came(self, loader: int, facts: dict[str, Any], late: bool) -> None:
        """One did. late: it was not there."""
        _, came, waited = self.by_loader.get(loader, (facts, 0, 0))
        self.by_loader[loader] = facts, came + 1, waited + late

    def count(self) -> None:
        """A step is made of them."""
        for facts, came, waited in self.by_loader.values():
            facts["asked"] += came
            facts["late"] += waited
        self.by_loader.clear()

    def ended(self, loader: int) -> None:
        """A loader came to its end: a test, or a look at the data, has learned from none of those that are left."""
        self.by_loader.pop(loader, None)

    def forget(self) -> None:
        """No step will be made of any."""
        self.by_loader.clear()
