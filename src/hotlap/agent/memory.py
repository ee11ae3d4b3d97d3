"""Memory over a window of steps, and at the moment it runs out, as `records.memory.MemoryWindow`.

On CUDA torch's allocator keeps its history, which costs it some microseconds an allocation: with `--memory` from its
beginning to the end, in any other run over the loop's first steps, as most jobs that run out of memory do so there.
Elsewhere torch's operations are followed over a few steady steps, where nothing is compiled.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from hotlap.records.phases import FORWARD, PHASES
from hotlap.records.session import Session

from .ended import ended, host_document, limit, phase_of
from .guard import hook
from .history import History, taken
from .lines import Call, Places, calls
from .module_calls import ModuleCalls
from .operations import Operations
from .owners import Owners, models_of, nodes_of, of_models, of_variables
from .process_tree import peak_rss, rss
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
RAN_OUT: Final = "memory-oom.json"
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
        self._module_calls = ModuleCalls()
        self._series: list[tuple[int, int, int, int]] = []
        self._every = 1
        self._left_to_tell = MOST_TOLD
        self._cuda_begun = False
        self._on_record = self._untold = False
        """Whether the allocator's giving up is written; whether it did so once more since."""

    # from the beginning on

    def install(self) -> None:
        """Learn when CUDA begins; not where a tune has processes take turns."""
        if torch.version.cuda is None or self.session.turns:
            return
        self.history.install()
        self._spare(when_cuda_begins, lambda: self._spare(self._cuda_begins))

    def _cuda_begins(self) -> None:
        self._cuda_begun = True
        if self.session.memory or (self.agent.begun and self.agent.recorder.index < FIRST_STEPS):
            self._begin()
        observe_out_of_memory(lambda *of: self._spare(self._ran_out, *of))

    def _begin(self) -> None:
        self._since_ns, self._marks, self._owners = time.time_ns(), [], Owners()
        self.history.begin()
        self._counted = self._counts()

    def loop_begins(self) -> None:
        """The first event of the loop."""
        if self._cuda_begun:
            self._spare(self._first_steps)

    def _first_steps(self) -> None:
        if not self.session.memory:
            self._begin()
            return
        if not self.history.on:
            return
        self._own(last=True)
        self.agent.folder().replace("memory-start.json", self._document("start", 0, 0))
        self._begin()
        self.looking, self.agent.timeline.watch = True, self.agent.profile

    def step_done(self, step: int) -> None:
        """A step of the loop ended, from 1."""
        if self.session.memory:
            self._spare(self._point, step)
        if step <= FIRST_STEPS and self.history.on:
            self._spare(self._first_done, step)

    def _first_done(self, step: int) -> None:
        if self.looking:
            self._mark(STEP_END)
        if step == FIRST_STEPS and self.session.memory:
            self._own()
            self.looking, self.agent.timeline.watch = False, None
            self.agent.folder().replace("memory-first.json", self._document("first", 1, FIRST_STEPS))
        elif step == FIRST_STEPS:
            self.history.end()

    def _point(self, step: int) -> None:
        if step % self._every:
            return
        on = torch.cuda.is_initialized()
        in_use = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if on else (0, 0)
        self._series.append((step, *in_use, rss() or 0))
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
            self.note = self.agent.profile.no_ops()
            if self.note:
                return
            self.operations = Operations(self.agent.profile.tell, Columns())
            alive = [one for _, _, one in of_models(self.agent)]
            alive += [one for _, one in of_variables(sys._getframe(1), self._places)]
            watching = self.operations.watching(alive)
            del alive
        self._begin()
        self._own()
        self.phase(self.agent.timeline.stack[-1])
        first = self.agent.recorder.index + 1
        self.looking = True
        self._module_calls = ModuleCalls()
        inside: Any = contextlib.nullcontext()
        if not self.agent.profile.no_ops():
            inside = self._module_calls.watching(models_of(self.agent), self.agent.profile.tell)
        try:
            with watching, inside:
                for _ in range(STEPS):
                    yield
                    self._mark(STEP_END)
                self._own(last=True)
                self.agent.folder().replace("memory-steady.json", self._document("steady", first, STEPS))
                if self.operations is None:
                    self._dump()
        finally:
            self.looking, self.operations, self._module_calls = False, None, ModuleCalls()

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

    def _own(self, last: bool = False) -> None:
        """Note whose what is now. last: at the end of a window, all of it, and how large the graphs are."""
        if last:
            self._owners.again()
        self._own_from(sys._getframe(1), graphs=last)

    def _own_from(self, frame: FrameType, device: str = "", graphs: bool = False) -> None:
        """device: of tensors, any without."""
        for category, name, tensor in of_models(self.agent):
            if not device or tensor.device.type == device:
                self._owners.add(category, name, tensor)
        for name, tensor in of_variables(frame, self._places):
            if device and tensor.device.type != device:
                continue
            graph = tensor.grad_fn is not None
            nodes = nodes_of(tensor) if graph and graphs else 0
            # Of models that nobody has called yet, or that others train, as a target.
            otherwise = "parameters" if isinstance(tensor, torch.nn.Parameter) else "held"
            self._owners.add("outputs" if graph else otherwise, name, tensor, nodes)

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
            # Events of a history that has ended do not lead to what is there now.
            since = self._since_ns if self.history.on else sys.maxsize
            told, device, source = taken(at, since, self._places), f"cuda:{at}", "allocator"
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
            "calls": self._module_calls.document(),
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

    def _ran_out(self, device: int, needed: int, total: int, free: int) -> None:
        """The allocator gives up, in any thread."""
        if not self.agent.guard.on:
            return
        self._untold = not self._left_to_tell
        if self._untold:
            return
        self._left_to_tell -= 1
        frame = sys._current_frames().get(self.agent.thread or 0, sys._getframe(1))
        self._own_from(frame)
        document = self._document("oom", self._step(), 1)
        document["ran_out"] = {
            **self._told(calls(frame), needed, self._phase()),
            "grad": torch.is_grad_enabled(),
            "total_bytes": total,
            "free_bytes": free,
        }
        self.agent.folder().replace(RAN_OUT, document)
        self._on_record = True

    def _told(self, called: Iterable[Call], needed: int | None, phase: str) -> dict[str, Any]:
        """Of `records.memory.OutOfMemory`. called: the innermost first."""
        agent, line = self.agent, self.agent.timeline
        found = self._places.all_of(called)
        modules = [one for model in list(agent.script.roots.values()) if (one := model.module()) is not None]
        known = agent.begun and not agent.steps.unsampled
        return {
            "asked_bytes": needed,
            "frames": [(self._places.files[at], *rest) for at, *rest in reversed(found)],
            "phase": phase,
            "step": self._step(),
            "began": time.time_ns() - (line.clock() - line.segment.begun_ns) if known else None,
            "training": any(one.training for one in modules) if modules else None,
        }

    def _step(self) -> int:
        """That is running, from 1; some of those before may not be handed over yet."""
        return self.agent.recorder.index + len(self.agent.step_sampling.ends) + 1

    def _phase(self) -> str:
        phase = self.agent.timeline.stack[-1]
        return PHASES[FORWARD if phase == GAP else phase] if self.agent.begun else BEFORE_LOOP

    def _ended(self) -> None:
        """The process ends; by a lack of memory, of which nothing is written yet, that is told."""
        found = ended()
        if found is None or (found.cuda and self._on_record and not self._untold):
            return
        frame = next((frame for frame, _ in found.calls), sys._getframe(1))
        called = [(frame.f_code, line) for frame, line in found.calls]
        told = self._told(called, found.asked_bytes, phase_of(found.calls, self._phase()))
        self._owners = Owners()
        if found.cuda and torch.cuda.is_initialized():
            self._own_from(frame)
            free, total = torch.cuda.mem_get_info()
            document = self._document("oom", told["step"], 1) | {
                "ran_out": {**told, "free_bytes": free, "total_bytes": total}
            }
        else:
            self._own_from(frame, "cpu")
            document = host_document(self._owners.rows, {**told, "total_bytes": limit(), "resident_bytes": peak_rss()})
        self.agent.folder().replace(RAN_OUT, document)

    # the end

    def ends(self) -> None:
        """The process ends, and what it was about is still there."""
        with contextlib.suppress(MemoryError):  # there may be none for this either
            self._spare(self._ended)

    def finish(self) -> None:
        """The last of it. A launcher of ranks has none."""
        if self.session.memory and self.agent.begun:
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
