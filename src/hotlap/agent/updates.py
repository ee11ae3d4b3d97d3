"""Whether parameters that optimizers hold are updated by hand, as where an optimizer is made and never steps.

Asked after many backwards without a step. Those of micro-batches add to the gradients that the one before left, and an
attack's leave the parameters alone. Writes to `parameter.data` are not told by versions: there it is that gradients are
gone, which, once an optimizer has stepped, may as well precede an attack.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

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


class Seen(NamedTuple):
    """Of some parameters: how often each was written to, and the gradients that there are, by identity."""

    versions: list[int]
    gradients: list[int]


class Updates:
    """by_hand: that they are, since the last update that an optimizer made."""

    __slots__ = ("_learns", "_left", "_optimizers", "by_hand")

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._optimizers = optimizers
        self._left: Seen | None = None
        self._learns = self.by_hand = False

    def forget(self) -> None:
        """An optimizer stepped."""
        self._left, self.by_hand = None, False

    def before_backward(self, learns: bool, stepped: bool) -> None:
        """learns: it adds to gradients; stepped: an optimizer has, at any time."""
        self._learns = learns
        if self._left is not None and not self.by_hand:
            now = self._seen()
            cleared = learns and not stepped and now.gradients != self._left.gradients
            self.by_hand = cleared or now.versions != self._left.versions

    def after_backward(self, stepped: bool) -> None:
        """One of many."""
        if not self.by_hand:
            self._left = self._seen()
            self.by_hand = self._learns and not stepped and not self._left.gradients  # what is trained is not theirs

    def _seen(self) -> Seen:
        with DisableTorchFunction():  # they may be of a class of the script's own
            some = list(islice(filter(_learned, parameters_of(self._optimizers)), LOOKED_AT))
            gradients = [parameter.grad for parameter in some]
            return Seen(list(map(version_of, some)), [id(one) for one in gradients if one is not None])


def _learned(parameter: Any) -> bool:
    """Whether it is a tensor whose gradient is made and may be asked for."""
    if not isinstance(parameter, torch.Tensor) or parameter.is_inference():
        return False
    return bool(parameter.is_leaf and parameter.requires_grad)
