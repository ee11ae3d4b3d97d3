"""What is surely a tensor: something is done with it that only a tensor allows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import libcst as cst

from .names import Names
from .scopes import Scope, dotted
from .tree import Source

LOSS: Final = re.compile(r"(^|\.)nn\.(?:modules\.\w+\.)?\w*Loss$")
FUNCTIONAL: Final = re.compile(r"torch\.nn\.functional\.\w+")
TENSOR_METHODS: Final = frozenset(
    [
        "view",
        "reshape",
        "permute",
        "transpose",
        "squeeze",
        "unsqueeze",
        "flatten",
        "size",
        "argmax",
        "argmin",
        "softmax",
        "log_softmax",
        "sigmoid",
        "tanh",
        "relu",
        "log",
        "exp",
        "pow",
        "sqrt",
        "abs",
        "mean",
        "sum",
        "std",
        "var",
        "norm",
        "max",
        "min",
        "clamp",
        "detach",
        "backward",
        "item",
        "float",
        "half",
        "contiguous",
        "chunk",
        "topk",
        "new_zeros",
        "gather",
        "scatter",
        "data_ptr",
        "numel",
        "dim",
        "cpu",
        "expand",
        "repeat",
        "tolist",
    ]
)
"""Attributes that tensors have, and neither tuples, dicts nor the outputs of Hugging Face models."""


@dataclass(frozen=True)
class Tensors:
    """Proofs about the variables of a project."""

    names: Names

    def is_tensor(self, name: str, scope: Scope, depth: int = 3) -> bool:
        """Whether something is done with a variable of a function that only a tensor allows."""
        found = reads(scope, name)
        if any(self._asked_for_type(node, scope) for node in found):
            return False
        return any(self._used_as_tensor(node, scope, depth) for node in found)

    @staticmethod
    def _asked_for_type(node: cst.CSTNode, scope: Scope) -> bool:
        """`isinstance(hidden, Tensor)`: then what follows proves nothing."""
        arg = scope.source.parent(node)
        call = scope.source.parent(arg) if isinstance(arg, cst.Arg) else None
        return isinstance(call, cst.Call) and dotted(call.func) in {"isinstance", "type", "len"}

    def _used_as_tensor(self, node: cst.CSTNode, scope: Scope, depth: int) -> bool:
        parent = scope.source.parent(node)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            return parent.attr.value in TENSOR_METHODS
        if not isinstance(parent, cst.Arg) or parent.star:
            return False
        call = scope.source.parent(parent)
        return isinstance(call, cst.Call) and self.takes_tensor(call, parent, scope, depth)

    def takes_tensor(self, call: cst.Call, arg: cst.Arg, scope: Scope, depth: int = 3) -> bool:
        """Whether a call takes only a tensor for this argument: a loss of torch's, or a function of the user's that
        treats its parameter as one."""
        place = next((at for at, other in enumerate(call.args) if other is arg), None)
        if place is None or any(other.star for other in call.args[:place]):
            return False
        if self.is_loss(call, scope) or FUNCTIONAL.fullmatch(self.names.resolve(call.func, scope) or ""):
            return place < 2 or (arg.keyword is not None and arg.keyword.value in {"input", "target"})
        called = self.names.definition(call.func, scope)
        if called is None or depth == 0 or not isinstance(called.node, cst.FunctionDef):
            return False
        own = called.parameters()
        own = own[1:] if called.parent is not None and isinstance(called.parent.node, cst.ClassDef) else own
        name = arg.keyword.value if arg.keyword is not None else own[place] if place < len(own) else ""
        return name in own and self.is_tensor(name, called, depth - 1)

    def is_loss(self, call: cst.Call, scope: Scope) -> bool:
        """Whether a call runs a loss module of torch's."""
        if dotted(call.func) is None:
            return False
        origins = self.names.origins(call.func, scope)
        return bool(origins) and all(
            isinstance(at.node, cst.Call)
            and LOSS.search(self.names.resolve(at.node.func, self.names.scope(at.source, at.node)) or "") is not None
            for at in origins
        )


def reads(scope: Scope, name: str) -> list[cst.BaseExpression]:
    """Reads of a variable in a function."""
    return list(_reads(scope, name))


def _reads(scope: Scope, name: str) -> Iterator[cst.BaseExpression]:
    for node in scope.source.walk.uses.get(name, ()):
        if not _within(scope, node):
            continue
        parent = scope.source.parent(node)
        if isinstance(parent, cst.AssignTarget | cst.Param) or (
            isinstance(parent, cst.Attribute) and parent.attr is node
        ):
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            continue
        if isinstance(parent, cst.Element) and _in_target(scope.source, parent):
            continue
        yield node


def _in_target(source: Source, node: cst.CSTNode) -> bool:
    """Whether an element belongs to a target: `a, b = ...`, `for a, b in ...`."""
    below: cst.CSTNode = node
    above = source.parent(node)
    while isinstance(above, cst.Tuple | cst.List | cst.Element):
        below, above = above, source.parent(above)
    if isinstance(above, cst.For | cst.CompFor):
        return above.target is below
    return isinstance(above, cst.AssignTarget)


def _within(scope: Scope, node: cst.CSTNode) -> bool:
    """Whether a node stands in a scope, or in one inside it."""
    found: cst.CSTNode | None = node
    while found is not None and found is not scope.node:
        found = scope.source.parent(found)
    return found is not None
