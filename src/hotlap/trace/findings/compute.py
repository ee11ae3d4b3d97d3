"""Arithmetic that already runs on the right units."""

import re
from collections.abc import Iterator, Sequence

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import OpRoofline, RankTrace

from ..scaling import per_step_ms, share
from ._base import SLOW, no_multiple, padded, unaligned
from .attention import masked, scores, wide
from .convolution import by_windows

HALF = frozenset({"bf16", "fp16", "fp8"})
"""Types that no lower one is advised for."""
LESS = "less to compute"
ODD = "rows not aligned to 16 bytes need general kernels, which are several times slower"
NO_MORE = "the kernels chosen by torch's libraries for these sizes reach no more of the peak"
NAMED, LONGEST = 2, 40
"""Kernels that are named, and letters of a name."""


def find(answers: RankTrace) -> list[Finding]:
    """Time in ops that arithmetic limits, beside what `precision`, `attention` and `convolution` tell."""
    rows = [row for row in answers.roofline if row.limit == "compute" and row.tensor_cores is not False]
    told = [*wide(answers), *masked(answers), *by_windows(answers)]
    rows = [row for row in rows if row not in told]
    if not rows:
        return []
    first = max(rows, key=lambda row: row.ns)
    ns = sum(row.ns for row in rows)
    odd, slow = unaligned(rows), first.of_peak is not None and first.of_peak < SLOW
    reached = f", {first.of_peak:.0%} of the {first.dtype} peak" if first.of_peak is not None else ""
    return [
        Finding(
            id="compute",
            bound="compute",
            share=share(answers, per_step_ms(answers, ns)),
            title=f"arithmetic: {first.op} and the like",
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step; most in {first.op} {first.shape}{reached}"
            + (_in_kernels(first) if slow else "")
            + no_multiple(odd),
            why=ODD if odd else NO_MORE if slow else "the device multiplies as fast as this operand type allows",
            instead=padded(odd) + ", ".join([*_not_in_use(answers, rows), LESS]),
            levers=answering("kernels"),
        )
    ]


def _in_kernels(row: OpRoofline) -> str:
    """What ran, in words."""
    names = (re.sub(r"^void |<.*|\(.*", "", name).split("::")[-1] for name in row.kernels if "Mem" not in name)
    return "".join(f"{' and' if at else ', in'} {name[:LONGEST]}" for at, name in enumerate([*names][:NAMED]))


def _not_in_use(answers: RankTrace, rows: Sequence[OpRoofline]) -> Iterator[str]:
    """What makes products faster and is not what most of them do already."""
    if 2 * sum(row.ns for row in rows if row.dtype in HALF) < sum(row.ns for row in rows):
        yield "lower precision"
    if scores(answers):
        yield "fused attention"
