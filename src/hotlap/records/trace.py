"""What was read from a trace, as `hotlap trace --json` prints it.

Fields that end in `_ns` are totals over the window in integer nanoseconds, so that sums are exact; `ms` is per step.
"""

import msgspec

from .compare import RunDiff
from .diagnosis import Finding, Place
from .peaks import Peaks
from .profilers import KernelCounters, PerfStat, PySpy
from .timeline import MemoryCurve, Timeline
from .utilisation import Utilisation


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records here."""


# the window


class Window(Record, frozen=True):
    """What the answers cover: whole steps, or the whole trace where none were found.

    found_by: `ProfilerStep`, `optimizer`, `annotation`, `forward`, `repetition` or `none`. steps: (start, end) in ns
    of the trace's clock, end to end unless the loop paused.
    """

    start_ns: int
    end_ns: int
    found_by: str
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """Steps, at least 1: a window without steps counts as one."""
        return max(1, len(self.steps))

    @property
    def span_ns(self) -> int:
        """Length."""
        return self.end_ns - self.start_ns


# device time


class Breakdown(Record, frozen=True):
    """Device time of one device over the window; the first four sum to span_ns exactly.

    compute_ns: union of kernels that are not communication. exposed_communication_ns: communication outside of it.
    exposed_copy_ns: copies and memsets outside both. idle_ns: none of them. communication_ns, copy_ns: whole unions;
    kernel_ns: sum over kernels, more than the union where streams overlap. streams: with work.
    """

    device: int
    span_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    communication_ns: int
    copy_ns: int
    kernel_ns: int
    streams: int
    kernels: int


class Gap(Record, frozen=True):
    """Idle time of the device by cause and place, over the window.

    cause: `input`, `python`, `launch`, `sync`, `communication`, `allocator`, `copy`, `profiler`, `between kernels` (the
    next work was queued: the device's own pause) or `unknown`. doing: the op, call or function that the host was in,
    for `sync` that waited; "" for none. count: gaps that have such a part; longest_ns: the most in a single gap.
    """

    cause: str
    idle_ns: int
    count: int
    longest_ns: int
    doing: str = ""
    where: Place | None = None


class Launches(Record, frozen=True):
    """How the host issues device work. latency: from the call's start to the work's start, over linked launches.

    ahead_ns: how far the host is ahead of the device, median over launches (start of the work minus end of its call).
    queue_depth: launched and unfinished pieces of work, time-weighted mean and median, over the window. tiny: kernels
    shorter than `tiny_below_ns`. unlinked: work without a known launch. host_ns: host time in launch calls.
    graph_launches: calls that launch whole CUDA graphs; graph_kernels: work that they ran.
    """

    count: int
    unlinked: int
    host_ns: int
    latency_p50_ns: int
    latency_p90_ns: int
    ahead_p50_ns: int
    queue_depth_mean: float
    queue_depth_p50: float
    tiny: int
    tiny_ns: int
    tiny_below_ns: int
    graph_launches: int
    graph_kernels: int


class Sync(Record, frozen=True):
    """A place where the host waits for the device. host_ns: the host's wait; idle_ns: device idle time that follows
    from it, no longer than it and the waits next to it (the `sync` gaps). call: the runtime call; op: the op around it,
    "" for none; cause: in the user's words, as `.item()`, `boolean mask` or `pageable host-to-device copy`."""

    cause: str
    call: str
    op: str
    count: int
    host_ns: int
    idle_ns: int
    where: Place | None = None


# what ran


class KernelTime(Record, frozen=True):
    """Device work that shares a name, an op, a module, a shape or a line (`by` says which). ns: sum; share: of the
    sum over all work in the window."""

    by: str
    key: str
    ns: int
    count: int
    share: float
    longest_ns: int
    where: Place | None = None


class HostTime(Record, frozen=True):
    """Host time of one function or op of the thread that trains, without what it calls. ns: self; total_ns: with it."""

    name: str
    ns: int
    total_ns: int
    count: int
    where: Place | None = None


class Annotation(Record, frozen=True):
    """A named range and the device work launched in it, as `nsys stats --report nvtx_gpu_proj_sum`.

    projected_ns: from the first start to the last end of that work, summed over instances; busy_ns: the union of it;
    host_ns: the range itself; kernels: pieces of work; instances; where the range holds no work: projected_ns 0.
    """

    name: str
    instances: int
    host_ns: int
    projected_ns: int
    busy_ns: int
    kernels: int


class CompiledRegion(Record, frozen=True):
    """A region of torch.compile. device_ns: work launched in it, summed; kernels: pieces of it; triton_ns,
    triton_kernels: those that Inductor wrote. Regions nest. Why a graph broke or was recompiled is not in a trace."""

    name: str
    count: int
    host_ns: int
    device_ns: int
    kernels: int
    triton_ns: int = 0
    triton_kernels: int = 0


class MemoryUse(Record, frozen=True):
    """Allocator events of one device (-1: the host). peaks: None where the profiler did not record memory.
    driver_allocations: cudaMalloc, cudaFree and the like within the window, with their host time in driver_ns: most of
    them wait for the device."""

    device: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocations: int
    allocated_bytes: int
    driver_allocations: int
    driver_ns: int


class OpRoofline(Record, frozen=True):
    """An op with one shape and dtype against the device's peaks.

    flops, bytes: of all calls, from shapes (bytes: every operand once). limit: `compute`, `bandwidth`, `launch` (too
    small to fill the device) or `unknown` (no peak known). of_peak: the least time its FLOPs and bytes allow over its
    time, 0 to 1; above 1 where data came from caches. None unknown. tensor_cores: used, None unknown; why_not: why they
    are not. kernels: names of what ran.
    """

    op: str
    shape: str
    dtype: str
    ns: int
    count: int
    flops: int
    bytes: int
    limit: str
    of_peak: float | None
    tensor_cores: bool | None = None
    why_not: str = ""
    where: Place | None = None
    kernels: tuple[str, ...] = ()


# several ranks


class Collective(Record, frozen=True):
    """Calls of one collective with one size on one process group, over all ranks that are known.

    bytes: of a call, as nccl-tests count them; 0 unknown. ranks: known; group_size: in the group, 0 unknown. count:
    calls, not kernels. ns: of its kernels, summed over ranks; exposed_ns: the part of it without compute on the device.
    transfer_ns: per call, from the last rank's arrival to its end, median; wait_ns: from a rank's own arrival to the
    last one's, mean over ranks and calls; skew_ns: last minus first arrival, median. algorithm_gbs, bus_gbs: over
    transfer_ns, in GB/s (nccl-tests, PERFORMANCE.md). None: not to be had from the ranks that are known.
    """

    name: str
    group: str
    dtype: str
    bytes: int
    ranks: int
    group_size: int
    count: int
    ns: int
    exposed_ns: int
    transfer_ns: int | None
    wait_ns: int | None
    skew_ns: int | None
    algorithm_gbs: float | None
    bus_gbs: float | None


class RankLoad(Record, frozen=True):
    """One rank beside the others, per step. compute_ns, communication_ns: unions, a mean over devices; idle_ns: neither
    these nor copies. input_ns: host time inside loaders. late_ns: mean arrival at collectives after the first's."""

    rank: int
    step_ns: int
    compute_ns: int
    communication_ns: int
    idle_ns: int
    input_ns: int = 0
    late_ns: int | None = None


class Ranks(Record, frozen=True):
    """Who is slow, if anyone. imbalance: the slowest rank's compute over the mean, minus 1. straggler: the rank that
    the others wait for, None where nobody is late by more than noise; cost_ns: a step, what each other rank waits for
    it; cause: `input`, `copies`, `compute`, `python` (outside of any op) or `host` (in one function), None where none
    makes up half of it; why: that in words, or why there is no straggler; where: the user's line behind it."""

    loads: tuple[RankLoad, ...]
    imbalance: float
    straggler: int | None = None
    cost_ns: int = 0
    cause: str | None = None
    why: str = ""
    where: Place | None = None


# how far to trust it


class Trust(Record, frozen=True):
    """What stands against these numbers. overhead: profiled step over unprofiled step, None unknown. unlinked: share of
    device work whose launch is not in the trace. graph_under_recorded: graph launches that show fewer kernels than
    their fellows. lost_events, repaired_events: of a broken file. said: in words, worst first."""

    overhead: float | None = None
    unlinked: float = 0.0
    graph_under_recorded: int = 0
    lost_events: int = 0
    repaired_events: int = 0
    said: tuple[str, ...] = ()


class WhatIf(Record, frozen=True):
    """A predicted step. change: the word for it (`replay.CHANGES`); ms: predicted; gain: the step over the predicted
    one, both by the replay and with the same host cost."""

    change: str
    meaning: str
    ms: float
    gain: float


class Replay(Record, frozen=True):
    """The window replayed. measured_ms: the loop's period in the trace, from the end of the work that the window began
    with to the end of what it launched, over its steps; replayed_ms: the same by the replay, unchanged; of several
    ranks the median. predictions: of the changes that apply; from the unprofiled step where it is given."""

    measured_ms: float
    replayed_ms: float
    predictions: tuple[WhatIf, ...] = ()


# the whole


class RankTrace(Record, frozen=True):
    """The answers about one rank's trace. step_ms: in the trace; unprofiled_ms: without the profiler, None unknown.
    idle_ns: idle time by cause, of all gaps; gaps: the dearest. waited_ns: exposed communication, summed over devices,
    before the last rank had come, None where other ranks are unknown; talks_at: the line that issued most of what is
    exposed. model: host time in forward, backward and optimizer
    only, where hotlap labelled them. peaks: what roofline compares with. timeline, memory_curves: for `hotlap report`
    only (docs/report.md)."""

    source: str
    rank: int
    device_name: str
    events: int
    window: Window
    step_ms: float
    unprofiled_ms: float | None = None
    breakdown: tuple[Breakdown, ...] = ()
    gaps: tuple[Gap, ...] = ()
    idle_ns: dict[str, int] = {}
    waited_ns: int | None = None
    talks_at: Place | None = None
    launches: Launches | None = None
    syncs: tuple[Sync, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    host: tuple[HostTime, ...] = ()
    model: tuple[HostTime, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    compiled: tuple[CompiledRegion, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    roofline: tuple[OpRoofline, ...] = ()
    peaks: Peaks | None = None
    utilisation: Utilisation | None = None
    timeline: Timeline | None = None
    memory_curves: tuple[MemoryCurve, ...] = ()
    trust: Trust = Trust()
    replay: Replay | None = None
    findings: tuple[Finding, ...] = ()


class TraceReport(Record, frozen=True):
    """`hotlap trace --json`. findings: over all ranks, dearest first. replay: of all ranks together. ncu, perf,
    py_spy: what those profilers measured, where their files were given or are in the run."""

    version: int = 1
    ranks: tuple[RankTrace, ...] = ()
    collectives: tuple[Collective, ...] = ()
    balance: Ranks | None = None
    replay: Replay | None = None
    findings: tuple[Finding, ...] = ()
    ncu: tuple[KernelCounters, ...] = ()
    perf: PerfStat | None = None
    py_spy: PySpy | None = None


# two traces


class Change(Record, frozen=True):
    """One thing in two traces, a step, as a mean over ranks. how: `appeared`, `disappeared` or `changed`."""

    name: str
    before_ms: float
    after_ms: float
    before_count: float = 0.0
    after_count: float = 0.0
    how: str = "changed"

    @property
    def delta_ms(self) -> float:
        """After minus before."""
        return self.after_ms - self.before_ms


class TraceDiff(Record, frozen=True, kw_only=True):
    """`hotlap diff A B`: what changed from A (before) to B (after), largest change first.

    step: mean over the window. parts: device time of the step, sums to it: compute, exposed communication, exposed
    copy, idle. work: sum over all device work; kernels: by name, sums to it; ops: by the op that launched it, sums to
    it. syncs, launches: calls of the runtime. host: self time by function of the thread that trains. A table that was
    cut ends with one row for the rest, so that sums hold. said: the most important, in words. runs: what differs
    between the runs that they are of.
    """

    version: int = 1
    before: tuple[str, ...]
    after: tuple[str, ...]
    step: Change
    work: Change
    parts: tuple[Change, ...] = ()
    kernels: tuple[Change, ...] = ()
    ops: tuple[Change, ...] = ()
    syncs: tuple[Change, ...] = ()
    launches: tuple[Change, ...] = ()
    host: tuple[Change, ...] = ()
    said: tuple[str, ...] = ()
    runs: RunDiff | None = None
