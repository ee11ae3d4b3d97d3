"""What other profilers measured, as tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..records.durations import ms
from ..records.kernel_names import short
from ..records.profilers import PY_SPY_RATE, KernelCounters, PerfStat, PySpy, SpyLine
from ..records.trace import RankTrace, TraceReport
from .console import Parts, Screen, Tabled, columns, count, labelled, number, percent, place_text, plain
from .trace_screen import shown_rank

OF_PEAK: Final = (
    "percent of the device's peak while the kernel runs; latency: neither is at 60%. ncu runs each kernel alone and "
    "several times, so its times are not those of a step"
)
HOTLAPS: Final = ". hotlap: what the op reaches of its roofline in the trace, by the sizes of its tensors"
EVENTS: Final = ("context-switches", "cpu-migrations", "page-faults", "branch-misses", "cache-misses")


def ncu_screen(kernels: Sequence[KernelCounters], rows: int, most: int | None = None) -> RenderableType:
    """Kernels by time, with what they reach of the device's peaks; beside it what hotlap has from a trace. most:
    launches that ncu was to measure, None unknown."""
    traced = any(kernel.of_peak is not None for kernel in kernels)
    right = ("in all", "launches", "compute", "memory", "dram")
    beside = ("hotlap: of peak", "op") if traced else ()
    table = columns("kernel, by ncu", *right, "limit", *beside, right=(*right, *beside[:1]), wide=("kernel, by ncu",))
    for kernel in kernels[:rows]:
        time = ms(kernel.ns / 1e6) if kernel.ns is not None else "unknown"
        peaks = [_percent(value) for value in (kernel.sm, kernel.memory, kernel.dram)]
        mine = (percent(kernel.of_peak) if kernel.of_peak is not None else "-", plain(kernel.op)) if traced else ()
        table.add_row(plain(short(kernel.name)), time, f"{kernel.calls:,}", *peaks, kernel.limit or "unknown", *mine)
    notes = [
        Text(_launches(sum(kernel.calls for kernel in kernels), most)),
        Text(f"{OF_PEAK}{HOTLAPS if traced else ''}", "dim"),
    ]
    if len(kernels) > rows:
        notes.insert(0, Text(f"and {len(kernels) - rows:,} more kernels; hotlap trace --top shows them", "dim"))
    return Screen(Tabled(table), *notes)


def _launches(measured: int, most: int | None) -> str:
    """How many there are, and whether there may have been more."""
    said = f"{measured:,} kernel {'launch' if measured == 1 else 'launches'} measured"
    return f"{said}, the most that hotlap asks ncu for; later ones are missing" if measured == most else said


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}%"


def nsys_screen(report: TraceReport, rows: int) -> RenderableType:
    """What a trace of nsys has that the screen of a trace leaves out: kernels by name, and ranges on the device."""
    rank = shown_rank(report)
    if rank is None:
        return Screen()
    return Screen(*(Tabled(table) for table in (_by_name(rank, rows), _ranges(rank, rows)) if table.row_count))


def _by_name(rank: RankTrace, rows: int) -> Table:
    right = ("a step", "share", "calls", "longest")
    table = columns("kernel", *right, right=right, wide=("kernel",))
    for row in [row for row in rank.kernels if row.by == "name"][:rows]:
        time = ms(row.ns / rank.window.count / 1e6)
        table.add_row(plain(short(row.key)), time, percent(row.share), count(row.count), ms(row.longest_ns / 1e6))
    return table


def _ranges(rank: RankTrace, rows: int) -> Table:
    """As `nsys stats --report nvtx_gpu_proj_sum`, a step."""
    right = ("host", "on the device", "busy", "kernels", "times")
    table = columns("range", *right, right=right, wide=("range",))
    for row in rank.annotations[:rows]:
        times = [ms(ns / rank.window.count / 1e6) for ns in (row.host_ns, row.projected_ns, row.busy_ns)]
        table.add_row(plain(short(row.name)), *times, count(row.kernels), count(row.instances))
    return table


def perf_screen(stat: PerfStat) -> RenderableType:
    """The counters that say how the host's processors were used."""
    rows = []
    if stat.cpus is not None:
        rows.append(("processors busy", f"{stat.cpus:.2f}"))
    if stat.instructions_per_cycle is not None:
        rows.append(("instructions a cycle", f"{stat.instructions_per_cycle:.2f}"))
    rows += [(name.replace("-", " "), f"{stat.counters[name]:,.0f}") for name in EVENTS if name in stat.counters]
    if stat.running < 100:
        rows.append(("counted in", f"{stat.running:.0f}% of the time or more, scaled to all of it by perf"))
    if stat.unknown:
        rows.append(("not counted here", ", ".join(stat.unknown)[:200]))
    return Screen(Text("perf stat, the whole command", "dim"), labelled((label, plain(said)) for label, said in rows))


def py_spy_screen(seen: PySpy, rows: int) -> RenderableType:
    """The user's lines that the main thread was seen at, what it did there, and what ran beside it."""
    right = ("share", "of that", "threads", "processes", "of these")
    wide = ("line, by py-spy", "mostly in", "beside it", "mostly at")
    table = columns("line, by py-spy", "share", "mostly in", "of that", right=right, wide=wide)
    for line in seen.lines[:rows]:
        share = percent(line.samples / max(1, seen.samples))
        table.add_row(plain(_line(line)), share, _inner(line), percent(line.inner_samples / max(1, line.samples)))
    beside = columns("beside it", "threads", "processes", "mostly at", "of these", right=right, wide=wide)
    for group in seen.beside[:rows]:
        at = _inner(group.line) if group.line.where is None else plain(_line(group.line))
        share = percent(group.line.samples / max(1, group.samples))
        beside.add_row(plain(short(group.name)), f"{group.threads:,}", f"{group.processes:,}", at, share)
    tables = [Tabled(shown) for shown in (table, beside) if shown.row_count]
    return Screen(*tables, Parts(_looks(seen, rows), "dim"))


def _line(line: SpyLine) -> str:
    return "not your code" if line.where is None else place_text(line.where, str(Path.cwd()))


def _inner(line: SpyLine) -> Text:
    return plain(line.inner or ("no Python" if line.where is None else "itself"))


def _looks(seen: PySpy, rows: int) -> list[str]:
    """What the shares are of, and what stands against them."""
    threads = f"the main threads of {len(seen.pids)} processes" if len(seen.pids) > 1 else "the main thread"
    late = f"late {number(seen.late, 'time')}, by up to {seen.late_s:.2f} s" if seen.late else "never late by 1 s"
    more = len(seen.lines) - rows, len(seen.beside) - rows
    return [
        f"{number(seen.samples, 'sample')} of {threads}, waits included; asked for {PY_SPY_RATE} a second",
        "sampled without pausing: very short calls are seen too rarely",
        f"hotlap itself: {percent(seen.own / max(1, seen.samples))}",
        f"{number(seen.errors, 'sample')} failed",
        late,
        f"{number(seen.unread, 'record')} could not be read" if seen.unread else "",
        f"{number(more[0], 'more line')}" if more[0] > 0 else "",
        f"{number(more[1], 'more kind')} of threads" if more[1] > 0 else "",
    ]
