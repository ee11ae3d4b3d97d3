"""The window of a profiler in front of the command: cudaProfilerStart, some steady steps, cudaProfilerStop.

Of several ranks the first of each machine calls these: for nsys that begins and ends the recording of all processes
that it started, and ncu, which runs kernels one by one, is kept to one rank. All ranks take the window, and label their
steps in it.
"""

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch

from .labels import Labels

if TYPE_CHECKING:
    from .interface import Agent


def capture_window(agent: "Agent", record: dict[str, Any], labels: Labels) -> Generator[None, None, None]:
    """Goes on once a step."""
    if not torch.cuda.is_initialized():
        record["note"] = "the command used no GPU"
        return
    first = _first_of_machine(agent.rank)
    if first:
        torch.cuda.profiler.start()
    labels.kinds.append(nvtx)
    record["first_step"] = agent.recorder.index
    try:
        while record["steps"] < record["wanted"]:
            yield
            record["steps"] += 1
    finally:
        labels.clear()
        labels.kinds.remove(nvtx)
        if first and agent.pid == os.getpid():  # a forked child has no CUDA
            torch.cuda.synchronize()  # what these steps launched belongs to them
            torch.cuda.profiler.stop()


def nvtx(name: str) -> Callable[[], None]:
    """A range that Nsight sees, until what is returned is called."""
    torch.cuda.nvtx.range_push(name)
    return torch.cuda.nvtx.range_pop  # type: ignore[no-any-return]


def _first_of_machine(rank: int) -> bool:
    return os.environ.get("LOCAL_RANK", str(rank)) == "0"
