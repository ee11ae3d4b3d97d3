"""The next batches are copied to the device on a side stream; the script's own `.to(device)` finds them there."""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from hotlap.agent.process_tree import GOING

from ._base import Applies, Context, Lever, Settings, inference_only, no_gpu, unknown
from ._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

DEPTH: Final = 2
LATER: Final = 0.3
MOST_LATER_S: Final = 0.05
"""Of a step how long its thread rests once a batch was taken, and seconds that it rests at most."""


class DevicePrefetch(Lever):
    name = "device-prefetch"
    meaning = "batches are copied to the device ahead of the step, on a stream of their own"
    risk = "exact"

    def applies(self, context: Context) -> Applies:
        loader = context.training_loader
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; there is no device to copy to")
        if loader is None:
            return Applies(False, "no DataLoader feeds the loop")
        if loader.on_device:
            return Applies(False, "the loader delivers batches on the device already")
        if loader.custom_batch:
            return Applies(False, "the batch is an object of the script's own class")
        if not loader.moved:
            return Applies(False, "the script was not seen to move its batches to the device")
        if not loader.workers and "loader-workers" not in context.active:
            return Applies(False, "batches are made in the main process; it needs loader-workers first")
        return Applies(True, "each step copies its batch to the device and waits for it")

    def variants(self, context: Context) -> list[Settings]:
        loader = context.training_loader
        if loader is None or len(loader.moved) == loader.leaves:
            return [{"leaves": "all", **context.for_inference}]
        return [{"leaves": sorted(loader.moved), **context.for_inference}]

    def share(self, context: Context) -> float:
        return context.share_of("h2d") + 0.5 * context.share_of("data")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        chosen = settings.get("leaves")
        numbers = isinstance(chosen, list) and all(type(n) is int and 0 <= n < 64 for n in chosen)  # True is an int
        if chosen != "all" and not numbers:
            return f'leaves must be "all" or a list of positions, not {chosen!r}'
        return unknown(settings, ("leaves", "inference")) or inference_only(settings)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        chosen = None if settings["leaves"] == "all" else frozenset(settings["leaves"])
        inference, workers = "inference" in settings, internals().WORKERS

        def fetch(iterator: Any, next_batch: Callable[[], Any]) -> Any:
            import torch

            if not getattr(iterator, workers, 0) or not (inference or torch.is_grad_enabled()):
                return next_batch()
            if iterator._hotlap_held is None:
                copies = DeviceCopies(chosen, torch.cuda.current_device())
                iterator._hotlap_held = Prefetcher(next_batch, copies)
            return iterator._hotlap_held.next()

        seams.on_batch(fetch)

    def source(self, settings: Settings) -> str:
        return (
            "# copy the next batch on a side stream while the step runs:\n"
            "with torch.cuda.stream(copy_stream):\n"
            "    following = [t.to(device, non_blocking=True) for t in next(batches)]\n"
            "torch.cuda.current_stream().wait_stream(copy_stream)  # before it is used"
        )


class Copies(Protocol):
    """Copies of batches, made by a thread of their own."""

    def begin(self) -> None:
        """In that thread, before all else."""

    def send(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, and what tells when it is there."""

    def arrive(self, batch: Any, there: Any) -> None:
        """In the thread that trains: what it issues from here on comes after that."""


class Prefetcher:
    """A thread that takes batches from the loader and copies them to the device, at most DEPTH ahead.

    It rests for LATER of a step once a batch was taken: until a step's first kernels are issued the device has nothing
    to do, and two threads of Python's take turns.
    """

    def __init__(
        self, next_batch: Callable[[], Any], copies: Copies, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.next_batch, self.copies, self.clock = next_batch, copies, clock
        self.ready: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.room = threading.Semaphore(DEPTH)
        self.stopping = threading.Event()
        self.ended: BaseException | None = None
        self.taken, self.step_s = 0.0, math.inf
        self.default_device = internals().default_device_modes()
        self.thread = threading.Thread(target=self._run, name="hotlap-prefetch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            internals().enter_modes(self.default_device)  # what the loader draws and makes is the script's
            self.copies.begin()
            while self._has_room():
                self.ready.put(self.copies.send(self.next_batch()))
        except BaseException as error:  # noqa: BLE001 - handed to the training thread, which raises it
            self.ready.put((error, None))

    def _has_room(self) -> bool:
        """Waits for it; False where it is to stop."""
        if not self.room.acquire(blocking=False):
            while not self.room.acquire(timeout=0.1):
                if self.stopping.is_set():
                    return False
            if not self.ready.empty():  # else the step waits for this one
                self.stopping.wait(min(LATER * self.step_s, MOST_LATER_S))
        while not (GOING.wait(0.1) or self.stopping.is_set()):
            pass
        return not self.stopping.is_set()

    def next(self) -> Any:
        """The next batch, whose copy the current stream will wait for."""
        if self.ended is not None:
            raise self.ended
        batch, there = self.ready.get()
        if there is None:
            self.ended = batch
            raise batch
        self.copies.arrive(batch, there)
        taken = self.clock()
        self.step_s, self.taken = taken - self.taken if self.taken else math.inf, taken
        self.room.release()
        return batch

    def stop(self) -> None:
        """End the thread; a batch that it waits for is waited for too."""
        self.stopping.set()
        self.thread.join(timeout=30)


class DeviceCopies:
    """On a side stream of a CUDA device. chosen: which tensors of a batch, by their places; None: all."""

    def __init__(self, chosen: frozenset[int] | None, device: int) -> None:
        import torch

        self.torch, self.chosen, self.device = torch, chosen, device
        self.stream: Any = None

    def begin(self) -> None:
        self.torch.cuda.set_device(self.device)
        self.stream = self.torch.cuda.Stream(self.device)

    def send(self, batch: Any) -> tuple[Any, Any]:
        with self.torch.cuda.stream(self.stream):
            moved = self._move(batch, [0])
            event = self.torch.cuda.Event()
            event.record(self.stream)
        return moved, event

    def arrive(self, batch: Any, there: Any) -> None:
        stream = self.torch.cuda.current_stream(self.device)
        stream.wait_event(there)
        for tensor in _tensors(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def _move(self, value: Any, count: list[int]) -> Any:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            count[0] += 1
            if self.chosen is not None and count[0] - 1 not in self.chosen:
                return value
            return value.to(torch.device("cuda", self.device), non_blocking=True)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self._move(item, count) for item in value])
        if isinstance(value, (list, tuple)):
            return type(value)([self._move(item, count) for item in value])
        if isinstance(value, dict):
            return {key: self._move(item, count) for key, item in value.items()}
        return value


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


LEVER = DevicePrefetch()
