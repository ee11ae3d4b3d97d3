"""DataLoader: the data phase, the rows of a batch, and the seams of the input levers.

`BatchIterator.__next__` is the seam that sees plain loaders, subclasses with their own `__iter__` and stateful ones.
`MAKE_ITERATOR` (workers start there) is charged to data as well.
"""

import atexit
import functools
import inspect
import os
import time
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled

from ..guard import hook
from ..loaders import LOOKED_AT
from ..probe import leaves
from ..recorder import start_folder
from ..samples import WorkerSamples
from ..steps import BY_HAND, INFERENCE
from ..torch_internals import (
    MAKE_ITERATOR,
    TASKS,
    WORKER_LOOP,
    BatchIterator,
    WorkersIterator,
    early,
    end_workers,
    is_late,
    is_starved,
    outlives_epoch,
    sizes,
)

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, START = hook("data_begin"), hook("data_end"), hook("loader_start")
WORKER = hook("worker_samples")


def install(agent: "Agent") -> None:
    """Patch the iterator's `__next__`, and where loaders make their iterator."""
    _patch_next(agent)
    _patch_start(agent)
    if agent.session.profile_steps:
        _patch_workers(agent)
    if agent.seams.wants_loaders:
        _patch_iter(agent)


def _patch_next(agent: "Agent") -> None:
    original = BatchIterator.__next__
    guard, steps, step_sampling, lapped = agent.guard, agent.steps, agent.step_sampling, agent.step_sampling.lapped
    batches = Batches(agent)
    begun, ended = guard.around(BEGIN, batches.begin), guard.around(END, batches.end)
    gave_up, refilled = guard.around(END, batches.gave_up), guard.around(START, batches.refilled)

    def first(iterator: Any) -> Any:
        asked_ns = time.perf_counter_ns()
        try:
            return original(iterator)
        finally:
            refilled(iterator, asked_ns)

    def seen(iterator: Any) -> Any:
        if get_ident() != guard.live and not agent.mine():
            return original(iterator)
        begun(iterator)
        if steps.unsampled:  # from here on
            return __next__(iterator)
        batch = None
        try:
            batch = (first if iterator._hotlap_starts else original)(iterator)
            return batch
        finally:
            if get_ident() == guard.live:
                ended(iterator, batch)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if not steps.unsampled or get_ident() != guard.live:
            return seen(self)
        if steps.unsampled == BY_HAND and steps.manual_open:
            steps.manual_open = 0
            lapped()
            if not steps.unsampled:
                return seen(self)
        if steps.unsampled != INFERENCE and not is_grad_enabled():
            step_sampling.evaluating()
        steps.in_data += 1  # a forward that makes a batch is none of the loop's
        batch = None
        try:
            batch = (first if self._hotlap_starts else original)(self)
        finally:
            steps.in_data -= 1
            if batch is None:
                gave_up(self)
        facts = self._hotlap_facts
        if facts is not None and facts["batches"] > LOOKED_AT:
            facts["batches"] += 1
        return batch

    BatchIterator._hotlap_facts = BatchIterator._hotlap_late = BatchIterator._hotlap_asked = None
    BatchIterator.__next__ = __next__


class Batches:
    """What is done as a batch is asked for, as it has come, and where none has."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent

    def begin(self, iterator: Any) -> None:
        """A batch is asked for."""
        agent, steps, making = self.agent, self.agent.steps, self.agent.script.making
        if not agent.begun:
            agent.begin()
        steps.data_begin()
        if steps.unsampled:
            return
        if making.followed:
            making.begin(agent.probe.active)
        iterator._hotlap_asked = time.perf_counter_ns()
        made_ahead = not iterator._hotlap_starts and hasattr(iterator, TASKS)
        iterator._hotlap_late = late = is_late(iterator) if made_ahead else None
        iterator._hotlap_starved = bool(late) and is_starved(iterator)
        iterator._hotlap_early = early(iterator) if made_ahead else 0

    def end(self, iterator: Any, batch: Any) -> None:
        """It has come. batch: None where there is none any more, or an error came in its place."""
        steps, script, probe = self.agent.steps, self.agent.script, self.agent.probe
        training, facts = is_grad_enabled(), iterator._hotlap_facts
        of_the_loop = training or steps.infers
        if script.making.followed and facts is not None and batch is not None and of_the_loop:
            script.making.end(iterator, facts, batch)
        steps.data_end(_rows(batch, facts), training, id(iterator), batch is None)
        if batch is None:
            self.agent.peaks.looks()
            script.gave_up(iterator)
            return
        if facts is not None:
            script.batch(facts, batch)
            if iterator._hotlap_late is not None and of_the_loop:
                took_ms = (time.perf_counter_ns() - iterator._hotlap_asked) / 1e6
                late = iterator._hotlap_late or early(iterator) > iterator._hotlap_early
                steps.prefetch.came(iterator, facts, late, iterator._hotlap_starved, took_ms)
        if probe.active and of_the_loop:
            probe.batch(batch, training)

    def gave_up(self, iterator: Any) -> None:
        """No batch came of it in an unsampled step, at whose beginning it was asked for."""
        self.agent.peaks.looks()
        iterator._hotlap_asked = self.agent.step_sampling.begun_ns
        self.agent.script.gave_up(iterator)

    def refilled(self, iterator: Any, asked_ns: int) -> None:
        """The first batch of workers that have just started is there."""
        iterator._hotlap_starts = False
        self.agent.script.refilled(iterator._hotlap_facts, time.perf_counter_ns() - asked_ns)


def _patch_start(agent: "Agent") -> None:
    original = getattr(*MAKE_ITERATOR)

    def begin() -> int:
        if not agent.begun:
            agent.begin()
        if agent.session.profile_steps:
            agent.folder()  # or a worker that has something to report would make it
        if agent.steps.unsampled == BY_HAND:
            agent.step_sampling.event()
        if not agent.steps.unsampled:
            agent.steps.data_begin()
        return agent.steps.unsampled

    def end(loader: Any, iterator: Any, unsampled: int, begun_ns: int) -> None:
        took_ns = time.perf_counter_ns() - begun_ns
        if not unsampled:
            agent.steps.data_end(None, True)
        if iterator is not None:
            iterator._hotlap_facts = agent.script.loader(loader, torch.is_grad_enabled())
        if not isinstance(iterator, WorkersIterator):
            return
        if not outlives_epoch(iterator):
            iterator._hotlap_starts = True
            agent.script.started(iterator._hotlap_facts, took_ns)
        else:
            ours = getattr(loader, "_hotlap_persistent", False)
            atexit.register(agent.guard.call, START, _end_workers, agent, weakref.ref(iterator), ours)

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        mine = agent.mine()
        unsampled, begun_ns = agent.guard.call(START, begin) if mine else None, time.perf_counter_ns()
        iterator = None
        try:
            iterator = original(self)
            return iterator
        finally:
            if mine and agent.mine():
                agent.guard.call(START, end, self, iterator, unsampled, begun_ns)

    BatchIterator._hotlap_starts = False
    setattr(*MAKE_ITERATOR, _get_iterator)


def _end_workers(agent: "Agent", iterator: "weakref.ref[Any]", ours: bool) -> None:
    """Tell workers that outlive their epoch to end, where hotlap ends the script or a lever let them live (ours).

    Where memory is pinned too, torch 2.11 and before wait 5 s for each at exit, whom nobody has told, before they end
    it (pytorch/pytorch#81794): with seven of them a trial ended after 20 s, by the stopper's hard end.
    """
    one = iterator()
    if one is not None and (ours or agent.stopper.stopped):
        end_workers(one)


def _patch_workers(agent: "Agent") -> None:
    """Sample the first worker of each loader."""
    original = getattr(*WORKER_LOOP, None)
    if original is None:
        return
    arguments, spare = inspect.signature(original), agent.guard.spare

    def begin(args: Any, kwargs: Any) -> WorkerSamples | None:
        given = arguments.bind(*args, **kwargs).arguments
        if given.get("worker_id") != 0:
            return None
        path = os.path.join(start_folder(agent.session.folder), f"workers-{os.getppid()}.jsonl")
        guarded = functools.partial(spare, WORKER, lambda: None)
        dataset = given["dataset"] if "dataset" in given else given["dataset_holder"][0]  # since torch 2.14
        samples = WorkerSamples(path, type(dataset).__qualname__, original.__code__, guarded)
        samples.begin()
        return samples

    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        samples = spare(WORKER, lambda: None, begin, args, kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            if samples is not None:
                spare(WORKER, lambda: None, samples.end)

    setattr(*WORKER_LOOP, _worker_loop)


def _patch_iter(agent: "Agent") -> None:
    original = torch.utils.data.DataLoader.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        # After hotlap has switched itself off too: a lever's workers live on, and draw and hold what they would only if
        # it looks after them at each epoch; and batches are split or whole for all loaders of a loop.
        if agent.mine() or get_ident() == agent.thread:
            agent.guard.spare(START, lambda: None, agent.seams.loader, self, torch.is_grad_enabled())
        return original(self)

    torch.utils.data.DataLoader.__iter__ = __iter__


def _rows(batch: Any, facts: dict[str, Any] | None) -> int | None:
    """Rows in a batch: the first tensor's first dimension, never more than the loader's batch size (1 is no
    bound: the samples of such a loader are often batches); its second one, where that is the batch size, the first is
    not, and the script collates itself, as it does texts to (length, batch). Or it hands over a list of samples."""
    if batch is None:
        return None
    kind = type(batch)
    first = batch[0] if (kind is list or kind is tuple) and batch else batch
    if not isinstance(first, torch.Tensor):
        first = next(leaves(batch), None)
    size: int | None = None if facts is None else facts["batch_size"]
    shape = () if first is None else sizes(first)
    if not shape:
        return size
    rows: int = shape[0]
    if not size or size == 1:
        return rows
    if kind is list and len(batch) == size and facts is not None and not facts["default_collate"]:
        return size
    if rows != size and len(shape) > 1 and shape[1] == size and facts is not None and not facts["default_collate"]:
        return size
    return min(rows, size)
