"""What DistributedDataParallel measures of its exchange of gradients: it times its first ten backwards and one in a
hundred by itself, and tells when it is asked. Nothing is waited for, and nothing is done where there are no ranks."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .torch_internals import ddp_log

FIRST, EVERY = 10, 100
"""Backwards that it times."""
TIMES = {"compute_ms": "compute", "exchange_ms": "comm", "hidden_ms": "compute_comm_overlap"}


class Exchange:
    """Looked at in the thread that trains, between steps: a backward holds the lock of what is read."""

    def __init__(self) -> None:
        self.backwards: Callable[[], int] = int
        """Of the process, so far."""
        self._begun: dict[int, tuple[int, list[float]]] = {}
        """What there was at the first look: of backwards that connect to the others, and lay out what is sent."""
        self._watched: dict[int, tuple[weakref.ref[Any], dict[str, Any], int]] = {}

    def watch(self, modules: Iterable[Any], facts: dict[str, Any]) -> None:
        """Facts of a root, one of whose modules may exchange gradients."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        model = next((one for one in modules if isinstance(one, torch.nn.parallel.DistributedDataParallel)), None)
        if model is not None:
            facts["exchange"] = {}
            self._watched[id(model)] = weakref.ref(model), facts, self.backwards()

    def look(self) -> None:
        """Write down what there is by now."""
        for key, (model, facts, earlier) in self._watched.items():
            told = ddp_log(model())
            if "avg_backward_comm_time" not in told or "avg_backward_compute_time" not in told:
                continue
            known, iteration = facts["exchange"], told.get("iteration", 0)
            static = getattr(model(), "static_graph", False)
            known["searches"] = not static and bool(getattr(model(), "find_unused_parameters", False))
            known["unused"] = max(known.get("unused", 0), told.get("unused_parameter_size", 0))
            # It tells of a backward at the next forward, so there was one more. The later it is asked, the fewer of
            # them it has counted.
            known.setdefault("backwards", max(1.0, (self.backwards() - earlier) / (iteration + 1)))
            count = min(iteration, FIRST) + iteration // EVERY
            sums = [count * told.get(f"avg_backward_{name}_time", 0) / 1e6 for name in TIMES.values()]
            begun, before = self._begun.setdefault(key, (count, sums))
            if count > begun:
                sums, count = [now - then for now, then in zip(sums, before, strict=True)], count - begun
            known.update({name: took / max(1, count) for name, took in zip(TIMES, sums, strict=True)})
