"""The window of a profiler in front of the command: cudaProfilerStart, some steady steps, cudaProfilerStop.

Of several ranks the first of each machine calls these: for nsys that begins and ends the recording of all processes
that it started, and ncu, which runs kernels one by one, is kept to one rank. All ranks take the window, and label their
steps in it.
"""

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch

from hotlap.records.session import Session

if TYPE_CHECKING:
    from .core import Agent
    from .profile import Labels

RECORD = "capture.json"


class Ended(Exception):
    """Thrown into the windows where the run ends before they do."""


class Capture:
    """The window and what is known of it."""

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.agent = agent
        self.record: dict[str, Any] = {
            "tool": session.capture,
            "first_step": None,
            "steps": 0,
            "wanted": session.capture_steps,
            "note": "",
        }

    def write(self, note: str = "") -> None:
        """Write what became of it."""
        self.record["note"] = note or self.record["note"]
        self.agent.folder().replace(RECORD, self.record)

    def window(self, labels: "Labels") -> Generator[None, None, None]:
        """Goes on once a step."""
        try:
            if torch.cuda.is_initialized():
                yield from self._recorded(labels)
            else:
                self.record["note"] = "the command used no GPU"
        except Ended as ended:
            self.record["note"] = str(ended)
        self.write()

    def _recorded(self, labels: "Labels") -> Generator[None, None, None]:
        first = _first_of_machine(self.agent.rank)
        if first:
            torch.cuda.profiler.start()
        labels.kinds.append(nvtx)
        self.record["first_step"] = self.agent.recorder.index
        try:
            while self.record["steps"] < self.record["wanted"]:
                yield
                self.record["steps"] += 1
        finally:
            labels.clear()
            labels.kinds.remove(nvtx)
            if first and self.agent.pid == os.getpid():  # a forked child has no CUDA
                torch.cuda.synchronize()  # what these steps launched belongs to them
                torch.cuda.profiler.stop()


def nvtx(name: str) -> Callable[[], None]:
    """A range that Nsight sees, until what is returned is called."""
    torch.cuda.nvtx.range_push(name)
    return torch.cuda.nvtx.range_pop  # type: ignore[no-any-return]


def _first_of_machine(rank: int) -> bool:
    return os.environ.get("LOCAL_RANK", str(rank)) == "0"
