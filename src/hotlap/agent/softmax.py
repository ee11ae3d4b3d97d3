"""What the code of a model says of it: whether it has attention, by hand or fused, and shapes that depend on values."""

import dis
from collections.abc import Iterable
from types import CodeType
from typing import Any, Final

from .reach import reachable

SOFTMAX: Final = frozenset({"softmax", "Softmax"})
PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm"})
"""Names of what multiplies the weights with the values, beside the operator."""
BY_VALUE: Final = ("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount")
"""Functions whose result has a shape that depends on values, for which the host has to wait."""
SDPA: Final = "scaled_dot_product_attention"
OWN_ATTENTION: Final = "MultiheadAttention"
WITHOUT_WEIGHTS: Final = ("TransformerEncoderLayer", "TransformerDecoderLayer")
"""torch's layers that ask their MultiheadAttention for no weights, and so run the fused kernel already."""


def calls_softmax(modules: Iterable[Any]) -> bool:
    """Whether a model may hold attention by hand: a MultiheadAttention that is used directly, or a softmax and a
    product of matrices (a linear layer is none) in the code that it can reach. A router's softmax has none. Where a
    configuration of transformers chose another kernel, the code by hand that stands beside it does not run."""
    modules = [module for module in modules if _kernel_of(module) in {"", "eager"}]
    names = {type(module).__name__ for module in modules if type(module).__module__.startswith("torch.nn.")}
    if OWN_ATTENTION in names and not names & set(WITHOUT_WEIGHTS):
        return True
    codes = reachable(modules)
    softmax = "Softmax" in names or any(not SOFTMAX.isdisjoint(code.co_names) for code in codes)
    return softmax and any(_multiplies(code) for code in codes)


def calls_sdpa(modules: Iterable[Any]) -> bool:
    """Whether a model runs torch's fused attention: its code names it, a MultiheadAttention does so itself, and
    transformers' models hold it in a table, by a name in their configuration."""
    modules = list(modules)
    if any(type(module).__name__ == OWN_ATTENTION for module in modules):
        return True
    if any(_kernel_of(module) == "sdpa" for module in modules):
        return True
    return any(SDPA in code.co_names for code in reachable(modules))


def calls_cumsum(modules: Iterable[Any]) -> bool:
    """Whether a model's code names cumsum."""
    return any("cumsum" in code.co_names for code in reachable(modules))


def shapes_by_value(modules: Iterable[Any]) -> str:
    """The function that a model's code names whose result has a shape that depends on values; empty where none is."""
    named = {name for code in reachable(modules) for name in code.co_names}
    return next((name for name in BY_VALUE if name in named), "")


def _kernel_of(module: Any) -> str:
    """Which attention a configuration of transformers chose; empty where there is none, or it says nothing."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "")


def _multiplies(code: CodeType) -> bool:
    if not PRODUCTS.isdisjoint(code.co_names):
        return True
    return any(one.opname == "BINARY_OP" and one.argrepr in {"@", "@="} for one in dis.get_instructions(code))
