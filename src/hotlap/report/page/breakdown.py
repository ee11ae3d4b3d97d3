"""Where a step's time goes: phases on host and device, device time by kind, idle time by cause, the largest ops."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ...records.diagnosis import Diagnosis
from ...records.page import Page
from ...records.phases import PHASES
from ...records.run import Phases
from ...records.trace import RankTrace
from .text import base, shown_rank, where

TITLE: Final = "Where the time goes"
ROWS: Final = 8
Part = tuple[str, float, float]
"""Name, ms a step, share of the bar."""


def data(page: Page) -> dict[str, Any] | None:
    """Bars, each with its parts, and tables."""
    bars = [*_diagnosed(page), *_traced(shown_rank(page))]
    if not bars:
        return None
    rank = shown_rank(page)
    return {"bars": bars, "work": _work(page, rank), "syncs": _syncs(page, rank), "rank": rank}


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
        yield (
            "idle, by cause",
            "idle",
            total / steps,
            [(why, ns / steps, ns / span) for why, ns in rank.idle_ns.items()],
        )


def _work(page: Page, rank: RankTrace | None) -> list[dict[str, Any]]:
    """The largest device work by line where lines are known, else by op; on a CPU the model's host time."""
    if rank is None:
        return []
    by = "line" if any(row.by == "line" and row.where for row in rank.kernels) else "op"
    steps = rank.window.count * 1e6
    rows = [row for row in rank.kernels if row.by == by][:ROWS]
    if not rows:
        named = (rank.model or rank.host)[:ROWS]
        total = sum(row.ns for row in rank.model or rank.host) or 1
        return [_row(page, row.name, row.where, row.ns / steps, row.ns / total, row.count) for row in named]
    return [_row(page, row.key if by == "op" else "", row.where, row.ns / steps, row.share, row.count) for row in rows]


def _row(page: Page, name: str, place: Any, step_ms: float, share: float, count: int) -> dict[str, Any]:
    at = where(place, base(page))
    return {
        "name": name or at or "unknown line",
        "at": at if name else "",
        "ms": step_ms,
        "share": share,
        "count": count,
    }


def _syncs(page: Page, rank: RankTrace | None) -> Sequence[dict[str, Any]]:
    if rank is None:
        return ()
    steps = rank.window.count * 1e6
    return [
        {
            "cause": sync.cause,
            "at": where(sync.where, base(page)) or sync.op or sync.call,
            "host": sync.host_ns / steps,
            "idle": sync.idle_ns / steps,
            "count": sync.count,
        }
        for sync in rank.syncs[:ROWS]
    ]
