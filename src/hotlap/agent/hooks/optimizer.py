"""Optimizer steps, by torch's global hooks; GradScaler.step, which may skip one; and that an optimizer exists."""

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
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
    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(optimizer: Any) -> None:
        agent.begin()
        if optimizer not in seen:
            seen.add(optimizer)
            agent.script.optimizer(optimizer)
            agent.seams.optimizer(optimizer)
        if agent.steps.optimizer_begin(id(optimizer)) and agent.probe.active:
            agent.probe.before_update(id(optimizer), optimizer)

    def end(optimizer: Any) -> None:
        key = id(optimizer)
        if not agent.steps.optimizer_end(key):
            return
        if agent.probe.active:
            agent.probe.after_update(key, optimizer)
        agent.steps.optimizer_boundary(key)

    # `is_compiling` comes first: a compiled step then drops the rest, which could not be traced.
    def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling() and agent.mine():
            agent.guard.call(BEGIN, begin, optimizer)

    def post(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling() and agent.mine():
            agent.guard.call(END, end, optimizer)

    module.register_optimizer_step_pre_hook(pre)
    module.register_optimizer_step_post_hook(post)
    _patch_init(agent)
    _patch_scaler(agent)


def _patch_init(agent: "Agent") -> None:
    original = torch.optim.Optimizer.__init__

    def built(optimizer: Any) -> None:
        agent.steps.optimizer_built(optimizer)
        agent.look_again()

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if agent.guard.on:
            agent.guard.call(BUILT, built, self)

    torch.optim.Optimizer.__init__ = __init__


def _patch_scaler(agent: "Agent") -> None:
    kind = torch.amp.GradScaler
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = agent.steps.optimizer_steps
        result = original(self, optimizer, *args, **kwargs)
        if agent.mine() and agent.steps.optimizer_steps == before and self.is_enabled():
            agent.guard.call(SCALER, agent.steps.skipped_step, id(optimizer))
        return result

    kind.step = step
