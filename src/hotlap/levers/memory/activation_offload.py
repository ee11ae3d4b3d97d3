"""Activations wait for the backward in host memory: what autograd saves in the outermost forward is copied out."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Around, Context, Lever, Settings, integer
from .._internals import internals
from .optimizer_offload import on_host

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

LEAST_MIB: Final = (16, 1)
"""Smaller tensors stay on the device: a copy of its own costs more than they weigh."""


class ActivationOffload(Lever):
    """As `torch.autograd.graph.save_on_cpu(pin_memory=True)`, of tensors of `least_mib` and more."""

    name = "activation-offload"
    meaning = "activations are copied to pinned host memory in the forward and back in the backward"
    causes = {"memory": 5}
    risk = "exact"
    settings = {"least_mib": integer(0, 1 << 20)}
    needs_gpu = True
    saves_memory = True
    eager = True
    memory_order = 80
    frees = {"activations": 0.9}
    takes = "as much host memory, and copies to the host and back"

    def applies(self, context: Context) -> Applies:
        roots = [root for root in context.facts.roots if root.training]
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; its activations are in host memory already")
        if not roots:
            return Applies(False, "no module's forward was seen in training")
        if any(root.compiled for root in roots):
            return Applies(False, "the script compiles the model, and offloading hooks do not work in its graphs")
        return Applies(True, "activations stay on the device until the backward")

    def variants(self, context: Context) -> list[Settings]:
        return [{"least_mib": least} for least in LEAST_MIB]

    def install(self, seams: "Seams", settings: Settings) -> None:
        least, guarded = settings["least_mib"] << 20, partial(seams.guarded, self.name)
        seams.wrap_forward(lambda module, forward: offloading(module, forward, least, guarded), Around.OFFLOADED)

    def source(self, settings: Settings) -> str:
        return "with torch.autograd.graph.save_on_cpu(pin_memory=True):\n    output = model(inputs)"


def offloading(
    module: Any, forward: "Forward", least_bytes: int, guarded: Callable[[Callable[[], None]], Callable[..., Any]]
) -> "Forward":
    """A forward whose saved tensors of so many bytes and more wait on the host; never the parameters themselves. Where
    host memory has no room for one, all stay on the device from there on. guarded: as in `optimizer_offload`."""
    import torch

    failed = False

    def leave() -> None:
        nonlocal failed
        failed = True

    call = guarded(leave)

    def pack(tensor: Any) -> Any:
        small = failed or tensor.numel() * tensor.element_size() < least_bytes
        if small or not _is_dense(tensor) or storage(tensor) in own:
            return tensor
        kept = call(on_host, tensor, "cpu")  # in stream order: whatever overwrites the tensor comes later
        return tensor if kept is None else (tensor.device, kept)

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        device, kept = packed
        back = torch.empty_strided(kept.size(), kept.stride(), dtype=kept.dtype, device=device)
        return back.copy_(kept, non_blocking=True)

    own, storage = set[int](), internals().storage

    def offloaded(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or internals().interpreter() is not None:  # transforms take no such hooks
            return forward(*args, **kwargs)
        own.clear()
        own.update(storage(parameter) for parameter in module.parameters() if _is_dense(parameter))
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return forward(*args, **kwargs)

    return offloaded


def _is_dense(tensor: Any) -> bool:
    """A dense tensor of torch's own class that overlaps itself nowhere, whatever the order of its dimensions."""
    import torch

    usual = type(tensor) in {torch.Tensor, torch.nn.Parameter} and tensor.layout == torch.strided
    return usual and bool(tensor.numel()) and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


LEVER = ActivationOffload()
