"""`losses.append(loss.item())`: kept on the device, and read where the list is."""

from typing import Final

import libcst as cst

from hotlap.source.places import CannotTell
from hotlap.source.scopes import dotted, is_method_call

from ..edits import Replacement, Rewriting, expression
from ._base import Change, Wait, assigned
from ._reads import kept_as, read_by, stays, value_of
from ._variables import moved, variable

TAKES: Final = frozenset(["sum", "max", "min", "sorted"])
MEANS: Final = frozenset(
    ["numpy.mean", "numpy.median", "numpy.sum", "statistics.mean", "statistics.fmean", "statistics.median"]
)
KEPT: Final = "each value takes 512 bytes of device memory while the list keeps it"


def change(wait: Wait) -> Change | None:
    """Refuses lists that are kept in an object, and all uses but sums, means, extremes, single elements and lengths."""
    call = wait.call
    if not is_method_call(call, "append"):
        return None
    read = call.args[0].value if len(call.args) == 1 else None
    if read is None or read_by(read, wait) is None:
        return None
    if not isinstance(call.func.value, cst.Name):
        code = wait.source.code(call.func.value)
        raise CannotTell(f"`{code}` is kept in an object, which other code may read")
    kept = variable(wait, call.func.value.value)
    stays(read, wait)
    other = [binding.statement for binding in kept.bindings if not _is_empty(assigned(binding))]
    if other:
        raise CannotTell(f"`{kept.name}` does not start as an empty list", wait.lines(other))
    reads: dict[cst.CSTNode, Replacement] = {
        found: _values(wait, value_of(read)) if _is_many(found) else value_of(read)
        for node in kept.reads
        if (found := _use(wait, node)) is not None
    }
    there = moved(wait, kept.name, reads)
    changes = {read: kept_as("detach", "clone"), **there.changes}
    return Change(changes, f"`{kept.name}` keeps tensors; {there.written}", (KEPT, *there.notes))


def _is_empty(value: cst.BaseExpression | None) -> bool:
    return (isinstance(value, cst.List) and not value.elements) or (
        isinstance(value, cst.Call) and dotted(value.func) == "list" and not value.args
    )


def _use(wait: Wait, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression whose values a use of the list reads; None where it reads none of them. Raises CannotTell."""
    above = wait.source.parent(node)
    if isinstance(above, cst.Attribute):
        call = wait.source.parent(above)
        if above.attr.value == "clear" or call is wait.call:
            return None
    elif isinstance(above, cst.Subscript) and above.value is node:
        stored = isinstance(wait.source.parent(above), cst.AssignTarget | cst.AugAssign | cst.Del)
        if not stored and (not _is_many(above) or _is_taken(wait, above)):
            return above
    elif _is_taken(wait, node):
        return node
    elif isinstance(above, cst.If) or _call_of(wait, node) == "len":
        return None
    raise CannotTell("the list is used where numbers are needed", wait.lines([node]))


def _is_many(node: cst.BaseExpression) -> bool:
    """Whether an expression is the list or a slice of it, not one element."""
    return not isinstance(node, cst.Subscript) or not isinstance(node.slice[0].slice, cst.Index)


def _is_taken(wait: Wait, node: cst.BaseExpression) -> bool:
    name = _call_of(wait, node)
    return name in TAKES or name in MEANS


def _call_of(wait: Wait, node: cst.BaseExpression) -> str:
    """The full name of the function whose first argument an expression is; "" for none, or one that is not known."""
    arg = wait.source.parent(node)
    call = wait.source.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or call.args[0] is not arg or arg.star or arg.keyword is not None:
        return ""
    name = dotted(call.func) or ""
    return name if wait.is_builtin(name.partition(".")[0]) else wait.resolve(call.func)


def _values(wait: Wait, value: Rewriting) -> Rewriting:
    """The list or slice as numbers."""
    made = cst.ensure_type(expression(wait.source, "[value for value in x]"), cst.ListComp)
    made = made.with_changes(elt=value(made.elt))
    return lambda node: made.with_changes(for_in=made.for_in.with_changes(iter=node))
