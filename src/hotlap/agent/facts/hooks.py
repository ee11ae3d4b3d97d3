"""Hooks on a model's forwards, as it was first called and now."""

import functools
import itertools
import os
from collections import Counter
from types import CodeType, FunctionType, MethodType
from typing import Any

from ..lines import Places
from ..torch_internals import forward_hooks
from . import Facts, Model, Script


def describe_model(model: Model) -> Facts:
    """Number of forward hooks, and of those with the same code on one module."""
    return {"hooks": (hooks_of(model.module()), 0), "alike": (most_alike(model.module())[0], 0)}


def look_at_model(model: Model, script: Script) -> Facts:
    """The same as it is now, beside the first; and where the code of the most frequent hook is."""
    facts, (alike, code) = model.facts, most_alike(model.module())
    found: Facts = {"hooks": (facts["hooks"][0], hooks_of(model.module())), "alike": (facts["alike"][0], alike)}
    if code is not None and Places().users(code.co_filename):
        found["hook"] = os.path.abspath(code.co_filename), code.co_firstlineno, code.co_qualname
    return found


def hooks_of(module: Any) -> int:
    """Hooks on the forwards of a module and all that it holds."""
    return sum(map(len, itertools.chain.from_iterable(map(forward_hooks, module.modules()))))


def most_alike(module: Any) -> tuple[int, CodeType | None]:
    """How many hooks on one of these forwards, that with most, run the same code, and that code."""
    most = max(itertools.chain.from_iterable(map(forward_hooks, module.modules())), key=len)
    counted = Counter(filter(None, map(_code_of, list(most.values()))))
    return next(((times, code) for code, times in counted.most_common(1)), (0, None))


def _code_of(hook: Any) -> CodeType | None:
    """What a hook runs, as far as it is Python's."""
    while isinstance(hook, (functools.partial, MethodType)):
        hook = hook.func if isinstance(hook, functools.partial) else hook.__func__
    run = hook if isinstance(hook, FunctionType) else type(hook).__call__
    return run.__code__ if isinstance(run, FunctionType) else None
