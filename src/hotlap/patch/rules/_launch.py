"""What the rules of levers share that only set variables: they go with the command, nothing of them into the source."""

import re
from collections.abc import Iterable

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Outcome

AT_LAUNCH = "set in the environment, in the command to start below; nothing of it is in the source"


def at_launch(places: Places, variables: Iterable[str]) -> Outcome:
    """Refuses where the source sets one of the variables itself, which would win or lose by the order of lines."""
    lines = _mentions(places, set(variables))
    if lines:
        return CannotWrite("the source sets this in its environment itself", tuple(lines))
    return Edit(places.project, notes=(AT_LAUNCH,))


def _mentions(places: Places, variables: set[str]) -> list[Line]:
    found = []
    for source in places.project.sources.values():
        finder = _Strings()
        source.tree.visit(finder)
        found += [
            source.place(node) for node in finder.found if re.split(r"[=:]", str(node.evaluated_value))[0] in variables
        ]
    return found


class _Strings(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.SimpleString] = []

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found.append(node)
