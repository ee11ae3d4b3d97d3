"""Memory that evaluations and checkpoints take beyond what training does.

Told by marks that only rise: the peak of torch's allocator of the current device, and of the process's resident memory.
They are read as an evaluation or a checkpoint begins and as it has ended, and never reset: the script may read them. So
what is told is how far each raised a mark beyond where training had it by then, and nothing of one that raised none.
What can't be put down to them for sure is training's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from .guard import Guard, hook
from .lines import Places
from .process_tree import peak_rss

if TYPE_CHECKING:
    from .steps import Steps

PEAKS: Final = hook("peaks")
EVERY_NS: Final = 100_000_000
"""Between two beginnings that are looked at: reading the marks takes 0.1 ms."""
WARM: Final = 5
"""Backwards, by which training has the memory that it needs for a step, its optimizer's state with it."""


class Peaks:
    """Looks at the marks. It is told of what begins and ends by the hooks, in the thread that trains."""

    def __init__(self, guard: Guard, steps: "Steps", now: Callable[[], int], quiet: Callable[[], bool]) -> None:
        """now: a clock, ns. quiet: whether none of hotlap's own instruments, which take memory, is on."""
        self._guard, self._steps, self._now, self._quiet = guard, steps, now, quiet
        self._places = Places()
        self._on = True
        self._looked_ns = self._saved_ns = -EVERY_NS
        self._backwards = 0
        """Before the evaluation that may be going on."""
        self._evaluation: dict[str, Any] | None = None
        """What is known of it; None of one of which no forward was seen."""
        self._checkpoint: dict[str, Any] | None = None
        self._marks: dict[str, int] = {}
        self._training: dict[str, int] = {}
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}

    # evaluations

    def begins(self) -> None:
        """An evaluation may begin: a model is put in eval mode."""
        if self._on and not (self._steps.evaluates and self._backwards == self._steps.backwards):
            self._spare(self._begins)

    def evaluates(self, gradients: bool = False) -> None:
        """A forward of one begins, or its data comes. gradients: they are enabled."""
        if self._on:
            self._spare(self._evaluates, gradients)

    def looks(self) -> None:
        """Its loader is at its end; or something else begins, and it goes on."""
        if self._on and self._steps.evaluates:
            self._spare(self._looks)

    def trains(self) -> None:
        """A forward of the training begins."""
        if self._on and self._steps.evaluates:
            self._spare(self._ends)

    def _begins(self) -> None:
        steps, now = self._steps, self._now()
        steps.evaluates = False
        warm = steps.backwards >= WARM and (steps.optimizer_steps > 1 or not steps.optimizers_built)
        if warm and now - self._looked_ns >= EVERY_NS:
            self._mark("training", {})
            self._looked_ns, self._backwards, self._evaluation = now, steps.backwards, None
            steps.evaluates = True

    def _evaluates(self, gradients: bool) -> None:
        if not self._steps.evaluates or self._backwards != self._steps.backwards:
            self._begins()
        if self._steps.evaluates and self._evaluation is None:
            self._evaluation = {"place": self._places.caller(), "gradients": gradients}

    def _looks(self) -> None:
        if self._evaluation is not None and self._backwards == self._steps.backwards:
            self._mark("evaluation", self._evaluation)

    def _ends(self) -> None:
        self._looks()
        self._steps.evaluates = False

    # checkpoints

    def saves(self) -> None:
        """A checkpoint is about to be written."""
        self._checkpoint = None
        if self._on and self._now() - self._saved_ns >= EVERY_NS:
            self._spare(self._saves)

    def saved(self) -> None:
        """It was."""
        if self._on and self._checkpoint is not None:
            self._spare(self._mark, "checkpoint", self._checkpoint)
            self._saved_ns = self._now()

    def _saves(self) -> None:
        if self._steps.evaluates:
            self._looks()
        self._mark("training", {})
        if self._steps.backwards >= WARM:
            self._checkpoint = {"place": self._places.caller()}

    # the marks

    def _mark(self, kind: str, known: dict[str, Any]) -> None:
        """Read them. kind: what any rise since the last reading is put down to."""
        for memory, now in _read().items():
            if now > self._marks.get(memory, 0):
                if kind == "training" or not self._quiet():
                    self._training[memory] = max(self._training.get(memory, 0), now)
                else:
                    row = self._rows.setdefault((kind, memory), {"kind": kind, "memory": memory, "peak_bytes": 0})
                    if now > row["peak_bytes"]:
                        row |= {"peak_bytes": now, "backwards": self._steps.backwards, **known}
            self._marks[memory] = now  # lower where the script has reset it

    def facts(self) -> list[dict[str, Any]]:
        """What each raised a mark to, and what training did."""
        return [{**row, "training_bytes": self._training.get(row["memory"], 0)} for row in self._rows.values()]

    def _spare(self, act: Callable[..., None], *args: Any) -> None:
        self._guard.spare(PEAKS, self.give_up, act, *args)

    def give_up(self) -> None:
        """Look no more."""
        self._on = self._steps.evaluates = False


def _read() -> dict[str, int]:
    """The marks, bytes, of what there is."""
    told = torch.cuda.memory_stats_as_nested_dict() if torch.cuda.is_initialized() else {}
    device = int(told.get("allocated_bytes", {}).get("all", {}).get("peak", 0))
    return {name: size for name, size in (("device", device), ("host", peak_rss() or 0)) if size}
