"""The backward: what `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad` share.

Both hand the work to the ENGINE (`torch_internals`). Neither is patched itself: torch.compile knows them by
identity, and a wrapper in their place breaks the graph.
"""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from ..guard import hook
from ..steps import BY_HAND, UNUSED_OPTIMIZER_BACKWARDS
from ..torch_internals import ENGINE

if TYPE_CHECKING:
    from ..core import Agent

MOST: Final = UNUSED_OPTIMIZER_BACKWARDS - 1
"""Before an update, in an unsampled step."""
BEGIN, END, SCALE = hook("backward_begin"), hook("backward_end"), hook("grad_scale")
INSIDE, WASTED = hook("unsampled_inside"), hook("wasted")


def install(agent: "Agent") -> None:
    """Patch the way in to the engine, and GradScaler.scale so that the loss is known unscaled."""
    setattr(*ENGINE, _wrap(agent, getattr(*ENGINE)))
    _patch_scale(agent)


def _begin(agent: "Agent") -> Callable[..., None]:
    """What is done as a backward begins that is looked at."""
    steps, script, wasted = agent.steps, agent.script, agent.wasted

    def begin(tensors: Any, with_loss: Any, grads: Any = None, retain: Any = None, create: Any = None, *_: Any) -> None:
        if not agent.begun:
            agent.begin()
        script.kept_graphs += bool(retain and not create)
        script.looked_backwards += 1
        script.habits.anomalies += torch.is_anomaly_enabled()
        if not steps.backwards:  # what came before may have been another model, that acted while nothing was trained
            agent.finder.look_again()
        steps.backward_begin(bool(with_loss))
        if wasted.on and steps.in_backward == 1:
            agent.guard.spare(WASTED, wasted.give_up, wasted.begin, steps.backwards)
        agent.profile.backward(tensors)
        if with_loss and steps.in_backward == 1:
            for tensor in tensors[:8]:
                loss = tensor if script.scaling is None else script.unscaled(tensor)
                agent.timeline.segment.losses.append(agent.losses.take(loss))

    return begin


def _end(agent: "Agent") -> Callable[[], None]:
    steps, wasted = agent.steps, agent.wasted

    def end() -> None:
        steps.backward_end()
        if wasted.on and not steps.in_backward:
            agent.guard.spare(WASTED, wasted.give_up, wasted.end, steps.backwards)

    return end


def _wrap(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    guard, steps, step_sampling = agent.guard, agent.steps, agent.step_sampling
    begun, ended = guard.around(BEGIN, _begin(agent)), guard.around(END, _end(agent))
    updated = guard.around(INSIDE, step_sampling.inside)

    def seen(t_outputs: Any, args: Any, kwargs: Any) -> Any:
        if not (get_ident() == guard.live or agent.trains()) or (steps.unsampled > 0 and steps.in_backward):
            return original(t_outputs, *args, **kwargs)
        if steps.recording is not None:
            steps.recording.backward()
            return original(t_outputs, *args, **kwargs)
        if steps.unsampled == BY_HAND and steps.in_backward:
            return original(t_outputs, *args, **kwargs)
        if steps.unsampled > 0 and steps.on_stack():
            steps.backwards_since_step = 0  # these are of a closure: an update ends them, however many they are
            return run(t_outputs, *args, **kwargs)
        if steps.unsampled:
            step_sampling.leave()
        begun(t_outputs, kwargs.get("accumulate_grad"), *args)
        if steps.unsampled:  # from here on
            return run(t_outputs, *args, **kwargs)
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            if get_ident() == guard.live:
                ended()

    @functools.wraps(original)
    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(t_outputs, *args, **kwargs)
        if get_ident() != guard.live or steps.in_backward or not steps.unsampled:
            return seen(t_outputs, args, kwargs)
        by_optimizer = steps.unsampled > 0
        if by_optimizer:
            unexpected = steps.backwards_since_step >= MOST
        else:  # a step BY_HAND has one; where nothing else is seen of the loop, it ends where the next one begins
            if steps.manual_open and not steps.begins:
                step_sampling.event()
            unexpected = steps.unsampled != BY_HAND or steps.recording is not None or steps.manual_open > 0
        if unexpected:
            return seen(t_outputs, args, kwargs)
        steps.in_backward = 1
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            steps.in_backward = 0
            steps.backwards += 1
            steps.backwards_since_step += 1
            if not by_optimizer:
                steps.manual_open, step_sampling.backward_ns = 1, step_sampling.clock()
            elif steps.inside:
                updated()

    return run


def _patch_scale(agent: "Agent") -> None:
    kind = torch.amp.GradScaler
    original = kind.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        quiet = agent.steps.unsampled or agent.steps.recording is not None
        if not quiet and isinstance(outputs, torch.Tensor) and agent.mine():
            agent.guard.call(SCALE, agent.script.scaled, scaled, outputs)
        return scaled

    kind.scale = scale
