"""What findings share."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from hotlap.records.diagnosis import Place
from hotlap.records.trace import Gap, OpRoofline, RankTrace

PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul")
MANY_WAITS: Final = 8
"""A step, in one function."""
Inside = tuple[str, str | int | None]
"""File, and function or line."""
ALIGNED: Final = {"bf16": 8, "fp16": 8, "tf32": 4}
"""What the fast kernels of a type want contiguous dimensions to be multiples of: 16 bytes (NVIDIA's Deep Learning
Performance Guide)."""
TILE, SLOW, NOTABLE = 64, 0.5, 0.2
"""What dimensions are best padded to; of the peak, what a product reaches at most that does not fit; of the products'
time, what those take at least that are told."""


def idle(answers: RankTrace, *causes: str) -> list[Gap]:
    """The idle time of some causes, by place, dearest first."""
    return [gap for gap in answers.gaps if gap.cause in causes]


def total(gaps: Sequence[Gap]) -> int:
    """Their idle time, ns."""
    return sum(gap.idle_ns for gap in gaps)


def place(gaps: Sequence[Gap]) -> Place | None:
    """The place that most of their time is under, of those that are known."""
    return next((gap.where for gap in gaps if gap.where is not None), None)


def inside(where: Place | None) -> Inside | None:
    """The function that a place is in, the line itself where that is not known; None without a place."""
    return None if where is None else (where.file, where.function or where.line)


def between_waits(answers: RankTrace) -> dict[Inside | None, int]:
    """Idle time (ns) under dispatch in functions that wait for the device many times a step, between these waits: the
    host can't be ahead there."""
    waits: Counter[Inside | None] = Counter()
    for sync in answers.syncs:
        waits[inside(sync.where)] += sync.count
    many: dict[Inside | None, int] = {
        at: 0 for at, count in waits.items() if at is not None and count >= MANY_WAITS * answers.window.count
    }
    for gap in idle(answers, "launch"):
        if (at := inside(gap.where)) in many:
            many[at] += gap.idle_ns
    return many


def dearest(gaps: Sequence[Gap]) -> tuple[Place | None, float]:
    """The dearest line of the function that most of their time is under, with the function's share of all (0 to 1)."""
    functions: defaultdict[Inside | None, Counter[Place]] = defaultdict(Counter)
    for gap in gaps:
        if gap.where is not None:
            functions[inside(gap.where)][gap.where] += gap.idle_ns
    most = max(functions.values(), key=Counter.total, default=Counter[Place]())
    if not most:
        return None, 0.0
    return most.most_common(1)[0][0], most.total() / max(1, total(gaps))


def doing(gaps: Sequence[Gap], most: int = 3) -> str:
    """What the host does under most of them."""
    names = dict.fromkeys(gap.doing.removeprefix("hotlap:") for gap in gaps if gap.doing)
    return ", ".join(list(names)[:most])


def unaligned(rows: Sequence[OpRoofline]) -> tuple[int, int] | None:
    """The contiguous dimension because of which most of a notable part of slow products run on kernels that take any
    size, and what it had better be a multiple of. The first dimension of a product is that of rows, as a batch's, and
    the last one of its second operand lies contiguous in its result; in a layer's forward both are the layer's own."""
    found: Counter[tuple[int, int]] = Counter()
    for row in rows:
        by, sizes = ALIGNED.get(row.dtype, 1), re.findall(r"\[([^]]*)\]", row.shape)
        if row.op not in PRODUCTS or not sizes or (row.of_peak is not None and row.of_peak >= SLOW):
            continue
        dims = [int(n) for n in re.findall(r"\d+", sizes[-1])]
        own = dims if row.op in {"aten::addmm", "aten::linear"} else dims[-1:]
        found.update({(n, by): row.ns for n in own if n > TILE and n % by})
    most = max(found, key=lambda one: found[one], default=None)
    return most if most and found[most] >= NOTABLE * sum(row.ns for row in rows) else None


def no_multiple(odd: tuple[int, int] | None) -> str:
    """What is said of such a dimension."""
    return f"; {odd[0]} is no multiple of {odd[1]}" if odd else ""


def padded(odd: tuple[int, int] | None) -> str:
    """What to do about it."""
    return f"{odd[0]}, a layer's width or a vocabulary's, padded to {-(-odd[0] // TILE) * TILE}; " if odd else ""
