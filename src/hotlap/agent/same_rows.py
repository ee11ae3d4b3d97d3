"""Products of matrices whose rows are repeated, as where a batch is expanded before a part of the model, not after."""

import math
from collections import Counter, defaultdict
from typing import Any, Final

import torch

from .op_call import Chain, OpCall, Place, recording

LEAST_DIFFERENT: Final = 8
"""Rows, below which they may be the same by chance, or by what they hold, as zeros."""
MOST_NUMBERS, MOST_PRODUCTS, MOST_HASHES = 1 << 18, 1000, 1 << 24
"""Of the rows of a product that are looked at; products; hashes that are kept on the device, 8 bytes each."""
AS_INTEGERS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the size of a number."""


class SameRows:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._seen: list[tuple[Chain, Any, int]] = []
        self._hashes = 0

    @property
    def looking(self) -> bool:
        """Whether more products are to be looked at."""
        return len(self._seen) < MOST_PRODUCTS and self._hashes < MOST_HASHES

    def called(self, chain: Chain, hashes: Any, work: int) -> None:
        """A product was computed. hashes: of its rows, None where these are not looked at."""
        if hashes is not None:
            self._seen.append((chain, hashes, work))
            self._hashes += len(hashes)

    def rows(self, work: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of each line with products all of whose rows are there as often as the others, or a multiple of it: the line,
        how often, the part of its work that is not needed, and the user's frames. work: of each line."""
        lines: defaultdict[Place, list[tuple[float, int, Chain]]] = defaultdict(list)
        for chain, hashes, size in self._seen:
            counts = hashes.unique(return_counts=True)[1].tolist()
            times = math.gcd(*counts)
            if times > 1 and len(counts) >= LEAST_DIFFERENT:
                lines[chain[-1]].append((size * (1 - 1 / times), times, chain))
        return [
            (*place, max(those)[1], min(1.0, sum(saved for saved, *_ in those) / work[place]), max(those)[2])
            for place, those in lines.items()
        ]


def hashes(call: OpCall, at: int | None) -> Any:
    """Of the rows that a product or a convolution multiplies; None where they are not looked at. at: which argument
    these are."""
    of = call.args[0 if at is None else at]
    rows = len(of)
    wanted = of.dim() > 1 and "bmm" not in call.name and is_hashed(of) and not recording()
    if not wanted or not 2 * LEAST_DIFFERENT <= rows <= MOST_NUMBERS:
        return None
    return numbers_of(of)


def is_hashed(of: Any) -> bool:
    """Whether there are numbers of it."""
    return bool(of.is_floating_point() and of.element_size() in AS_INTEGERS and not of.is_meta and of.numel())


def numbers_of(rows: Any) -> Any:
    """A number for each, by the bits of some of its real numbers. The device is not waited for."""
    some = rows.detach().flatten(1)
    some = some[:, :: 1 + some.size(1) * len(rows) // MOST_NUMBERS].contiguous()
    mixed = torch.arange(1, some.size(1) + 1, dtype=torch.int64, device=some.device) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 31)) * 0x1B873593CC9E2D51
    return (some.view(AS_INTEGERS[some.element_size()]).long() * mixed).sum(1)
