"""The backward: what `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad` share.

Both hand the work to `torch.autograd._engine_run_backward`. Neither is patched itself: torch.compile knows them by
identity, and a wrapper in their place breaks the graph.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, SCALE = hook("backward_begin"), hook("backward_end"), hook("grad_scale")


def install(agent: "Agent") -> None:
    """Patch the way in to the engine, and GradScaler.scale so that the loss is known unscaled."""
    torch.autograd._engine_run_backward = _wrap(agent, torch.autograd._engine_run_backward)
    _patch_scale(agent)


def _wrap(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(tensors: Any, with_loss: bool) -> None:
        agent.begin()
        steps = agent.steps
        outermost = steps.in_backward == 0
        steps.backward_begin()
        if outermost and with_loss:
            for tensor in tensors[:8]:
                agent.timeline.segment.losses.append(agent.losses.take(agent.script.unscaled(tensor)))

    @functools.wraps(original)
    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not agent.trains():
            return original(t_outputs, *args, **kwargs)
        agent.guard.call(BEGIN, begin, t_outputs, bool(kwargs.get("accumulate_grad")))
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            if agent.mine():
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
