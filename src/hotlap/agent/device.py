"""Marks on the device: CUDA events from a pool, recorded in the current stream and read late, never waited for."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from .torch_internals import current_device, is_capturing, raw_stream, record_event


class DeviceMarks:
    """Events that cut device time where the host cuts its own.

    Off until CUDA is initialised by the script itself, inside a stream capture, and for good after an error (events of
    two devices can't be compared). Each event knows by `marked_in` which stream it cuts.
    """

    def __init__(self) -> None:
        self.free: list[Any] = []
        self.alive = torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None
        self.ready = False
        self.device = 0
        self.stream: tuple[int, Any] = (-1, None)
        self.streams = 0
        """How often another stream was the current one."""

    def mark(self) -> Any:
        """Record an event in the current stream; None where that can't be done."""
        if not self.alive or not (self.ready or self._ready()):
            return None
        if is_capturing() or current_device() != self.device:
            return None
        raw = raw_stream(self.device)
        if raw != self.stream[0]:
            self.stream = (raw, torch.cuda.current_stream())
            self.streams += 1
        event = self.free.pop() if self.free else torch.cuda.Event(enable_timing=True)
        event.marked_in = raw
        record_event(event, self.stream[1])
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
        """Device ms between two events that are done; None where they cut the work of two streams, which overlaps."""
        if first is None or second is None or first.marked_in != second.marked_in:
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


_FLOAT, _DOUBLE = ctypes.c_float.from_address, ctypes.c_double.from_address
READERS: dict[Any, Callable[[int], float]] = {
    torch.float32: lambda at: _FLOAT(at).value,
    torch.float64: lambda at: _DOUBLE(at).value,
    torch.float16: lambda at: float(struct.unpack("<e", ctypes.string_at(at, 2))[0]),
    torch.bfloat16: lambda at: float(struct.unpack("<f", b"\0\0" + ctypes.string_at(at, 2))[0]),
}
"""A number in host memory, by its address. A torch op would be in the user's traces."""
Handle = float | tuple[int, Callable[[int], float]] | None
"""A loss that is known, one that will lie at an address, or none."""


class LateLosses:
    """Losses read without waiting: device scalars are copied to pinned memory in stream order and read later.

    A slot is written again after SIZE losses, long after the step of the first was done.
    """

    SIZE = 4096

    def __init__(self) -> None:
        self.slots: dict[Any, tuple[Any, dict[int, tuple[Any, Handle]]]] = {}
        self.next = 0

    def take(self, loss: Any) -> Handle:
        """A handle for `value`: a float for a host scalar, a slot for a device scalar, None for anything else."""
        plain = type(loss) is torch.Tensor
        if not plain and (not isinstance(loss, torch.Tensor) or hasattr(loss, "to_local")):
            return None  # a GradientEdge; reading a DTensor may communicate
        read = READERS.get(loss.dtype)
        if read is None or loss.numel() != 1:
            return None
        if loss.is_cpu:
            at = loss.data_ptr() if plain else 0  # zeros that autograd makes lie nowhere; negated views not as they are
            return read(at) if at and not loss.is_neg() else float(loss.detach())
        if loss.device.type != "cuda" or is_capturing():
            return None
        slot, handle = self._slot(loss.dtype, read)
        loss = loss.detach()
        slot.copy_(loss if loss.dim() < 1 else loss.reshape(()), non_blocking=True)
        return handle

    def _slot(self, dtype: torch.dtype, read: Callable[[int], float]) -> tuple[Any, Handle]:
        """The next scalar of pinned memory, and where it lies; each is made once."""
        if dtype not in self.slots:
            self.slots[dtype] = torch.zeros(self.SIZE, dtype=dtype, device="cpu", pin_memory=True), {}
        buffer, made = self.slots[dtype]
        at, self.next = self.next, (self.next + 1) % self.SIZE
        if at not in made:
            made[at] = buffer[at], (buffer[at].data_ptr(), read)
        return made[at]

    @staticmethod
    def value(handle: Handle) -> float | None:
        """The loss, once the step's last event is done."""
        return handle[1](handle[0]) if isinstance(handle, tuple) else handle
