"""What the loop costs the host beside its own work: page faults, time in the kernel, waits for a core, pauses of
Python's collector.

Counted by the kernel and by `gc.callbacks`, so nothing of it is done a step. What is told is the difference since
step WARM_STEPS.
"""

import gc
import os
import threading
import time
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

WARM_STEPS = 10
"""Steps after which a loop of fixed shapes has the memory that it needs, on the device too."""
MOST_THREADS = 256
"""Threads that are looked at, a few times in a run: one costs about 10 microseconds."""


class Pauses:
    """Time in Python's cyclic collector, of whichever thread: it holds the interpreter's lock meanwhile."""

    def __init__(self) -> None:
        self.ns = 0
        self.collections = 0
        self._begun = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter_ns()
        elif self._begun:
            self.ns += time.perf_counter_ns() - self._begun
            self.collections += 1
            self._begun = 0


class Counts(NamedTuple):
    """Counters of this process, of all its threads: since it began, but for those of `Pauses`. waited: seconds that
    each thread (by the system's number) was ready to run and had no core."""

    faults: int
    major: int
    involuntary: int
    system: float
    pauses: int
    collections: int
    waited: dict[int, float]


class Host:
    """Counters of this process."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self._warm: tuple[int, int, Counts] | None = None
        self._closed = False
        self._held: dict[str, Any] | None = None

    def install(self) -> None:
        """Begin to count pauses."""
        gc.callbacks.append(self.pauses)

    def begin_anew(self) -> None:
        """In a child process, which has counters of its own."""
        self._warm = None

    def close(self, step: int) -> None:
        """What costs the host from here on is not the loop's but that of a profiler."""
        self._held, self._closed = self.facts(step), True

    def facts(self, step: int) -> dict[str, Any] | None:
        """Means a step since the first call after WARM_STEPS, of which the thread is that which trains; None before
        there are any."""
        if self._closed:
            return self._held
        if self._warm is None:
            if step >= WARM_STEPS:
                self._warm = step, threading.get_native_id(), self._now()
            return None
        since, thread, before = self._warm
        steps = step - since
        if steps <= 0:
            return None
        now = self._now()
        # Of a thread that began since then and has the number of one that ended, what it waited in all is not known.
        since_then = {one: max(0.0, total - before.waited.get(one, 0.0)) for one, total in now.waited.items()}
        return {
            "steps": steps,
            "faults": (now.faults - before.faults) / steps,
            "major": (now.major - before.major) / steps,
            "system_ms": 1000 * (now.system - before.system) / steps,
            "involuntary": (now.involuntary - before.involuntary) / steps,
            "waited_ms": 1000 * since_then[thread] / steps if thread in since_then else None,
            "threads_waited_ms": 1000 * sum(since_then.values()) / steps if since_then else None,
            "gc_ms": (now.pauses - before.pauses) / 1e6 / steps,
            "collections": now.collections - before.collections,
        }

    def _now(self) -> Counts:
        """What is not told by the system is 0."""
        used = resource.getrusage(resource.RUSAGE_SELF) if resource is not None else None
        return Counts(
            faults=used.ru_minflt if used else 0,
            major=used.ru_majflt if used else 0,
            involuntary=used.ru_nivcsw if used else 0,
            system=used.ru_stime if used else 0.0,
            pauses=self.pauses.ns,
            collections=self.pauses.collections,
            waited=waited(),
        )


def waited(folder: str = "/proc/self/task") -> dict[int, float]:
    """Seconds that each thread was ready to run and had no core, from its `schedstat` (ns run, ns waited, turns); {}
    where the system does not tell. Of more than MOST_THREADS threads the first ones."""
    found: dict[int, float] = {}
    try:
        threads = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())[:MOST_THREADS]
    except OSError:
        return found
    for thread in threads:
        try:
            file = os.open(f"{folder}/{thread}/schedstat", os.O_RDONLY)  # a file object takes three times as long
            try:
                ran, waited_ns = map(int, os.read(file, 200).split()[:2])
            finally:
                os.close(file)
        except (OSError, ValueError):  # the thread has ended
            continue
        if ran:  # all are 0 where the kernel does not count
            found[thread] = waited_ns / 1e9
    return found
