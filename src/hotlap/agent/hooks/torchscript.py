"""TorchScript takes all that is in a module's `__dict__` for the module's own, and fails at what hotlap puts into
`_compiled_call_impl`: that is taken out while it reads a module. What it makes is the script's model, without levers,
and so is what FX makes, which refuses to trace what Dynamo compiles.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..torch_internals import IMPL, SCRIPTING, TRACING
from .forward import Observed

if TYPE_CHECKING:
    from ..core import Agent


def install(agent: "Agent") -> None:
    """Wrap what reads a module, which scripting, traces and `ScriptModule` all ask of each module inside; where there
    are levers, what traces one too. Nothing is observed, and it has to be so after hotlap has switched itself off."""
    _wrap(*SCRIPTING, _hidden)
    if not agent.session.levers:
        return
    if _wrap(*TRACING, _without_levers):
        torch.jit.trace_module = getattr(*TRACING)
    _wrap(getattr(torch.fx, "Tracer", None), "trace", _without_levers, 1)


def _wrap(owner: Any, name: str, around: Callable[[Any], contextlib.AbstractContextManager[None]], at: int = 0) -> bool:
    """Whether it is in this torch. at: the place of the module among the arguments."""
    original = getattr(owner, name, None)
    if original is None:
        return False

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        modules = (one for one in (*args[at : at + 1], *kwargs.values()) if isinstance(one, torch.nn.Module))
        with around(next(modules, None)):
            return original(*args, **kwargs)

    setattr(owner, name, wrapped)
    return True


@contextlib.contextmanager
def _hidden(module: Any) -> Iterator[None]:
    """A module as it is without hotlap."""
    attributes = getattr(module, "__dict__", {})
    taken = {key: attributes[key] for key in (IMPL, "forward") if _is_ours(attributes.get(key))}
    for key in taken:
        del attributes[key]
    impl = taken.get(IMPL)
    if isinstance(impl, Observed) and impl.root.compiled:
        attributes[IMPL] = impl.root.before
    try:
        yield
    finally:
        attributes.update(taken)


@contextlib.contextmanager
def _without_levers(module: Any) -> Iterator[None]:
    """A module that is called, and observed, as it is without levers."""
    with contextlib.ExitStack() as stack:
        for one in module.modules() if isinstance(module, torch.nn.Module) else ():
            impl = one.__dict__.get(IMPL)
            if isinstance(impl, Observed):
                stack.enter_context(impl.root.bare())
            else:
                stack.enter_context(_hidden(one))
        yield


def _is_ours(found: Any) -> bool:
    """Whether hotlap or a lever put something there."""
    levers = (str(getattr(one, "__module__", "")).startswith("hotlap.levers.") for one in (found, type(found)))
    return isinstance(found, Observed) or any(levers)
