"""The code that a model can reach, by the names that its code objects hold: nothing is run and nothing hooked.

From the forward of the modules' classes through the methods of theirs, the functions and the classes that it names, in
whatever file those are, nearest first. What lies in a script beside the model (a loss, a metric) is not reached, nor
are methods that a forward names nowhere: transformers' models have all of `generate`, and through it pandas, among
theirs.
What is called by way of an attribute of an object, other than of a module or of a module of Python's, is not followed.
"""

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

MOST: Final = 4096
"""Functions that are looked at."""
LIBRARIES: Final = ("torch", "hotlap", "numpy", "functools", "typing", "math")
"""Top packages whose own code is not followed."""
ENTRIES: Final = frozenset({"forward", "training_step", "__call__"})
"""Methods that training begins with. Of a class that has none of its own, all are taken for such."""


def reachable(modules: Iterable[Any]) -> list[CodeType]:
    """The code of the forward of modules (torch's own have none that is looked at) and of all that it can call."""
    modules = list(modules)
    methods, entries = _methods({type(module) for module in modules})
    kinds = {id(base) for module in modules for base in type(module).__mro__}
    waiting: deque[Any] = deque(member for name in entries for member in methods.pop(name, ()))
    for module in modules:
        waiting += [value for value in vars(module).values() if isinstance(value, (FunctionType, MethodType))]
    seen: set[int] = set()
    found: list[CodeType] = []
    while waiting and len(found) < MOST:
        thing = waiting.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for function in _functions(thing):
            codes = list(_nested(function.__code__))
            found += codes
            waiting += _enclosed(function)
            for code in codes:
                waiting += [member for name in code.co_names for member in methods.pop(name, ())]
                waiting += [named for named in _named(code, function.__globals__) if id(named) not in kinds]
    return found


def _methods(types: Iterable[type]) -> tuple[dict[str, list[Any]], set[str]]:
    """What the classes of modules and their bases hold, by name; and the names that training begins with."""
    methods: dict[str, list[Any]] = {}
    entries = set(ENTRIES)
    bases: dict[int, type] = {}
    for kind in types:
        own = [base for base in kind.__mro__ if _followed(base)]
        bases.update((id(base), base) for base in own)
        if not any(name in vars(base) for base in own for name in ENTRIES):
            entries.update(name for base in own for name in vars(base))
    for base in bases.values():
        for name, member in vars(base).items():
            if name != "__init__" and not isinstance(member, type):
                methods.setdefault(name, []).append(member)
    return methods, entries


def _functions(thing: Any) -> Iterator[FunctionType]:
    """The functions of a class, or a function, beneath what decorators put around it."""
    if isinstance(thing, type):
        for name, member in list(vars(thing).items()):
            if name != "__init__":
                yield from _functions(getattr(member, "__func__", member)) if not isinstance(member, type) else ()
        return
    for _ in range(8):
        thing = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
        if isinstance(thing, FunctionType):
            yield thing
        thing = getattr(thing, "__wrapped__", None)
        if thing is None:
            return


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """Functions that a function made by another was handed: what a decorator keeps."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            if isinstance(cell.cell_contents, FunctionType) and _followed(cell.cell_contents):
                yield cell.cell_contents


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _named(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """Functions and classes that code names, also as attributes of modules that it names."""
    inside = [
        value for name in code.co_names if isinstance(value := names.get(name), ModuleType) and _ours(value.__name__)
    ]
    for name in code.co_names:
        for value in (names.get(name), *(vars(module).get(name) for module in inside)):
            if isinstance(value, (type, FunctionType)) and _followed(value):
                yield value


def _followed(thing: Any) -> bool:
    return _ours(getattr(thing, "__module__", None) or "")


def _ours(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in LIBRARIES and top not in sys.builtin_module_names and bool(top)
