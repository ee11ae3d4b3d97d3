"""Ranks beside each other, and the one that the others wait for."""

from statistics import fmean
from typing import Any, Final

import msgspec

from ...records.page import Page
from ...records.phases import PHASES
from ...records.trace import RankLoad
from ..console import place_text
from .text import base

TITLE: Final = "Ranks"
COLUMNS: Final = ("step", "compute", "communication", "idle", "input", "late")


def data(page: Page) -> dict[str, Any] | None:
    """Ms a step by rank and column: from the traces where there are any, else the phases of the run."""
    found = _traced(page) or _timed(page)
    if found is None or len(found["ranks"]) < 2:
        return None
    return {**found, "heat": heat(found["ms"])}


def heat(rows: list[list[float | None]]) -> list[list[float]]:
    """How far each value lies from its column's mean, -1 to 1 of the largest distance in any column."""
    columns = list(zip(*rows, strict=True))
    means = [fmean([v for v in column if v is not None] or [0.0]) for column in columns]
    deviations = [[0.0 if v is None else v - mean for v, mean in zip(row, means, strict=True)] for row in rows]
    most = max((abs(value) for row in deviations for value in row), default=0.0)
    return [[value / most if most else 0.0 for value in row] for row in deviations]


def _traced(page: Page) -> dict[str, Any] | None:
    traces = page.traces
    balance = traces.balance if traces else None
    if traces is None or balance is None or not balance.loads or not any(rank.breakdown for rank in traces.ranks):
        return None
    named = next((one.cost_ms for one in traces.findings if one.id == "straggler"), None)
    return {
        "ranks": [load.rank for load in balance.loads],
        "columns": COLUMNS,
        "ms": [_row(load) for load in balance.loads],
        "straggler": balance.straggler,
        "cost_ms": named or (balance.cost_ns / 1e6 if balance.straggler is not None else None),
        "said": balance.why or "no rank is waited for",
        "where": place_text(balance.where, base(page)),
        "collectives": traces.collectives[:8],
    }


def _row(load: RankLoad) -> list[float | None]:
    times = (load.step_ns, load.compute_ns, load.communication_ns, load.idle_ns, load.input_ns, load.late_ns)
    return [None if ns is None else ns / 1e6 for ns in times]


def _timed(page: Page) -> dict[str, Any] | None:
    rows = [(one.rank, one.phases) for one in page.steps if one.phases is not None]
    if page.diagnosis is None or page.diagnosis.ranks < 2:
        return None
    late = next((one for one in page.diagnosis.findings if one.id == "straggler"), None)
    return {
        "ranks": [rank for rank, _ in rows],
        "columns": PHASES,
        "ms": [[msgspec.structs.asdict(phases)[name] for name in PHASES] for _, phases in rows],
        "straggler": None,
        "cost_ms": late.cost_ms if late else None,
        "said": late.title if late else "no rank is waited for",
        "where": place_text(late.where, base(page)) if late else "",
        "collectives": (),
    }
