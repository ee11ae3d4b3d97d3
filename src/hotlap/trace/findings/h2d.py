"""Copies between host and device that nothing overlaps."""

import re
from collections.abc import Sequence
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import CopyTime, RankTrace

from ..scaling import idle_ms, per_step_ms, share
from ._base import idle, place, total
from .offloaded import kept, most_at, part

IN: Final = re.compile(r"HtoD|(Pageable|Pinned|Host) -> Device")
FEW_BYTES: Final = 4096
"""Of a copy, below which it is of a few numbers."""
STAGED: Final = (
    "a copy from pageable memory goes slowly through a staging buffer, and the host waits for it even with "
    "`non_blocking=True`; on the computing stream it overlaps nothing"
)
PIN: Final = (
    "pin memory, so that `non_blocking=True` does not wait: `pin_memory()` once on the tensor that batches are "
    "sliced from (slices stay pinned, indexed rows do not), or `DataLoader(pin_memory=True)`; then"
)
AHEAD: Final = " copy the next one on a separate stream while this one is computed"
SMALL: Final = (
    "; make small constant tensors once, as buffers in `__init__`, not with `torch.tensor([...])` in each forward"
)


def find(answers: RankTrace) -> list[Finding]:
    """Exposed copies between host and device, and idle time while the host stages pageable copies."""
    gaps = idle(answers, "copy")
    exposed = sum(one.exposed_copy_ns - one.exposed_inside_ns for one in answers.breakdown)
    offloaded, staged = part(answers)  # `offloaded` tells these
    exposed = max(0, exposed - offloaded)
    waited = idle_ms(answers, total(gaps)) * (1 - staged)
    cost = per_step_ms(answers, exposed) + waited
    if not cost:
        return []
    here = tuple(one for one in answers.copies if one not in kept(answers))
    pageable = _pageable(answers)
    copying = per_step_ms(answers, exposed)
    most = most_at(here, exposed) if copying > waited else None
    return [
        Finding(
            id="h2d",
            bound="h2d",
            share=share(answers, cost),
            cost_ms=cost,
            title="copies between host and device that no computation hides",
            where=most or place(gaps) or most_at(here, exposed),
            evidence=f"{ms(copying)} a step of copies alone on the device, {ms(waited)} idle while pageable memory is "
            f"staged{_sizes(answers, here, pageable)}",
            why=STAGED if pageable else "a copy on the computing stream, or from pageable memory, overlaps nothing",
            instead=(PIN if pageable else "pin the batches and") + AHEAD + (SMALL if _are_small(here) else ""),
            levers=answering("h2d"),
        )
    ]


def _pageable(answers: RankTrace) -> bool:
    """Whether copies to the device are mostly from such memory."""
    names = [row for row in answers.kernels if row.by == "name" and IN.search(row.key)]
    return 2 * sum(row.ns for row in names if "Pageable" in row.key) > sum(row.ns for row in names)


def _sizes(answers: RankTrace, copies: Sequence[CopyTime], pageable: bool) -> str:
    """What the largest of those to the device moves a step, in words."""
    largest = max((one for one in copies if one.way == "in"), key=lambda one: one.bytes, default=None)
    if largest is None or _are_small(copies):
        return ""
    size = largest.bytes / answers.window.count / 2**20
    return f"; {size:.1f} MiB a step{' from pageable memory' if pageable else ''}"


def _are_small(copies: Sequence[CopyTime]) -> bool:
    """Whether most of those to the device are of a few numbers, as where tensors are made of Python's."""
    into = [one for one in copies if one.way == "in"]
    few = sum(one.count for one in into if one.bytes < FEW_BYTES * one.count)
    return not copies or 2 * few > sum(one.count for one in into)
