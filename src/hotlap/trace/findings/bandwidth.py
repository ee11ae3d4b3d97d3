"""Kernels that memory traffic limits."""

import re
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import KernelTime, RankTrace

from ..scaling import per_step_ms, share
from ..view import WITH_HOST
from .attention import scores
from .convolution import by_windows

MOVES: Final = re.compile(
    r"elementwise|multi_tensor|reduce|softmax|norm|copy|memset|memcpy|cat(array|_)|index|gather|scatter|embedding|fill"
    r"|scan|sort|dropout|pool|transpose|nchw|nhwc|triton_",
    re.IGNORECASE,
)
"""Kernels that move data and compute next to nothing, by their names."""

LITTLE: Final = 0.2
"""Of memory bandwidth, in the mean over their time: kernels that reach less are limited by something else."""
LIMITED: Final = (
    "kernels that memory traffic limits",
    "each operation reads and writes whole tensors, so the same data move through memory again and again",
    "compile, so that chains of them become one kernel; fused optimizer; smaller types; fewer copies",
)
FAR_BELOW: Final = (
    "kernels that reach little of memory bandwidth",
    "they are too small for the device, their shapes use few of its units, or other work shares it",
    "compile, so that chains of them become one kernel; fused optimizer; larger batches; other shapes for the largest",
)


def find(answers: RankTrace) -> list[Finding]:
    """Time in ops that no arithmetic limits: elementwise, norms, softmax, the optimizer; without attention's scores and
    what `convolution` tells."""
    attention = scores(answers)
    told = [*attention, *by_windows(answers)]
    moving = [row for row in answers.roofline if row.limit in {"bandwidth", "launch"} and row not in told]
    if not moving:
        return []
    ns = sum(row.ns for row in moving)
    named = sum(row.ns for row in _named(answers)) - sum(row.ns for row in attention)
    ns = max(ns, min(ns + _unsized(answers), named))
    first = max(moving, key=lambda row: row.ns)
    calls = sum(row.count for row in moving) / answers.window.count
    known = [row for row in moving if row.of_peak is not None]
    reached = sum((row.of_peak or 0.0) * row.ns for row in known) / max(1, sum(row.ns for row in known))
    title, why, instead = LIMITED if reached >= LITTLE or not known else FAR_BELOW
    return [
        Finding(
            id="bandwidth",
            bound="bandwidth",
            share=share(answers, per_step_ms(answers, ns)),
            title=title,
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step; {calls:.0f} calls with known sizes, most in "
            f"{first.op} {first.shape} {first.dtype}"
            + (
                f" at {first.of_peak:.0%} of memory bandwidth, all at {reached:.0%}"
                if first.of_peak is not None
                else ""
            ),
            why=why,
            instead=instead,
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
