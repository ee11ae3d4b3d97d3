"""`torch.save`, of which the memory that it takes is looked at."""

import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

if TYPE_CHECKING:
    from ..core import Agent


def install(agent: "Agent") -> None:
    """Wrap it, under both of its names."""
    guard, peaks, original = agent.guard, agent.peaks, torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        if is_dynamo_compiling() or get_ident() != guard.live:
            original(*args, **kwargs)
            return
        peaks.saves()
        original(*args, **kwargs)
        peaks.saved()

    torch.save = torch.serialization.save = save
