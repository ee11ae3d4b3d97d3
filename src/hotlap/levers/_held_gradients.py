"""Not a lever: gradients that a CUDA graph of the compiler's left, moved out of the graph's memory.

A backward that is replayed writes the gradients of parameters into memory of its graph, and autograd takes those
tensors as `.grad`. With the next forward that memory is used again, and from then on they raise where they are touched:
by the backward that adds to them, where a script accumulates gradients, and by whatever has kept them.
"""

import weakref
from collections.abc import Iterable
from typing import Any, Final

DEVICES: Final = ("cuda",)
REFRESHED: Final = 16
"""After so many forwards the parameters are looked for again: to go through all modules takes long beside a replay."""


class HeldGradients:
    """Those of a model's parameters, as they are before a forward."""

    def __init__(self, module: Any) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.module = weakref.ref(module)
        self._parameters: list[Any] = []
        self._calls = 0
        self._moved: Any = WeakIdKeyDictionary()
        """Gradients that have memory of their own."""

    def move(self) -> None:
        """Give each gradient that is there memory of its own; it stays the same tensor, with the same values."""
        if self._calls % REFRESHED == 0:
            module = self.module()
            self._parameters = [] if module is None else list(module.parameters())
        self._calls += 1
        grads = [grad for p in self._parameters if (grad := p.grad) is not None]
        fresh = [grad for grad in grads if grad not in self._moved] if grads else []
        if fresh:
            _move(fresh)
            for grad in fresh:
                self._moved[grad] = True


def _move(grads: Iterable[Any]) -> None:
    import torch

    by_kind: dict[Any, list[Any]] = {}
    for grad in grads:
        if type(grad) is torch.Tensor and grad.layout == torch.strided and grad.device.type in DEVICES:
            by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
    with torch.no_grad():
        for alike in by_kind.values():
            copies = [torch.empty_like(grad) for grad in alike]
            torch._foreach_copy_(copies, alike)
            for grad, copy in zip(alike, copies, strict=True):
                grad.data = copy
