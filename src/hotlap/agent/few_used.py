"""Products of a matrix and weights, and convolutions, of which a step uses a small part: scores of all classes where
those of a few are read, or of all rows or times where a few are taken, at once or by and by. Seen through views, and
through what computes number by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .op_call import CASTS, Chain, OpCall, Place, is_weight
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
    """numbers, columns: that it makes, and the dimension of the latter. uses: whether columns or rows are chosen; how
    many numbers; and the product that they become a part of number by number, of which again a part may be used."""

    numbers: int
    columns: int
    dim: int
    size: int = 0
    chain: Chain = ()
    uses: list[tuple[str, int, "Product | None"]] = field(default_factory=list)

    def used(self, above: frozenset[int] = frozenset()) -> float:
        """The share of it that is. above: those that ask."""
        around = above | {id(self)}
        parts = (
            count * (into.used(around) if into is not None and id(into) not in around else 1.0)
            for _, count, into in self.uses
        )
        return sum(parts) / self.numbers

    def width(self, one: Any) -> int:
        """How many of its columns a part has."""
        return int(one.size(self.dim)) if one.dim() > self.dim else 1


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
                way = _way(call) if call.name in PICKS else COLUMNS if product.width(one) < product.columns else ROWS
                uses.append((product, 0 if call.name in PICKS else one.numel(), way))
        return uses

    def end(self, call: OpCall, uses: Sequence[Use], fresh: Sequence[Any]) -> Product | None:
        """It was called. fresh: tensors that it made. Returns the product that it is."""
        for one in fresh:
            self._of.pop(storage(one), None)
        if not fresh:  # views, and what is computed in place
            return None
        count, same = fresh[0].numel(), torch.Tag.pointwise in call.func.tags or call.name == CASTS
        whole = [product for product, used, _ in uses if same and count == product.numbers == used]
        if whole:
            self._of[storage(fresh[0])] = whole[-1]
        for product, used, way in uses:
            if product not in whole[-1:]:
                into = whole[-1] if whole and used == count else None
                product.uses.append((way, used or count, into))
        convolves = call.name == "aten::convolution" and is_weight(call.args[1])
        if count < LEAST or not (convolves or call.has_weights):
            return None
        dim = 1 if convolves else fresh[0].dim() - 1
        product = self._of[storage(fresh[0])] = Product(count, fresh[0].size(dim), dim)
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
            used = one.used()
            way = max(one.uses, key=lambda use: use[1])[0] if used else ""
            if not 0 < used <= FEW or not one.chain or (way == COLUMNS and one.columns < MANY):
                continue
            at = one.chain[-1]
            if len(found[way]) < MOST:
                found[way].append((*at, round(100 * used), (1 - used) * one.size / at_line[at], *at))
        return found


def _way(call: OpCall) -> str:
    """Whether columns or rows are chosen: it chooses along the last dimension, or another."""
    dims = call.args[0].dim()
    if call.name == "aten::index":
        return COLUMNS if len(call.args[1]) == dims and call.args[1][-1] is not None else ROWS
    return COLUMNS if call.args[1] % dims == dims - 1 else ROWS
