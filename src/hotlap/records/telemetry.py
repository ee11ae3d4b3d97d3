"""Records of what the machine did during a run: `telemetry.jsonl`, a line a sample."""

import msgspec

from .run import Count


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. What it does not tell is null.

    index: NVML's, CUDA_VISIBLE_DEVICES does not change it. uuid: as `Facts.device_uuid`. busy_percent: share of NVML's
    last sampling period in which a kernel of anybody's ran; memory_busy_percent: share of that period in which device
    memory was read or written. others_percent: share of the time since the sample before in which kernels of processes
    ran that are not the command's; null where NVML lists none of the command's, whose ids then mean nothing.
    memory_bytes: in use, by anyone. power_w: drawn, W. energy_j: since the driver was loaded, J. sm_mhz, memory_mhz:
    clock, MHz. temperature_c: °C. throttle: why clocks are held down: `application clocks`, `power cap`, `hardware
    slowdown`, `sync boost`, `software thermal`, `hardware thermal`, `power brake`, `display clocks`.
    """

    index: Count
    uuid: str | None = None
    busy_percent: float | None = None
    others_percent: float | None = None
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
    differences count. What the system does not tell is null.

    periods: of the cgroup's CPU quota, the tightest that the command is in, in which it ran; throttled: periods in
    which the quota ran out; throttled_ms: time that the command's threads were held then, summed over cores. busy_ms:
    time that the cores that the command may run on were at work for anyone; steal_ms: time that these cores were wanted
    by this machine while the hypervisor ran another. running: threads of the machine that have or want a core at this
    moment. waited_ms: time in which the main threads of the command's processes were ready and had no core, of each
    since it was first seen.
    """

    periods: Count | None = None
    throttled: Count | None = None
    throttled_ms: float | None = None
    busy_ms: float | None = None
    steal_ms: float | None = None
    running: Count | None = None
    waited_ms: float | None = None


class TelemetrySample(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `telemetry.jsonl`. time: seconds since the epoch.

    cpu_percent: processor time of the command and all it started, since the sample before; 100 is one core; None in the
    first. machine_cpu_percent: processor time on all cores, by anyone; 100 is all of them. rss_bytes: resident memory
    of the command's processes, pages that they share counted in each. processes: number of the command's processes.
    """

    time: float
    cpu_percent: float | None = None
    machine_cpu_percent: float | None = None
    rss_bytes: Count | None = None
    processes: Count = 0
    cpu: CpuSample | None = None
    gpus: tuple[GpuSample, ...] = ()
