"""The host waits for what it reads, not for all that is queued: a loss that is read after its backward has begun comes
by a stream of its own as soon as it is computed, and small batches are copied to the device without a wait.

`total += loss.item()` after `optimizer.step()` waits until backward and update are done, and so does a plain
`x.to(device)`; until the host has issued the next forward the device then stands still. Values are the same to the bit:
the loss was computed before its backward began, which autograd's own numbering of its graph shows, and nothing wrote to
it since (`_early_reads`). What is computed after the backward, such as an accuracy, is waited for as ever.

The first reads are made both ways and compared, and one of many later ones.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, Unwritten
from .._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

    from ._early_reads import EarlyReads


SELDOM: Final = 0.3
"""Of 14 public scripts on GPUs seven read nothing that can come early, and two gained: 1.06× and 1.09×."""


class FewerSyncs(Lever):
    """`loss.item()` on a stream of its own; `x.to(device)` without a wait."""

    name = "fewer-syncs"
    meaning = "reading the loss waits only for the loss, and small copies to the device do not wait"
    causes = {"syncs": 0}
    needs_gpu = True
    unwritten = Unwritten(
        "the lever checks at each read that the value was computed before the backward and not written since. "
        "`hotlap patch RUN` rewrites the waits of a profiled run that it can",
        "reads",
    )

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, where nothing is queued to wait for")
        if not (facts.roots or facts.optimizers):
            return Applies(False, "no model and no optimizer was seen")
        if facts.world > 1:
            return Applies(False, "several processes: their exchange may change a loss after its backward")
        if facts.mode == "inference":
            return Applies(False, "the command only infers: no backward runs while values are read")
        return Applies(True, "where the script reads its loss, the host may wait for the whole step")

    def share(self, context: Context) -> float:
        """Batches are made beside what the device computes, and no more of them than that takes."""
        beside = min(context.share_of("data", "h2d"), context.model_share)
        return SELDOM * (beside + context.share_of("other"))

    def install(self, seams: "Seams", settings: Settings) -> None:
        from hotlap.agent.compiled import hide_from_compiler

        from ._early_reads import Device, EarlyReads

        for module in (__name__, EarlyReads.__module__):
            hide_from_compiler(module)

        def gave_up(why: str, used: bool) -> None:
            (seams.refuse if used else seams.leave_out)(self.name, why)

        reads = EarlyReads(Device(), gave_up, seams.unsteady)
        patch(reads, seams.guarded(self.name, reads.fail))

    def source(self, settings: Settings) -> str:
        return (
            "# the loss, copied while the backward runs (on_host = torch.empty((), device='cpu', pin_memory=True)):\n"
            "on_host.copy_(loss.detach(), non_blocking=True); copied.record()  # copied = torch.cuda.Event()\n"
            "loss.backward(); optimizer.step()\n"
            "copied.synchronize(); total += on_host.item()\n"
            "# batches, from pinned memory:\n"
            "x = x.pin_memory().to(device, non_blocking=True)"
        )


def patch(reads: "EarlyReads", guarded: Callable[..., Any]) -> None:
    """Put them where backwards begin, and where tensors are read and moved. guarded: see `Seams`."""
    from torch import Tensor
    from torch.compiler import is_dynamo_compiling

    device, (owner, name) = reads.device, internals().ENGINE
    run = getattr(owner, name)

    @functools.wraps(run)
    def backward(roots: Any, gradients: Any, keep: Any, create_graph: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            guarded(reads.backward, roots, bool(create_graph), bool(kwargs.get("accumulate_grad")))
        return run(roots, gradients, keep, create_graph, *args, **kwargs)

    def mine(tensor: Any) -> bool:
        return not (is_dynamo_compiling() or reads.off) and type(tensor) is Tensor and device.holds(tensor)

    def reading(original: Callable[..., Any], keeps_graph: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not (args or kwargs or (keeps_graph and self.requires_grad)) and mine(self):
                value = guarded(reads.early, self)
                self = self if value is None else value
            return original(self, *args, **kwargs)

        return read

    def moving(original: Callable[..., Any], always: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or type(self) is not Tensor or reads.failed:
                return original(self, *args, **kwargs)
            staged = guarded(reads.stage, self, args, kwargs, always)
            if staged is None:
                return original(self, *args, **kwargs)
            return original(staged, *args, non_blocking=True, **kwargs)

        return move

    setattr(owner, name, backward)
    Tensor.item = reading(Tensor.item, False)
    Tensor.__float__ = reading(Tensor.__float__, False)
    Tensor.__int__ = reading(Tensor.__int__, False)
    Tensor.cpu = reading(Tensor.cpu, True)
    Tensor.to = moving(Tensor.to, False)
    Tensor.cuda = moving(Tensor.cuda, True)


LEVER = FewerSyncs()
