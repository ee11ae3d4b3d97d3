"""The next batches are copied to the device on a side stream; the script's own `.to(device)` finds them there."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, inference_only, no_gpu, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

DEPTH: Final = 2


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

    def scenario(self, settings: Settings) -> str | None:
        return "free_input"

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        chosen = None if settings["leaves"] == "all" else frozenset(settings["leaves"])
        inference = "inference" in settings

        def forget(loader: Any) -> None:
            stop(getattr(loader, "_iterator", None))

        def fetch(iterator: Any, next_batch: Callable[[], Any]) -> Any:
            import torch

            if not getattr(iterator, "_num_workers", 0) or not (inference or torch.is_grad_enabled()):
                return next_batch()
            prefetcher = getattr(iterator, "_hotlap_prefetcher", None)
            if prefetcher is None:
                prefetcher = iterator._hotlap_prefetcher = Prefetcher(next_batch, chosen, torch.cuda.current_device())
            return prefetcher.next()

        seams.on_loader(forget, inference)
        seams.on_batch(fetch)

    def source(self, settings: Settings) -> str:
        return (
            "# copy the next batch on a side stream while the step runs:\n"
            "with torch.cuda.stream(copy_stream):\n"
            "    following = [t.to(device, non_blocking=True) for t in next(batches)]\n"
            "torch.cuda.current_stream().wait_stream(copy_stream)  # before it is used"
        )


def stop(iterator: Any) -> None:
    """End the prefetching of an iterator that is about to be used again."""
    prefetcher = getattr(iterator, "_hotlap_prefetcher", None)
    if prefetcher is not None:
        prefetcher.stop()
        iterator._hotlap_prefetcher = None


class Prefetcher:
    """A thread that takes batches from the loader and copies them to the device, at most DEPTH ahead."""

    def __init__(self, next_batch: Callable[[], Any], chosen: frozenset[int] | None, device: int) -> None:
        self.next_batch = next_batch
        self.chosen = chosen
        self.device = device
        self.ready: queue.Queue[tuple[Any, Any]] = queue.Queue(DEPTH)
        self.stopping = threading.Event()
        self.ended: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="hotlap-prefetch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        import torch

        torch.cuda.set_device(self.device)
        stream = torch.cuda.Stream(self.device)
        try:
            while not self.stopping.is_set():
                batch = self.next_batch()
                with torch.cuda.stream(stream):
                    moved = self._move(batch, [0])
                    event = torch.cuda.Event()
                    event.record(stream)
                self._put((moved, event))
        except BaseException as error:  # noqa: BLE001 - handed to the training thread, which raises it
            self._put((error, None))

    def _put(self, item: tuple[Any, Any]) -> None:
        while not self.stopping.is_set():
            try:
                self.ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def _move(self, value: Any, count: list[int]) -> Any:
        import torch

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

    def next(self) -> Any:
        """The next batch, whose copy the current stream will wait for."""
        import torch

        if self.ended is not None:
            raise self.ended
        batch, event = self.ready.get()
        if event is None:
            self.ended = batch
            raise batch
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in _tensors(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
        return batch

    def stop(self) -> None:
        """End the thread; a batch that it waits for is waited for too."""
        self.stopping.set()
        self.thread.join(timeout=30)


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


LEVER = DevicePrefetch()
