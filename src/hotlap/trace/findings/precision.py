"""Matrix products that the tensor cores could do, and don't."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import OpRoofline, RankTrace

from ..scaling import per_step_ms, predicted_ms, share
from ._base import padded, unaligned
from .attention import wide
from .convolution import by_windows


def find(answers: RankTrace) -> list[Finding]:
    """Time in products and convolutions without tensor cores; cost: what the replay predicts for TF32."""
    told = [*wide(answers), *by_windows(answers)]
    slow = [row for row in answers.roofline if row.tensor_cores is False and row.limit == "compute"]
    slow = [row for row in slow if row not in told]
    if not slow:
        return []
    first = max(slow, key=lambda row: row.ns)
    ns = sum(row.ns for row in slow)
    return [
        Finding(
            id="no-tensor-cores",
            bound="compute",
            share=share(answers, per_step_ms(answers, ns)),
            cost_ms=predicted_ms(answers, "tf32_matmuls") if first.dtype == "fp32" else None,
            title=f"{first.dtype} {first.op} without tensor cores",
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step in {_ops(slow)}; the largest, {first.op} {first.shape} "
            + (f"reaches {first.of_peak:.0%} of the {first.dtype} peak" if first.of_peak is not None else "")
            + (f"; {first.why_not}" if first.why_not else ""),
            why="tensor cores, several times as fast (7 to 15 on an H100), are unused",
            instead=padded(unaligned(slow)) + "bf16 autocast, or TF32 for fp32 products; dimensions in multiples of 8",
            levers=answering("precision") if first.dtype == "fp32" else (),
        )
    ]


def _ops(rows: list[OpRoofline]) -> str:
    return ", ".join(list(dict.fromkeys(row.op for row in rows))[:3])
