"""How the name of a kernel or an operation is written, in what a finding says as on screens."""

import re
from typing import Final

MOST: Final = 60
"""Characters that are shown."""
TEMPLATE: Final = re.compile(r"(?<=\w)[<(].*", re.S)
"""What follows the name of a C++ function."""
PARTS: Final = re.compile(r"(?P<length>\d+)(?=[A-Za-z_])|(?P<opens>I)|S[0-9A-Z]?_|L\w\d+E|.", re.S)
"""Of a mangled name: the length of a part, the beginning of a template's arguments, what stands for an earlier part, a
number."""
KEPT: Final = ("void ", "autograd::engine::evaluate_function: ")
PYTHON: Final = ".py("
"""In what a profiler calls a function of Python, which has no template."""


def short(name: str, most: int = MOST, types: bool = True) -> str:
    """So that it can be read; of one that a compiler mangled its parts. types: with those of a template."""
    for before in KEPT:
        name = name.removeprefix(before)
    name = _parts(name, most) if name.startswith("_Z") else name
    name = name if types or PYTHON in name else TEMPLATE.sub("", name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _parts(name: str, most: int) -> str:
    """`cutlass::Kernel<conv::Wgrad` of `_ZN7cutlass6KernelINS_4conv5WgradE...`."""
    found, at = "", 2
    while at < len(name) and len(found) <= most and (part := PARTS.match(name, at)):
        at = part.end()
        if length := part["length"]:
            at, word = at + int(length), name[at : at + int(length)]
            found += word if not found or found.endswith("<") else f"::{word}"
        elif part["opens"] and found and not found.endswith("<"):
            found += "<"
    return found.rstrip("<") or name
