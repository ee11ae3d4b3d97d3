"""Modules that all compute the same rows, most of which are then multiplied by zero, as experts behind a gate."""

from collections import Counter, defaultdict
from statistics import fmean
from typing import Any, Final

from .op_call import Chain, OpCall, Place, recording

SIBLINGS, MOST_GATES = 3, 200
"""Modules that compute the same rows, from which these may be experts, and columns that are looked at."""
MOSTLY: Final = 0.5
"""Of the rows, that are multiplied by zero at least."""
MOST_ROWS: Final = 200


class Gated:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._siblings: defaultdict[tuple[Chain, Any], set[int]] = defaultdict(set)
        self._gates: list[tuple[Chain, Any]] = []

    def called(self, chain: Chain, number: int, rows: Any, zeros: Any) -> None:
        """An op was called. number: what it made; rows: what a product multiplies; zeros: see `zeros`; else None."""
        if rows is not None:
            self._siblings[chain, rows].add(number)
        if zeros is not None and len(self._gates) < MOST_GATES:
            self._gates.append((chain, zeros))

    def rows(self, made: Counter[Chain], at_line: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of lines below a call that several modules are called by, each with the same rows, most of which are then
        multiplied by zero in the same function, once for each call: the line, how many modules, the part of what the
        line makes that is, and that call. made, at_line: the size of all that is made, by chain and by line."""
        zeros: defaultdict[tuple[Chain, int, str], list[float]] = defaultdict(list)
        for chain, share in self._gates:
            zeros[chain[:-1], chain[-1][0], chain[-1][2]].append(float(share))
        of: defaultdict[Chain, list[int]] = defaultdict(list)
        for (chain, _), numbers in self._siblings.items():
            if len(numbers) >= SIBLINGS:
                of[chain].append(len(numbers))
        calls: dict[Chain, tuple[int, float]] = {}
        for chain, modules in of.items():
            for at, (file, _, function) in enumerate(chain):
                shares = zeros.get((chain[:at], file, function), [])
                if len(shares) >= sum(modules) and fmean(shares) >= MOSTLY:
                    calls[chain[: at + 1]] = min(modules), fmean(shares)
        return [
            (*chain[-1], modules, share * size / at_line[chain[-1]], *call[-1])
            for chain, size in made.most_common(MOST_ROWS)
            for call, (modules, share) in calls.items()
            if size and chain[: len(call)] == call
        ]


def zeros(call: OpCall, *given: Any) -> Any:
    """Where rows are multiplied by a column, the share of the column that is zero; it is not waited for. given:
    tensors."""
    if call.name != "aten::mul" or len(given) != 2:  # with `out` it has more
        return None
    column, rows = sorted(given, key=lambda tensor: tensor.numel())
    if column.dim() < 2 or column.shape != (*rows.shape[:-1], 1) or rows.size(-1) < 2 or not column.numel():
        return None
    return None if recording() else (column == 0).double().mean()
