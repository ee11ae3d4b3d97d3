"""What the code of a model says of it: whether it has attention, by hand or fused, and shapes that depend on values;
and whether that attention ran, by the autograd graph behind what the model returned: nothing is hooked for it."""

import dis
import inspect
from collections.abc import Iterable
from types import CodeType
from typing import Any, Final

from ..probe import leaves
from ..reachable_code import reachable
from ..torch_internals import PythonNode, gradient_metadata
from . import Facts, Model

SOFTMAX: Final = frozenset({"softmax", "Softmax"})
PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm"})
"""Names of what multiplies the weights with the values, beside the operator."""
BY_VALUE: Final = ("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount")
"""Functions whose result has a shape that depends on values, for which the host has to wait."""
LOOKS: Final = frozenset({"nonzero", "where", "any", "argwhere"})
"""Names of what finds the rows of an expert."""
MAKERS: Final = frozenset({"tensor", "as_tensor", "new_tensor"})
"""What makes tensors of Python's numbers."""
SDPA: Final = "scaled_dot_product_attention"
SDPA_KERNEL: Final = "sdpa"
OWN_ATTENTION: Final = "MultiheadAttention"
WITHOUT_WEIGHTS: Final = ("TransformerEncoderLayer", "TransformerDecoderLayer")
"""torch's layers that ask their MultiheadAttention for no weights, and so run the fused kernel already."""
CHECK_MASKS: Final = ("TransformerEncoder", "TransformerDecoder")
"""torch's modules that compare their mask with the causal one in each forward."""
MOST: Final = 20_000
"""Nodes of a graph that are looked at: a tenth of a second."""
NOT_BY_HAND: Final = ("LogSoftmax", "SafeSoftmax")
"""A loss, and what torch's fused attention is made of where it runs by its formula."""
LEAF: Final = "torch::autograd::AccumulateGrad"


def describe_model(model: Model) -> Facts:
    """What its code can reach: softmax, SDPA, loops over experts, shapes that depend on values."""
    code = ModelCode(model.module().modules())
    names = ("softmax", "sdpa", "constants", "expert_loop", "mask_checks", "shapes_by")
    return {name: getattr(code, name) for name in names}


def returned(model: Model, output: Any) -> Facts:
    """Whether the softmax that its code has did run."""
    return {"softmax_ran": softmax_seen(output, model.module().parameters())} if model.facts["softmax"] else {}


class ModelCode:
    """What is told of modules by the code that they can reach, which is looked for once."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self.modules = list(modules)
        self.codes = reachable(self.modules)
        self.names = {name for code in self.codes for name in code.co_names}

    @property
    def softmax(self) -> bool:
        """Whether a model may hold attention by hand: a MultiheadAttention that is used directly, or a softmax and a
        product of matrices (a linear layer is none) in the code that it can reach. A router's softmax has none. Where a
        configuration of transformers chose another kernel, the code by hand that stands beside it does not run."""
        by_hand = [module for module in self.modules if _kernel_of(module) in {"", "eager"}]
        if len(by_hand) < len(self.modules):
            return ModelCode(by_hand).softmax
        kinds = {type(module).__name__ for module in self.modules if type(module).__module__.startswith("torch.nn.")}
        if OWN_ATTENTION in kinds and not kinds & set(WITHOUT_WEIGHTS):
            return True
        return ("Softmax" in kinds or not SOFTMAX.isdisjoint(self.names)) and any(map(_multiplies, self.codes))

    @property
    def sdpa(self) -> bool:
        """Whether a model runs torch's fused attention: its code names it, a MultiheadAttention does so itself, and
        transformers' models hold it in a table, by a name in their configuration."""
        own = any(type(module).__name__ == OWN_ATTENTION for module in self.modules)
        return own or any(_kernel_of(module) == SDPA_KERNEL for module in self.modules) or SDPA in self.names

    @property
    def constants(self) -> bool:
        """Whether a model's code may make tensors of Python's numbers."""
        return not MAKERS.isdisjoint(self.names)

    @property
    def mask_checks(self) -> bool:
        """Whether a model holds torch's encoder or decoder, with layers of torch's own."""
        checking = [
            module for module in self.modules if any(_torchs(kind, CHECK_MASKS) for kind in type(module).__mro__)
        ]
        return any(all(_torchs(type(one), WITHOUT_WEIGHTS) for one in module.layers) for module in checking)

    @property
    def expert_loop(self) -> tuple[str, int, str] | None:
        """Where a module with a list of modules of one class looks for some rows, as in a loop over experts."""
        owners = (owner for owner in self.modules if any(map(_alike, owner.children())))
        return next((at for owner in owners if (at := _looks(owner))), None)

    @property
    def shapes_by(self) -> str:
        """The function that a model's code names whose result has a shape that depends on values; empty where none
        is."""
        return next((name for name in BY_VALUE if name in self.names), "")


def _kernel_of(module: Any) -> str:
    """Which attention a configuration of transformers chose; empty where there is none, or it says nothing."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "")


def _torchs(kind: type, names: tuple[str, ...]) -> bool:
    return kind.__module__ == "torch.nn.modules.transformer" and kind.__name__ in names


def _looks(module: Any) -> tuple[str, int, str] | None:
    """File, line and function of the first such call of its forward."""
    forward = inspect.getattr_static(type(module), "forward", None)  # of TorchScript it is no attribute of the class
    code = getattr(getattr(forward, "__wrapped__", forward), "__code__", None)
    if code is None or LOOKS.isdisjoint(code.co_names):
        return None
    lines = (one.positions.lineno for one in dis.get_instructions(code) if str(one.argval) in LOOKS and one.positions)
    return next(((code.co_filename, line, code.co_qualname) for line in lines if line), None)


def _alike(module: Any) -> bool:
    """Whether it is a list of two or more modules of one class."""
    return type(module).__name__ == "ModuleList" and len(module) > 1 and len(set(map(type, module))) == 1


def _multiplies(code: CodeType) -> bool:
    if not PRODUCTS.isdisjoint(code.co_names):
        return True
    return any(one.opname == "BINARY_OP" and one.argrepr in {"@", "@="} for one in dis.get_instructions(code))


def softmax_seen(output: Any, parameters: Iterable[Any]) -> bool | None:
    """Whether the script's code ran a softmax over pairs of several queries and keys, in a batch. None where it may
    have out of sight: in an autograd function of Python's (a checkpoint, compiled code); or, where no softmax ran, in a
    part without gradients, whose parameters the graph does not reach."""
    unseen = {id(parameter) for parameter in parameters}
    opaque = other = False
    try:
        waiting = [leaf.grad_fn for leaf in leaves(output) if leaf.grad_fn is not None]
    except RuntimeError:  # a view that was written to where it has no gradient
        return None
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        name = node.name()
        if "Softmax" in name and not name.startswith(NOT_BY_HAND):
            if _weighs_pairs(node):
                return True
            other = True
        opaque = opaque or isinstance(node, PythonNode)
        if name == LEAF:
            unseen.discard(id(node.variable))
        new = {before for before, _ in node.next_functions} - seen - {None}
        if len(seen) + len(new) > MOST:
            return None
        seen |= new
        waiting += new
    return None if opaque or (unseen and not other) else False


def _weighs_pairs(node: Any) -> bool:
    """Whether what a node made may be attention: a softmax of two dimensions is one of a graph's edges or of classes,
    and a single query is a sum that nothing makes shorter."""
    try:
        shape = tuple(gradient_metadata(node)[0].shape)
    except (AttributeError, IndexError, RuntimeError):  # an older torch; a nested tensor has none
        return True
    return len(shape) > 2 and 1 not in shape[-2:]
