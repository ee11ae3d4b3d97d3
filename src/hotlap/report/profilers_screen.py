"""What other profilers measured, as tables."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ..records.profilers import KernelCounters, PerfStat
from .console import Screen, Tabled, columns, labelled, ms, plain

NAME: Final = 60
EVENTS: Final = ("context-switches", "cpu-migrations", "page-faults", "branch-misses", "cache-misses")


def ncu_screen(kernels: Sequence[KernelCounters], rows: int) -> RenderableType:
    """Kernels by time, with what they reach of the device's peaks."""
    table = columns(
        "kernel, by ncu", "in all", "launches", "processors", "memory",
        right=("in all", "launches", "processors", "memory"), wide=("kernel, by ncu",),
    )  # fmt: skip
    for kernel in kernels[:rows]:
        time = ms(kernel.ns / 1e6) if kernel.ns is not None else "unknown"
        name = kernel.name if len(kernel.name) <= NAME else f"{kernel.name[: NAME - 1]}…"
        table.add_row(plain(name), time, f"{kernel.calls:,}", _percent(kernel.sm), _percent(kernel.dram))
    note = "percent of the peak while the kernel runs; ncu runs each kernel alone, so its times are not those of a step"
    return Screen(Tabled(table), Text(note, "dim"))


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}%"


def perf_screen(stat: PerfStat) -> RenderableType:
    """The counters that say how the host's processors were used."""
    rows = []
    if stat.cpus is not None:
        rows.append(("processors busy", f"{stat.cpus:.2f}"))
    if stat.instructions_per_cycle is not None:
        rows.append(("instructions a cycle", f"{stat.instructions_per_cycle:.2f}"))
    rows += [(name.replace("-", " "), f"{stat.counters[name]:,.0f}") for name in EVENTS if name in stat.counters]
    if stat.running < 100:
        rows.append(("counted in", f"{stat.running:.0f}% of the time at least, and scaled by perf"))
    if stat.unknown:
        rows.append(("not counted here", ", ".join(stat.unknown)[:200]))
    return Screen(Text("perf stat, the whole command", "dim"), labelled((label, plain(said)) for label, said in rows))
