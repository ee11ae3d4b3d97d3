"""DataLoader: the data phase, the rows of a batch, and the seams of the input levers.

`_BaseDataLoaderIter.__next__` is the seam that sees plain loaders, subclasses with their own `__iter__` and stateful
ones. `DataLoader._get_iterator` (workers start there) is charged to data as well.
"""

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import dataloader as module

from ..guard import hook
from ..probe import leaves

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, START = hook("data_begin"), hook("data_end"), hook("loader_start")


def install(agent: "Agent") -> None:
    """Patch the iterator's `__next__`, and where loaders make their iterator."""
    _patch_next(agent)
    _patch_start(agent)
    if agent.seams.wants_loaders:
        _patch_iter(agent)


def _patch_next(agent: "Agent") -> None:
    original = module._BaseDataLoaderIter.__next__

    def begin() -> None:
        agent.begin()
        agent.steps.data_begin()
        agent.script.making.begin(agent.probe.active)

    def end(iterator: Any, batch: Any) -> None:
        training = torch.is_grad_enabled()
        looping = training or agent.steps.infers
        facts = getattr(iterator, "_hotlap_facts", None)
        if facts is not None and batch is not None and looping:
            agent.script.making.end(iterator, facts, batch)
        agent.steps.data_end(_rows(batch, facts), training)
        if facts is not None and batch is not None:
            agent.script.batch(facts, batch)
        if agent.probe.active and looping and batch is not None:
            agent.probe.batch(batch, training)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if not agent.mine():
            return original(self)
        agent.guard.call(BEGIN, begin)
        batch = None
        try:
            if agent.seams.wants_batches:
                batch = agent.seams.batch(self, functools.partial(original, self))
            else:
                batch = original(self)
            return batch
        finally:
            if agent.mine():
                agent.guard.call(END, end, self, batch)

    module._BaseDataLoaderIter.__next__ = __next__


def _patch_start(agent: "Agent") -> None:
    original = torch.utils.data.DataLoader._get_iterator

    def begin() -> None:
        agent.begin()
        agent.steps.data_begin()

    def end(loader: Any, iterator: Any) -> None:
        agent.steps.data_end(None, True)
        if iterator is not None:
            iterator._hotlap_facts = agent.script.loader(loader, torch.is_grad_enabled())

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        if not agent.mine():
            return original(self)
        agent.guard.call(START, begin)
        iterator = None
        try:
            iterator = original(self)
            return iterator
        finally:
            if agent.mine():
                agent.guard.call(START, end, self, iterator)

    torch.utils.data.DataLoader._get_iterator = _get_iterator


def _patch_iter(agent: "Agent") -> None:
    original = torch.utils.data.DataLoader.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        if agent.mine():
            agent.guard.call(START, agent.seams.loader, self, torch.is_grad_enabled())
        return original(self)

    torch.utils.data.DataLoader.__iter__ = __iter__


def _rows(batch: Any, facts: dict[str, Any] | None) -> int | None:
    """Rows in a batch: the first tensor's first dimension, never more than the loader's batch size (1 is no
    bound: the samples of such a loader are often batches)."""
    if batch is None:
        return None
    first = batch[0] if type(batch) in {list, tuple} and batch else batch
    if not isinstance(first, torch.Tensor):
        first = next(leaves(batch), None)
    size = None if facts is None else facts["batch_size"]
    if first is None or first.dim() == 0:
        return size
    rows = int(first.size(0))
    return min(rows, size) if size and size > 1 else rows
