"""What changed between two traces, or between two sets of ranks: everything per step, a mean over the ranks of a set.

Things are the same if they have the same name, without what changes from run to run or with an edit of another line:
the number of a step, the line at which a function begins, an address (`totals.unnumbered`). Sums are in integer
nanoseconds within the window and become ms per step at the end. The order is by absolute change, of equals by name, so
swapping the two traces negates every change and keeps the order.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from hotlap.records.durations import ms
from hotlap.records.kernel_names import short
from hotlap.records.trace import Breakdown, Change, TraceDiff

from .analyses import totals
from .analyses.breakdown import breakdown
from .analyses.totals import Totals
from .view import View

ROWS: Final = 30
"""Rows of a table, by default; one more for the rest."""
REST: Final = "(rest)"
SUMMED: Final = ("before_ms", "after_ms", "before_count", "after_count")
SAID: Final = 3
"""Changes of a table that are said in words."""
WORTH: Final = 0.01
"""Share of the step from which a change is said in words."""
BUSY: Final[dict[str, Callable[[Breakdown], int]]] = {
    "compute": lambda one: one.compute_ns,
    "exposed communication": lambda one: one.exposed_communication_ns,
    "exposed copy": lambda one: one.exposed_copy_ns,
}
Sums = dict[str, tuple[float, float]]
"""Name to (ms, count) per step."""


def diff(a: View | Sequence[View], b: View | Sequence[View], *, rows: int = ROWS) -> TraceDiff:
    """From a (before) to b (after): one trace each, or the ranks of a run each (one at least). rows: of a table."""
    before, after = _views(a), _views(b)

    def compared(of: Callable[[View], Totals]) -> list[Change]:
        return changes(_mean(before, of), _mean(after, of))

    kernels, ops = compared(totals.kernels), compared(totals.ops)
    syncs, launches, host = (compared(_on_host(of)) for of in (totals.syncs, totals.launches, totals.host))
    step = _one("step", before, after, _step)
    worked = any(len(view.work) for view in (*before, *after))  # else no device is known, which could be idle
    parts = compared(_parts) if worked else []
    return TraceDiff(
        before=tuple(view.trace.source for view in before),
        after=tuple(view.trace.source for view in after),
        step=step,
        work=_one("work", before, after, lambda view: {"work": _sum(totals.kernels(view))}),
        parts=tuple(parts),
        kernels=cut(kernels, rows),
        ops=cut(ops, rows),
        syncs=cut(syncs, rows),
        launches=cut(launches, rows),
        host=cut(host, rows),
        said=_said(step, parts, {"kernel": kernels, "synchronisation": syncs, "on the host": host}),
    )


def _views(one: View | Sequence[View]) -> tuple[View, ...]:
    return (one,) if isinstance(one, View) else tuple(one)


# sums per step


def _on_host(of: Callable[[View], Totals]) -> Callable[[View], Totals]:
    return lambda view: of(view.on_host)


def _step(view: View) -> Totals:
    return {"step": (view.window.span_ns, view.window.count)}


def _parts(view: View) -> Totals:
    """The step by what its devices do, a mean over devices; all of it is idle where no device works."""
    found = breakdown(view)
    busy = {name: sum(of(one) for one in found) // max(1, len(found)) for name, of in BUSY.items()}
    return {name: (ns, 0) for name, ns in {**busy, "idle": view.window.span_ns - sum(busy.values())}.items()}


def _sum(sums: Totals) -> tuple[int, int]:
    return sum(ns for ns, _ in sums.values()), sum(count for _, count in sums.values())


def _mean(views: Sequence[View], of: Callable[[View], Totals]) -> Sums:
    """Per step, a mean over views; names that are the same but for `totals.CHANGING` are one."""
    found: Sums = {}
    for view in views:
        steps = view.window.count * len(views)
        for name, (ns, count) in of(view).items():
            ms, number = found.get(totals.unnumbered(name), (0.0, 0.0))
            found[totals.unnumbered(name)] = (ms + ns / 1e6 / steps, number + count / steps)
    return found


# changes


def changes(before: Sums, after: Sums) -> list[Change]:
    """One for each name whose time or count differs, largest change first."""
    found = (_change(name, before.get(name), after.get(name)) for name in before.keys() | after.keys())
    differ = (one for one in found if (one.before_ms, one.before_count) != (one.after_ms, one.after_count))
    return sorted(differ, key=lambda one: (-abs(one.delta_ms), one.name))


def _change(name: str, before: tuple[float, float] | None, after: tuple[float, float] | None) -> Change:
    (was_ms, was), (is_ms, is_) = before or (0.0, 0.0), after or (0.0, 0.0)
    how = "appeared" if before is None else "disappeared" if after is None else "changed"
    return Change(name=name, before_ms=was_ms, after_ms=is_ms, before_count=was, after_count=is_, how=how)


def _one(name: str, before: Sequence[View], after: Sequence[View], of: Callable[[View], Totals]) -> Change:
    return _change(name, _mean(before, of)[name], _mean(after, of)[name])


def cut(rows: Sequence[Change], most: int) -> tuple[Change, ...]:
    """The largest changes, and one row for the rest."""
    if len(rows) <= most:
        return tuple(rows)
    return (*rows[:most], _rest(rows[most:]))


def _rest(rows: Sequence[Change]) -> Change:
    sums: dict[str, Any] = {name: float(sum(getattr(row, name) for row in rows)) for name in SUMMED}
    return Change(name=REST, **sums)


# words


def _said(step: Change, parts: Sequence[Change], tables: dict[str, list[Change]]) -> tuple[str, ...]:
    worth = WORTH * max(step.before_ms, step.after_ms)
    shifts = [f"{one.name} {_signed(one)}" for one in parts if abs(one.delta_ms) >= worth]
    lines = [_of_step(step) + (f"; of it {', '.join(shifts)}" if shifts else "")]
    for kind, rows in tables.items():
        large = [row for row in rows[:SAID] if abs(row.delta_ms) >= worth]
        lines += [f"{kind}: {short(totals.spoken(row.name))} {_signed(row)} {_how(row)}" for row in large]
    return tuple(lines)


def _of_step(step: Change) -> str:
    if step.before_ms <= 0 or step.after_ms <= 0 or abs(step.delta_ms) < WORTH * step.before_ms:
        return f"the step is as long as before, {ms(step.after_ms)}"
    faster = step.before_ms > step.after_ms
    ratio = step.before_ms / step.after_ms if faster else step.after_ms / step.before_ms
    how = f"{ratio:.2f} times {'faster' if faster else 'slower'}"
    return f"the step went from {ms(step.before_ms)} to {ms(step.after_ms)}, {how}"


def _signed(change: Change) -> str:
    return f"{'+' if change.delta_ms >= 0 else '-'}{ms(abs(change.delta_ms))}"


def _how(change: Change) -> str:
    if change.how != "changed":
        count = max(change.before_count, change.after_count)
        return f"({change.how}, {count:.4g} a step)"
    counts = f"{change.before_count:.4g} to {change.after_count:.4g} a step"
    return f"({ms(change.before_ms)} to {ms(change.after_ms)}, {counts})"
