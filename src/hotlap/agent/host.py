"""What the loop costs the host beside its own work: page faults, time in the kernel, pauses of Python's collector.

Counted by the kernel and by `gc.callbacks`, so nothing of it is done a step. What is told is the difference since
step WARM_STEPS.
"""

import gc
import time
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

WARM_STEPS = 10
"""Steps after which a loop of fixed shapes has the memory that it needs, on the device too."""


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


class Host:
    """Counters of this process."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self._warm: tuple[int, tuple[int, float, int, int]] | None = None

    def install(self) -> None:
        """Begin to count pauses."""
        gc.callbacks.append(self.pauses)

    def facts(self, step: int) -> dict[str, Any] | None:
        """Means a step since the first call after WARM_STEPS; None before there are any."""
        now = self._now()
        if self._warm is None:
            if step >= WARM_STEPS:
                self._warm = step, now
            return None
        since, before = self._warm
        steps = step - since
        if steps <= 0:
            return None
        faults, system, pauses, collections = (b - a for a, b in zip(before, now, strict=True))
        return {
            "steps": steps,
            "faults": faults / steps,
            "system_ms": 1000 * system / steps,
            "gc_ms": pauses / 1e6 / steps,
            "collections": collections,
        }

    def _now(self) -> tuple[int, float, int, int]:
        used = resource.getrusage(resource.RUSAGE_SELF) if resource is not None else None
        faults, system = (used.ru_minflt, used.ru_stime) if used is not None else (0, 0.0)
        return faults, system, self.pauses.ns, self.pauses.collections
