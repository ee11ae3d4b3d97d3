"""Not a lever: what torch.compile needs to take hold of a module of torch's own."""

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from .._internals import internals

TAKEN: Final["weakref.WeakSet[Any]"] = weakref.WeakSet()
"""Models of which a forward was compiled as a whole."""
MORE: Final = 8
"""Graphs of a piece of code for each further set of levers: torch's own limit of one."""


def traceable(module: Any, forward: Callable[..., Any], shared: bool = False) -> Callable[..., Any]:
    """A forward of this module that torch.compile takes hold of. shared: modules that are alike share their graphs.

    It begins at the first frame that is not in torch's own files. A model that is a `nn.Sequential` of layers of torch
    has none, and would run eagerly without a word. Graphs belong to a piece of code, which may have eight of them.
    """
    if not shared:
        forward = _own_code(module, forward)
    if not type(module).forward.__module__.startswith("torch.nn.modules."):
        return forward

    def traced(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    if not shared:
        traced.__code__ = traced.__code__.replace()
    return traced


def _own_code(module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward with code of its own from the second on that is compiled of a model, beside other levers: what those
    change of the compiler is not told by its guards, and code can have only so many graphs."""
    if module not in TAKEN:
        TAKEN.add(module)
        return forward
    internals().dynamo_config().recompile_limit += MORE  # of code inside, where a graph ends
    if type(forward) is not FunctionType:
        return forward
    own = FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    return own
