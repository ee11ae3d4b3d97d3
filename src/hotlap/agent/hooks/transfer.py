"""Tensors moving from the host to the device: `Tensor.to` and `Tensor.cuda`, in builds of torch that have a device."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook

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
    steps = agent.steps

    def begin(tensor: Any, kwargs: Any) -> None:
        agent.script.moved(tensor, bool(kwargs.get("non_blocking", False)))
        steps.transfer_begin()

    @functools.wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not agent.begun
            or steps.in_forward
            or steps.in_backward
            or steps.in_data
            or steps.step_depth
            or torch.compiler.is_compiling()
            or self.device.type != "cpu"
            or not (always or _to_device(args, kwargs))
            or not agent.mine()
        ):
            return original(self, *args, **kwargs)
        agent.guard.call(BEGIN, begin, self, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            if agent.mine():
                agent.guard.call(END, steps.transfer_end)

    return move
