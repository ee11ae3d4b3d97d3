"""Gradients that the script clips, in trials alone: of what they were before, parity takes the norm too.

`clip_grad_norm_` is left as it is, under whatever name the script has it: it asks the function that is wrapped here,
which `clip_grads_with_norm_` is as well. Once the probe has ended the wrapper costs a look at two attributes.
"""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from .guard import hook
from .torch_internals import CLIPPING

if TYPE_CHECKING:
    from .core import Agent

CLIP = hook("clip")


def install(agent: "Agent") -> None:
    """Wrap what clips. Before the levers: one that wraps these functions makes gradients ready for them first."""
    if not agent.probe.active:
        return
    for module, name in CLIPPING:
        original = getattr(module, name, None)
        if original is None:  # not in this torch
            continue
        wrapped = _wrap(agent, original)
        setattr(module, name, wrapped)
        setattr(torch.nn.utils, name.removeprefix("_"), wrapped)


def _wrap(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    guard, probe, steps = agent.guard, agent.probe, agent.steps

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and probe.active and get_ident() == guard.live:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            guard.call(CLIP, probe.before_clip, parameters, steps.backwards)
        return original(parameters, *args, **kwargs)

    return clip
