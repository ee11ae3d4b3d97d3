"""Not a lever: the tensors in what a forward takes or returns."""

from collections.abc import Callable
from typing import Any

from ._internals import internals


def each_tensor(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of each tensor in any nest of tuples, lists and mappings; everything else as it is. Mappings that are
    more than a dict (ModelOutput and the like) stay the objects that they are."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[each_tensor(item, change) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)([each_tensor(item, change) for item in value])
    if type(value) is dict:
        return {key: each_tensor(item, change) for key, item in value.items()}
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = each_tensor(item, change)
    return value


def tensors(value: Any) -> list[Any]:
    """Those of a value, in order."""
    import torch

    return [leaf for leaf in internals().tree_leaves(value) if isinstance(leaf, torch.Tensor)]
