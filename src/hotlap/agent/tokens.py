"""Tokens of a step: those that the outermost forward is handed, where it is certain that they are tokens.

They are where the module holds an `nn.Embedding` and other layers, is handed integers as (batch, length) with a length
above 1, all such matrices of one size, and returns real numbers for each of them: (batch, length, channels), or these
in one row after another. Most recommenders have no such result of their category ids, a lookup alone says nothing of
what it is of, nor has what classifies a text: its rate is then not known, nor is that of loops that infer, which may
hand over a text whole for each new token.
Padding counts. Only sizes are read.
"""

from typing import Any, Final

import torch

from .probe import leaves, mapped

LOOKS: Final = 3
"""Forwards of a module in which it may show that it takes tokens."""
INTEGERS: Final = frozenset({torch.int64, torch.int32})


class Tokens:
    """Of one process: the first module that takes tokens is the one whose tokens count."""

    def __init__(self) -> None:
        self.key: int | None = None
        self.looks: dict[int, int] = {}

    def of(self, key: int, module: Any, handed: list[Any], output: Any) -> int:
        """Tokens of a forward; 0 where they are not known. key: of the module; handed: its arguments."""
        if self.key is None and self.looks.setdefault(key, LOOKS):
            self.looks[key] -= 1
            if (size := matrix(handed)) is not None and _for_each(output, size) and _embeds(module):
                self.key = key
        if self.key != key:
            return 0
        size = matrix(handed)
        return size[0] * size[1] if size is not None else 0


def matrix(handed: list[Any]) -> tuple[int, int] | None:
    """The size that all matrices of integers among arguments have; None where there is none, or another."""
    found = {
        (int(leaf.size(0)), int(leaf.size(1)))
        for leaf in leaves(handed)
        if _has_size(leaf) and leaf.dtype in INTEGERS and leaf.dim() == 2 and leaf.size(1) > 1
    }
    return found.pop() if len(found) == 1 else None


def _for_each(output: Any, size: tuple[int, int]) -> bool:
    """Whether there are several real numbers for each of them."""
    rows, length = size
    sizes = [tuple(leaf.shape) for leaf in leaves(output) if _has_size(leaf) and leaf.is_floating_point()]
    return any(
        one[-1] > 1 and one[:-1] in {size, (length, rows), (rows * length,)} for one in sizes if len(one) in (2, 3)
    )


def _has_size(leaf: Any) -> bool:
    """Whether its size may be asked: a nested tensor has none, a subclass, such as a lever's, may compute then, and
    under `torch.vmap` it is that of one of several."""
    return type(leaf) is torch.Tensor and not leaf.is_nested and not mapped(leaf)


def _embeds(module: Any) -> bool:
    """Whether something is computed of what is looked up. Where a script calls `model.forward`, the outermost module is
    the embedding."""
    looks_up = {isinstance(one, torch.nn.Embedding) for one in module.modules() if next(one.children(), None) is None}
    return len(looks_up) == 2
