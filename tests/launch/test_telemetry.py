"""Telemetry: what a process tree uses, what NVML tells, and a file that stays bounded and never fails the run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hotlap.launch import process_tree, telemetry
from hotlap.launch.telemetry import Family, gpu_sample, pause, sampling, throttling
from hotlap.records.telemetry import GpuSample, TelemetrySample
from hotlap.runs.folder import RunFolder

BUSY = "import time\nend = time.time() + 20\nx = bytearray(64 << 20)\nwhile time.time() < end: pass"
TWO = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def busy() -> Any:
    process = subprocess.Popen([sys.executable, "-c", TWO])
    yield process
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


def until(told: Callable[[], bool], longest_s: float = 15.0) -> None:
    """Wait for it: on a busy machine samples come late, as the thread that takes them gives way."""
    end = time.monotonic() + longest_s
    while not told() and time.monotonic() < end:
        time.sleep(0.2)


def of_both(sample: TelemetrySample) -> bool:
    return sample.processes == 2 and (sample.cpu_percent or 0) > 0 and (sample.rss_bytes or 0) > 64 << 20


def test_the_whole_tree_counts(busy: Any, tmp_path: Path) -> None:
    """A process that only waits, and its child that computes and holds 64 MiB."""
    path = tmp_path / "telemetry.jsonl"
    before = time.time()
    with sampling(busy.pid, path, every_s=0.1):
        until(lambda: len(RunFolder(tmp_path).telemetry) >= 5 and any(map(of_both, RunFolder(tmp_path).telemetry[2:])))
    samples = RunFolder(tmp_path).telemetry
    assert len(samples) >= 5
    assert samples[0].cpu_percent is None  # since when?
    assert max(sample.processes for sample in samples) == 2
    last = samples[-1]
    assert last.cpu_percent is not None
    assert 0 < max(sample.cpu_percent or 0 for sample in samples[2:]) <= 250
    assert last.rss_bytes is not None
    assert last.rss_bytes > 64 << 20
    assert last.machine_cpu_percent is not None
    assert last.cpu is not None and last.cpu.waited_ms is not None and (last.cpu.busy_ms or 1) > 0
    times = [sample.time for sample in samples]
    assert before <= times[0]
    assert times == sorted(times)
    assert [thread.name for thread in threading.enumerate() if thread.name == "telemetry"] == []


def test_a_command_that_is_gone(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    with sampling(done.pid, tmp_path / "telemetry.jsonl", every_s=0.02):
        time.sleep(0.2)
    samples = RunFolder(tmp_path).telemetry
    assert samples
    assert {(sample.processes, sample.rss_bytes) for sample in samples} == {(0, None)}


def test_a_full_disk(tmp_path: Path) -> None:
    """/dev/full takes nothing; the block goes on."""
    with sampling(psutil.Process().pid, Path("/dev/full"), every_s=0.02):
        time.sleep(0.1)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with sampling(psutil.Process().pid, tmp_path / "no" / "telemetry.jsonl", every_s=0.02):
        pass


def test_samples_get_rarer() -> None:
    assert [pause(taken) for taken in (0, 9_999, 10_000, 19_999, 20_000, 30_000)] == [0.5, 0.5, 1.0, 1.0, 2.0, 4.0]


def test_cpu_is_counted_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s of CPU in 4 s are 50%; a child's are its own until it ends, and its parent's who waited for it then."""
    clock = [100.0]

    class Fake:
        def __init__(self, pid: int, spent: float) -> None:
            self.pid, self.spent, self.children = pid, spent, 0.0

        def oneshot(self) -> Any:
            return telemetry.contextlib.nullcontext()

        def is_running(self) -> bool:
            return self.spent >= 0

        def cpu_times(self) -> Any:
            if self.spent < 0:
                raise psutil.NoSuchProcess(self.pid)
            return SimpleNamespace(user=self.spent, system=0.0, children_user=self.children, children_system=0.0)

        def memory_info(self) -> Any:
            return SimpleNamespace(rss=1000)

    root, child = Fake(1, 5.0), Fake(2, 1.0)
    monkeypatch.setattr(telemetry.psutil, "Process", lambda pid: root if pid == 1 else child)
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(process_tree, "descendants", lambda pid: [child.pid])
    family = Family(1)
    assert family.look() == (None, 2000, 2)
    clock[0], root.spent = 104.0, 7.0
    assert family.look() == (50.0, 2000, 2)
    clock[0], child.spent, root.children = 105.0, -1.0, 1.25  # it went on for a quarter of a second
    assert family.look() == (25.0, 1000, 1)
    clock[0], root.children = 106.0, 1.75  # one that was never seen
    assert family.look() == (50.0, 1000, 1)
    child = Fake(3, 0.5)
    clock[0] += 1.0
    assert family.look() == (50.0, 2000, 2)


class FakeNvml:
    """A GPU that tells no energy."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return "GPU-8f6d"

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=93, memory=41)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(used=5 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 612_345

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        raise self.NVMLError

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetTemperature(self, handle: Any, kind: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return 0x4 | 0x40 | 0x1


def test_what_nvml_tells() -> None:
    assert gpu_sample(FakeNvml(), 3, None) == GpuSample(
        index=3,
        uuid="GPU-8f6d",
        busy_percent=93.0,
        memory_busy_percent=41.0,
        memory_bytes=5 << 30,
        power_w=612.345,
        energy_j=None,
        sm_mhz=1980,
        memory_mhz=2619,
        temperature_c=61,
        throttle=("power cap", "hardware thermal"),
    )
    assert throttling(0x1) == ()


class WithProcesses(FakeNvml):
    """A GPU that tells its processes apart. listed: ids of all; uses: (id, percent of the multiprocessors, time)."""

    NVML_ERROR_NOT_FOUND = 6

    def __init__(self, listed: list[int], uses: list[tuple[int, int, int]]) -> None:
        self.listed, self.uses = listed, uses

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.listed]

    def nvmlDeviceGetProcessUtilization(self, handle: Any, last: int) -> list[Any]:
        new = [SimpleNamespace(pid=pid, smUtil=use, timeStamp=at) for pid, use, at in self.uses if at > last]
        if not new:
            error = self.NVMLError()
            error.value = self.NVML_ERROR_NOT_FOUND  # type: ignore[attr-defined]
            raise error
        return new


STRANGER = 1
"""The id of a process that is no command's."""


@pytest.mark.parametrize(
    ("listed", "uses", "percents"),
    [
        pytest.param([1, 2], [(2, 60, 7), (1, 30, 7), (1, 50, 8)], (40.0, 0.0), id="another, then nothing anew"),
        pytest.param([2], [(2, 60, 7)], (0.0, 0.0), id="alone"),
        pytest.param([1], [(1, 60, 7)], (None, None), id="none of the command's: ids may be of another namespace"),
    ],
)
def test_what_others_do_on_a_gpu(
    listed: list[int], uses: list[tuple[int, int, int]], percents: tuple[float | None, ...]
) -> None:
    own = {1: STRANGER, 2: os.getpid()}
    nvml = WithProcesses([own[pid] for pid in listed], [(own[pid], use, at) for pid, use, at in uses])
    others = telemetry.Others(nvml, None, Family(os.getpid()))
    assert (others.percent(), others.percent()) == percents


def test_a_child_that_began_since_the_last_look_is_the_commands() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        family = Family(os.getpid())
        assert family.has(child.pid) and not family.has(STRANGER)
        child.communicate(b"\n")


def test_gpus_by_the_installed_binding(tmp_path: Path) -> None:
    """Whatever this machine has, opening and asking does not fail."""
    with telemetry.open_gpus(Family(os.getpid())) as gpus:
        assert isinstance(gpus(), tuple)


def test_run_leaves_telemetry(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hotlap", "run", "--out", str(tmp_path / "run"), sys.executable, "-c"]
    done = subprocess.run([*command, "import time; time.sleep(1.2)"], check=False, capture_output=True, timeout=60)
    assert done.returncode == 0
    lines = (tmp_path / "run" / "telemetry.jsonl").read_bytes().splitlines()
    assert len(lines) >= 2
    assert all(json.loads(line)["processes"] == 1 for line in lines[:2])
