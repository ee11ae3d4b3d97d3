"""Tensors moving from the host to the device: `Tensor.to` and `Tensor.cuda`, in builds of torch that have a device.

Classes with a `__torch_function__` are told which function was called by what `torch.Tensor.to` is at that moment: our
wrapper, which the user's classes, made after it, know by that name. Torch's own were made before, and compare with the
original (an uninitialized parameter of a lazy module refuses all else), so they are told of that one.
"""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ..guard import hook
from ..steps import BY_HAND

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END = hook("transfer_begin"), hook("transfer_end")


def install(agent: "Agent") -> None:
    """Patch where torch was built with CUDA or ROCm; without a device there is no such phase."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return
    torch.Tensor.to = _wrap(agent, torch.Tensor.to, always=False)
    torch.Tensor.cuda = _wrap(agent, torch.Tensor.cuda, always=True)


def _to_device(args: Any, kwargs: Any) -> bool:
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    return isinstance(target, int) and not isinstance(target, bool)


def _wrap(agent: "Agent", original: Callable[..., Any], always: bool) -> Callable[..., Any]:
    guard, steps = agent.guard, agent.steps

    def call(tensor: Any, args: Any, kwargs: Any) -> Any:
        kind = type(tensor)
        if kind is torch.Tensor or kind is torch.nn.Parameter or not kind.__module__.startswith("torch."):
            return original(tensor, *args, **kwargs)
        if not torch.overrides.has_torch_function((tensor,)):
            return original(tensor, *args, **kwargs)
        return torch.overrides.handle_torch_function(original, (tensor,), tensor, *args, **kwargs)

    def begin(tensor: Any, args: Any, kwargs: Any) -> bool:
        """Whether a phase of the step begins."""
        if tensor.device.type != "cpu" or not (always or _to_device(args, kwargs)):
            return False
        if steps.unsampled:
            agent.step_sampling.event()
        if not steps.unsampled:
            steps.transfer_begin()
        return not steps.unsampled

    begun, ended = guard.around(BEGIN, begin), guard.around(END, steps.transfer_end)

    def seen(tensor: Any, args: Any, kwargs: Any) -> Any:
        inside = steps.in_forward or steps.in_backward or steps.in_data or steps.step_depth
        if inside or not agent.begun or get_ident() != guard.live or not begun(tensor, args, kwargs):
            return call(tensor, args, kwargs)
        try:
            return call(tensor, args, kwargs)
        finally:
            if get_ident() == guard.live:
                ended()

    @functools.wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(self, *args, **kwargs) if type(self) is Tensor else call(self, args, kwargs)
        if steps.unsampled and (steps.unsampled != BY_HAND or not steps.manual_open):  # it ends no step
            return original(self, *args, **kwargs) if type(self) is Tensor else call(self, args, kwargs)
        return seen(self, args, kwargs)

    return move
