"""Counters that tell whether a command got the processor time that it wanted, read once a sample from outside."""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hotlap.agent.process_tree import read
from hotlap.records.telemetry import CpuSample

from .cgroups import cpu_quota, throttling

BUSY: Final = (0, 1, 2, 5, 6)
"""Columns of a core in /proc/stat, `proc(5)`: user, nice, system, irq, softirq. Guests are in user and nice already."""
STEAL: Final = 7


class Starvation:
    """Reads the counters of a command's group, cores and processes. What the system does not tell is None.

    root: where the machine's files are.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self.root = root
        self.quota = cpu_quota(pid, root)
        self.cores = _affinity(pid)
        self.tick_ms = 1000 / _ticks_a_second()
        self.before: dict[int, float] = {}
        self.waited_ms = 0.0

    def sample(self, processes: Iterable[int] = ()) -> CpuSample:
        """The counters now. processes: of the command; each counts from where it was first seen."""
        cgroup = throttling(self.quota.folder) if self.quota else None
        stat = read(self.root / "proc" / "stat")
        busy, steal = self._cores(stat)
        self._count(processes)
        running = re.search(r"^procs_running (\d{1,9})$", stat, re.MULTILINE)
        return CpuSample(
            periods=cgroup.periods if cgroup else None,
            throttled=cgroup.throttled if cgroup else None,
            throttled_ms=cgroup.ms if cgroup else None,
            busy_ms=busy,
            steal_ms=steal,
            running=max(0, int(running[1]) - 1) if running else None,  # this thread is one of them
            waited_ms=self.waited_ms,
        )

    def _cores(self, stat: str) -> tuple[float | None, float | None]:
        """Time at work and time stolen, ms, summed over the cores that the command may run on."""
        rows = [row for row in per_core(stat) if self.cores is None or row[0] in self.cores]
        if not rows:
            return None, None
        busy = sum(times[at] for _, times in rows for at in BUSY)
        stolen = [times[STEAL] for _, times in rows if len(times) > STEAL]
        return busy * self.tick_ms, sum(stolen) * self.tick_ms if stolen else None

    def _count(self, processes: Iterable[int]) -> None:
        proc = self.root / "proc"
        now = {pid: found for pid in processes if (found := waited_ms(proc / str(pid))) is not None}
        for pid, waited in now.items():
            self.waited_ms += max(0.0, waited - self.before.get(pid, waited))  # less: another by the same number
        self.before = now


def per_core(stat: str) -> list[tuple[int, list[int]]]:
    """Number and times, in ticks, of each core of a /proc/stat; cores without all of BUSY are left out."""
    rows = re.findall(r"^cpu(\d{1,5}) ([\d ]{1,400})$", stat, re.MULTILINE)
    found = [(int(number), [int(word) for word in times.split()]) for number, times in rows]
    return [(number, times) for number, times in found if len(times) > max(BUSY)]


def waited_ms(folder: Path) -> float | None:
    """How long the main thread of a process waited for a core, from its folder in /proc (`schedstat`: ns run, ns
    waited, turns); None where it is gone, or the kernel does not tell."""
    words = read(folder / "schedstat").split()
    try:
        return float(words[1]) / 1e6
    except (IndexError, ValueError):
        return None


def _affinity(pid: int) -> frozenset[int] | None:
    """Cores that a process may run on; None where the system does not say."""
    with contextlib.suppress(AttributeError, OSError):
        return frozenset(os.sched_getaffinity(pid))
    return None


def _ticks_a_second() -> int:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return max(1, os.sysconf("SC_CLK_TCK"))
    return 100
