"""The optimizer's update as one CUDA graph, so that the device does not wait while Python collects parameters."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, Unwritten
from .._fused import begin_at_zero, fuse, unfit, unfuse
from .._internals import internals
from ._device import FULL, capture, room
from ._update_graph import GraphedUpdate

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Facts, OptimizerFacts

KINDS: Final = ("Adam", "AdamW", "SGD")
"""Those whose fused kernel reads the learning rate from the device."""
REMAINS: Final = 0.2
"""Of the host's time in `step`: looking whether all is as it was, bringing gradients, hooks."""


class GraphOptimizer(Lever):
    """One `torch.cuda.CUDAGraph` of a fused `optimizer.step()`."""

    name = "graph-optimizer"
    meaning = "the fused update is replayed as a CUDA graph; it may need one more copy of the gradients"
    causes = {"launches": 4, "update-launches": 1}
    risk = "numeric"
    needs_gpu = True
    tolerance = 0.005
    excludes = ("optimizer-offload",)
    stage = "graphs"
    costs_s = 5.0
    signs = ("CUDA graph", "CUDAGraph", "captur", "cudaErrorStreamCapture")
    unwritten = Unwritten(
        "a CUDA graph needs gradients at fixed addresses, a learning rate on the device and warm-up steps. That "
        "is no small diff, and all code that clears gradients or changes the rate would need review",
        "optimizers",
    )

    def applies(self, context: Context) -> Applies:
        optimizers = context.facts.optimizers
        if not context.cuda:
            return Applies(False, "the model runs on the CPU")
        if not optimizers:
            return Applies(False, "no torch optimizer steps in this script")
        whys = [_why_not(optimizer) for optimizer in optimizers]
        if all(whys):
            return Applies(False, whys[0] or "")
        if context.diagnosis.clock == "device":
            return Applies(False, "the host runs ahead, so the device does not wait for the optimizer's Python")
        memory = context.facts.memory
        copies = 4 * sum(root.parameters for root in context.facts.roots if root.training)  # in float32, at the peak
        if memory is not None and memory.peak_bytes + copies > FULL * memory.total_bytes:
            return Applies(False, "device memory has no room for a copy of the gradients")
        names = ", ".join(o.name for o, why in zip(optimizers, whys, strict=True) if not why)
        return Applies(True, f"each step of {names} collects its parameters in Python and launches its kernels anew")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return super().settled(facts, active) or all(one.capturable for one in facts.optimizers)

    def share(self, context: Context) -> float:
        if context.diagnosis.clock == "device":
            return 0.0
        phases = context.diagnosis.phases  # the host's own clock: it is the host that gets faster
        total = sum(getattr(phases, name) or 0.0 for name in phases.__struct_fields__)
        return (1 - REMAINS) * (phases.optimizer or 0.0) / total if total else 0.0

    def install(self, seams: "Seams", settings: Settings) -> None:
        def change(optimizer: Any) -> None:
            if type(optimizer).__name__ in KINDS:  # another may step beside it
                graph(optimizer, seams.unsteady, lambda why: seams.refuse(self.name, why))

        seams.on_optimizer(change, unfuse)

    def source(self, settings: Settings) -> str:
        return (
            'rate = torch.tensor(3e-4, device="cuda")  # rate.fill_(...) changes it later\n'
            "optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=True)\n"
            "update = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(update):  # after some ordinary steps, with gradients at fixed addresses\n"
            "    optimizer.step()\n"
            "update.replay()  # in place of optimizer.step()"
        )


def _why_not(optimizer: "OptimizerFacts") -> str | None:
    """Why an optimizer (its facts) can't be recorded."""
    if not optimizer.builtin or optimizer.name not in KINDS:
        return f"{optimizer.name} has no fused update that reads its learning rate from the device"
    if optimizer.capturable:
        return f"{optimizer.name} is capturable: the script may already capture it"
    return unfit(optimizer)


def graph(optimizer: Any, recording: Callable[[], None], gave_up: Callable[[str], None]) -> GraphedUpdate:
    """From some steps on, an optimizer's update is a CUDA graph. Raises Refused where it can't be.

    recording: called in steps that take longer for it; gave_up: with the reason.
    """
    from hotlap.agent.seams import Refused

    devices = {p.device for group in optimizer.param_groups for p in group["params"]}
    if any(device.type != "cuda" for device in devices):
        raise Refused("its parameters are not on a CUDA device")
    if why := prepare(optimizer):
        raise Refused(why)
    device = devices.pop()

    def leave(optimizer: Any, why: str) -> None:
        begin_at_zero(optimizer)
        gave_up(why)

    update = GraphedUpdate(
        optimizer,
        lambda work: capture(work, device),
        prepare=prepare,
        room=lambda size: room(size, device),
        recording=recording,
        gave_up=leave,
    )
    setattr(optimizer, internals().INIT_GROUP, update)
    return update


def prepare(optimizer: Any) -> str | None:
    """Fuse an optimizer, with its counts of steps on the device; why it can't be recorded, if so."""
    import torch

    kind = type(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if kind not in {getattr(torch.optim, name) for name in KINDS}:
        return f"{kind.__name__} is not one of torch's own"
    if any(group.get("capturable") for group in optimizer.param_groups):
        return f"{kind.__name__} is capturable: the script may already capture it"
    if any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups):
        return "its learning rate is a tensor"
    if any(type(p) not in {torch.Tensor, torch.nn.Parameter} for p in parameters):
        return "its parameters are of a class of their own, as sharded ones are"
    fuse(optimizer)
    return None if all(group.get("fused") for group in optimizer.param_groups) else "it has no fused form here"


LEVER = GraphOptimizer()
