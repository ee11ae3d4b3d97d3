"""The backward: what `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad` share.

Both hand the work to `torch.autograd._engine_run_backward`. Neither is patched itself: torch.compile knows them by
identity, and a wrapper in their place breaks the graph.
"""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from ..guard import hook
from ..steps import BY_HAND, UNUSED_OPTIMIZER_BACKWARDS
from ..traces import unseen

if TYPE_CHECKING:
    from ..core import Agent

MOST: Final = UNUSED_OPTIMIZER_BACKWARDS - 1
"""Before an update, in a thin step."""
BEGIN, END, SCALE = hook("backward_begin"), hook("backward_end"), hook("grad_scale")
MADE, INSIDE = hook("loss_made"), hook("thin_inside")


def install(agent: "Agent") -> None:
    """Patch the way in to the engine, and GradScaler.scale so that the loss is known unscaled."""
    torch.autograd._engine_run_backward = _wrap(agent, torch.autograd._engine_run_backward)
    _patch_scale(agent)


def _wrap(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    guard, steps, script = agent.guard, agent.steps, agent.script

    def made(frame: FrameType) -> None:
        for function in script.backward_from(frame):
            agent.seams.loss(function)

    def give_up() -> None:
        script.loss_lines.left = 0

    def begin(tensors: Any, with_loss: Any) -> None:
        if not agent.begun:
            agent.begin()
        steps.backward_begin()
        if with_loss and steps.in_backward == 1:
            if script.loss_lines.left > 0:
                guard.spare(MADE, give_up, made, sys._getframe(1))
            for tensor in tensors[:8]:
                loss = tensor if script.scaling is None else script.unscaled(tensor)
                agent.timeline.segment.losses.append(agent.losses.take(loss))

    begun, ended = guard.around(BEGIN, begin), guard.around(END, steps.backward_end)
    by_hand, updated = _by_hand(agent, original), guard.around(INSIDE, agent.thin.inside)

    def seen(t_outputs: Any, args: Any, kwargs: Any) -> Any:
        if not (get_ident() == guard.live or agent.trains()) or (steps.thin > 0 and steps.in_backward):
            return original(t_outputs, *args, **kwargs)
        if steps.recording is not None:
            steps.recording.backward()
            return original(t_outputs, *args, **kwargs)
        if steps.thin == BY_HAND and steps.in_backward:
            return original(t_outputs, *args, **kwargs)
        if steps.thin == BY_HAND and agent.thin.goes_on():
            return by_hand(t_outputs, args, kwargs)
        if steps.thin > 0 and steps.on_stack():
            steps.backwards_since_step = 0  # these are of a closure: an update ends them, however many they are
            return run(t_outputs, *args, **kwargs)
        if steps.thin:
            agent.thin.leave()
        begun(t_outputs, kwargs.get("accumulate_grad"))
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            if get_ident() == guard.live:
                ended()

    @functools.wraps(original)
    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(t_outputs, *args, **kwargs)
        calm = steps.thin > 0 and not steps.in_backward and steps.backwards_since_step < MOST
        try:
            if not calm or get_ident() != guard.live:
                return seen(t_outputs, args, kwargs)
            steps.in_backward = 1
            try:
                return original(t_outputs, *args, **kwargs)
            finally:
                steps.in_backward = 0
                steps.backwards += 1
                steps.backwards_since_step += 1
                if steps.inside:
                    updated()
        except BaseException as error:
            unseen(error)
            raise

    return run


def _by_hand(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    """In a thin step of a loop that no optimizer ends."""
    steps = agent.steps

    def by_hand(t_outputs: Any, args: Any, kwargs: Any) -> Any:
        steps.in_backward = 1
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            steps.in_backward = 0
            steps.backwards += 1
            steps.backwards_since_step += 1
            if get_ident() == agent.guard.live:
                agent.thin.backward()

    return by_hand


def _patch_scale(agent: "Agent") -> None:
    kind = torch.amp.GradScaler
    original = kind.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        try:
            scaled = original(self, outputs)
        except BaseException as error:
            unseen(error)
            raise
        quiet = agent.steps.thin or agent.steps.recording is not None
        if not quiet and isinstance(outputs, torch.Tensor) and agent.mine():
            agent.guard.call(SCALE, agent.script.scaled, scaled, outputs)
        return scaled

    kind.scale = scale
