"""A variable that one function alone sees: how it is set, and every read of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import libcst as cst
import libcst.matchers as m

from hotlap.source.places import CannotTell
from hotlap.source.scopes import Binding, dotted
from hotlap.source.tensors import reads

from ..edits import Replacement
from ._base import Change, Wait, numbered
from ._turns import loops, seldom
from .reports import change as less_often

BY_NAME: Final = frozenset(["locals", "globals", "vars", "exec", "eval"])
"""Calls that may read a variable by its name."""
BY_ITS_NAME: Final = m.Del() | m.FormattedStringExpression(equal=m.AssignEqual())
"""`del total`, `f"{total=}"`."""


@dataclass(frozen=True, eq=False)
class Variable:
    """name in the wait's function. reads: where its value is used, but for `name += ...` itself."""

    name: str
    bindings: Sequence[Binding]
    reads: Sequence[cst.BaseExpression]


def variable(wait: Wait, name: str) -> Variable:
    """The variable of this name. Raises CannotTell where others may see it, or read it unseen."""
    scope, source, names = wait.scope, wait.source, wait.places.names
    found = names.variable(name, scope)
    if found is None or found.scope is not scope or scope.is_class:
        raise CannotTell(f"`{name}` is not local to this function")
    if isinstance(scope.node, cst.Module) and source is not wait.places.project.main:
        raise CannotTell(f"`{name}` is a module variable, which other files may read")
    used = [node for node in source.walk.uses.get(name, ()) if names.variable(name, source.scope(node)) == found]
    outside = [node for node in used if source.scope(node) is not scope]
    if outside:
        raise CannotTell(f"`{name}` is used by another function too", wait.lines(outside))
    by_name = [call for at, call in source.walk.calls if at is scope and dotted(call.func) in BY_NAME]
    shown = [node for node in used if m.matches(source.parent(node) or node, BY_ITS_NAME)]
    if by_name or shown:
        raise CannotTell(f"`{name}` may be read by its name", wait.lines([*by_name, *shown]))
    read = [n for n in reads(scope, name) if n in used and getattr(source.parent(n), "target", None) is not n]
    return Variable(name, scope.names[name], read)


def moved(wait: Wait, name: str, reads: Mapping[cst.CSTNode, Replacement]) -> Change:
    """The change of the places where a value is read, so that the host waits there. A report that reads it in every
    turn is shown less often; raises CannotTell where anything else does. Its `written` says where the host waits."""
    if next(loops(wait.source, wait.scope, wait.line), None) is None:
        raise CannotTell(f"it is in no loop of this function, so how often `{name}` is read is unknown")
    changes: dict[cst.CSTNode, Replacement] = {**reads}
    notes: tuple[str, ...] = ()
    why = f"`{name}` is read in each turn of a loop, and the host would wait there instead"
    for node in _in_every_turn(wait, reads):
        line = wait.source.around(node, cst.SimpleStatementLine)
        try:
            shown = less_often(replace(wait, line=line)) if line is not None else None
        except CannotTell as error:
            raise CannotTell(why, (*wait.lines([node]), *error.lines)) from error
        if shown is None:
            raise CannotTell(why, wait.lines([node]))
        changes |= shown.changes
        notes = tuple(dict.fromkeys((*notes, *shown.notes)))
    lines = sorted(wait.lines(reads), key=lambda line: line.line)
    where = f"the host now waits where it is read, in {numbered(lines)}" if lines else "nothing reads it"
    return Change(changes, where, notes)


def _in_every_turn(wait: Wait, reads: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Those of some reads that run as often as the wait, as far as is known: what is behind the wait's loop runs less
    often, and so does what is under `if step % n == 0`."""
    _, *outer = loops(wait.source, wait.scope, wait.line)
    for node in reads:
        loop = next(loops(wait.source, wait.scope, node), None)
        if loop is not None and loop not in outer and seldom(wait, loop, node) is None:
            yield node
