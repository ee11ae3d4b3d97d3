"""What DistributedDataParallel measures of its exchange of gradients: it times its first ten backwards and one in a
hundred by itself, and tells when it is asked. Nothing is waited for, and nothing is done where there are no ranks.

It is asked in the thread that trains, between steps: a backward holds the lock of what is read.
"""

from typing import Any

import torch

from ..torch_internals import ddp_log
from . import Facts, Model, Script

FIRST, EVERY = 10, 100
"""Backwards that it times."""
TIMES = {"compute_ms": "compute", "exchange_ms": "comm", "hidden_ms": "compute_comm_overlap"}


def describe_model(model: Model) -> Facts:
    """An empty `exchange` where DistributedDataParallel exchanges gradients between ranks."""
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    return {"exchange": {}} if ranks and exchanging(model.module()) is not None else {}


def exchanging(module: Any) -> Any:
    """Of its modules, the one that does; None where there is none."""
    return next((one for one in module.modules() if isinstance(one, torch.nn.parallel.DistributedDataParallel)), None)


def look_at_model(model: Model, script: Script) -> Facts:
    """DDP's own mean times of computing and exchanging in the backward, ms, and what of it is hidden."""
    if "exchange" not in model.facts:
        return {}
    of, known = exchanging(model.module()), dict(model.facts["exchange"])
    told = ddp_log(of)
    if "avg_backward_comm_time" not in told or "avg_backward_compute_time" not in told:
        return {}
    iteration = told.get("iteration", 0)
    known["searches"] = not getattr(of, "static_graph", False) and bool(getattr(of, "find_unused_parameters", False))
    known["unused"] = max(known.get("unused", 0), told.get("unused_parameter_size", 0))
    # It tells of a backward at the next forward, so there was one more. The later it is asked, the fewer of them it has
    # counted.
    since = script.agent.steps.backwards - model.backwards
    known.setdefault("backwards", max(1.0, since / (iteration + 1)))
    count = min(iteration, FIRST) + iteration // EVERY
    sums = [count * told.get(f"avg_backward_{name}_time", 0) / 1e6 for name in TIMES.values()]
    # The first backwards connect to the others, and lay out what is sent: what there was at the first look.
    begun, before = model.kept.setdefault("exchange", (count, sums))
    if count > begun:
        sums, count = [now - then for now, then in zip(sums, before, strict=True)], count - begun
    known |= {name: took / max(1, count) for name, took in zip(TIMES, sums, strict=True)}
    return {"exchange": known}
