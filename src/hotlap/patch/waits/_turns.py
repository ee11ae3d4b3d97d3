"""Loops: how often a line runs, and what counts the turns."""

from collections.abc import Iterator
from typing import Final

import libcst as cst

from hotlap.source.scopes import Scope, Source, dotted

from ._base import Wait, assigned

Loop = cst.For | cst.While
BARS: Final = frozenset(["tqdm", "trange", "track"])


def loops(source: Source, scope: Scope, node: cst.CSTNode) -> Iterator[Loop]:
    """The loops in whose turns a node of a function runs, inner ones first."""
    below, above = node, source.parent(node)
    while above is not None and below is not scope.node:
        once = [above.orelse, above.iter] if isinstance(above, cst.For) else [getattr(above, "orelse", None)]
        if isinstance(above, cst.For | cst.While) and below not in once:
            yield above
        below, above = above, source.parent(above)


def seldom(wait: Wait, loop: Loop, node: cst.CSTNode) -> cst.If | None:
    """The `if` because of which a node runs in some turns of the loop around it only; None where none is known."""
    count = counter(wait, loop)
    below: cst.CSTNode = node
    while (above := wait.source.parent(below)) is not None and above is not loop:
        if isinstance(above, cst.If) and below is above.body and _seldom_true(above.test, count):
            return above
        below = above
    return None


def _seldom_true(test: cst.BaseExpression, count: str | None) -> bool:
    if isinstance(test, cst.BooleanOperation):
        sides = [_seldom_true(side, count) for side in (test.left, test.right)]
        return all(sides) if isinstance(test.operator, cst.Or) else any(sides)
    if isinstance(test, cst.UnaryOperation):
        return isinstance(test.operator, cst.Not) and _is_remainder(test.expression)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    (right,) = test.comparisons
    if not isinstance(right.operator, cst.Equal):
        return False
    sides_ = (test.left, right.comparator)
    return any(_is_remainder(side) or (count is not None and dotted(side) == count) for side in sides_)


def _is_remainder(node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Modulo):
        return False
    return not isinstance(node.right, cst.Integer) or node.right.evaluated_value > 1


def counter(wait: Wait, loop: Loop) -> str | None:
    """The variable that counts the turns of a loop, by one in each; None where none is known."""
    for name in _counted(wait, loop):
        made = [binding.statement for binding in wait.scope.names.get(name, ())]
        if sum(wait.source.inside(loop, one) for one in made) == 1:
            return name
    return None


def _counted(wait: Wait, loop: Loop) -> Iterator[str]:
    """What `enumerate` or `range` count, then what one is added to."""
    over = loop.iter if isinstance(loop, cst.For) else None
    if made := [assigned(binding) for binding in wait.scope.names.get(dotted(over) or "", ())]:
        over = made[0] if len(made) == 1 else None
    if isinstance(loop, cst.For) and isinstance(over, cst.Call):
        name = dotted(_without_bar(over).func) or ""
        own = name == "trange" or wait.is_builtin(name)
        by_one = sum(arg.keyword is None for arg in _without_bar(over).args) < 3 and not any(a.star for a in over.args)
        if own and name in {"range", "trange"} and by_one and isinstance(loop.target, cst.Name):
            yield loop.target.value
        elif own and name == "enumerate" and isinstance(loop.target, cst.Tuple):
            first = loop.target.elements[0].value
            if isinstance(first, cst.Name):
                yield first.value
    for line in loop.body.body:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
            one = isinstance(small.value, cst.Integer) and small.value.evaluated_value == 1
            if one and isinstance(small.target, cst.Name):
                yield small.target.value


def _without_bar(call: cst.Call) -> cst.Call:
    """What a progress bar goes over: `range(9)` of `tqdm(range(9))`."""
    given = call.args[0].value if call.args else None
    last = (dotted(call.func) or "").rpartition(".")[2]
    return given if last in BARS and isinstance(given, cst.Call) else call
