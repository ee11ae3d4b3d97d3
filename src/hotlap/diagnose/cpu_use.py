"""What the machine gave the command over its steady steps, from the run's telemetry: processor time; a GPU's use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from hotlap.records.phases import PHASES
from hotlap.records.run import Environment, Phases, Step
from hotlap.records.telemetry import CpuSample, TelemetrySample

from .findings._base import CpuUse

LEAST_S: Final = 0.9
"""Between the first and the last sample: nine periods of a quota, which are mostly of 100 ms. In less, a sample whose
thread lost its core between the clock and the counters would say too much."""
LEAST_LOOKS: Final = 4
"""Samples of a GPU below which nothing is said of its use: NVML looks back over up to a second."""
SLOWER, MORE = 0.9, 0.5
"""Times the clock of a GPU, and cores that other work takes, from which these may be why steps take longer."""
IDLE_WHILE_PACED: Final = 0.2
"""Of the time that the host seems to pace the device, what share it must have been without a kernel."""


def cpu_use(samples: Sequence[TelemetrySample], steps: Sequence[Step], machine: Environment) -> CpuUse:
    """Rates between the first and the last sample inside of the steps' time; unknown where there are no two."""
    inside = [one for one in _within(samples, steps) if one.cpu is not None]
    use = CpuUse(usable=machine.usable_cores, cores=machine.cores, quota=machine.cpu_quota)
    seconds = inside[-1].time - inside[0].time if inside else 0.0
    if seconds < LEAST_S:
        return use
    seen = [one.cpu for one in inside if one.cpu is not None]
    first, last = seen[0], seen[-1]

    def rate(of: Callable[[CpuSample], float | None]) -> float | None:
        """Of a counter that grows, a second; None where it is not known, or began anew."""
        before, after = of(first), of(last)
        return None if before is None or after is None or after < before else (after - before) / seconds

    periods, throttled = rate(lambda one: one.periods), rate(lambda one: one.throttled)
    used = [one.cpu_percent for one in inside if one.cpu_percent is not None]
    running = [one.running for one in seen if one.running is not None]
    return CpuUse(
        usable=use.usable,
        cores=use.cores,
        quota=use.quota,
        seconds=seconds,
        throttled=min(1.0, throttled / periods) if periods and throttled is not None else None,
        throttled_ms=rate(lambda one: one.throttled_ms),
        busy_ms=rate(lambda one: one.busy_ms),
        steal_ms=rate(lambda one: one.steal_ms),
        waited_ms=rate(lambda one: one.waited_ms),
        running=median(running) if running else None,
        used=fmean(used) / 100 if used else None,
        processes=median(one.processes for one in inside),
    )


@dataclass(frozen=True)
class GpuUse:
    """Of the command's GPUs over its steady steps, by NVML; None where that is not known. busy: share of the time (0 to
    1) in which a kernel of anybody's ran on them. watts: that they drew together. shared: that others used one too, in
    a sentence; then busy is of them as well, and not known."""

    busy: float | None = None
    watts: float | None = None
    shared: str = ""


def gpu_use(samples: Sequence[TelemetrySample], steps: Sequence[Step], wanted: Sequence[str | None]) -> GpuUse:
    """Of the GPUs with these UUIDs: NVML may count the devices in another order than CUDA, and a script may choose its
    own. Unknown where too few samples lie in the steps' time, or NVML does not know one of them."""
    seen = [gpu for one in _within(samples, steps) for gpu in one.gpus if gpu.uuid in wanted]
    if None in wanted or not {gpu.uuid for gpu in seen}.issuperset(wanted):
        return GpuUse()
    least = LEAST_LOOKS * len(wanted)
    busy = [gpu.busy_percent / 100 for gpu in seen if gpu.busy_percent is not None]
    power = [gpu.power_w for gpu in seen if gpu.power_w is not None]
    return GpuUse(
        busy=fmean(busy) if len(busy) >= least else None,
        watts=fmean(power) * len(wanted) if len(power) >= least else None,
    )


def differing(samples: Sequence[TelemetrySample], sides: Sequence[Sequence[Step]], machine: Environment) -> str:
    """What the machine gave less of in the second of two stretches of steps, in words."""
    clocks = [[gpu.sm_mhz for one in _within(samples, side) for gpu in one.gpus if gpu.sm_mhz] for side in sides]
    uses = [cpu_use(samples, side, machine) for side in sides]
    others = [one.busy_ms / 1000 - one.used for one in uses if one.busy_ms is not None and one.used is not None]
    said = []
    if all(len(side) >= LEAST_LOOKS for side in clocks) and median(clocks[1]) < SLOWER * median(clocks[0]):
        said.append(f"; the GPU's clock is {median(clocks[1]):.0f} MHz after that, {median(clocks[0]):.0f} before")
    if len(others) == len(sides) and others[1] > others[0] + MORE:
        said.append(f"; other work takes {others[1]:.1f} cores after that, {max(0.0, others[0]):.1f} before")
    return "".join(said)


def kept_busy(paced: Phases | None, device: Phases | None, busy: float | None) -> bool:
    """Whether kernels ran for more of the time than a device that waits for the host as long as `paced` says can have
    had: where the host waits for the device at a phase's end, the lead is gone there, whoever set the pace."""
    if paced is None or device is None or busy is None:
        return False
    waited, step = (sum(getattr(of, name) or 0.0 for name in PHASES) for of in (paced, device))
    return (1 - busy) * step < IDLE_WHILE_PACED * waited


def _within(samples: Sequence[TelemetrySample], steps: Sequence[Step]) -> list[TelemetrySample]:
    if not steps:
        return []
    begin, end = steps[0].time - steps[0].wall_ms / 1000, steps[-1].time
    return [one for one in samples if begin <= one.time <= end]
