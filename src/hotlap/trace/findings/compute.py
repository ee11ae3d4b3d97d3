"""Arithmetic that already runs on the right units."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ._base import no_multiple, padded, per_step_ms, share, unaligned
from .attention import wide


def find(answers: RankTrace) -> list[Finding]:
    """Time in ops that arithmetic limits, beside those of `precision` and `attention`; cost: not known."""
    told = wide(answers)
    rows = [row for row in answers.roofline if row.limit == "compute" and row.tensor_cores is not False]
    rows = [row for row in rows if row not in told]
    if not rows:
        return []
    first = max(rows, key=lambda row: row.ns)
    ns = sum(row.ns for row in rows)
    odd = unaligned(rows)
    reached = f", {first.of_peak:.0%} of the {first.dtype} peak" if first.of_peak is not None else ""
    return [
        Finding(
            id="compute",
            bound="compute",
            share=share(answers, per_step_ms(answers, ns)),
            title=f"arithmetic: {first.op} and the like",
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step; most in {first.op} {first.shape}{reached}"
            + no_multiple(odd),
            why="rows that do not begin at 16 bytes take kernels for any size, which are several times slower"
            if odd
            else "the device multiplies as fast as the type of its operands lets it, or its dimensions do not fit well",
            instead=f"{padded(odd)}lower precision, fused attention, dimensions that fill whole tiles, less to compute",
            levers=answering("kernels"),
        )
    ]
