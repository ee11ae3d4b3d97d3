"""Repeated blocks of a model: layers of a transformer, bottlenecks of a ResNet.

Children of the same class in the model's lists and sequences, at least two of them in all, that have children of their
own and parameters. Of blocks inside blocks (heads of an attention layer) the outer ones count.
"""

from collections.abc import Iterator
from typing import Any

import torch

from . import Facts, Model, integer

_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


def describe_model(model: Model) -> Facts:
    """Its repeated blocks, their classes, and the most outputs of a linear layer outside of them."""
    blocks = repeated(model.module())
    return {
        "blocks": len(blocks),
        "block_kinds": len({form_of(block) for block in blocks}),
        "block": ", ".join(sorted({type(block).__qualname__ for block in blocks})),
        "classes": max((integer(head.out_features) or 0 for head in heads(model.module())), default=0),
    }


def repeated(root: Any) -> list[Any]:
    """The repeated blocks of a model, each once, in the order of its lists; none where nothing is repeated."""
    groups: dict[type, dict[int, Any]] = {}
    for container in root.modules():
        if isinstance(container, _LISTS):
            for child in filter(_may_be_block, container.children()):
                groups.setdefault(type(child), {})[id(child)] = child
    sequences = groups.pop(torch.nn.Sequential, {})
    return _outermost(groups) or _outermost({torch.nn.Sequential: sequences})


def heads(root: Any) -> list[Any]:
    """Linear layers that may be the head over a vocabulary: those that are nn.Linear itself, outside of repeated
    blocks."""
    inner = {id(part) for block in repeated(root) for part in block.modules()}
    return [module for module in root.modules() if type(module) is torch.nn.Linear and id(module) not in inner]


def form_of(block: Any) -> tuple[Any, ...]:
    """What blocks have in common that a compiler compiles once for all of them: a class, and shapes of parameters."""
    return (type(block), *((name, p.shape, p.requires_grad) for name, p in block.named_parameters()))


def _may_be_block(module: Any) -> bool:
    """Something with a forward, made of parts, that learns."""
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)) or next(module.children(), None) is None:
        return False
    return next(module.parameters(), None) is not None


def _outermost(groups: dict[type, dict[int, Any]]) -> list[Any]:
    """Members of groups of two and more that lie in no other member."""
    members = [module for group in groups.values() if len(group) > 1 for module in group.values()]
    inner = {id(part) for module in members for part in _parts(module)}
    outer = [module for module in members if id(module) not in inner]
    counts: dict[type, int] = {}
    for module in outer:
        counts[type(module)] = counts.get(type(module), 0) + 1
    return [module for module in outer if counts[type(module)] > 1]


def _parts(module: Any) -> Iterator[Any]:
    return (part for part in module.modules() if part is not module)
