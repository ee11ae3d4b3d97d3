"""Where training begins in the user's source: the outermost loop that leads to a backward."""

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from .places import CannotWrite, Places, Site
from .scopes import Scope
from .tree import Source


@dataclass(frozen=True, eq=False)
class Start:
    """A loop of the user's, with the scope that it stands in."""

    source: Source
    scope: Scope
    loop: cst.For | cst.While


def training_start(places: Places) -> Start | CannotWrite:
    """The outermost loop around the backward: out of functions too, as long as one place calls them."""
    found: dict[cst.CSTNode, Start] = {}
    for site in places.backwards:
        start = _outermost(places, site)
        if start is None:
            return CannotWrite("no loop was found around this backward", (site.place,))
        found[start.loop] = start
    if len(found) == 1:
        return next(iter(found.values()))
    lines = tuple(start.source.place(start.loop) for start in found.values())
    return CannotWrite("there is no one loop in which everything is trained", lines)


def _outermost(places: Places, site: Site) -> Start | None:
    best: Start | None = None
    seen: set[Scope] = set()
    scope: Scope = site.scope
    node: cst.CSTNode = site.call
    while scope not in seen:
        seen.add(scope)
        for loop in _loops(scope, node):
            best = Start(scope.source, scope, loop)
        above = _above(places, scope)
        if above is None:
            break
        scope, node = above
    return best


def _loops(scope: Scope, node: cst.CSTNode) -> Iterator[cst.For | cst.While]:
    """Loops around a node in its own function, outwards."""
    above = scope.source.parent(node)
    while above is not None and above is not scope.node:
        if isinstance(above, cst.For | cst.While):
            yield above
        above = scope.source.parent(above)


def _above(places: Places, scope: Scope) -> tuple[Scope, cst.CSTNode] | None:
    """Where a function is called: at its only call, or where it is defined if that is inside of another function."""
    callers = places.names.callers(scope)
    if len(callers) == 1:
        return callers[0][0], callers[0][1]
    if not callers and scope.parent is not None and not isinstance(scope.parent.node, cst.ClassDef):
        return scope.parent, scope.node  # a closure, as LBFGS takes one
    return None
