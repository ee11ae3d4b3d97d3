"""Not a lever: when memory of the compiler's CUDA graphs is used again, and that nothing of the script's is in it then.

With `mode="reduce-overhead"` outputs, gradients and what is saved for the backward lie in memory of the graphs, of all
models the same, which the next turn uses again. What the script still holds then raises when it is touched. So a turn
is a forward and its backward, and a forward that comes while the backward of an earlier one is to come (networks with
two branches, a generator whose output a discriminator takes) runs without graphs: where several graphs are in one turn,
and not the same ones each time, torch 2.11 has lost account of what it freed ("invalid device pointer", "tensor(s) in
the cudagraph pool not tracked"). Outputs are copies. So are gradients of inputs. Gradients of parameters that are there
when a turn ends (a script adds them up, or has zeroed nothing yet) are moved to memory of their own.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from .. import _transforms
from .._internals import internals
from .._nested import each_tensor

DEVICES: Final = ("cuda",)
REFRESHED: Final = 16
"""After so many forwards the parameters are looked for again: to go through all modules takes long beside a replay."""


class Open:
    """A forward, as long as the graph of one of its outputs lives: a backward may come through it. over: it came."""

    def __init__(self) -> None:
        self.over = False


class Memory:
    """That of all graphs of a process."""

    def __init__(self) -> None:
        self._models: weakref.WeakSet[Turns] = weakref.WeakSet()
        self._opened: weakref.ref[Open] | None = None

    def add(self, model: "Turns") -> None:
        """A model that has graphs."""
        self._models.add(model)

    def awaits(self) -> bool:
        """Whether there was a forward with graphs through which no backward has come and one may."""
        last = None if self._opened is None else self._opened()
        return last is not None and not last.over

    def begin(self) -> Open:
        """A new turn: its forward."""
        import torch

        for model in self._models:
            model.move_gradients()
        torch.compiler.cudagraph_mark_step_begin()
        found = Open()
        self._opened = weakref.ref(found)
        return found


MEMORY: Final = Memory()


class Turns:
    """Those of one model's graphs."""

    def __init__(self, module: Any, memory: Memory = MEMORY) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._module = weakref.ref(module)
        self._memory = memory
        self._parameters: list[Any] = []
        self._calls = 0
        self._moved: Any = WeakIdKeyDictionary()
        """Gradients that have memory of their own."""
        memory.add(self)

    def call(
        self, graphed: Callable[..., Any], plain: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """A forward. plain: the same without graphs."""
        if self._memory.awaits():
            return plain(*args, **kwargs)
        opened = self._memory.begin()
        if _transforms.inside():
            return each_tensor(graphed(*args, **kwargs), _copy)
        args, kwargs = [_own(one) for one in args], {name: _own(one) for name, one in kwargs.items()}
        return each_tensor(graphed(*args, **kwargs), lambda tensor: _output(tensor, opened))

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
            internals().copy_all(copies, alike)
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


def _output(tensor: Any, opened: Open) -> Any:
    return _functions()[1].apply(tensor, opened) if tensor.requires_grad else tensor.clone()


@cache
def _functions() -> tuple[Any, Any]:
    """The same tensor, whose gradient is a copy; and a copy, whose backward is what was waited for."""
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
        def forward(ctx: Any, tensor: Any, opened: Open) -> Any:
            ctx.opened = opened
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.opened.over = True
            return gradient, None

    return OwnGradient, Output
