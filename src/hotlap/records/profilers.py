"""What other profilers' exports say: ncu's counters of kernels, perf's of a command."""

from typing import Final

import msgspec

from .run import Count

NSYS_FILE: Final = "nsys.sqlite"
NCU_FILE: Final = "ncu.csv"
"""In a run's folder."""


class KernelCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of one kernel as ncu measured them. ns: their time; sm, memory, dram: percent of the peak that the
    processors, the busiest part of the memory (caches too) and the device's memory reached, means by time over the
    launches that have them, None where none has. limit: `compute`, `memory`, or `latency` where both are below 60%, as
    ncu's own rules have it; "" unknown. op, of_peak: from a trace read beside it: the op that launches most of this
    kernel, and what that op reaches of its roofline, 0 to 1, by the sizes of its tensors."""

    name: str
    calls: int
    ns: float | None = None
    sm: float | None = None
    memory: float | None = None
    dram: float | None = None
    limit: str = ""
    op: str = ""
    of_peak: float | None = None


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """`rank-K/capture.json`: the steps that a profiler in front of the command was told to record. tool: `nsys`, `ncu`;
    first_step: their first, as in steps.jsonl, None where none was; steps: that passed; wanted: that were asked for;
    note: why there are fewer."""

    tool: str = ""
    first_step: Count | None = None
    steps: Count = 0
    wanted: Count = 0
    note: str = ""


class PerfStat(msgspec.Struct, frozen=True, kw_only=True):
    """What `perf stat` counted. counters: by event, scaled by perf where it had too few registers; unknown: events
    that this machine does not count; running: the least percent of the time that one was counted in."""

    counters: dict[str, float]
    unknown: tuple[str, ...] = ()
    instructions_per_cycle: float | None = None
    cpus: float | None = None
    running: float = 100.0
