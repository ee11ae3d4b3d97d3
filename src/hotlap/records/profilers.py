"""What other profilers' exports say: ncu's counters of kernels, perf's of a command, py-spy's looks at its lines."""

from typing import Final

import msgspec

from .diagnosis import Place
from .run import Count

NSYS_FILE: Final = "nsys.sqlite"
NCU_FILE: Final = "ncu.csv"
PY_SPY_FILE: Final = "py-spy.raw"
PY_SPY_SAID: Final = "py-spy.txt"
"""In a run's folder."""
PY_SPY_RATE: Final = 100
"""Looks a second."""


class KernelCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of one kernel as ncu measured them. What no launch has is null.

    calls: number of launches. ns: time of the launches. sm: percent of their peak that the processors reached, mean by
    time over the launches; memory: the same of the busiest part of the memory, caches too; dram: the same of the
    device's memory. limit: `compute`, `memory`, or `latency` where both are below 60%, as ncu's own rules have it; ""
    unknown. op: of a trace read beside it, the op that launches most of this kernel; of_peak: what that op reaches of
    its roofline, 0 to 1, by the sizes of its tensors.
    """

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
    """`rank-K/capture.json`: the steps that a profiler in front of the command was told to record. tool: `nsys` or
    `ncu`; first_step: their first, as in steps.jsonl, None where none was; steps: number that passed; wanted: number
    that was asked for; note: why there are fewer."""

    tool: str = ""
    first_step: Count | None = None
    steps: Count = 0
    wanted: Count = 0
    note: str = ""


class PerfStat(msgspec.Struct, frozen=True, kw_only=True):
    """What `perf stat` counted. counters: count by event, scaled by perf where it had too few registers; unknown:
    events that this machine does not count; instructions_per_cycle: in the mean; cpus: cores in use in the mean;
    running: the least percent of the time that an event was counted in."""

    counters: dict[str, float]
    unknown: tuple[str, ...] = ()
    instructions_per_cycle: float | None = None
    cpus: float | None = None
    running: float = 100.0


class SpyLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's that py-spy saw threads in, or in what it calls. where: None where no frame is the user's.
    samples: how often it was seen. inner: the innermost frame, `function (file)`, that was seen there most often; ""
    the line itself; inner_samples: how often inner was seen."""

    where: Place | None
    samples: int
    inner: str = ""
    inner_samples: int = 0


class SpyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of one kind other than the main one. threads, processes: how many there are; samples: of these threads;
    line: where they were most often."""

    name: str
    threads: int
    processes: int
    samples: int
    line: SpyLine


class PySpy(msgspec.Struct, frozen=True, kw_only=True):
    """What `py-spy record` saw. pids: the processes that train; samples: of their main threads, waits too; own: samples
    in hotlap's own code; lines: of the other samples, most first; beside: other threads and processes. errors: looks
    that failed; late: how often it was behind; late_s: by how many seconds at most; unread: records of its file that
    are not as py-spy writes them."""

    pids: tuple[int, ...]
    samples: int
    own: int = 0
    lines: tuple[SpyLine, ...] = ()
    beside: tuple[SpyGroup, ...] = ()
    errors: int = 0
    late: int = 0
    late_s: float = 0.0
    unread: int = 0
