"""Which functions are methods of modules, told by their classes alone: to ask a frame for its `self` keeps what is in
it alive, and fills a dict that the script may hold."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import FrameType

import torch

from .lines import Places, calls

Function = tuple[str, str]
"""File and qualified name."""


def of_modules(functions: Collection[Function]) -> set[Function]:
    """Those of them that are methods of modules, or of what these inherit from."""
    by_class: defaultdict[str, list[Function]] = defaultdict(list)
    for one in functions:
        by_class[one[1].rpartition(".")[0]].append(one)
    alike = [kind for kind in _classes() if kind.__qualname__ in by_class]
    return {one for kind in alike for one in by_class[kind.__qualname__] if _file(kind, one[1]) == one[0]}


def owner(frame: FrameType | None) -> str | None:
    """Class of the outermost of these on the way to a frame."""
    places = Places()
    outward = [(os.path.abspath(code.co_filename), code) for code, _ in calls(frame) if places.users(code.co_filename)]
    way = [(file, code.co_qualname) for file, code in outward if code.co_argcount and "." in code.co_qualname]
    known = of_modules(way) if way else set()
    return next((name.rpartition(".")[0] for file, name in reversed(way) if (file, name) in known), None)


def _classes() -> Iterator[type]:
    """Those of modules but for torch's own, and of what they inherit from."""
    kinds, left = {torch.nn.Module}, [torch.nn.Module]
    while left:
        new = [one for one in type.__subclasses__(left.pop()) if one not in kinds]
        kinds.update(new)
        left += new
    inherited = {base for kind in kinds for base in kind.__mro__}
    return (one for one in inherited if not one.__module__.startswith(("torch.", "builtins")))


def _file(kind: type, name: str) -> str:
    """In which a class has a method of this name, decorated or not; "" where it has none."""
    found = vars(kind).get(name.rpartition(".")[2])
    while (inner := getattr(found, "__wrapped__", None)) is not None:
        found = inner
    code = getattr(found, "__code__", None)
    return os.path.abspath(code.co_filename) if code is not None and code.co_qualname == name else ""
