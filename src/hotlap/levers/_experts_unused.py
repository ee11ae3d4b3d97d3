"""Not a lever: experts that no token chose keep having no gradient where the script's loop passes over them.

Computed with the others, such an expert gets a gradient of zeros, with which an optimizer updates its state and decays
its weights. So before an update these gradients are taken away again. How many rows each expert got is copied to the
host beside the backward, and waited for only then.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._experts_mark import Mark


class Unused:
    """Of the marks of one model whose loops pass over experts."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.experts = [_Experts(mark) for mark in marks if mark.skips]
        self.total: Any = None
        """Rows of all experts since the last update."""
        self.host: Any = None
        self.copied: Any = None
        self.unknown = False

    def told(self) -> Any:
        """Rows of each expert in the forward that has run, one expert after another; None where they are not known."""
        if any(one.mark.off for one in self.experts):
            self.experts = [one for one in self.experts if not one.mark.off]
            self.total, self.copied, self.unknown = None, None, True
        marks = [one.mark for one in self.experts]
        found = [mark.counts for mark in marks]
        unknown = any(mark.ran_loop for mark in marks) or any(counts is None for counts in found)
        for mark in marks:
            mark.counts, mark.ran_loop = None, False
        return None if unknown or not found else torch.cat(found)

    def ran(self, counts: Any) -> None:
        """A forward with gradients has run: add up, and let the sums go to the host. counts: see `told`; their memory
        may be that of a CUDA graph."""
        self.unknown |= counts is None
        if self.unknown:
            return
        self.total = counts.clone() if self.total is None else self.total + counts
        if not counts.is_cuda:
            self.host = self.total
            return
        if self.copied is None:
            self.host = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True)
            self.copied = torch.cuda.Event()
        self.host.copy_(self.total, non_blocking=True)
        self.copied.record()

    def on_optimizer(self, optimizer: Any) -> None:
        """Look at the gradients before each of its updates."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) in mine for one in self.experts for p in one.first):
            optimizer.register_step_pre_hook(lambda *_: self.before_update())

    def before_update(self) -> None:
        """Take gradients of zeros away where the loops would have made none."""
        if self.total is not None and not self.unknown:
            if self.copied is not None:
                self.copied.synchronize()
            counts = self.host.tolist()
            if not all(counts):
                for one in self.experts:
                    one.take_away(counts[: len(one.first)])
                    counts = counts[len(one.first) :]
        self.total, self.unknown = None, False
        for one in self.experts:
            one.note()


class _Experts:
    """Of one mark. first: a parameter of each expert, None where all are frozen."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.parameters = [[p for p in expert.parameters() if p.requires_grad] for expert in mark.experts]
        self.first = [of[0] if of else None for of in self.parameters]
        self.known: list[Callable[[], Any] | None] = []
        self.note()

    def note(self) -> None:
        """Gradients that are there when an update is made; those that are cleared in place still are, at the next."""
        self.known = [None if p is None or p.grad is None else weakref.ref(p.grad) for p in self.first]

    def take_away(self, counts: Sequence[int]) -> None:
        """Those of experts without rows. counts: of all."""
        for count, first, known, parameters in zip(counts, self.first, self.known, self.parameters, strict=True):
            if count or first is None or first.grad is None or (known is not None and known() is first.grad):
                continue
            for parameter in parameters:
                parameter.grad = None
