"""Where training begins in the user's source: the outermost loop that leads to a backward."""

from dataclasses import dataclass

import libcst as cst

from .places import CannotTell, Places, Site
from .scopes import Scope


@dataclass(frozen=True, eq=False)
class Start:
    """A loop of the user's, with the scope that it stands in."""

    scope: Scope
    loop: cst.For | cst.While


def training_start(places: Places) -> Start:
    """The outermost loop around the backward: out of functions too, as long as one place calls them. Raises
    CannotTell."""
    found: dict[cst.CSTNode, Start] = {}
    for site in places.backwards:
        start = _outermost(places, site)
        if start is None:
            raise CannotTell("no loop was found around this backward", [site])
        found[start.loop] = start
    if len(found) == 1:
        return next(iter(found.values()))
    lines = [start.scope.source.place(start.loop) for start in found.values()]
    raise CannotTell("there is no one loop in which everything is trained", lines)


def _outermost(places: Places, site: Site) -> Start | None:
    best: Start | None = None
    seen: set[Scope] = set()
    here: tuple[Scope, cst.CSTNode] | None = (site.scope, site.call)
    while here is not None and here[0] not in seen:
        scope, node = here
        seen.add(scope)
        for above in scope.source.above(node):
            if isinstance(above, cst.For | cst.While) and scope.source.scope(above) is scope:
                best = Start(scope, above)
        here = _caller(places, scope)
    return best


def _caller(places: Places, scope: Scope) -> tuple[Scope, cst.CSTNode] | None:
    """Where a function is called: at its only call, or where it is defined if that is inside of another function."""
    callers = places.names.callers(scope)
    if len(callers) == 1:
        return callers[0][:2]
    if not callers and scope.parent is not None and not scope.parent.is_class:
        return scope.parent, scope.node  # a closure, as LBFGS takes one
    return None
