"""The backward: `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad`."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, SCALE = hook("backward_begin"), hook("backward_end"), hook("grad_scale")


def install(agent: "Agent") -> None:
    """Patch both entry points, and GradScaler.scale so that the loss is known unscaled."""
    torch.autograd.backward = _wrap(agent, torch.autograd.backward, with_loss=True)
    torch.autograd.grad = _wrap(agent, torch.autograd.grad, with_loss=False)
    _patch_scale(agent)


def _wrap(agent: "Agent", original: Callable[..., Any], with_loss: bool) -> Callable[..., Any]:
    def begin(tensors: Any) -> None:
        agent.begin()
        steps = agent.steps
        outermost = steps.in_backward == 0
        steps.backward_begin()
        if outermost and with_loss:
            for tensor in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)[:8]:
                agent.timeline.segment.losses.append(agent.losses.take(agent.script.unscaled(tensor)))

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not agent.mine():
            return original(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors", kwargs.get("outputs", ()))
        agent.guard.call(BEGIN, begin, tensors)
        try:
            return original(*args, **kwargs)
        finally:
            if agent.guard.on:
                agent.guard.call(END, agent.steps.backward_end)

    return run


def _patch_scale(agent: "Agent") -> None:
    kind = torch.amp.GradScaler
    original = kind.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if isinstance(outputs, torch.Tensor) and agent.mine():
            agent.guard.call(SCALE, agent.script.scaled, scaled, outputs)
        return scaled

    kind.scale = scale
