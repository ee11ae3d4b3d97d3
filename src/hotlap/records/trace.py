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

    start_ns, end_ns: an end of the window, on the trace's clock. found_by: `ProfilerStep`, `optimizer`, `annotation`
    or `none`. steps: (start, end) in ns of the trace's clock, end to end unless the loop paused.
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
    """Device time of one device over the window. compute_ns, exposed_communication_ns, exposed_copy_ns and idle_ns sum
    to span_ns exactly.

    span_ns: length of the window. compute_ns: union of kernels that are not communication. exposed_communication_ns:
    communication while nothing computes. exposed_copy_ns: copies and memsets while nothing computes or communicates.
    exposed_inside_ns: of it, while none of these is from or to the host: within the device, or memsets.
    idle_ns: the device does none of these. communication_ns, copy_ns: the whole union, exposed or not; kernel_ns: sum
    over kernels, more than the union where streams overlap. streams: number with work. kernels: number of them.
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
    exposed_inside_ns: int = 0


class Gap(Record, frozen=True):
    """Idle time of the device by cause and place, over the window.

    cause: `input`, `python`, `launch`, `sync`, `communication`, `allocator`, `copy`, `profiler`, `between kernels` (the
    next work was queued: the device's own pause) or `unknown`. idle_ns: in all. doing: the op, call or function that
    the host was in, for `sync` that waited; "" for none. count: gaps that have such a part; longest_ns: the most in a
    single gap.
    """

    cause: str
    idle_ns: int
    count: int
    longest_ns: int
    doing: str = ""
    where: Place | None = None


class Launches(Record, frozen=True):
    """How the host issues device work.

    latency_p50_ns, latency_p90_ns: from the call's start to the work's start, over linked launches. ahead_p50_ns: how
    far the host is ahead of the device, median over launches (start of the work minus end of its call).
    queue_depth_mean, queue_depth_p50: launched and unfinished pieces of work, time-weighted mean and median, over the
    window. tiny: number of kernels shorter than `tiny_below_ns`; tiny_ns: time of the tiny kernels. tiny_below_ns: from
    which length on a kernel is not tiny. unlinked: work without a known launch. host_ns: host time in launch calls.
    graph_launches: calls that launch whole CUDA graphs; graph_kernels: pieces of work that the graphs ran.
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


class CopyTime(Record, frozen=True):
    """Copies between host and device. way: `in` to the device or `out` of it. within: `backward`, `op` (part of an
    operation, or of what autograd does as it saves tensors) or "", the script's own. bytes: in all; exposed_ns: while
    no kernel runs on the device, summed over copies."""

    way: str
    within: str
    count: int
    bytes: int
    exposed_ns: int
    where: Place | None = None


# what ran


class KernelTime(Record, frozen=True):
    """Device work that shares a name, an op, a module, a shape or a line. by: what is shared: `name`, `op`, `module`,
    `shape` or `line`; key: the shared value. ns: in all; share: of the time over all work in the window (0 to 1).
    longest_ns: the longest piece."""

    by: str
    key: str
    ns: int
    count: int
    share: float
    longest_ns: int
    where: Place | None = None


class HostTime(Record, frozen=True):
    """Host time of one function or op of the thread that trains. ns: without what it calls; total_ns: with what it
    calls."""

    name: str
    ns: int
    total_ns: int
    count: int
    where: Place | None = None


class Annotation(Record, frozen=True):
    """A named range and the device work launched in it, as `nsys stats --report nvtx_gpu_proj_sum`.

    instances: how often the range was entered. projected_ns: from the first start to the last end of the work in it,
    summed over instances, 0 where the range holds no work; busy_ns: the union of that work; host_ns: of the range
    itself; kernels: pieces of that work.
    """

    name: str
    instances: int
    host_ns: int
    projected_ns: int
    busy_ns: int
    kernels: int


class CompiledRegion(Record, frozen=True):
    """A region of torch.compile. Regions nest. Why a graph broke or was recompiled is not in a trace.

    host_ns: host time in the region. device_ns: work launched in the region, summed; kernels: pieces of that work;
    triton_ns: of kernels that Inductor wrote; triton_kernels: number of these.
    """

    name: str
    count: int
    host_ns: int
    device_ns: int
    kernels: int
    triton_ns: int = 0
    triton_kernels: int = 0


class MemoryUse(Record, frozen=True):
    """Allocator events of one device.

    device: -1 is the host. peak_allocated_bytes: the most in tensors; peak_reserved_bytes: the most that the allocator
    held; None where the profiler did not record memory. allocations: number of them; allocated_bytes: sum over them.
    driver_allocations: calls of cudaMalloc, cudaFree and the like within the window; most of them wait for the device.
    driver_ns: host time in these calls.
    """

    device: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocations: int
    allocated_bytes: int
    driver_allocations: int
    driver_ns: int


class OpRoofline(Record, frozen=True):
    """An op with one shape and dtype against the device's peaks.

    ns: device time of all calls. flops, bytes: of all calls, from shapes (bytes: every operand once). limit: `compute`,
    `bandwidth`, `launch` (too small to fill the device) or `unknown` (no peak known). of_peak: the least time its FLOPs
    and bytes allow over its time, 0 to 1; above 1 where data came from caches; None unknown. tensor_cores: they are
    used, None unknown; why_not: why tensor cores are not used. kernels: names of the kernels that ran.
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
    """Calls of one collective with one size on one process group, over all ranks that are known. None: not to be had
    from these.

    bytes: size of a call, as nccl-tests count them; 0 unknown. group: the process group. ranks: number that is known;
    group_size: ranks in the group, 0 unknown. count: calls, not kernels. ns: time of its kernels, summed over ranks;
    exposed_ns: of its kernels, without compute on the device. transfer_ns: per call, from the last rank's arrival to
    its end, median; wait_ns: from a rank's own arrival to the last one's, mean over ranks and calls; skew_ns: last
    minus first arrival, median. algorithm_gbs, bus_gbs: over transfer_ns, in GB/s (nccl-tests, PERFORMANCE.md).
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
    """One rank beside the others, per step. step_ns: length of the step. compute_ns, communication_ns: union of such
    work, a mean over devices; idle_ns: without compute, communication and copies. input_ns: host time inside loaders.
    late_ns: mean arrival at collectives after the first's."""

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
    """A predicted step. change: the word for it (`replay.CHANGES`); meaning: the change in words. ms: predicted, ms a
    step; gain: the step over the predicted one, both by the replay and with the same host cost."""

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
    """The answers about one rank's trace.

    source: the trace's file. events: number in the file. step_ms: ms a step in the trace; unprofiled_ms: ms a step
    without the profiler, None unknown. gaps: the dearest ones. idle_ns: idle time by cause, of all gaps. waited_ns:
    exposed communication, summed over devices, before the last rank had come, None where other ranks are unknown;
    talks_at: the line that issued most of what is exposed. host: functions and ops of the thread that trains. model:
    host time in forward, backward and optimizer only, where hotlap labelled them. outside_ns: device time of work that
    was issued outside of these and of data and h2d, None without labels. peaks: what roofline compares with. timeline,
    memory_curves: for `hotlap report` only (docs/report.md).
    """

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
    outside_ns: int | None = None
    waited_ns: int | None = None
    talks_at: Place | None = None
    launches: Launches | None = None
    syncs: tuple[Sync, ...] = ()
    copies: tuple[CopyTime, ...] = ()
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
    """`hotlap trace --json`.

    ranks: the answers about each. balance: of the ranks, where there are several. replay: of all ranks together.
    findings: over all ranks, dearest first. ncu, perf, py_spy: what those profilers measured, where their files were
    given or are in the run.
    """

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
    """One thing in two traces, a step, as a mean over ranks. before_ms, after_ms: ms a step. before_count, after_count:
    times a step. how: `appeared`, `disappeared` or `changed`."""

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
    """`hotlap diff A B`: what changed, largest change first. A table that was cut ends with one row for the rest, so
    that sums hold.

    before, after: files of the trace. step: mean over the window. parts: device time of the step, in sum the step:
    compute, exposed communication, exposed copy, idle. work: sum over all device work; kernels: that work by name; ops:
    that work by the op that launched it. syncs: calls that wait for the device. launches: calls that launch work. host:
    self time by function of the thread that trains. said: the most important, in words. runs: what differs between the
    runs that the traces are of.
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
