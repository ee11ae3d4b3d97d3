"""Three matrices multiplied in the costly order: (A @ B) @ C where A @ (B @ C) takes less and only C is given A @ B."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from .op_call import Place

MADE_BY: Final = frozenset({"aten::mm", "aten::bmm"})
SCALED_BY: Final = frozenset({"aten::mul", "aten::mul_", "aten::div", "aten::div_"})
SPARSE: Final = {"aten::_sparse_addmm": 1, "aten::mm": 0}
"""Products with a sparse matrix, and which argument that is."""
DEARER: Final = 8
"""Multiplications in a dense product, in the time of one with a sparse matrix, which is read number by number."""
CHEAPER: Final = 0.5
"""Of the multiplications, that the other order takes at most."""


@dataclass(eq=False)
class Product:
    """Of two matrices. sizes: how many of each, rows of the first, columns of it, and of the second. filled: numbers in
    each row of the first, where it is sparse. place, work: where it was made, and what that took. uses: ops that it is
    given, but for those that scale it."""

    sizes: tuple[int, int, int, int]
    filled: float | None = None
    place: Place | None = None
    work: int = 0
    uses: int = 0


@dataclass
class Seen:
    """An op. made: what its result is; read: products that it is given; dear: one that should not have been made first,
    the multiplications of both orders, and the part that the other one takes."""

    made: Product | None
    read: list[Product]
    dear: tuple[Product, int, int, float] | None = None


def _filled(one: Any) -> float | None:
    """Numbers in each row of a sparse matrix; None of another."""
    known = one.layout == torch.sparse_csr or (one.layout == torch.sparse_coo and one.is_coalesced())
    return one.values().numel() / max(1, len(one)) if known and one.dim() == 2 else None


class Orders:
    """Of the ops of a step. number: tells what is in a tensor."""

    def __init__(self, number: Callable[[Any], int]) -> None:
        self._number = number
        self._products: dict[int, Product] = {}
        self._dear: list[tuple[Product, int, int, float, tuple[Place, int]]] = []

    def begin(self, name: str, args: Sequence[Any], tensors: Sequence[Any], factors: int | None) -> Seen:
        """An op is about to be called. factors: which of its arguments is the first of two matrices."""
        read = [product for one in tensors if (product := self._product(one)) is not None]
        if read and name in SCALED_BY and len(tensors) == 1:
            return Seen(read[0], [])
        if name in SPARSE and (filled := _filled(left := args[SPARSE[name]])) is not None:
            return Seen(Product((1, *left.shape, args[SPARSE[name] + 1].size(-1)), filled), read)
        if factors is None:
            return Seen(None, read)
        left, right = args[factors : factors + 2]
        rows, inner, columns = left.size(-2), left.size(-1), right.size(-1)
        many = left.size(0) if left.dim() > 2 else 1
        made = Product((many, rows, inner, columns)) if name in MADE_BY else None
        return Seen(made, read, self._other(left, columns) or self._other(right, rows))

    def _product(self, one: Any) -> Product | None:
        return self._products.get(self._number(one)) if self._products else None

    def _other(self, one: Any, outer: int) -> tuple[Product, int, int, float] | None:
        """Of a factor that is a product. outer: the side of the other factor that it does not share."""
        product = self._product(one)
        if product is None:
            return None
        many, rows, inner, columns = product.sizes
        if one.shape[-2:] != (rows, columns) or one.numel() != many * rows * columns or not one.is_contiguous():
            return None
        each, dearer = (inner, 1) if product.filled is None else (product.filled, DEARER)
        now, other = many * rows * columns * (each + outer), many * outer * (inner * columns + rows * each)
        part = (inner * columns + rows * each * dearer) * outer / (rows * columns * (each * dearer + outer))
        return (product, int(now), int(other), part) if part <= CHEAPER else None

    def end(self, seen: Seen, number: int) -> None:
        """It was called. number: of what it made."""
        if seen.made is not None:
            self._products[number] = seen.made

    def called(self, seen: Seen, place: Place, work: int) -> None:
        """It computed something. work: what it took."""
        for one in seen.read:
            one.uses += 1
        if seen.made is not None and seen.made.place is None:
            seen.made.place, seen.made.work = place, work
        if seen.dear is not None:
            self._dear.append((*seen.dear, (place, work)))

    def rows(self, work: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of each line with such products: the line, the multiplications as it is and in the other order, and the part
        of the line's work that this saves. work: of lines."""
        now: Counter[Place] = Counter()
        other: Counter[Place] = Counter()
        saved: defaultdict[Place, float] = defaultdict(float)
        for product, as_it_is, otherwise, rest, second in self._dear:
            if product.uses == 1 and product.place is not None:
                for place in {product.place, second[0]}:
                    now[place] += as_it_is
                    other[place] += otherwise
                for place, took in ((product.place, product.work), second):
                    saved[place] += took * (1 - rest)
        return [(*place, now[place], other[place], min(1.0, part / work[place])) for place, part in saved.items()]
