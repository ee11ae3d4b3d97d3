"""Products of a matrix and weights of which a step uses a small part: scores of all classes where those of a few are
read, or of all rows where a few rows are taken. Seen through views, and through what computes number by number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .op_call import CASTS, Chain, OpCall, Place
from .torch_internals import graph_task, is_plain, storage

LEAST, FEW = 2**14, 0.3
"""Numbers of a product, from which on it is looked at; and of these, what is used of it at most where it is told."""
MANY = 256
"""Columns, of which few are chosen: of fewer it wins nothing to choose weights for each row."""
PICKS: Final = frozenset({"aten::gather", "aten::index", "aten::index_select"})
MOST: Final = 8
COLUMNS, ROWS = "few_columns", "few_rows"


@dataclass(eq=False, slots=True)
class Product:
    """numbers, columns: that it makes. uses: of these, by whether columns or rows are chosen."""

    numbers: int
    columns: int
    size: int = 0
    chain: Chain = ()
    uses: Counter[str] = field(default_factory=Counter)


Use = tuple[Product, int, str]
"""A product that an op gets; how much of it, 0 where it is as much as it makes; and of which way."""


class FewUsed:
    """Of a step's forward."""

    def __init__(self) -> None:
        self._of: dict[int, Product] = {}
        """By storage, of the product or of what was computed of it number by number."""
        self._found: list[Product] = []

    def begin(self, call: OpCall, those: Sequence[Any]) -> list[Use]:
        """An op is about to be called. those: tensors that it gets."""
        if graph_task() != -1 or not self._of:
            return []
        uses = []
        for one in filter(is_plain, those):
            if (product := self._of.get(storage(one))) is not None:
                way = _way(call) if call.name in PICKS else COLUMNS if _width(one) < product.columns else ROWS
                uses.append((product, 0 if call.name in PICKS else one.numel(), way))
        return uses

    def end(self, call: OpCall, uses: Sequence[Use], fresh: Sequence[Any]) -> Product | None:
        """It was called. fresh: tensors that it made. Returns the product that it is."""
        for one in fresh:
            self._of.pop(storage(one), None)
        if not fresh:  # views, and what is computed in place
            return None
        same = torch.Tag.pointwise in call.func.tags or call.name == CASTS
        for product, used, way in uses:
            if same and fresh[0].numel() == product.numbers == used:
                self._of[storage(fresh[0])] = product
            else:
                product.uses[way] += used or fresh[0].numel()
        if fresh[0].numel() < LEAST or not call.has_weights:
            return None
        product = self._of[storage(fresh[0])] = Product(fresh[0].numel(), _width(fresh[0]))
        return product

    def called(self, product: Product, chain: Chain, size: int) -> None:
        """Such a product was called from there. size: what it takes."""
        product.chain, product.size = chain, size
        self._found.append(product)

    def rows(self, at_line: Mapping[Place, int]) -> dict[str, list[tuple[Any, ...]]]:
        """By whether columns or rows are chosen, of each line with such products: the line; of a hundred numbers, how
        many are used; of the line's work, the part of the others; and the line again. at_line: work by line."""
        found: dict[str, list[tuple[Any, ...]]] = {COLUMNS: [], ROWS: []}
        for one in sorted(self._found, key=lambda one: -one.size):
            used = one.uses.total() / one.numbers
            way = one.uses.most_common(1)[0][0] if used else ""
            if not 0 < used <= FEW or not one.chain or (way == COLUMNS and one.columns < MANY):
                continue
            at = one.chain[-1]
            if len(found[way]) < MOST:
                found[way].append((*at, round(100 * used), (1 - used) * one.size / at_line[at], *at))
        return found


def _width(one: Any) -> int:
    return int(one.size(-1)) if one.dim() else 1


def _way(call: OpCall) -> str:
    """Whether columns or rows are chosen: it chooses along the last dimension, or another."""
    dims = call.args[0].dim()
    if call.name == "aten::index":
        return COLUMNS if len(call.args[1]) == dims and call.args[1][-1] is not None else ROWS
    return COLUMNS if call.args[1] % dims == dims - 1 else ROWS
