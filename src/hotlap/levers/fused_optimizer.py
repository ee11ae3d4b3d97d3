"""The fused implementation of torch's own optimizers: one kernel for all parameters."""

from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")


class FusedOptimizer(Lever):
    name = "fused-optimizer"
    meaning = "the optimizer updates all parameters in one kernel"
    risk = "numeric"
    tolerance = 0.005

    def applies(self, context: Context) -> Applies:
        optimizers = context.facts.optimizers
        if not optimizers:
            return Applies(False, "no torch optimizer steps in this script")
        whys = [_why_not(optimizer) for optimizer in optimizers]
        if all(whys):
            return Applies(False, whys[0] or "")
        names = ", ".join(o.name for o, why in zip(optimizers, whys, strict=True) if not why)
        return Applies(True, f"{names} runs unfused")

    def share(self, context: Context) -> float:
        return 0.7 * context.share_of("optimizer")

    def scenario(self, settings: Settings) -> str | None:
        return "fused_optimizer"

    def install(self, seams: "Seams", settings: Settings) -> None:
        seams.on_optimizer(fuse)

    def source(self, settings: Settings) -> str:
        return "torch.optim.AdamW(..., fused=True)  # likewise Adam, SGD, Adagrad"


def _why_not(optimizer: Any) -> str | None:
    """Why an optimizer (its facts) can't be fused."""
    if not optimizer.builtin or optimizer.name not in FUSED:
        return f"{optimizer.name} has no fused implementation"
    if optimizer.fused:
        return f"{optimizer.name} is fused already"
    if optimizer.sparse:
        return f"{optimizer.name} gets sparse gradients, which the fused kernel does not take"
    if len(optimizer.devices) != 1:
        return f"the parameters of {optimizer.name} lie on {len(optimizer.devices)} devices"
    if not set(optimizer.dtypes) <= {"float32", "float64", "float16", "bfloat16"}:
        return f"{optimizer.name} has parameters of {', '.join(optimizer.dtypes)}"
    return None


def fuse(optimizer: Any) -> None:
    """Switch an optimizer to its fused kernel before its first step; one that can't be is left as it is."""
    import torch

    kind = type(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if kind.__name__ not in FUSED or not kind.__module__.startswith("torch.optim"):
        return
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return
    if len({p.device for p in parameters}) != 1 or any(not p.is_floating_point() for p in parameters):
        return
    if any(p.grad is not None and p.grad.layout != torch.strided for p in parameters):
        return
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    for parameter, state in optimizer.state.items():  # a resumed run has its step counts already
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    optimizer._step_supports_amp_scaling = True
    optimizer._need_device_dtype_check_for_fused = True


LEVER = FusedOptimizer()
