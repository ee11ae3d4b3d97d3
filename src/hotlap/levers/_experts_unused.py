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
from ._training_call import tensors


class Unused:
    """Of the marks of one model whose loops pass over experts."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        experts = [_Experts(mark) for mark in marks if mark.skips]
        self.experts = [one for one in experts if any(p is not None for p in one.first)]
        self.total: Any = None
        """Rows of all experts since the last update."""
        self.host: Any = None
        self.copied: Any = None
        self.unknown = False

    def told(self) -> Any:
        """Rows of each expert in all calls with gradients since this was asked before, one expert after another; None
        where they are not known."""
        found = None if any(one.mark.ran_loop for one in self.experts) else [one.rows() for one in self.experts]
        self.forget()
        return None if found is None else torch.cat([counts.to(found[0].device) for counts in found])

    def forget(self) -> None:
        """What would be told now."""
        for one in self.experts:
            one.mark.counts, one.mark.ran_loop = None, False

    def beside(self) -> None:
        """Calls of the layers outside of a forward of the model, and in a backward that computes it again."""
        if any(one.mark.counts is not None or one.mark.ran_loop for one in self.experts):
            self.ran(self.told())

    def returned(self, output: Any, counts: Any) -> None:
        """A forward with gradients has run; it counts where it has a backward. counts: see `told`; their memory may be
        that of a CUDA graph."""
        nodes = {leaf.grad_fn for leaf in tensors(output) if leaf.grad_fn is not None}
        waiting = [counts if counts is None or not nodes else counts.clone()]

        def differentiated(*_: Any) -> None:
            if waiting:
                self.ran(waiting.pop())

        for node in nodes:
            node.register_prehook(differentiated)
        if not nodes:  # it is not seen in what it returned
            differentiated()

    def ran(self, counts: Any) -> None:
        """Add up, and let the sums go to the host. counts: see `told`."""
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
        self.copied.record(torch.cuda.current_stream(counts.device))

    def on_optimizer(self, optimizer: Any) -> None:
        """Look at the gradients before each of its updates."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) in mine for one in self.experts for p in one.first):
            optimizer.register_step_pre_hook(lambda *_: self.before_update())

    def before_update(self) -> None:
        """Take gradients of zeros away where the loops would have made none."""
        self.beside()
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

    def rows(self) -> Any:
        """Of each expert; none where the layer did not run."""
        if self.mark.counts is not None:
            return self.mark.counts
        device = next(p.device for p in self.first if p is not None)
        return torch.zeros(len(self.first), dtype=torch.int32, device=device)

    def take_away(self, counts: Sequence[int]) -> None:
        """Those of experts without rows. counts: of all."""
        if self.mark.off:  # its loop is back, and passes over them itself
            return
        for count, first, known, parameters in zip(counts, self.first, self.known, self.parameters, strict=True):
            if count or first is None or first.grad is None or (known is not None and known() is first.grad):
                continue
            for parameter in parameters:
                parameter.grad = None
