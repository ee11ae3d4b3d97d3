"""Marks on the device: CUDA events from a pool, recorded in the current stream and read late, never waited for."""

from typing import Any

import torch


class DeviceMarks:
    """Events that cut device time where the host cuts its own.

    Off until CUDA is initialised by the script itself, inside a stream capture, and for good after an error (events of
    two devices can't be compared).
    """

    def __init__(self) -> None:
        self.free: list[Any] = []
        self.alive = torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None
        self.ready = False
        self.device = 0
        self.stream: tuple[int, Any] = (-1, None)

    def mark(self) -> Any:
        """Record an event in the current stream; None where that can't be done."""
        if not self.alive or not (self.ready or self._ready()):
            return None
        # torch's own functions behind torch.cuda.*: the public ones cost several times as much, in every phase.
        if torch._C._cuda_isCurrentStreamCapturing() or torch._C._cuda_getDevice() != self.device:
            return None
        raw = torch._C._cuda_getCurrentRawStream(self.device)
        if raw != self.stream[0]:
            self.stream = (raw, torch.cuda.current_stream())
        event = self.free.pop() if self.free else torch.cuda.Event(enable_timing=True)
        event.record(self.stream[1])
        return event

    def _ready(self) -> bool:
        """Whether the script itself has initialised CUDA; its current device is then the one that is marked."""
        if torch.cuda.is_initialized():
            self.ready, self.device = True, torch.cuda.current_device()
        return self.ready

    def done(self, event: Any) -> bool:
        """Whether the device has passed the event (a query, not a wait)."""
        return event is None or bool(event.query())

    def elapsed(self, first: Any, second: Any) -> float | None:
        """Device ms between two events that are done."""
        if first is None or second is None:
            return None
        try:
            return float(first.elapsed_time(second))
        except (RuntimeError, ValueError):
            self.alive = False
            return None

    def give_back(self, event: Any) -> None:
        """Return an event to the pool."""
        if event is not None:
            self.free.append(event)


class LateLosses:
    """Losses read without waiting: device scalars are copied to pinned memory in stream order and read later."""

    SIZE = 4096

    def __init__(self) -> None:
        self.buffers: dict[Any, Any] = {}
        self.next = 0

    def take(self, loss: Any) -> Any:
        """A handle for `value`: a float for a host scalar, a slot for a device scalar, None for anything else."""
        if type(loss) is torch.Tensor and loss.is_cpu:  # what follows costs several times as much
            return loss.item() if loss.numel() == 1 and loss.is_floating_point() else None
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            return None  # a GradientEdge, or no scalar
        if hasattr(loss, "to_local"):
            return None  # reading a DTensor may communicate
        loss = loss.detach()
        if loss.device.type == "cpu":
            return float(loss)
        if loss.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        buffer = self.buffers.get(loss.dtype)
        if buffer is None:
            buffer = torch.zeros(self.SIZE, dtype=loss.dtype, pin_memory=True)
            self.buffers[loss.dtype] = buffer
        slot = buffer[self.next : self.next + 1]
        self.next = (self.next + 1) % self.SIZE
        slot.copy_(loss if loss.dim() < 2 else loss.reshape(1), non_blocking=True)
        return slot

    @staticmethod
    def value(handle: Any) -> float | None:
        """The loss, once the step's last event is done."""
        return handle if handle is None or isinstance(handle, float) else float(handle)
