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
    gpus: tuple[GpuSample, ...] = ()
