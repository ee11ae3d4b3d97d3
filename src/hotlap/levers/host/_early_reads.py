"""Not a lever: which tensors are known to be computed before the last backward began, and reading these from the device
while the backward still runs.

Autograd numbers the nodes of its graph in the order in which a thread makes them. What has a number no greater than the
loss's own was issued before that loss was complete, so an event that is recorded where its backward begins is after it.
A tensor without a node (`loss.detach()`) is known where it lies where such a loss does, which still exists. Both must
be as they were made: their version is that of a fresh tensor, or the loss's own. Views of parameters are not taken.

Numbers are a thread's own. Gradients that are differentiated again have nodes that the engine's threads made, whose
numbers mean nothing here, so a script that asks for such is left alone.
"""

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, Final, NamedTuple

from hotlap.agent.torch_internals import base_of, sequence_number, version_of

CHECKED: Final = 8
"""Reads that are made both ways at first."""
CHECK_EVERY: Final = 256
"""Of the later ones one in so many."""
PATIENCE: Final = 16
"""Backwards by which something must have been read or sent."""
MOST_BYTES: Final = 4 << 20
"""Of a tensor that is staged: to copy it within the host's memory takes it less than a millisecond."""
TWICE: Final = "the script differentiates its gradients again"
NOTHING: Final = "no loss is read after its backward has started, and nothing small is copied to the device"
DIFFERENT: Final = "a loss read early differed after the step: something had written to it"


class Root(NamedTuple):
    """A tensor that a backward began with: where it lay, as which version."""

    tensor: Callable[[], Any]
    address: int
    version: int


class EarlyReads:
    """Reads of one training loop. gave_up: called with the reason and whether anything was read
    early or staged, once; unsteady: called in steps in which the first reads are made both ways.

    failed: an error in here ended it. newest: the greatest number of a node that is before the event.
    """

    def __init__(self, device: "Device", gave_up: Callable[[str, bool], None], unsteady: Callable[[], None]) -> None:
        self.device, self._gave_up, self._unsteady = device, gave_up, unsteady
        self.off = self.failed = False
        self.newest = -1
        self.reads = self.sent = self.backwards = 0
        self._event: Any = None
        self._place: Any = None
        self._thread = 0
        self._roots: list[Root] = []

    def backward(self, roots: Sequence[Any], create_graph: bool, accumulates: bool) -> None:
        """A backward begins."""
        if self.off:
            return
        if create_graph:
            self._give_up(TWICE)
            return
        known = [root for root in roots if root.grad_fn is not None and self.device.holds(root)]
        if not accumulates or not known:
            return
        place = known[0].device
        event = self.device.mark(place)
        if event is None:
            return
        self._event, self._place, self._thread = event, place, get_ident()
        self.newest = max(self.newest, *(sequence_number(root.grad_fn) for root in known))
        self._roots = [Root(weakref.ref(root), root.data_ptr(), version_of(root)) for root in known]
        self.backwards += 1
        if self.backwards == PATIENCE and not (self.reads or self.sent):
            self._give_up(NOTHING)

    def covers(self, tensor: Any) -> bool:
        """Whether it was computed before the last backward began, and is as it was."""
        if self.off or self._event is None or tensor.numel() != 1 or tensor.device != self._place:
            return False
        if get_ident() != self._thread:
            return False
        living = [root for root in self._roots if root.tensor() is not None]  # so that nothing else can lie there
        if any(root.address == tensor.data_ptr() and root.version == version_of(tensor) for root in living):
            return True
        node = tensor.grad_fn
        if node is None or version_of(tensor) or not sequence_number(node) <= self.newest:
            return False
        return base_of(tensor) is None or base_of(tensor).grad_fn is not None

    def read(self, tensor: Any) -> Any:
        """Its value, as a tensor of the host's."""
        value = self.device.fetch(tensor.detach(), self._event)
        self.reads += 1
        if self.reads <= CHECKED:
            self._unsteady()
        elif self.reads % CHECK_EVERY:
            return value
        now = tensor.detach().to("cpu")
        if not now.view(-1).eq(value.view(-1)).all() and not (now.isnan().all() and value.isnan().all()):
            self._give_up(DIFFERENT)
        return now

    def fail(self) -> None:
        """After an error in here: nothing is read early or staged any more."""
        self.off = self.failed = True
        self._event, self._roots = None, []

    def early(self, tensor: Any) -> Any:
        """As `read`, None where the last backward does not cover it."""
        return self.read(tensor) if self.covers(tensor) else None

    def stage(self, tensor: Any, args: Sequence[Any], kwargs: Mapping[str, Any], always: bool) -> Any:
        """A copy of it from which the device need not be waited for, None where its move is another one."""
        if not self.device.stages(tensor, args, kwargs, always):
            return None
        self.sent += 1
        return self.device.staged(tensor)

    def _give_up(self, why: str) -> None:
        self.off = True
        self._event, self._roots = None, []
        self._gave_up(why, bool(self.reads or self.sent))


class Device:
    """The CUDA device."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self._known: dict[int, tuple[Any, Any, Any]] = {}
        """Of each device: the event, the stream on which values are fetched, and the event at the end of that."""
        self._hosts: dict[Any, Any] = {}

    def holds(self, tensor: Any) -> bool:
        """Whether it is on a device."""
        return bool(tensor.is_cuda)

    def mark(self, place: Any) -> Any:
        """Where a device's current stream is now, None while it is captured: what is recorded then happens later."""
        cuda = self.torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        if place.index not in self._known:
            self._known[place.index] = cuda.Event(), cuda.Stream(place), cuda.Event()
        event = self._known[place.index][0]
        event.record(cuda.current_stream(place))
        return event

    def fetch(self, tensor: Any, after: Any) -> Any:
        """A copy on the host of a tensor of one element, as it is after the event."""
        torch = self.torch
        if tensor.dtype not in self._hosts:
            self._hosts[tensor.dtype] = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=True)
        host, (_, stream, done) = self._hosts[tensor.dtype], self._known[tensor.device.index]
        with torch.cuda.stream(stream):
            stream.wait_event(after)
            host.copy_(tensor.view(()), non_blocking=True)
            done.record(stream)
        done.synchronize()
        return host.clone().view(tensor.shape)

    def stages(self, tensor: Any, args: Sequence[Any], kwargs: Mapping[str, Any], always: bool) -> bool:
        """Whether a move of a tensor is one to the device that would be waited for. always: of `Tensor.cuda`."""
        if not self._known or tensor.is_cuda or tensor.requires_grad:
            return False
        if len(args) > 1 or not kwargs.keys() <= {"device"}:
            return False
        target = kwargs.get("device", args[0] if args else None)
        if not (self._is_device(target) or (always and target is None)):
            return False
        if tensor.device.type != "cpu" or tensor.layout != self.torch.strided or not 0 < tensor.nbytes <= MOST_BYTES:
            return False
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            return False
        return not self.torch.cuda.is_current_stream_capturing()

    def _is_device(self, target: Any) -> bool:
        if isinstance(target, self.torch.device):
            return bool(target.type == "cuda")
        if isinstance(target, str):
            return target.partition(":")[0] == "cuda"
        return isinstance(target, int) and not isinstance(target, bool)

    def staged(self, tensor: Any) -> Any:
        """A copy in pinned memory, which lives until the device has read it (so torch's allocator of such memory)."""
        return moved(tensor, self.torch.empty_like(tensor, pin_memory=True))


def moved(tensor: Any, to: Any) -> Any:
    """`to`, filled with what a contiguous tensor of the host holds. Not by `copy_`, for which torch's threads have to
    wake from 256 KiB on: beside a loader's workers batches of 0.4 MiB took 5.8 ms so (an H200's host of 16 cores)."""
    ctypes.memmove(to.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    return to
