"""Where a step's time goes: phases on host and device, device time by kind, idle time by cause, the largest ops."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ...records.diagnosis import Diagnosis
from ...records.page import Page
from ...records.phases import PHASES
from ...records.run import Phases
from ...records.trace import HostTime, KernelTime, RankTrace
from ..console import place_text
from .text import base, shown_rank

TITLE: Final = "Where the time goes"
ROWS: Final = 8
Part = tuple[str, float, float]
"""Name, ms a step, share of the bar."""


def data(page: Page) -> dict[str, Any] | None:
    """Bars, each with its parts, and tables."""
    rank = shown_rank(page)
    bars = [*_diagnosed(page), *_traced(rank)]
    if not bars:
        return None
    return {"bars": bars, "work": _work(page, rank), "syncs": list(_syncs(page, rank)), "rank": rank}


def _diagnosed(page: Page) -> Iterator[tuple[str, str, float, list[Part]]]:
    if page.tune is not None:
        sides: list[tuple[str, Diagnosis | None]] = [("before, ", page.tune.baseline), ("after, ", page.tune.tuned)]
    else:
        sides = [("", page.diagnosis)]
    whole = max((found.step_ms for _, found in sides if found is not None), default=0.0)
    for name, found in sides:
        if found is not None:
            of = ", first rank" if found.ranks > 1 else ""
            yield from _bar(f"{name}host{of}", found.phases, whole)
            yield from _bar(f"{name}device{of}", found.gpu_phases, whole)


def _bar(name: str, phases: Phases | None, whole: float) -> Iterator[tuple[str, str, float, list[Part]]]:
    if phases is None:
        return
    row = msgspec.structs.asdict(phases)
    known = [(phase, row[phase]) for phase in PHASES if row[phase] is not None]
    total = sum(value for _, value in known)
    widest = max(total, whole)
    if total > 0:
        yield name, "phase", total, [(phase, value, value / widest) for phase, value in known]


def _traced(rank: RankTrace | None) -> Iterator[tuple[str, str, float, list[Part]]]:
    if rank is None:
        return
    steps = rank.window.count * 1e6
    for one in rank.breakdown:
        parts = (
            ("compute", one.compute_ns),
            ("communication", one.exposed_communication_ns),
            ("copy", one.exposed_copy_ns),
            ("idle", one.idle_ns),
        )
        name = "device in the trace" if len(rank.breakdown) == 1 else f"device {one.device} in the trace"
        yield name, "device", one.span_ns / steps, [(part, ns / steps, ns / (one.span_ns or 1)) for part, ns in parts]
    total, span = sum(rank.idle_ns.values()), sum(one.span_ns for one in rank.breakdown)
    if total and span:
        causes = [(why, ns / steps, ns / span) for why, ns in rank.idle_ns.items()]
        yield "idle, by cause", "idle", total / steps, causes


def _work(page: Page, rank: RankTrace | None) -> list[tuple[str, float, float, int, str]]:
    """The largest device work by line where lines are known, else by op; on a CPU the model's host time. Rows of name,
    ms a step, share, calls and place."""
    if rank is None:
        return []
    by = "line" if any(row.by == "line" and row.where for row in rank.kernels) else "op"
    steps = rank.window.count * 1e6
    kernels, host = [row for row in rank.kernels if row.by == by], rank.model or rank.host
    rows: list[tuple[str, KernelTime | HostTime, float]] = []
    rows += [(row.key if by == "op" else "", row, row.share) for row in kernels[:ROWS]]
    if not rows:
        total = sum(row.ns for row in host) or 1
        rows = [(row.name, row, row.ns / total) for row in host[:ROWS]]
    found = []
    for name, row, share in rows:
        at = place_text(row.where, base(page))
        found.append((name or at or "unknown line", row.ns / steps, share, row.count, at if name else ""))
    return found


def _syncs(page: Page, rank: RankTrace | None) -> Iterator[tuple[str, float, float, int, str]]:
    """Rows of cause, ms a step that the host waits and that the device idles after, calls and place."""
    if rank is None:
        return
    steps = rank.window.count * 1e6
    for sync in rank.syncs[:ROWS]:
        at = place_text(sync.where, base(page)) or sync.op or sync.call
        yield sync.cause, sync.host_ns / steps, sync.idle_ns / steps, sync.count, at
