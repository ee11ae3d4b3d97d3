"""Samples what the machine does while a command runs: a thread of the parent, outside of the user's processes."""

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil

from hotlap.records.files import to_json
from hotlap.records.telemetry import GpuSample, TelemetrySample

from .environment import open_nvml
from .process_tree import give_way, note_family
from .starvation import Starvation

EVERY_S: Final = 0.5
HALVE_AFTER: Final = 10_000
"""Samples after which they come half as often: a week has 7 times as many as the first 83 minutes."""
FAMILY_EVERY: Final = 4
"""Samples between two looks for new processes: a look reads all processes of the machine. What a process does before it
is seen is not counted."""
JOIN_S: Final = 2.0
CORES: Final = os.cpu_count() or 1
THROTTLE: Final = (
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)
"""NVML's bits; idle (0x1) is no throttling."""


@contextlib.contextmanager
def sampling(pid: int, path: Path, every_s: float = EVERY_S) -> Iterator[None]:
    """Append samples of the process, what it started, and the GPUs to `path` until the block ends."""
    over = threading.Event()
    thread = threading.Thread(target=_sample, args=(pid, path, every_s, over), name="telemetry", daemon=True)
    with contextlib.suppress(RuntimeError):  # the system may give us no thread; the command goes on without samples
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(JOIN_S)  # a driver that hangs must not keep the command's exit code from its caller


def _sample(pid: int, path: Path, every_s: float, over: threading.Event) -> None:
    """The thread. A full disk ends the samples, and nothing else."""
    give_way()
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("ab", buffering=0))
        family, starvation = Family(pid), Starvation(pid)
        gpus = stack.enter_context(open_gpus(family))
        taken = 0
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            file.write(to_json(take(family, starvation, gpus)) + b"\n")
            taken += 1
            every = pause(taken, every_s)
            due = max(due + every, time.monotonic() + every / 2)  # two at once, after a late one, have no time between


def pause(taken: int, every_s: float = EVERY_S) -> float:
    """Seconds to the next sample."""
    return float(every_s * 2 ** (taken // HALVE_AFTER))


def take(family: "Family", starvation: Starvation, gpus: Callable[[], tuple[GpuSample, ...]]) -> TelemetrySample:
    """One sample."""
    cpu, rss, count = family.look()
    return TelemetrySample(
        time=time.time(),
        cpu_percent=cpu,
        machine_cpu_percent=psutil.cpu_percent(None),
        rss_bytes=rss,
        processes=count,
        cpu=starvation.sample(family.known),
        gpus=gpus(),
    )


class Family:
    """A process and all that descend from it."""

    def __init__(self, pid: int) -> None:
        self.pid, self.looks = pid, 0
        self.known: dict[int, psutil.Process] = {}
        self._last = 0.0, 0.0
        """When it was looked last, and seconds of processor time in all by then."""
        self._owed_s = 0.0
        with contextlib.suppress(psutil.Error):
            self.known[pid] = psutil.Process(pid)

    def look(self) -> tuple[float | None, int | None, int]:
        """CPU percent since the last look, resident bytes, number of processes.

        What a process did that ended is its parent's, who waited for it: so it counts, if only then, where it was never
        seen, as loader workers that live for an epoch. What is more than all cores can have done since the last look is
        told with the next ones."""
        if self.looks % FAMILY_EVERY == 0:
            note_family(self.pid, self.known)
        self.looks += 1
        cpu_s, rss, now = 0.0, 0, time.monotonic()
        for pid, process in list(self.known.items()):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    cpu_s += times.user + times.system + times.children_user + times.children_system
                    rss += process.memory_info().rss
            except psutil.Error:
                del self.known[pid]
        (then, before_s), self._last = self._last, (now, cpu_s)
        if self.looks == 1 or now <= then:
            return None, rss if self.known else None, len(self.known)
        owed_s = self._owed_s + max(0.0, cpu_s - before_s)
        spent_s = min(owed_s, CORES * (now - then))
        self._owed_s = owed_s - spent_s
        cpu = 100 * spent_s / (now - then)
        return cpu, rss if self.known else None, len(self.known)

    def has(self, pid: int) -> bool:
        """Whether it is one of them, also where it began since they were looked for."""
        if pid in self.known:
            return True
        with contextlib.suppress(psutil.Error):
            return any(one.pid in self.known for one in psutil.Process(pid).parents())
        return False


@contextlib.contextmanager
def open_gpus(family: Family) -> Iterator[Callable[[], tuple[GpuSample, ...]]]:
    """A function that samples every GPU; () without the `gpu` extra, a driver or a GPU."""
    with open_nvml() as nvml:
        handles = [(handle, Others(nvml, handle, family)) for handle in _handles(nvml)] if nvml is not None else []
        yield lambda: tuple(gpu_sample(nvml, at, handle, others) for at, (handle, others) in enumerate(handles))


def _handles(nvml: Any) -> list[Any]:
    try:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []


class Others:
    """What processes that are not the command's do on a GPU. Containers hide them or have ids of their own: nothing is
    said before one of the command's is listed."""

    def __init__(self, nvml: Any, handle: Any, family: Family) -> None:
        self.nvml, self.handle, self.family = nvml, handle, family
        self.listed, self.seen_us = False, 0

    def percent(self) -> float | None:
        """Of the time since the last look, as `GpuSample.others_percent`."""
        try:
            if not self.listed:
                running = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
                self.listed = any(self.family.has(one.pid) for one in running)
            uses = self.nvml.nvmlDeviceGetProcessUtilization(self.handle, self.seen_us)
        except self.nvml.NVMLError as error:
            nothing_ran = getattr(error, "value", None) == self.nvml.NVML_ERROR_NOT_FOUND
            return 0.0 if nothing_ran and self.listed else None
        self.seen_us = max((one.timeStamp for one in uses), default=self.seen_us)
        by_pid: defaultdict[int, list[int]] = defaultdict(list)
        for one in uses:
            by_pid[one.pid].append(one.smUtil)
        others = sum(fmean(shares) for pid, shares in by_pid.items() if not self.family.has(pid))
        return min(100.0, others) if self.listed else None


def gpu_sample(nvml: Any, index: int, handle: Any, others: Others | None = None) -> GpuSample:
    """One GPU now. Each value stands alone: a device that lacks one still tells the others."""

    def ask(name: str, *args: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *args)
        except nvml.NVMLError:
            return None

    use, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
    power, energy = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetTotalEnergyConsumption")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    return GpuSample(
        index=index,
        uuid=ask("nvmlDeviceGetUUID"),
        busy_percent=None if use is None else float(use.gpu),
        others_percent=None if others is None else others.percent(),
        memory_busy_percent=None if use is None else float(use.memory),
        memory_bytes=None if memory is None else int(memory.used),
        power_w=None if power is None else power / 1000,
        energy_j=None if energy is None else energy / 1000,
        sm_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle=None if reasons is None else throttling(int(reasons)),
    )


def throttling(reasons: int) -> tuple[str, ...]:
    """The names of NVML's bits."""
    return tuple(name for bit, name in THROTTLE if reasons & bit)
