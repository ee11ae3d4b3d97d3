"""Convolutions that run on a device without cuDNN."""

import re
from typing import Final

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import OpRoofline, RankTrace

from ..scaling import per_step_ms, share

ID: Final = "slow-convolution"
KERNELS: Final = re.compile(r"im2col|col2im|vol2col|col2vol")
AS_WINDOWS: Final = "convolutions run as im2col and a matrix product for each sample"


def find(answers: RankTrace) -> list[Finding]:
    """Time in them, whatever limits it; cost: not known."""
    rows = by_windows(answers)
    if not rows:
        return []
    ns, first = sum(row.ns for row in rows), max(rows, key=lambda row: row.ns)
    names = {found[0] for row in rows for name in row.kernels if (found := KERNELS.search(name))}
    reached = f", {first.of_peak:.0%} of what the device could do" if first.of_peak is not None else ""
    return [
        Finding(
            id=ID,
            bound="compute",
            share=share(answers, per_step_ms(answers, ns)),
            title=f"{AS_WINDOWS}, without cuDNN",
            where=first.where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step in kernels of {' and '.join(sorted(names))} and the work "
            f"launched with them; most in {first.op} {first.shape}{reached}",
            why="all windows are copied out and back, sample by sample; torch does this if cuDNN is off, missing, "
            "or has no kernel, as for tensors of 2^31 numbers",
            instead="leave cuDNN on: no `torch.backends.cudnn.enabled = False`, nor `flags(enabled=False)` around the "
            "model; `torch.backends.cudnn.is_available()` tells whether the build has it",
            named=True,
        )
    ]


def by_windows(answers: RankTrace) -> list[OpRoofline]:
    """Convolutions, forward or backward, that copy windows out."""
    return [row for row in answers.roofline if "convolution" in row.op and any(map(KERNELS.search, row.kernels))]
