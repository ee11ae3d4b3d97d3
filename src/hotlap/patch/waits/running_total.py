"""`total += loss.item()`: added up on the device, and read where the total is."""

from collections.abc import Iterator
from typing import Final

import libcst as cst

from hotlap.source.places import CannotTell
from hotlap.source.scopes import Binding

from ..edits import Replacement
from ._base import Change, Wait, assigned
from ._reads import called, is_count, is_real, kept_as, read_by, stays
from ._variables import Variable, moved, variable

INFERENCE: Final = "torch.inference_mode"
ADDING: Final = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
ARITHMETIC: Final = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
FLOAT64: Final = "summed in float64, as Python does, so that the numbers stay the same"


def change(wait: Wait) -> Change | None:
    """Refuses totals that are kept in an object, set to what is no number, or read in every turn of the loop."""
    adds = _sum(wait.statement)
    if adds is None:
        return None
    target, value = adds
    found = [leaf for leaf in _leaves(value) if read_by(leaf, wait) is not None]
    if not found:
        return None
    if not isinstance(target, cst.Name):
        code = wait.source.code(target)
        raise CannotTell(f"`{code}` is kept in an object, which other code may read")
    if len(found) > 1:
        raise CannotTell("it reads several values; put each on its own line")
    total = variable(wait, target.value)
    stays(found[0], wait)
    return _checked(wait, total, found[0])


def _sum(small: cst.CSTNode | None) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """What a statement adds to, and what it computes: of `total += x`, or of `total = 0.9 * total + x`."""
    if isinstance(small, cst.AugAssign) and isinstance(small.operator, ADDING):
        return small.target, small.value
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if any(leaf.deep_equals(target) for leaf in _leaves(small.value)):
            return target, small.value
    return None


def _leaves(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What an arithmetic expression is made of."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, ARITHMETIC):
        yield from _leaves(node.left)
        yield from _leaves(node.right)
    elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        yield from _leaves(node.expression)
    else:
        yield node


def _checked(wait: Wait, total: Variable, read: cst.BaseExpression) -> Change:
    others = [binding for binding in total.bindings if _sum(binding.statement) is None]
    kinds = {_number(binding) for binding in others}
    if None in kinds or not others:
        lines = wait.lines(binding.statement for binding in others if _number(binding) is None)
        raise CannotTell(f"`{total.name}` is set to what may not be a number", lines)
    tensor = read_by(read, wait)
    assert tensor is not None and isinstance(read, cst.Call)
    statement = wait.statement
    plain = isinstance(statement, cst.AugAssign) and statement.value is read and len(total.bindings) - len(others) == 1
    if kinds == {cst.Integer} and plain and isinstance(read.func, cst.Attribute) and is_count(tensor):
        return _written(wait, total, {read: kept_as()}, "int", ())
    if kinds == {cst.Float} or not isinstance(read.func, cst.Attribute) or is_real(tensor, wait):
        notes = (FLOAT64, f"before anything is added, `{total.name}` reads 0.0 where it was 0")
        return _written(wait, total, {read: kept_as("detach", "double")}, "float", notes[: 1 + (cst.Integer in kinds)])
    raise CannotTell(f"`{total.name}` may sum whole numbers; start it with 0.0 if it does not")


def _number(binding: Binding) -> type[cst.CSTNode] | None:
    """Integer or Float, where a statement sets the variable to such a literal."""
    value = assigned(binding)
    return type(value) if isinstance(value, cst.Integer | cst.Float) else None


def _written(
    wait: Wait, total: Variable, changes: dict[cst.CSTNode, Replacement], python: str, notes: tuple[str, ...]
) -> Change:
    if not wait.is_builtin(python):
        raise CannotTell(f"`{python}` is not Python's own here")
    sums = [binding.statement for binding in total.bindings if _sum(binding.statement) and binding.value is not None]
    reads = [node for node in total.reads if not any(wait.source.inside(one, node) for one in sums)]
    changed = [one for one in total.bindings if isinstance(one.statement, cst.AugAssign)]
    outside = [one.statement for one in changed if _inference(wait, one.statement) is not _inference(wait, wait.line)]
    if outside:
        raise CannotTell(f"`{total.name}` is summed in inference mode and changed outside of it", wait.lines(outside))
    there = moved(wait, total.name, {node: called(python) for node in reads})
    written = f"`{total.name}` is summed on the device; {there.written}"
    return Change({**changes, **there.changes}, written, (*(notes if reads else ()), *there.notes))


def _inference(wait: Wait, node: cst.CSTNode) -> cst.CSTNode | None:
    """The `with torch.inference_mode()` around a node; what is made there can't be changed in place elsewhere."""
    for block in wait.source.above(node):
        heads = [item.item for item in block.items] if isinstance(block, cst.With) else []
        if any(wait.resolve(head.func if isinstance(head, cst.Call) else head) == INFERENCE for head in heads):
            return block
    return None
