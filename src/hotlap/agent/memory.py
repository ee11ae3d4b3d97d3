"""Memory over a window of steps, and at the moment it runs out, as `records.memory.MemoryWindow`.

On CUDA torch's allocator keeps its history from its beginning on: in any run until the loop's first steps are made, as
most jobs that run out of memory do so there, and with `--memory` to the end. Elsewhere torch's operations are followed
over a few steady steps, where nothing is compiled.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from hotlap.records.phases import FORWARD, PHASES
from hotlap.records.session import Session

from .guard import hook
from .history import History, taken
from .lines import Places, calls
from .operations import Operations
from .owners import Owners, of_models, of_variables
from .process_tree import rss
from .timeline import GAP
from .torch_internals import dump_memory, observe_out_of_memory, when_cuda_begins
from .windows import Columns, columns

if TYPE_CHECKING:
    from .interface import Agent

MEMORY: Final = hook("memory")
STEPS: Final = 3
"""Of the window: what the first of them leaves behind at its end has outlived two steps."""
FIRST_STEPS: Final = 2
"""Of the loop, in which the optimizer makes its state."""
SERIES: Final = 2048
"""Points over the run; every second one goes where there are more."""
SNAPSHOT: Final = "memory_snapshot.pickle"
"""As torch writes it and https://pytorch.org/memory_viz reads it; hotlap does not."""
STEP_END: Final = "step end"
BEFORE_LOOP: Final = "before the loop"
MOST_TOLD: Final = 2
"""Times that memory ran out: a script that looks for its batch size goes on after each."""


class Memory:
    """looking: a window is taken, and is told of phases."""

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.session, self.agent = session, agent
        self.looking = False
        self.operations: Operations | None = None
        self.history = History(lambda: agent.guard.on)
        self.note = ""
        self._places = Places()
        self._marks: list[list[Any]] = []
        self._owners = Owners()
        self._since_ns = 0
        self._counted: tuple[int, int] = (0, 0)
        self._series: list[tuple[int, int, int, int]] = []
        self._every = 1
        self._left_to_tell = MOST_TOLD

    # from the beginning on

    def install(self) -> None:
        """Have CUDA's allocator keep its history from its beginning on; not where a tune has processes take turns."""
        if torch.version.cuda is None or self.session.turns:
            return
        self.history.install()
        self._spare(when_cuda_begins, lambda: self._spare(self._cuda_begins))

    def _cuda_begins(self) -> None:
        self._begin()
        observe_out_of_memory(lambda *of: self._spare(self._ran_out, *of))

    def _begin(self) -> None:
        self._since_ns, self._marks, self._owners = time.time_ns(), [], Owners()
        self.history.begin()
        self._counted = self._counts()

    def step_done(self, step: int) -> None:
        """A step of the loop ended, from 1."""
        if self.session.memory:
            self._spare(self._point, step)
        if step == FIRST_STEPS and self.history.on and not self.session.memory:
            self._spare(self.history.end)

    def _point(self, step: int) -> None:
        if step % self._every:
            return
        on = torch.cuda.is_initialized()
        held = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if on else (0, 0)
        self._series.append((step, *held, rss() or 0))
        if len(self._series) >= SERIES:
            self._series, self._every = self._series[1::2], self._every * 2

    # the window of steady steps

    def window(self) -> Generator[None, None, None]:
        """Goes on once a step."""
        if torch.cuda.is_initialized():
            watching: Any = contextlib.nullcontext()
            if self.history.theirs or not self.history.begin():
                self.note = "the script records the allocator's history itself, or this torch does not tell"
                return
        else:
            lines = Columns()
            self.operations = Operations(self.agent.profile.tell, lines)
            alive = [one for _, _, one in of_models(self.agent)]
            alive += [one for _, one in of_variables(sys._getframe(1), self._places)]
            watching = self.operations.watching(alive)
            del alive
        self._begin()
        self._own()
        first = self.agent.recorder.index + 1
        self.looking = True
        try:
            with watching:
                for _ in range(STEPS):
                    yield
                    self._mark(STEP_END)
                self._owners.again()
                self._own()
                self.agent.folder().replace("memory-steady.json", self._document("steady", first, STEPS))
                if self.operations is None:
                    self._dump()
        finally:
            self.looking, self.operations = False, None

    def _dump(self) -> None:
        target = f"{self.agent.folder().path}/{SNAPSHOT}"
        dump_memory(f"{target}.part")
        os.replace(f"{target}.part", target)

    def phase(self, phase: int) -> None:
        """A phase begins, or goes on after one inside of it."""
        if phase == GAP:
            phase = FORWARD
        self._mark(PHASES[phase])
        if PHASES[phase] in {"backward", "optimizer"}:
            self._own()

    def _mark(self, phase: str) -> None:
        self._marks.append([time.time_ns(), phase, self.agent.recorder.index + 1])

    def _own(self) -> None:
        """Note whose what is now."""
        self._own_from(sys._getframe(1))

    def _own_from(self, frame: FrameType) -> None:
        for category, name, tensor in of_models(self.agent):
            self._owners.add(category, name, tensor)
        for name, tensor in of_variables(frame, self._places):
            graph = isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None
            self._owners.add("outputs" if graph else "held", name, tensor)

    def _document(self, when: str, first: int, steps: int) -> dict[str, Any]:
        if self.operations is not None:
            blocks = self.operations.blocks()
            names = ("addresses", "bytes", "stacks")
            told = {
                **self.operations.columns.document(),
                "blocks": dict(zip(names, columns(blocks, len(names)), strict=True)),
                "allocated_bytes": sum(size for _, size, _ in blocks),
            }
            device, source = "cpu", "operations"
        else:
            at = torch.cuda.current_device()
            told, device, source = taken(at, self._since_ns, self._places), f"cuda:{at}", "allocator"
            retries, mallocs = self._counts()
            free, total = torch.cuda.mem_get_info(at)
            told |= {"retries": retries - self._counted[0], "mallocs": mallocs - self._counted[1]}
            told |= {"total_bytes": total, "used_bytes": total - free}
        return {
            "when": when,
            "device": device,
            "source": source,
            "first_step": first,
            "steps": steps,
            "marks": self._marks,
            "owners": self._owners.rows,
            **told,
        }

    @staticmethod
    def _counts() -> tuple[int, int]:
        """The allocator's retries, and its calls of cudaMalloc."""
        if not torch.cuda.is_initialized():
            return 0, 0
        told = torch.cuda.memory_stats()
        return int(told.get("num_alloc_retries", 0)), int(told.get("num_device_alloc", 0))

    # out of memory

    def _ran_out(self, device: int, asked: int, total: int, free: int) -> None:
        """The allocator gives up, in any thread."""
        if not self._left_to_tell or not self.agent.guard.on:
            return
        self._left_to_tell -= 1
        frame = sys._current_frames().get(self.agent.thread or 0, sys._getframe(1))
        found = self._places.all_of(calls(frame))
        phase = self.agent.timeline.stack[-1]
        self._own_from(frame)
        first = self.agent.recorder.index + 1
        document = self._document("oom", first, 1)
        document["ran_out"] = {
            "asked_bytes": asked,
            "frames": [(self._places.files[at], *rest) for at, *rest in reversed(found)],
            "phase": PHASES[FORWARD if phase == GAP else phase] if self.agent.begun else BEFORE_LOOP,
            "step": first,
            "total_bytes": total,
            "free_bytes": free,
        }
        self.agent.folder().replace("memory-oom.json", document)

    # the end

    def finish(self) -> None:
        """The process ends."""
        if self.session.memory:
            names = ("steps", "allocated", "reserved", "resident")
            told = dict(zip(names, columns(self._series, 4), strict=True))
            self.agent.folder().replace("memory-steps.json", {**told, "note": self.note})

    def _spare(self, act: Callable[..., Any], *of: Any) -> None:
        self.agent.guard.spare(MEMORY, self.give_up, act, *of)

    def give_up(self) -> None:
        """Look no more."""
        self.looking = False
        self._left_to_tell = 0
        if self.operations is not None:
            self.operations.forget()
