"""Reads of a tensor's value on the host, and what is known of the value."""

import re
from typing import Final

import libcst as cst
import libcst.matchers as m

from hotlap.source.places import CannotTell
from hotlap.source.scopes import dotted, is_method_call, last_name, nodes
from hotlap.source.tensors import FUNCTIONAL, TENSOR_METHODS

from ..edits import Rewriting, through
from ._base import Wait, assigned

ITEM: Final = "`.item()`"
CPU: Final = "`.cpu()` or `.to('cpu')`"
LOSS: Final = re.compile(r"\.(\w+_loss|cross_entropy\w*)$")
REAL: Final = frozenset(["mean", "float", "double", "norm", "std", "var"])
"""Methods of a tensor that never give whole numbers."""
EQUAL: Final = m.Call(m.Attribute(attr=m.Name("eq") | m.Name("ne") | m.Name("equal")))
TENSORS: Final = TENSOR_METHODS | REAL | frozenset(
    [
        "round", "floor", "long", "int", "bool", "to", "cuda", "type", "view_as", "ge", "gt", "le", "lt", "square",
        "isnan", "any", "all", "eq", "ne", "equal", "add", "sub", "mul", "div",
    ]
)  # fmt: skip
"""Methods of a tensor, nearly all of which give a tensor and do not wait."""
DEEPEST: Final = 4
"""Assignments that are followed one behind the other."""


def read_by(node: cst.BaseExpression, wait: Wait) -> cst.BaseExpression | None:
    """What `x.item()` and `float(x)` read the value of; None of any other expression."""
    if is_method_call(node, "item"):
        return None if node.args else node.func.value
    if not isinstance(node, cst.Call):
        return None
    if dotted(node.func) != "float" or not wait.is_builtin("float") or len(node.args) != 1:
        return None
    (given,) = node.args
    return None if given.star or given.keyword is not None or isinstance(given.value, cst.BaseString) else given.value


def stays(read: cst.BaseExpression, wait: Wait) -> None:
    """Raises CannotTell where it is not known that the line waits for the tensor that it reads the value of."""
    tensor = read_by(read, wait)
    copies = tensor is not None and any(is_method_call(layer, "cpu") for layer in _layers(tensor)[:-1])
    if tensor is None or not (wait.cause == ITEM or (wait.cause == CPU and copies)):
        raise CannotTell(f"it waits because of {wait.cause}, which would stay")
    other = next((call for call in nodes(tensor, cst.Call) if not _gives_tensor(call, wait)), None)
    if other is not None:
        raise CannotTell(f"what `{wait.source.code(other.func)}` does and returns is unknown")
    made = [assigned(binding) for binding in wait.scope.names.get(dotted(bare(tensor)) or "", ())]
    if any(isinstance(value, cst.BaseNumber | cst.IfExp) for value in made):
        raise CannotTell("it may read a plain number instead of a tensor")


def _gives_tensor(call: cst.Call, wait: Wait) -> bool:
    """Whether a call is one of torch's, of a module, or of the user's own, whose waits are found in their own lines."""
    places, full = wait.places, wait.resolve(call.func)
    if full.startswith("torch.") or places.tensors.is_loss(call, wait.scope):
        return True
    if places.names.definition(call.func, wait.scope) is not None:
        return True
    if not full and is_method_call(call):
        return last_name(call) in TENSORS
    origins = places.names.origins(call.func, wait.scope)
    return any(places.module_class(at) is not None for at in origins)


def bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """A tensor without the `.cpu()`, `.detach()` and `.data` behind it."""
    return _layers(node)[-1]


def _layers(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """An expression, and what is left of it each time that one of these is taken off."""
    if is_method_call(node, "cpu", "detach") and not node.args:
        return [node, *_layers(node.func.value)]
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        return [node, *_layers(node.value)]
    return [node]


def kept_as(*methods: str) -> Rewriting:
    """A read replaced by the tensor itself, behind which these methods are called."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        call = cst.ensure_type(node, cst.Call)
        found = call.func.value if isinstance(call.func, cst.Attribute) else call.args[0].value
        found = bare(found)
        if not found.lpar and not isinstance(found, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
            found = found.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        for method in methods:
            found = cst.Call(cst.Attribute(found, cst.Name(method)))
        return found.with_changes(lpar=call.lpar, rpar=call.rpar)

    return change


def called(name: str) -> Rewriting:
    """An expression as the argument of a function of Python's."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        return cst.Call(cst.Name(name), [cst.Arg(node)])

    return change


def value_of(read: cst.BaseExpression) -> Rewriting:
    """A tensor as a number, by that by which a line reads one: `.item()`, or `float`."""
    return through("item") if isinstance(read, cst.Call) and last_name(read) == "item" else called("float")


def is_count(node: cst.BaseExpression) -> bool:
    """Whether a tensor surely holds a whole number: how many elements of a comparison are true."""
    node = bare(node)
    return m.matches(node, m.Call(m.Attribute(m.Comparison() | EQUAL, m.Name("sum")), []))


def is_real(node: cst.BaseExpression, wait: Wait, depth: int = DEEPEST) -> bool:
    """Whether a tensor surely holds no whole number: a loss, a mean, or something computed from one."""
    node = bare(node)
    name = dotted(node)
    if depth == 0:
        return False
    if name is not None:
        return _has_backward(name, wait) or _assigned_real(name, wait, depth)
    if isinstance(node, cst.BinaryOperation):
        sides = is_real(node.left, wait, depth - 1) or is_real(node.right, wait, depth - 1)
        return sides or isinstance(node.operator, cst.Divide)
    if isinstance(node, cst.UnaryOperation):
        return is_real(node.expression, wait, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    full = wait.resolve(node.func)
    if full:
        return LOSS.search(full) is not None and FUNCTIONAL.fullmatch(full) is not None
    return last_name(node) in REAL or wait.places.tensors.is_loss(node, wait.scope)


def _has_backward(name: str, wait: Wait) -> bool:
    """Whether a backward of the same function starts at a variable; gradients are of real numbers only."""
    sites = [site for site in wait.places.backwards if site.scope is wait.scope]
    return any(dotted(node) == name for site in sites for node in nodes(site.call, cst.Name, cst.Attribute))


def _assigned_real(name: str, wait: Wait, depth: int) -> bool:
    values = [
        binding.value if binding.whole and binding.index is None and binding.parameter is None else None
        for binding in wait.scope.names.get(name, ())
        if not isinstance(binding.statement, cst.AugAssign)
    ]
    return bool(values) and all(value is not None and is_real(value, wait, depth - 1) for value in values)
