"""Whether parameters that optimizers hold are updated though none is seen to step: by hand, or by a compiled step.

Asked after many backwards without a step. Those of micro-batches and of an attack leave the parameters alone.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import torch

from .torch_internals import DisableTorchFunction, version_of

LOOKED_AT: Final = 8
"""Parameters."""


def parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    """What optimizers hold, as far as they keep it as torch's do."""
    for one in list(optimizers):
        groups = getattr(one, "param_groups", None)
        for group in groups if isinstance(groups, list) else ():
            params = group.get("params") if isinstance(group, dict) else None
            yield from params if isinstance(params, list) else ()


class Updates:
    """by_hand: that they are, since the last update that an optimizer made."""

    __slots__ = ("_left", "_optimizers", "by_hand")

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._optimizers = optimizers
        self._left: list[int] | None = None
        self.by_hand = False

    def forget(self) -> None:
        """An optimizer stepped."""
        self._left, self.by_hand = None, False

    def before_backward(self) -> None:
        if self._left is not None and not self.by_hand:
            self.by_hand = self._versions() != self._left

    def after_backward(self) -> None:
        """One of many."""
        if not self.by_hand:
            self._left = self._versions()

    def _versions(self) -> list[int]:
        """How often each of some parameters was written to."""
        with DisableTorchFunction():  # they may be of a class of the script's own
            return list(map(version_of, islice(filter(_learned, parameters_of(self._optimizers)), LOOKED_AT)))


def _learned(parameter: Any) -> bool:
    """Whether it is a tensor that counts what is written to it, and is learned."""
    return isinstance(parameter, torch.Tensor) and not parameter.is_inference() and parameter.requires_grad
