"""Whose memory it is, by identity: parameters and what goes with them, and what the script's own variables hold.

Variables are those of the user's frames that are running and of their modules, and what lies in them: containers, and
objects' attributes, not too deep and not too many. The shortest name is found first.
"""

import contextlib
import functools
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from .lines import Places
from .torch_internals import OWN, local_part, memory_of, storage

if TYPE_CHECKING:
    from .interface import Agent

Owner = list[Any]
"""Address, bytes, category, name, ns since the epoch, nodes (`records.memory.Owner`)."""
MOST_OWNERS: Final = 50_000
MOST_NODES: Final = 20_000
MOST_LOOKED_AT: Final = 50_000
"""Objects, in a walk."""
DEEPEST: Final = 8
OURS: Final = 3
"""References to a frame's dictionary: the frame's, ours, and that of the count."""
LONGEST, AT_THE_BEGINNING = 4096, 16
"""Of a longer container some at its beginning are looked at, and the last: what grows, grows there."""
LEAVES: Final = (str, bytes, int, float, bool, complex, type, ModuleType, BuiltinFunctionType,
                 CodeType, FrameType, type(None))  # fmt: skip

SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)


def models_of(agent: "Agent") -> list[tuple[str, Any]]:
    """The outermost modules, the largest first, without parts of others that are called by themselves; with what their
    parts' names begin with, where there are several."""
    modules = [one for model in list(agent.script.roots.values()) if (one := model.module()) is not None]
    found: list[Any] = []
    inside: set[int] = set()
    for module in sorted(modules, key=lambda one: -sum(1 for _ in one.modules())):
        if id(module) not in inside:
            found.append(module)
            inside.update(map(id, module.modules()))
    if len(found) < 2:
        return [("", one) for one in found]
    kinds = Counter(type(one).__name__ for one in found)
    names = [type(one).__name__ for one in found]
    numbered = (f"{name}{names[:at].count(name) + 1}" if kinds[name] > 1 else name for at, name in enumerate(names))
    return [(f"{name}.", one) for name, one in zip(numbered, found, strict=True)]


def of_models(agent: "Agent") -> Iterator[tuple[str, str, Any]]:
    """Category, name and tensor of parameters, gradients, buffers and optimizers' state."""
    names: dict[int, str] = {}
    for model, module in models_of(agent):
        for name, parameter in module.named_parameters():
            names.setdefault(id(parameter), f"{model}{name}")
            yield from _parameter(names[id(parameter)], parameter)
        for name, buffer in module.named_buffers():
            yield "buffers", f"{model}{name}", buffer
    for optimizer in list(agent.steps.optimizers):
        for group in getattr(optimizer, "param_groups", ()):
            for at, parameter in enumerate(group.get("params", ())):
                if id(parameter) not in names:
                    names[id(parameter)] = f"parameter {at}"
                    yield from _parameter(names[id(parameter)], parameter)
        for parameter, state in list(getattr(optimizer, "state", {}).items()):
            for key, value in state.items() if isinstance(state, Mapping) else ():
                if isinstance(value, torch.Tensor):
                    yield "optimizer state", f"{key} of {names.get(id(parameter), 'a parameter')}", value


def _parameter(name: str, parameter: Any) -> Iterator[tuple[str, str, Any]]:
    yield "parameters", name, parameter
    if isinstance(parameter, torch.Tensor) and (gradient := parameter.grad) is not None:
        yield "gradients", name, gradient


def of_variables(frame: FrameType | None, places: Places, deepest: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """Name and tensor of what variables of the user's frames hold, from this frame on outwards."""
    todo: deque[tuple[str, Any, int]] = deque()
    modules: dict[int, dict[str, Any]] = {}
    while frame is not None:
        if places.users(frame.f_code.co_filename):
            todo.extend((name, value, 0) for name, value in _locals(frame))
            modules[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    for found in modules.values():
        todo.extend((name, value, 0) for name, value in list(found.items()) if not name.startswith("__"))
    seen: set[int] = set()
    while todo and len(seen) < MOST_LOOKED_AT:
        name, value, depth = todo.popleft()
        kind = type(value)  # what it says itself to be, by `__class__`, may be code of the script's
        if issubclass(kind, LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(kind, torch.Tensor):
            yield name, value
        elif depth < deepest:
            todo.extend((inner, one, depth + 1) for inner, one in _inside(name, value))


def _locals(frame: FrameType) -> list[tuple[str, Any]]:
    """Its variables. Before Python 3.13 a function's frame keeps the dictionary that tells of them, and with it what
    they held; it is emptied again, unless the script has it too, from `locals()`."""
    found = frame.f_locals
    items = list(found.items())
    if isinstance(found, dict) and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(found) <= OURS:
        found.clear()
    return items


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, without any code of its class; of functions, as hooks are, their closures."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, one in _some(dict.items(value)):
            yield (f"{name}[{key!r}]" if isinstance(key, str) else f"{name}[…]"), one
    elif (plain := next((one for one in SEQUENCES if issubclass(kind, one)), None)) is not None:
        yield from ((f"{name}[…]", one) for one in _some(plain.__iter__(value)))
    elif kind is FunctionType:
        for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                yield f"{name}:{free}", cell.cell_contents
    elif kind is MethodType:
        yield f"{name}:{value.__func__.__name__}", value.__self__
    elif kind is functools.partial:
        yield from ((f"{name}[…]", one) for one in (value.func, *value.args, *value.keywords.values()))
    else:
        attributes = _attributes(value)
        # What a module holds, by the names under which the script knows it.
        for inner in OWN:
            found = attributes.get(inner)
            if isinstance(found, dict):
                yield from ((f"{name}.{key}", one) for key, one in list(found.items()))
        yield from ((f"{name}.{key}", one) for key, one in list(attributes.items()) if not key.startswith("_hotlap"))


def _some(container: Any) -> list[Any]:
    found = list(container)
    return found if len(found) <= LONGEST else found[:AT_THE_BEGINNING] + found[-LONGEST:]


def _attributes(value: Any) -> dict[str, Any]:
    """Its `__dict__`, without any code of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def nodes_of(tensor: Any) -> int:
    """Of the graph that made a tensor, how many nodes; MOST_NODES of a larger one. Nothing of them is asked that runs
    code, as of what they keep."""
    todo, seen = [tensor.grad_fn], set[Any]()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(inner for inner, _ in node.next_functions)
    return len(seen)


class Owners:
    """Rows of owners, each storage once for a category."""

    def __init__(self) -> None:
        self.rows: list[Owner] = []
        self._known: set[tuple[int, int, str]] = set()

    def again(self) -> None:
        """Tell of all that is held now once more."""
        self._known.clear()

    def add(self, category: str, name: str, tensor: Any, nodes: int = 0) -> None:
        """One, where it has memory. nodes: of its graph, where they were counted."""
        if len(self.rows) >= MOST_OWNERS:
            return
        tensor = local_part(tensor)
        if (found := memory_of(tensor)) is None:
            return
        _, address, size = found
        if size and (address, storage(tensor), category) not in self._known:
            self._known.add((address, storage(tensor), category))
            self.rows.append([address, size, category, name, time.time_ns(), nodes])
