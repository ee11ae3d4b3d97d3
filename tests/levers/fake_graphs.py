"""A CUDA graph on the CPU, faked truthfully: what is recorded are torch's own ops on the memory that they got, nothing
counts that they compute while they are recorded, and what a recording leaves behind is no number until it is replayed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from hotlap.levers.cudagraphs._device import Device
from hotlap.levers.cudagraphs._training_graph import GraphedTraining

BEFORE = 3
"""Calls of a shape that are ordinary ones."""


class Recorder(TorchDispatchMode):
    """Notes every op with its memory; what ops make is made, and spoilt at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[Any, Any, Any, Any]] = []
        self.made: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError("operation not permitted when stream is capturing")
        output = func(*args, **(kwargs or {}))
        self.launches.append((func, args, kwargs or {}, output))
        given = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_iter(output):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self.made[tensor.untyped_storage()._cdata] = tensor
        return output

    def spoil(self) -> None:
        """Another recording uses the memory."""
        for tensor in self.made.values():
            if tensor.is_floating_point():
                tensor.data.fill_(math.nan)  # unseen by autograd, as a capture is

    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # of the call that it is in, which a graph knows nothing of
    def replay(self) -> None:
        for func, args, kwargs, output in self.launches:
            again = func(*args, **kwargs)
            for old, new in zip(tree_iter(output), tree_iter(again), strict=True):
                if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """Record it. Returns what replays it."""
    recorder = Recorder()
    with recorder:
        work()
    recorder.spoil()
    return recorder.replay


class FakeDevice(Device):
    """Where that is recorded. capture: in place of the usual one."""

    def __init__(self, capture: Callable[[Callable[[], None]], Callable[[], None]] = capture) -> None:
        self.capture = capture  # type: ignore[method-assign]

    def rehearse(self, work: Callable[[], None]) -> None:
        work()

    def where(self) -> tuple[Any, ...]:
        return ("a stream",)

    def has_room(self) -> bool:
        return True


def recorded(model: nn.Module, forward: Any, whys: list[str]) -> GraphedTraining:
    """In place of a forward. whys: gets the reason where it gives up."""
    return GraphedTraining(model, forward, FakeDevice(), lambda: None, whys.append)
