"""What a trace says, on one screen."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..records.diagnosis import Finding, Place
from ..records.durations import ms
from ..records.kernel_names import short
from ..records.trace import (
    Change,
    Collective,
    Ranks,
    RankTrace,
    Replay,
    TraceDiff,
    TraceReport,
    WhatIf,
)
from .console import (
    Parts,
    Screen,
    ShareBar,
    Tabled,
    beside,
    columns,
    count,
    labelled,
    number,
    percent,
    place_text,
    plain,
    ratio,
)
from .rates import mfu_parts
from .run_screen import NO_FINDING, finding_lines

ROWS: Final = 6
NAME: Final = 44
LEAST_GAIN: Final = 1.01
NO_DEVICE: Final = "no finding: the trace has no device work. On a CPU, hotlap show names the causes of a profiled run"


def trace_screen(report: TraceReport, rows: int = ROWS) -> RenderableType:
    """The answers about one rank, or about many and the one among them that the others wait for."""
    rank = shown_rank(report)
    if rank is None:
        return Screen()
    return Screen(
        *_head(rank, report),
        *([_ranks(report), Text()] if len(report.ranks) > 1 else ()),
        *_findings(report, rows),
        *_tables(rank, report, rows),
        labelled(_trust(rank, report)),
    )


def shown_rank(report: TraceReport) -> RankTrace | None:
    """The rank that is shown first: the one that the others wait for, else the first."""
    late = report.balance.straggler if report.balance else None
    return next((rank for rank in report.ranks if rank.rank == late), next(iter(report.ranks), None))


def gains(replay: Replay | None) -> list[WhatIf]:
    """Predictions that would change something, best first."""
    found = [one for one in replay.predictions if one.gain >= LEAST_GAIN] if replay else []
    return sorted(found, key=lambda one: one.ms)


def _a_step(ns: float, rank: RankTrace) -> str:
    return ms(ns / rank.window.count / 1e6)


def _name(name: str) -> str:
    return short(name, NAME, types=False)


def _place(where: Place | None) -> str:
    return place_text(where, str(Path.cwd()))


def _head(rank: RankTrace, report: TraceReport) -> list[RenderableType]:
    """What was read, and the step."""
    many = f"rank {rank.rank} of {len(report.ranks)}" if len(report.ranks) > 1 else ""
    steps = number(len(rank.window.steps), "step") if rank.window.steps else "no steps found: the whole trace"
    by = f" by {rank.window.found_by}" if rank.window.steps else ""
    head = Parts([f"{ms(rank.step_ms)} a step", rank.device_name, many], "bold")
    mfu = [Parts(mfu_parts(rank.utilisation))] if rank.utilisation else []
    return [head, Parts([rank.source, f"{steps}{by}", f"{count(rank.events)} events"], "dim"), *mfu, Text()]


def _tables(rank: RankTrace, report: TraceReport, rows: int) -> list[RenderableType]:
    """Device time, idle time, what ran, waits, ops against the peaks; collectives, predictions."""
    found = [_device(rank), *(make(rank, rows) for make in (_gaps, _kernels, _host, _syncs, _roofline))]
    found += [_collectives(report.collectives[:rows]), _what_if(gains(report.replay or rank.replay))]
    return [block for table in found if table.row_count for block in (Tabled(table), Text())]


def _device(rank: RankTrace) -> Table:
    table = columns("device", "a step", "share", "", right=("a step", "share"), wide=("",))
    for one in rank.breakdown:
        parts = (
            ("compute", one.compute_ns),
            ("communication, exposed", one.exposed_communication_ns),
            ("copies, exposed", one.exposed_copy_ns),
            ("idle", one.idle_ns),
        )
        for name, ns in parts:
            share = ns / one.span_ns if one.span_ns else 0.0
            label = f"{one.device}: {name}" if len(rank.breakdown) > 1 else name
            table.add_row(label, _a_step(ns, rank), percent(share), ShareBar(share, style="cyan"))
    return table


def _gaps(rank: RankTrace, rows: int) -> Table:
    right = ("a step", "gaps", "longest")
    table = columns("idle because of", *right, "under", right=right, wide=("under",))
    for gap in rank.gaps[:rows]:
        under = Parts([_name(gap.doing), _place(gap.where)])
        table.add_row(gap.cause, _a_step(gap.idle_ns, rank), count(gap.count), ms(gap.longest_ns / 1e6), under)
    return table


def _kernels(rank: RankTrace, rows: int) -> Table:
    by = "line" if any(row.by == "line" and row.where for row in rank.kernels) else "op"
    right = ("a step", "share", "calls")
    table = columns(f"device work by {by}", *right, right=right, wide=(f"device work by {by}",))
    for row in [row for row in rank.kernels if row.by == by][:rows]:
        key = _place(row.where) if by == "line" and row.where else row.key
        table.add_row(plain(_name(key)), _a_step(row.ns, rank), percent(row.share), count(row.count))
    return table


def _host(rank: RankTrace, rows: int) -> Table:
    right = ("own", "in all", "calls")
    table = columns("host time", *right, "at", right=right, wide=("host time", "at"))
    for row in rank.host[:rows]:
        cells = (_a_step(row.ns, rank), _a_step(row.total_ns, rank), count(row.count), plain(_place(row.where)))
        table.add_row(plain(_name(row.name)), *cells)
    return table


def _syncs(rank: RankTrace, rows: int) -> Table:
    right = ("wait", "idle after", "calls")
    table = columns("the host waits", *right, "at", right=right, wide=("the host waits", "at"))
    for sync in rank.syncs[:rows]:
        at = Parts([sync.op or sync.call, _place(sync.where)])
        waits = (_a_step(sync.host_ns, rank), _a_step(sync.idle_ns, rank), count(sync.count))
        table.add_row(plain(sync.cause), *waits, at)
    return table


def _roofline(rank: RankTrace, rows: int) -> Table:
    table = columns("op", "a step", "limit", "of peak", "why", right=("a step", "of peak"), wide=("op", "why"))
    for row in rank.roofline[:rows]:
        name = plain(f"{row.op} {_name(row.shape)} {row.dtype}")
        why = row.why_not or ("tensor cores" if row.tensor_cores else "")
        table.add_row(name, _a_step(row.ns, rank), row.limit, percent(row.of_peak), plain(why))
    return table


def _what_if(predictions: Sequence[WhatIf]) -> Table:
    table = columns("what if", "a step", "faster", "", right=("a step", "faster"), wide=("",))
    for one in predictions:
        table.add_row(one.change.replace("_", " "), ms(one.ms), ratio(one.gain), plain(one.meaning, "dim"))
    return table


def _trust(rank: RankTrace, report: TraceReport) -> Iterator[tuple[str, RenderableType]]:
    for said in rank.trust.said:
        yield "trust", plain(said, "yellow")
    replay = report.replay or rank.replay
    if replay is not None and replay.measured_ms:
        off = f"{replay.replayed_ms / replay.measured_ms - 1:+.1%} from the measured step"
        yield "what if", plain(f"the unchanged step replays in {ms(replay.replayed_ms)}, {off}")


def _ranks(report: TraceReport) -> RenderableType:
    right = ("a step", "compute", "communication", "idle", "late")
    table = columns("rank", *right, right=right)
    balance = report.balance or Ranks(loads=(), imbalance=0.0)
    for load in balance.loads:
        late = ms(load.late_ns / 1e6) if load.late_ns is not None else "unknown"
        cells = [ms(ns / 1e6) for ns in (load.step_ns, load.compute_ns, load.communication_ns, load.idle_ns)]
        mark = "bold yellow" if load.rank == balance.straggler else ""
        table.add_row(str(load.rank), *cells, late, style=mark)
    if balance.straggler is not None:  # the finding says what it costs and why
        return Tabled(table)
    return Group(Tabled(table), plain(balance.why or "no rank is waited for", "dim"))


def _collectives(rows: Sequence[Collective]) -> Table:
    right = ("MiB", "calls", "transfer", "wait", "skew", "bus GB/s")
    table = columns("collective", *right, right=right)
    for row in rows:
        times = [ms(ns / 1e6) if ns is not None else "unknown" for ns in (row.transfer_ns, row.wait_ns, row.skew_ns)]
        bus = count(row.bus_gbs) if row.bus_gbs is not None else "unknown"
        name = plain(f"{row.name} {row.dtype} ×{row.ranks}")
        table.add_row(name, count(row.bytes / 2**20), count(row.count), *times, bus)
    return table


def _findings(report: TraceReport, rows: int) -> list[RenderableType]:
    if not report.findings:
        return [plain(NO_FINDING if any(rank.breakdown for rank in report.ranks) else NO_DEVICE, "dim")]
    shown = beside((_cost(one), Group(*finding_lines(one, str(Path.cwd())))) for one in report.findings[:rows])
    more = len(report.findings) - rows
    return [shown, *([plain(f"and {more} more; --top shows them", "dim")] if more > 0 else []), Text()]


def _cost(finding: Finding) -> Text:
    cost = f"−{ms(finding.cost_ms)}" if finding.cost_ms else ""
    return Text(f"{percent(finding.share)}\n", "bold yellow").append(cost, "yellow")


def diff_screen(diff: TraceDiff, rows: int = ROWS) -> RenderableType:
    """What changed from one trace to another."""
    step = diff.step
    gain = step.before_ms / step.after_ms if step.after_ms else float("nan")
    head = [f"{ms(step.before_ms)} → {ms(step.after_ms)} a step", f"{ratio(gain)} as fast"]
    files = f"{', '.join(diff.before)} → {', '.join(diff.after)}"
    blocks: list[RenderableType] = [Parts(head, "bold"), Parts([files], "dim"), Text()]
    blocks += [plain(said) for said in diff.said]
    for title, changes in (
        ("device time", diff.parts),
        ("kernels", diff.kernels),
        ("ops, device time", diff.ops),
        ("the host waits", diff.syncs),
        ("launches", diff.launches),
        ("host time", diff.host),
    ):
        if changes:
            blocks += [Text(), Tabled(_changes(title, changes[:rows]))]
    return Screen(*blocks)


def _changes(title: str, changes: Sequence[Change]) -> Table:
    right = ("before", "after", "change", "calls")
    table = columns(title, *right, right=right, wide=(title,))
    for one in changes:
        calls = f"{count(one.before_count)} → {count(one.after_count)}" if one.before_count or one.after_count else ""
        sign = "+" if one.delta_ms > 0 else "−"
        times = (ms(one.before_ms), ms(one.after_ms), f"{sign}{ms(abs(one.delta_ms))}")
        table.add_row(plain(_name(one.name)), *times, calls)
    return table
