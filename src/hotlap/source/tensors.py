"""What is surely a tensor: something is done with it that only a tensor allows."""

import re
from dataclasses import dataclass
from typing import Final

import libcst as cst

from .names import Names
from .scopes import Scope, dotted

LOSS: Final = re.compile(r"(^|\.)nn\.(?:modules\.\w+\.)?\w*Loss$")
FUNCTIONAL: Final = re.compile(r"torch\.nn\.functional\.\w+")
TENSOR_METHODS: Final = frozenset(
    [
        "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "flatten", "size", "argmax", "argmin",
        "softmax", "log_softmax", "sigmoid", "tanh", "relu", "log", "exp", "pow", "sqrt", "abs", "mean", "sum", "std",
        "var", "norm", "max", "min", "clamp", "detach", "backward", "item", "float", "half", "contiguous", "chunk",
        "topk", "new_zeros", "gather", "scatter", "data_ptr", "numel", "dim", "cpu", "expand", "repeat", "tolist",
    ]
)  # fmt: skip
"""Attributes that tensors have, and neither tuples, dicts nor the outputs of Hugging Face models."""


@dataclass(frozen=True)
class Tensors:
    """Proofs about the variables of a project."""

    names: Names

    def is_tensor(self, name: str, scope: Scope, depth: int = 3) -> bool:
        """Whether something is done with a variable of a function that only a tensor allows."""
        above = [scope.source.parent(node) for node in reads(scope, name)]
        given = [parent for parent in above if isinstance(parent, cst.Arg)]
        calls = [scope.source.parent(arg) for arg in given]
        if any(isinstance(call, cst.Call) and dotted(call.func) in {"isinstance", "type", "len"} for call in calls):
            return False  # `isinstance(hidden, Tensor)`: then what follows proves nothing
        if any(isinstance(parent, cst.Attribute) and parent.attr.value in TENSOR_METHODS for parent in above):
            return True
        return any(self.takes_tensor(arg, scope, depth) for arg in given)

    def takes_tensor(self, arg: cst.Arg, scope: Scope, depth: int = 3) -> bool:
        """Whether a call takes only a tensor for this argument of its: a loss of torch's, or a function of the user's
        that treats its parameter as one."""
        call = scope.source.parent(arg)
        if not isinstance(call, cst.Call) or arg.star:
            return False
        place = call.args.index(arg)
        keyword = arg.keyword.value if arg.keyword is not None else ""
        if any(other.star for other in call.args[:place]):
            return False
        if self.is_loss(call, scope) or FUNCTIONAL.fullmatch(self.names.resolve(call.func, scope)):
            return place < 2 or keyword in {"input", "target"}
        called = self.names.definition(call.func, scope)
        if called is None or depth == 0 or called.is_class:
            return False
        own = called.parameters()[called.is_method :]
        name = keyword or (own[place] if place < len(own) else "")
        return name in own and self.is_tensor(name, called, depth - 1)

    def is_loss(self, call: cst.Call, scope: Scope) -> bool:
        """Whether a call runs a loss module of torch's."""
        origins = self.names.origins(call.func, scope) if dotted(call.func) else []
        return bool(origins) and all(LOSS.search(self.names.made_by(at)) for at in origins)


def reads(scope: Scope, name: str) -> list[cst.BaseExpression]:
    """Reads of a variable in a function, and in those inside it."""
    within = [node for node in scope.source.walk.uses.get(name, ()) if scope.source.inside(scope.node, node)]
    return [node for node in within if not _is_written(node, scope)]


def _is_written(node: cst.CSTNode, scope: Scope) -> bool:
    """Whether a name is a target, also in `a, b = ...` and `for a, b in ...`, a keyword, or an attribute."""
    source = scope.source
    above = source.parent(node)
    match above:
        case cst.AssignTarget() | cst.Param():
            return True
        case cst.Attribute():
            return above.attr is node
        case cst.Arg():
            return above.keyword is node
        case cst.Element():
            while isinstance(above, cst.Tuple | cst.List | cst.Element):
                node, above = above, source.parent(above)
            return isinstance(above, cst.AssignTarget | cst.For | cst.CompFor) and above.target is node
    return False
