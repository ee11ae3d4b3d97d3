"""Not a lever: when memory of the compiler's CUDA graphs is used again, and that nothing of the script's is in it then.

With `mode="reduce-overhead"` outputs, gradients and what is saved for the backward lie in memory of the graphs, which
the next turn uses again. What the script still holds then raises when it is touched. So a turn ends with each forward,
as a loop has one a step, but not while the backward of an earlier forward is to come: networks with two branches, a
discriminator of real and of fake. Outputs are copies. So are gradients of inputs. Gradients of parameters that are
there when a turn ends (a script adds them up, or has zeroed nothing yet) are moved to memory of their own.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from . import _transforms
from ._nested import each_tensor

DEVICES: Final = ("cuda",)
REFRESHED: Final = 16
"""After so many forwards the parameters are looked for again: to go through all modules takes long beside a replay."""
MOST_AWAITED: Final = 8
"""Forwards whose backward is waited for: a script that keeps all outputs without one would fill the memory."""


class Turns:
    """Those of one model's graphs."""

    def __init__(self, module: Any) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._module = weakref.ref(module)
        self._parameters: list[Any] = []
        self._calls = 0
        self._moved: Any = WeakIdKeyDictionary()
        """Gradients that have memory of their own."""
        self._awaited: list[weakref.ref[Any]] = []
        """Of forwards through which no backward has come: what lives as long as one may."""

    def call(self, compiled: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A forward."""
        self._begin()
        if _transforms.inside():
            return each_tensor(compiled(*args, **kwargs), _copy)
        args, kwargs = [_own(one) for one in args], {name: _own(one) for name, one in kwargs.items()}
        opened = _Open()
        self._awaited.append(weakref.ref(opened))
        return each_tensor(compiled(*args, **kwargs), lambda tensor: self._output(tensor, opened))

    def _begin(self) -> None:
        """A new turn, if none is open."""
        import torch

        if self._awaited:
            self._awaited[:] = [ref for ref in self._awaited if ref() is not None]
            if 0 < len(self._awaited) <= MOST_AWAITED:
                return
            self._awaited.clear()
        self.move_gradients()
        torch.compiler.cudagraph_mark_step_begin()

    def _output(self, tensor: Any, opened: "_Open") -> Any:
        return _functions()[1].apply(tensor, opened, self._awaited) if tensor.requires_grad else tensor.clone()

    def move_gradients(self) -> None:
        """Give each gradient that is there memory of its own; it stays the same tensor, with the same values."""
        if self._calls % REFRESHED == 0:
            module = self._module()
            self._parameters = [] if module is None else list(module.parameters())
        self._calls += 1
        grads = [grad for p in self._parameters if (grad := p.grad) is not None]
        fresh = [grad for grad in grads if grad not in self._moved] if grads else []
        if fresh:
            _move(fresh)
            for grad in fresh:
                self._moved[grad] = True


def _move(grads: Sequence[Any]) -> None:
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


def _copy(tensor: Any) -> Any:
    return tensor.clone()


def _own(value: Any) -> Any:
    """An input whose gradient will be a copy."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.requires_grad or not torch.is_grad_enabled():
        return value
    return _functions()[0].apply(value)


class _Open:
    """Something that lives as long as the graph of an output of a forward."""


@cache
def _functions() -> tuple[Any, Any]:
    """The same tensor, whose gradient is a copy; and a copy, whose backward ends all waiting."""
    import torch

    class OwnGradient(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return None if gradient is None else gradient.clone()

    class Output(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any, opened: _Open, awaited: list[weakref.ref[Any]]) -> Any:
            ctx.opened, ctx.awaited = opened, awaited
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.awaited.clear()
            return gradient, None, None

    return OwnGradient, Output
