"""Not a lever: what torch.compile needs to take hold of a module of torch's own."""

from collections.abc import Callable
from typing import Any


def traceable(module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward of this module that torch.compile takes hold of.

    It begins at the first frame that is not in torch's own files. A model that is a `nn.Sequential` of layers of torch
    has none, and would run eagerly without a word.
    """
    if not type(module).forward.__module__.startswith("torch.nn.modules."):
        return forward

    def traced(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    traced.__code__ = traced.__code__.replace()  # each has graphs of its own, of which a piece of code may have eight
    return traced
