"""Kernels that memory traffic limits."""

import re
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import KernelTime, RankTrace

from ..view import WITH_HOST
from ._base import per_step_ms, share
from .attention import scores

MOVES: Final = re.compile(
    r"elementwise|multi_tensor|reduce|softmax|norm|copy|memset|memcpy|cat(array|_)|index|gather|scatter|embedding|fill"
    r"|scan|sort|dropout|pool|transpose|nchw|nhwc|triton_",
    re.IGNORECASE,
)
"""Kernels that move data and compute next to nothing, by their names."""


def find(answers: RankTrace) -> list[Finding]:
    """Time in ops that no arithmetic limits: elementwise, norms, softmax, the optimizer; without attention's scores."""
    attention = scores(answers)
    moving = [row for row in answers.roofline if row.limit in {"bandwidth", "launch"} and row not in attention]
    if not moving:
        return []
    ns = sum(row.ns for row in moving)
    named = sum(row.ns for row in _named(answers)) - sum(row.ns for row in attention)
    ns = max(ns, min(ns + _unsized(answers), named))
    first = max(moving, key=lambda row: row.ns)
    calls = sum(row.count for row in moving) / answers.window.count
    return [
        Finding(
            id="bandwidth",
            bound="bandwidth",
            share=share(answers, per_step_ms(answers, ns)),
            title="kernels that memory traffic limits",
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step; {calls:.0f} calls with known sizes, most in "
            f"{first.op} {first.shape} {first.dtype}"
            + (f" at {first.of_peak:.0%} of memory bandwidth" if first.of_peak is not None else ""),
            why="each operation reads and writes whole tensors: the same data cross the memory bus again and again",
            instead="compile, so that chains of them become one kernel; fused optimizer; smaller types; fewer copies",
            levers=answering("bytes"),
        )
    ]


def _unsized(answers: RankTrace) -> int:
    """Time of kernels and of copies within the device whose ops do not tell their sizes: an optimizer's lists of
    tensors, but also cuDNN's RNNs."""
    busy = sum(one.kernel_ns - one.communication_ns + one.exposed_inside_ns for one in answers.breakdown)
    return max(0, busy - sum(row.ns for row in answers.roofline))


def _named(answers: RankTrace) -> list[KernelTime]:
    named = (row for row in answers.kernels if row.by == "name" and MOVES.search(row.key))
    return [row for row in named if not re.search(WITH_HOST, row.key)]
