"""Not a lever: torch's private names, for levers, which are imported where there is no torch.

An import inside of a function takes ten times as long as this call, in functions that run in each step.
"""

from functools import cache
from types import ModuleType


@cache
def internals() -> ModuleType:
    """`agent/torch_internals.py`. For the user's process alone; not for code that torch.compile reads."""
    from hotlap.agent import torch_internals

    return torch_internals
