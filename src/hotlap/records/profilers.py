"""What other profilers' exports say: ncu's counters of kernels, perf's of a command."""

import msgspec


class KernelCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of one kernel as ncu measured them. ns: their time; sm, dram: percent of the peak that the processors
    and the memory reached, means by time over the launches that have them, None where none has."""

    name: str
    calls: int
    ns: float | None = None
    sm: float | None = None
    dram: float | None = None


class PerfStat(msgspec.Struct, frozen=True, kw_only=True):
    """What `perf stat` counted. counters: by event, scaled by perf where it had too few registers; unknown: events
    that this machine does not count; running: the least percent of the time that one was counted in."""

    counters: dict[str, float]
    unknown: tuple[str, ...] = ()
    instructions_per_cycle: float | None = None
    cpus: float | None = None
    running: float = 100.0
