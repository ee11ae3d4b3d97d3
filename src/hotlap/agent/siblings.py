"""Linear layers that stand beside each other and may read the same input, as those for query, key and value do."""

from collections.abc import Iterable
from typing import Any

import torch


def siblings(modules: Iterable[Any]) -> int:
    """How many modules hold two layers or more that are nn.Linear itself, alike in inputs, dtype and whether there is a
    bias. Not a Sequential, whose layers read one after the other."""
    return sum(_alike(module) for module in modules if not isinstance(module, torch.nn.Sequential))


def _alike(module: Any) -> bool:
    linear = {id(child): child for child in module.children() if type(child) is torch.nn.Linear}
    kinds = [_kind(one) for one in linear.values()]
    return len(set(kinds)) < len(kinds)


def _kind(layer: Any) -> tuple[Any, ...]:
    """Of a layer whose parameters the script may have replaced, or taken away."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    return layer.in_features, getattr(weight, "dtype", None), bias is None
