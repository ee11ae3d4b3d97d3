"""Not a lever: gradients that a recording leaves at the same places each time, of which the script gets aliases
(`_training_graph`).

The aliases are its own to keep: what it still has of them when the next backward comes is told by how many refer to
their memory, and must not be written to.
"""

import operator
from collections.abc import Sequence
from typing import Any

from .._internals import internals
from ._effects import storage


class Lent:
    """own: where the recording leaves them; nobody else may have them by now."""

    def __init__(self, own: Sequence[Any]) -> None:
        self.own = own
        self._storages = list(map(storage, own))
        self._unheld = self._users()

    def held(self) -> list[Any]:
        """Those of `own` of which the script still has an alias."""
        now = self._users()
        if now == self._unheld:
            return []
        return [g for g, users, alone in zip(self.own, now, self._unheld, strict=True) if users > alone]

    def aliases(self) -> list[Any]:
        """For the script."""
        return list(map(operator.attrgetter("data"), self.own))

    def _users(self) -> list[int]:
        return list(map(internals().storage_uses, self._storages))
