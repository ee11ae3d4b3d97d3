"""What the loop costs the host beside its own work: page faults, time in the kernel, waits for a core, pauses of
Python's collector, calls of cudaMalloc.

Counted by the kernel and by `gc.callbacks`, so nothing of it is done a step. The counters are read at the ends of some
steps that were looked at, and what is told is the sum of the differences between such readings: so nothing counts of
what comes before the first steps that are warm, or after the last one. Where a step between two readings compiled or
was probed their difference is not told, and where one held an evaluation only if most steps do.
"""

import functools
import gc
import itertools
import mmap
import operator
import resource
import threading
import time
from array import array
from collections.abc import Callable
from operator import add, sub
from typing import Any, NamedTuple

import torch

from .process_tree import read, threads

WARM_STEPS = 10
"""Steps after which a loop of fixed shapes has the memory that it needs, on the device too."""
SURE = (20, 40)
"""Steps that the counters are read at however short they were: a short run has few others."""
COSTS = 1000
"""Times as long as a reading takes until the next one: a thousandth of the time goes into them."""
REMEMBERED = 256
"""Collections, between two readings."""
MOST_THREADS = 256
"""Threads that are looked at, a few times in a run: one costs about 10 microseconds."""
FAULTS, TRIES = 64, 3
"""Page faults that are timed, once, and how often: they take 2 microseconds each."""


class Pauses:
    """Time in Python's cyclic collector, of whichever thread: it holds the interpreter's lock meanwhile.

    The collector's callback runs no Python code. A signal that comes in a collection, as Ctrl-C, is handled in the next
    such code, and what its handler raises in a callback of the collector is lost: so the job would not end. Each call
    of `callback` (phase, info) writes the time twice into a ring, so a collection is four places of it.
    """

    def __init__(self) -> None:
        self._ring = array("q", bytes(8 * 4 * REMEMBERED))
        places = itertools.cycle(range(len(self._ring)))
        writes = map(self._ring.__setitem__, places, iter(time.perf_counter_ns, None))
        told = map(operator.is_, writes, itertools.repeat(0))  # what `max` can compare
        self.callback = functools.partial(max, key=functools.partial(next, told))
        self._until = 0
        self._before = 0
        self.ns = 0
        self.collections = 0

    def install(self) -> None:
        """Count from now on."""
        gc.callbacks.append(self.callback)
        gc.collect(0)
        if self._ring[4]:  # another thread was in a collection, whose end came first
            gc.callbacks.remove(self.callback)
        self._until, self._before = time.perf_counter_ns(), _collections()

    def read(self) -> None:
        """Take in what came since the last reading. Of more than REMEMBERED collections the last stand for all."""
        if self.callback not in gc.callbacks:
            return
        now, count = time.perf_counter_ns(), _collections()
        pairs = zip(self._ring[1::4], self._ring[2::4], strict=True)
        took = [end - begun for begun, end in pairs if self._until < begun <= end]
        came, self._until, self._before = count - self._before, now, count
        self.collections += came
        self.ns += sum(took) * max(1, came) // max(1, len(took)) if len(took) == REMEMBERED else sum(took)


def _collections() -> int:
    """How many there were."""
    return sum(one["collections"] for one in gc.get_stats())


class Counts(NamedTuple):
    """Counters of this process, of all its threads: since it began, but for those of `Pauses`. system, user: seconds,
    pauses: ns. waited: seconds that each thread (by the system's number) was ready to run and had no core. stood: ns,
    of the one that trains, by a clock that goes on when it does not run less its own; clock: that one. own_faults: of
    the thread that trains. resident: pages that the process has."""

    waited: dict[int, float]
    faults: int = 0
    major: int = 0
    involuntary: int = 0
    system: float = 0.0
    pauses: int = 0
    collections: int = 0
    mallocs: int = 0
    retries: int = 0
    stood: int = 0
    user: float = 0.0
    clock: int = 0
    own_faults: int = 0
    resident: int = 0


class Cost(NamedTuple):
    """What steps cost: the sum of differences between readings. waited, own: seconds, of all threads and of the one
    that trains; None where it is not known of some."""

    steps: int = 0
    sums: Counts = Counts({})
    waited: float | None = 0.0
    own: float | None = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        """Of both."""
        sums = Counts({}, *map(add, self.sums[1:], other.sums[1:]))
        return Cost(self.steps + other.steps, sums, _sum(self.waited, other.waited), _sum(self.own, other.own))

    @classmethod
    def between(cls, steps: int, before: Counts, now: Counts, thread: int) -> "Cost":
        """Of so many steps between two readings."""
        # Of a thread that began since then and has the number of one that ended, what it waited in all is not known.
        since_then = {one: max(0.0, total - before.waited.get(one, 0.0)) for one, total in now.waited.items()}
        whole = sum(since_then.values()) if since_then and before.waited else None
        own = since_then[thread] if thread in since_then and thread in before.waited else None
        return cls(steps, Counts({}, *map(sub, now[1:], before[1:])), whole, own)

    def facts(self) -> dict[str, Any] | None:
        """Means a step; None of no steps."""
        steps, sums = self.steps, self.sums
        if not steps:
            return None
        return {
            "steps": steps,
            "faults": sums.faults / steps,
            "own_faults": sums.own_faults / steps,
            "grown": max(0, sums.resident) / steps,
            "major": sums.major / steps,
            "system_ms": 1000 * sums.system / steps,
            "user_ms": 1000 * sums.user / steps,
            "took_ms": sums.clock / 1e6 / steps,
            "involuntary": sums.involuntary / steps,
            "stood_ms": sums.stood / 1e6 / steps,
            "waited_ms": None if self.own is None else 1000 * self.own / steps,
            "threads_waited_ms": None if self.waited is None else 1000 * self.waited / steps,
            "gc_ms": sums.pauses / 1e6 / steps,
            "collections": sums.collections,
        }


class Host:
    """Counters of this process.

    kind: of the steps that are counted, those of a training as soon as there are any. ended: how many. looked_at,
    evaluations: of those that were looked at once the loop was warm, how many, and how many held an evaluation.
    """

    def __init__(
        self, clock: Callable[[], int] = time.perf_counter_ns, worked: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self.pauses = Pauses()
        self.clock = clock
        self.worked = worked  # or where threads wait for a core a reading would seem to take long, and be the last
        self.closed = False
        self.begin_anew()

    def install(self) -> None:
        """Begin to count pauses."""
        self.pauses.install()

    def begin_anew(self, kind: str = "") -> None:
        """In a child process, which has counters of its own; or where it turns out that the command trains."""
        self.fault_us: float | None = None
        self.kind = kind
        self.ended = self.looked_at = self.evaluations = 0
        self._costs = [Cost(), Cost()]
        """Of plain steps, and of those among which one held an evaluation."""
        self._read: tuple[int, Counts] | None = None
        self._due_ns = 0
        self._again = self._evaluated = self._disturbed = False

    def close(self) -> None:
        """What costs the host from here on is not the loop's but that of a profiler."""
        self.closed = True

    def passed(self, steps: int, kind: str, evaluated: bool, disturbed: bool) -> None:
        """So many steps have ended. evaluated, disturbed: one of them held an evaluation, or compiled or was probed."""
        if kind != self.kind:
            self.begin_anew(kind)
        self.ended += steps
        self._evaluated |= evaluated
        self._disturbed |= disturbed

    def look(self, evaluated: bool) -> None:
        """A step that was looked at has ended just now: read the counters if it is time to."""
        if self.closed or self.ended < WARM_STEPS:
            return
        self.looked_at += 1
        self.evaluations += evaluated
        if self._read is None or self.ended in SURE or self.clock() >= self._due_ns:
            self._look()

    def _look(self) -> None:
        if self._read is None:
            self.fault_us = fault_us()
        worked_ns, before, now = self.worked(), self._read, self._now()
        unusual = self._evaluated or self._disturbed
        if before is not None and not self._disturbed:
            cost = Cost.between(self.ended - before[0], before[1], now, threading.get_native_id())
            self._costs[self._evaluated] += cost
        self._read = self.ended, now
        self._evaluated = self._disturbed = False
        # Where evaluations come so often that there is one between most readings, the next one soon may be without.
        self._again = unusual and not self._again
        self._due_ns = self.clock() + (0 if self._again else COSTS * (self.worked() - worked_ns))

    @property
    def cost(self) -> Cost:
        """Of the steps that a diagnosis is about."""
        return self._costs[0] + self._costs[1] if self.evaluates else self._costs[0]

    @property
    def evaluates(self) -> bool:
        """Whether most steps hold an evaluation, which is part of the loop then, such as a teacher's forward; of
        unsampled steps that is not always known."""
        return self.evaluations > self.looked_at - self.evaluations + 1  # as `records.steady.counted` has it

    def facts(self) -> dict[str, Any] | None:
        """Of the steps that a diagnosis is about; None of none."""
        found = self.cost.facts()
        return found and {**found, "fault_us": self.fault_us}

    def _now(self) -> Counts:
        """What is not told by the system is 0."""
        self.pauses.read()
        pages = read("/proc/self/statm").split()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Counts(
            waited=waited(),
            faults=used.ru_minflt,
            major=used.ru_majflt,
            involuntary=used.ru_nivcsw,
            system=used.ru_stime,
            pauses=self.pauses.ns,
            collections=self.pauses.collections,
            **_driver(),
            stood=self.clock() - self.worked(),
            user=used.ru_utime,
            clock=self.clock(),
            own_faults=_own_faults(),
            resident=int(pages[1]) if len(pages) > 1 else 0,
        )


def fault_us() -> float | None:
    """Processor time that a page fault takes here, in the best of TRIES; None where the system does not count them."""
    took = []
    for _ in range(TRIES):
        with mmap.mmap(-1, FAULTS * mmap.PAGESIZE) as pages:
            seen = [(time.thread_time_ns(), _own_faults())]
            for _ in range(2):  # the second time they are there
                for at in range(0, len(pages), mmap.PAGESIZE):
                    pages[at] = 1
                seen.append((time.thread_time_ns(), _own_faults()))
        (begun, before), (faulted, after), (ended, _) = seen
        if after > before:
            took.append(max(0, 2 * faulted - begun - ended) / (after - before))
    return min(took) / 1000 if took else None


def _own_faults() -> int:
    """Of the thread that asks; on Linux."""
    whose = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if whose is None else resource.getrusage(whose).ru_minflt


def _driver() -> dict[str, int]:
    """How often the allocator has asked the driver for memory, and freed its cache first; it counts on the host."""
    told = torch.cuda.memory_stats_as_nested_dict() if torch.cuda.is_initialized() else {}
    return {"mallocs": int(told.get("num_device_alloc", 0)), "retries": int(told.get("num_alloc_retries", 0))}


def _sum(some: Any, more: Any) -> Any:
    """None where one of them is not known."""
    return None if some is None or more is None else some + more


def waited() -> dict[int, float]:
    """Seconds that each thread was ready to run and had no core, from its `schedstat` (ns run, ns waited, turns); {}
    where the system does not tell. Of more than MOST_THREADS threads the first ones."""
    found: dict[int, float] = {}
    for thread in sorted(map(int, threads("self")))[:MOST_THREADS]:
        told = read(f"/proc/self/task/{thread}/schedstat").split()
        if len(told) > 1 and told[0] != "0":  # all are 0 where the kernel does not count
            found[thread] = int(told[1]) / 1e9
    return found
