"""Kernels that only move data."""

from hotlap.records.diagnosis import Finding
from hotlap.records.trace import RankTrace

from ._base import per_step_ms, share


def find(answers: RankTrace) -> list[Finding]:
    """Compute time on the device in ops that no arithmetic limits: elementwise, norms, softmax, the optimizer."""
    moving = [row for row in answers.roofline if row.limit in {"bandwidth", "launch"}]
    if not moving:
        return []
    known = sum(row.ns for row in answers.roofline)
    busy = sum(one.kernel_ns for one in answers.breakdown)
    ns = sum(row.ns for row in moving)
    other = max(0, busy - known - sum(one.communication_ns for one in answers.breakdown))
    first = max(moving, key=lambda row: row.ns)
    calls = sum(row.count for row in moving) / answers.window.count
    return [
        Finding(
            id="bandwidth",
            bound="bandwidth",
            share=share(answers, per_step_ms(answers, ns + other)),
            title="kernels that move data and compute next to nothing",
            where=first.where,
            evidence=f"{per_step_ms(answers, ns + other):.2f} ms a step; {calls:.0f} calls with known sizes, most in "
            f"{first.op} {first.shape} {first.dtype}"
            + (f" at {first.of_peak:.0%} of memory bandwidth" if first.of_peak is not None else ""),
            why="each operation reads and writes whole tensors: the same data cross the memory bus again and again",
            instead="compile, so that chains of them become one kernel; fused optimizer; smaller types; fewer copies",
            levers=("compile", "fused-optimizer", "bf16-autocast", "channels-last"),
        )
    ]
