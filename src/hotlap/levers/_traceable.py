"""Not a lever: what torch.compile needs to take hold of a module of torch's own."""

from collections.abc import Callable
from typing import Any


def traceable(module: Any, forward: Callable[..., Any], shared: bool = False) -> Callable[..., Any]:
    """A forward of this module that torch.compile takes hold of. shared: modules that are alike share their graphs.

    It begins at the first frame that is not in torch's own files. A model that is a `nn.Sequential` of layers of torch
    has none, and would run eagerly without a word. Graphs belong to a piece of code, which may have eight of them.
    """
    if not type(module).forward.__module__.startswith("torch.nn.modules."):
        return forward

    def traced(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    if not shared:
        traced.__code__ = traced.__code__.replace()
    return traced
