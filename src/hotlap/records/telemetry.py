"""Records of what the machine did during a run: `telemetry.jsonl`, a line a sample."""

import msgspec

from .run import Count


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, by NVML's index (CUDA_VISIBLE_DEVICES does not change it). What it does not tell is None.

    busy_percent: share of NVML's last sampling period in which a kernel ran; memory_busy_percent: in which device
    memory was read or written. memory_bytes: in use, by anyone. power_w: drawn. energy_j: since the driver was loaded.
    throttle: why clocks are held down.
    """

    index: Count
    busy_percent: float | None = None
    memory_busy_percent: float | None = None
    memory_bytes: Count | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None


class CpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the command got the processor time that it wanted. All but `running` are counters from some beginning:
    differences count. What the system does not tell is None.

    periods: of the cgroup's CPU quota, in which it ran; throttled: those in which the quota ran out; throttled_ms: time
    that its threads were held then, summed over cores. busy_ms, steal_ms: of the cores that the command may run on: at
    work for anyone, and wanted by this machine while the hypervisor ran another. running: threads of the machine that
    have or want a core at this moment. pressure_ms: in which some thread of the machine waited for a core. Of the
    command's processes since each was first seen: waited_ms: in which their main threads were ready and had no core;
    involuntary: switches away from a main thread that would have gone on; minor_faults, major_faults: pages mapped, and
    of those read from a disk, by all their threads.
    """

    periods: Count | None = None
    throttled: Count | None = None
    throttled_ms: float | None = None
    busy_ms: float | None = None
    steal_ms: float | None = None
    running: Count | None = None
    pressure_ms: float | None = None
    waited_ms: float | None = None
    involuntary: Count | None = None
    minor_faults: Count | None = None
    major_faults: Count | None = None


class TelemetrySample(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `telemetry.jsonl`. time: seconds since the epoch.

    cpu_percent: of the command and all it started, since the sample before; 100 is one core. machine_cpu_percent: of
    all cores, by anyone; 100 is all of them. rss_bytes: resident memory of the command's processes, pages that they
    share counted in each. processes: their number.
    """

    time: float
    cpu_percent: float | None = None
    machine_cpu_percent: float | None = None
    rss_bytes: Count | None = None
    processes: Count = 0
    cpu: CpuSample | None = None
    gpus: tuple[GpuSample, ...] = ()
