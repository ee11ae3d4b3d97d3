"""The update of one of torch's own optimizers, recorded once and replayed: what `Optimizer.step` issues, without what
Python does to issue it.

`step` of these optimizers collects each group's tensors by `self._init_group` and hands them to one function for all of
them, which returns at once where there are none. So that method is the place: an instance's own `_init_group` replays
the update and collects nothing. All else about `step` stays: hooks, closures, what schedulers and profilers wrap around
it, and bound methods that were taken earlier. Pickles and copies of an optimizer take nothing of it along.

A replay does what the recorded kernels did to the same addresses with the same numbers, so it is used only where all of
these are as they were; else the step is an ordinary one. Gradients lie where they lay (as CUDA graphs of the backward
leave them), or are copied to buffers. Learning rates are read from the device.
"""

import contextlib
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from .._fused import collect
from .._internals import internals

STEADY: Final = 3
"""Steps on end in which nothing changed, before one is recorded."""
MOST_SETTLING: Final = 3
"""Steps that are waited for gradients to stay where they are, before they are copied: a backward that is recorded in
the first steps leaves them at other places from then on."""
MOST_RECORDINGS: Final = 8
PATIENCE: Final = 200
"""Ordinary steps on end, after which nothing is expected any more."""


class Seen(NamedTuple):
    """What an update depends on. form: all but the learning rates and the addresses of the gradients; owners: the
    parameters that have one; guard: tells whether gradients are of this form, where this torch has such a thing."""

    form: tuple[Any, ...]
    owners: list[Any]
    gradients: list[Any]
    addresses: list[int]
    guard: Any = None


def look(optimizer: Any, names: tuple[str, ...], last: Seen | None = None) -> Seen | str:
    """An optimizer that is about to make its update, or why this one can't be replayed. names: of hyper-parameters;
    last: what was seen before.

    Each step pays for it, so loops over tensors are those of `map`. Raises where something has no address, as sparse
    gradients.
    """
    import torch

    groups = optimizer.param_groups
    parameters = list(itertools.chain.from_iterable(map(operator.itemgetter("params"), groups)))
    slots = list(map(operator.attrgetter("grad"), parameters))
    gradients = [g for g in slots if g is not None]
    guard = last.guard if last is not None and len(last.addresses) == len(gradients) else None
    known = guard is not None and guard.check(*gradients)
    why = _why_not(optimizer, gradients, known)
    if why:
        return why
    address = torch.Tensor.data_ptr
    all_there = len(gradients) == len(slots)
    form = (
        [(len(group["params"]), *map(group.get, names)) for group in groups],
        [] if all_there else [g is None for g in slots],
        list(map(address, parameters)),
        list(map(address, itertools.chain.from_iterable(map(dict.values, optimizer.state.values())))),
        last.form[-1] if last is not None and known else list(map(torch.Tensor.stride, gradients)),
    )
    owners = parameters if all_there else [p for p, g in zip(parameters, slots, strict=True) if g is not None]
    guard = guard if known else internals().tensor_guard(gradients)
    return Seen(form, owners, gradients, list(map(address, gradients)), guard)


def _why_not(optimizer: Any, gradients: list[Any], known: bool) -> str | None:
    import torch

    if not gradients:
        return "no parameter has a gradient"
    if gradients[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return "the script captures a CUDA graph itself"
    if internals().graph_task() != -1:  # -1: no backward runs in this thread
        return "it steps inside the backward"
    if not known and set(map(type, gradients)) != {torch.Tensor}:
        return "its gradients are of a class of their own"
    if any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups):
        return "its learning rate is a tensor"
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return "the script scales its loss with a GradScaler"
    return None


class Place:
    """Where a recorded update finds its learning rates and gradients: in tensors of its own, gradients also where they
    are (`buffers` False)."""

    def __init__(self, optimizer: Any, seen: Seen, buffers: bool) -> None:
        import torch

        self.seen = seen._replace(owners=[], gradients=[])
        self.addresses = None if buffers else seen.addresses
        self.buffers = [torch.empty_like(g) for g in seen.gradients] if buffers else []
        self.values = [float(group["lr"]) for group in optimizer.param_groups]
        # float32, as the kernels read it
        device = seen.gradients[0].device
        self.rates = [torch.full((), value, dtype=torch.float32, device=device) for value in self.values]

    def takes(self, seen: Seen) -> bool:
        """Whether an update recorded here is the one to make now."""
        return self.seen.form == seen.form and (self.addresses is None or self.addresses == seen.addresses)

    def fill(self, optimizer: Any, seen: Seen) -> None:
        """Bring this step's gradients and learning rates, on the current stream."""
        if self.buffers:
            internals().copy_all(self.buffers, seen.gradients)
        for at, group in enumerate(optimizer.param_groups):
            value = float(group["lr"])
            if value != self.values[at]:
                self.rates[at].fill_(value)
                self.values[at] = value

    @contextlib.contextmanager
    def put_in(self, optimizer: Any, seen: Seen) -> Iterator[None]:
        """The optimizer reads from here meanwhile."""
        groups = optimizer.param_groups
        owners = seen.owners if self.buffers else []
        flags = [{name: group[name] for name in ("lr", "capturable") if name in group} for group in groups]
        try:
            for owner, buffer in zip(owners, self.buffers, strict=True):
                owner.grad = buffer
            for group, rate in zip(groups, self.rates, strict=True):
                group.update(dict.fromkeys(group.keys() & {"capturable"}, True), lr=rate)
            yield
        finally:
            for owner, gradient in zip(owners, seen.gradients, strict=False):
                owner.grad = gradient
            for group, flag in zip(groups, flags, strict=True):
                group.update(flag)


class GraphedUpdate:
    """In place of an optimizer's `_init_group`.

    capture: records what a function issues, without doing it; what it returns does it. prepare: makes an optimizer
    ready to be recorded; why it can't be, if so. room: whether bytes for buffers are there. recording: called in the
    two steps that recording takes. gave_up: called with the optimizer and the reason, once.
    """

    def __init__(
        self,
        optimizer: Any,
        capture: Callable[[Callable[[], None]], Callable[[], None]],
        *,
        prepare: Callable[[Any], str | None],
        room: Callable[[int], bool],
        recording: Callable[[], None],
        gave_up: Callable[[Any, str], None],
    ) -> None:
        kind = type(optimizer)
        self.recordings = self.replays = 0
        self.place: Place | None = None
        self._optimizer = weakref.ref(optimizer)
        self._step = getattr(kind.step, "__wrapped__", kind.step)
        self._names = tuple(name for name in optimizer.defaults if name != "lr")
        self._capture, self._prepare, self._room = capture, prepare, room
        self._recording, self._gave_up = recording, gave_up
        self._replay: Callable[[], None] | None = None
        self._last: Seen | None = None
        self._steady = self._still = self._settling = self._ordinary = 0
        self._moves = self._inside = self._done = False

    def __call__(self, group: dict[str, Any], *lists: Any) -> bool:
        """Collect a group's tensors, or none where the update is made already; whether any is complex or sparse."""
        optimizer = self._optimizer()
        assert optimizer is not None, "its own method runs"
        if not self._inside and group is optimizer.param_groups[0]:
            self._done = self._update(optimizer)
        if self._done and not self._inside:
            return False
        return collect(optimizer, group, *lists)  # type: ignore[no-any-return]

    def _update(self, optimizer: Any) -> bool:
        """Make the update; False where an ordinary one has to be made."""
        try:
            seen = look(optimizer, self._names, self._last if self.place is None else self.place.seen)
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            return self._give_up(optimizer, f"it could not be inspected: {error}")
        if isinstance(seen, str):
            return self._wait(optimizer, seen)
        if self.place is not None and self._replay is not None and self.place.takes(seen):
            self._make(optimizer, self.place, self._replay, seen)
            return True
        return self._towards(optimizer, seen)

    def _make(self, optimizer: Any, place: Place, replay: Callable[[], None], seen: Seen) -> None:
        import torch

        place.fill(optimizer, seen)
        replay()
        # As every update in place does: autograd then notices a graph that still needs the old values.
        torch.autograd.graph.increment_version(seen.owners)
        self.replays += 1
        self._ordinary = 0

    def _towards(self, optimizer: Any, seen: Seen) -> bool:
        """A step that can't be replayed yet: wait until nothing changes, make an update as it will be recorded, so that
        all that it needs is loaded and made, then record one."""
        last, self._last = self._last, seen._replace(owners=[], gradients=[])  # freed, they may come back
        if last is None or last.form != seen.form:
            self._steady = self._still = 0
            self._prepare(optimizer)  # where a checkpoint was loaded, once more
            return self._wait(optimizer, "it changes from step to step")
        self._steady += 1
        self._still = self._still + 1 if last.addresses == seen.addresses else 0
        settling = not self._moves and self._still < STEADY and self._settling < MOST_SETTLING
        if self._steady < STEADY or settling:
            self._settling += self._steady >= STEADY
            return self._wait(optimizer, "it changes from step to step")
        self._moves = self._moves or self._still < STEADY
        if self.place is None or self._replay is not None or not self.place.takes(seen):
            return self._rehearse(optimizer, seen)
        return self._record(optimizer, self.place, seen)

    def _rehearse(self, optimizer: Any, seen: Seen) -> bool:
        import torch

        self.place = self._replay = None
        self._moves = self._moves or self.recordings > 0
        why = self._prepare(optimizer)
        if why or self.recordings >= MOST_RECORDINGS:
            return self._give_up(optimizer, why or f"it changed again after {self.recordings} recordings")
        if self._moves and not self._room(sum(g.nbytes for g in seen.gradients)):
            return self._give_up(optimizer, "device memory has no room for a copy of the gradients")
        try:
            place = Place(optimizer, seen, self._moves)
        except torch.OutOfMemoryError:
            return self._give_up(optimizer, "device memory has no room for a copy of the gradients")
        self._recording()
        place.fill(optimizer, seen)
        self._issue(optimizer, place, seen)
        self.place = place
        return True

    def _issue(self, optimizer: Any, place: Place, seen: Seen) -> None:
        """The update by the optimizer's own code, without its hooks."""
        self._inside = True
        try:
            with place.put_in(optimizer, seen):
                self._step(optimizer)
        finally:
            self._inside = False

    def _record(self, optimizer: Any, place: Place, seen: Seen) -> bool:
        self._recording()
        self.recordings += 1
        try:
            replay = self._capture(lambda: self._issue(optimizer, place, seen))
        except RuntimeError as error:  # nothing was done to any tensor
            return self._give_up(optimizer, f"its update could not be captured: {error}")
        self._replay = replay
        self._make(optimizer, place, replay, seen)
        return True

    def _wait(self, optimizer: Any, why: str) -> bool:
        self._ordinary += 1
        return self._give_up(optimizer, why) if self._ordinary >= PATIENCE else False

    def _give_up(self, optimizer: Any, why: str) -> bool:
        """From this step on, the optimizer is an ordinary one."""
        self.place = self._replay = self._last = None
        vars(optimizer).pop(internals().INIT_GROUP, None)
        self._gave_up(optimizer, why)
        return False
