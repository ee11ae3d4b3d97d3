"""Optimizer steps, by torch's global hooks; GradScaler.step, which may skip one; and that an optimizer exists."""

import functools
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import optimizer as module

from ..guard import hook

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, BUILT, SCALER = (
    hook("optimizer_begin"),
    hook("optimizer_end"),
    hook("optimizer_built"),
    hook("grad_scaler_step"),
)


def install(agent: "Agent") -> None:
    """Register the global hooks."""
    guard, steps, probe = agent.guard, agent.steps, agent.probe
    seen: dict[int, Any] = {}

    def begin(optimizer: Any) -> None:
        if steps.recording is not None:
            return
        key = id(optimizer)
        known = seen.get(key)
        new = known is None or known() is not optimizer
        if steps.unsampled:
            if steps.nested and not new and steps.on_stack() > 1:
                return  # inside of the one that is expected
            agent.step_sampling.leave(beginning=1)
        if new:
            first(key, optimizer)
        if steps.optimizer_begin(key) and probe.active:
            probe.before_update(key, optimizer)

    def first(key: int, optimizer: Any) -> None:
        if not agent.begun:
            agent.begin()
        seen[key] = weakref.ref(optimizer)
        agent.script.optimizer(optimizer)
        agent.seams.optimizer(optimizer)

    def end(optimizer: Any) -> None:
        if steps.recording is not None:
            steps.recording.update(id(optimizer))
            return
        key = id(optimizer)
        agent.wasted.stepped(key)
        if steps.optimizer_end(key):
            if probe.active:
                probe.after_update(key, optimizer)
            steps.optimizer_boundary(key)

    begun, ended, step_sampling = guard.around(BEGIN, begin), guard.around(END, end), agent.step_sampling

    def begins(optimizer: Any) -> None:
        if get_ident() == guard.live or agent.mine():
            begun(optimizer)

    # `is_dynamo_compiling` comes first: a compiled step then drops the rest, which could not be traced.
    def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
        if (
            not is_dynamo_compiling()
            and steps.unsampled != id(optimizer)
            and not (steps.unsampled and steps.in_backward)
        ):
            begins(optimizer)

    def post(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or get_ident() != guard.live:
            return
        if steps.unsampled and steps.in_backward:
            steps.inside.append(id(optimizer))
            steps.optimizer_steps += 1
        elif steps.unsampled == id(optimizer):
            step_sampling.lapped()
        else:
            ended(optimizer)

    module.register_optimizer_step_pre_hook(pre)
    module.register_optimizer_step_post_hook(post)
    _patch_init(agent)
    _patch_scaler(agent)


def _patch_init(agent: "Agent") -> None:
    guard, original = agent.guard, torch.optim.Optimizer.__init__

    def built(optimizer: Any) -> None:
        if get_ident() == guard.live:  # one that another thread makes is none of the loop's yet
            agent.step_sampling.leave()
        agent.steps.optimizer_built(optimizer)
        agent.script.optimizer_made(optimizer)
        agent.finder.look_again()

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if guard.on:
            guard.call(BUILT, built, self)

    torch.optim.Optimizer.__init__ = __init__


def _patch_scaler(agent: "Agent") -> None:
    kind = torch.amp.GradScaler
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = agent.steps.optimizer_steps
        result = original(self, optimizer, *args, **kwargs)
        skipped = agent.steps.optimizer_steps == before and agent.steps.recording is None
        if skipped and agent.mine() and self.is_enabled():
            agent.guard.call(SCALER, agent.step_sampling.skipped, id(optimizer))
        return result

    kind.step = step
