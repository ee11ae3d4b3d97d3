"""Not a lever: recording on a CUDA device."""

import contextlib
import gc
from collections.abc import Callable
from typing import Any, Final

from .._internals import internals

FULL: Final = 0.9


class Device:
    """Where forwards and backwards are recorded."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pools: dict[int, tuple[Any, Any, Callable[[], None]]] = {}

    def pool(self) -> tuple[Any, Any]:
        """Where recordings of the stream that is current share memory: a pool of it, and the stream to record on, since
        memory of a pool goes by streams. Work of two streams may overlap, and must not share."""
        import torch

        stream = torch.cuda.current_stream(self._device).cuda_stream
        if stream not in self._pools:
            made = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
            first = capture(lambda: torch.zeros((), dtype=torch.float32, device=self._device), self._device, *made)
            # Into a pool whose last graph was dropped nothing can be recorded any more.
            self._pools[stream] = *made, first
        return self._pools[stream][:2]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what a function issues, without doing it; what it returns does it. A backward is recorded on the
        stream of its forward."""
        return capture(work, self._device, *self.pool())

    def rehearse(self, work: Callable[[], None]) -> None:
        """Do what a function issues, where it will be recorded."""
        import torch

        current, side_stream = torch.cuda.current_stream(self._device), self.pool()[1]
        side_stream.wait_stream(current)
        with torch.cuda.stream(side_stream):
            work()
        current.wait_stream(side_stream)

    def where(self) -> tuple[Any, ...] | None:
        """What a record depends on beside the model and its inputs; None while the script captures a graph itself."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return None
        stream = internals().raw_stream(self._device.index)  # as compiled code asks for it, in each call
        autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return stream, autocast

    def has_room(self) -> bool:
        """Whether as much as a step takes beside what is there now fits beside the most that was allocated so far."""
        import torch

        peak = torch.cuda.max_memory_allocated(self._device)
        return room(peak - torch.cuda.memory_allocated(self._device), self._device)


def room(size: int, device: Any) -> bool:
    """Whether bytes would fit beside the most that was allocated so far."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return bool(torch.cuda.max_memory_allocated(device) + size < FULL * free)


def capture(work: Callable[[], None], device: Any, pool: Any = None, side_stream: Any = None) -> Callable[[], None]:
    """What `work` issues, as a CUDA graph that is launched on the stream that is current then. pool: of memory that it
    shares with other graphs; side_stream: the one to record on, where that counts.

    Not `torch.cuda.graph`, which empties the cache of the allocator, nor in its mode, in which calls of other threads
    (batches that are copied ahead) end the capture.
    """
    import torch

    recorded = torch.cuda.CUDAGraph()
    current, side_stream = torch.cuda.current_stream(device), side_stream or torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    side_stream.wait_stream(current)
    collects = gc.isenabled()
    gc.disable()  # what it would free may call the driver, which ends the capture
    generator = torch.cuda.default_generators[device.index]
    drawn = generator.clone_state()
    try:
        with torch.cuda.stream(side_stream):
            recorded.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                recorded.capture_end()
    except RuntimeError:
        # Where the driver has ended the capture, torch 2.11 leaves its generator and its allocator as in one.
        generator.graphsafe_set_state(drawn)
        with contextlib.suppress(RuntimeError):
            internals().end_pool(device.index, recorded.pool())
        raise
    finally:
        if collects:
            gc.enable()
    current.wait_stream(side_stream)
    return recorded.replay  # type: ignore[no-any-return]
