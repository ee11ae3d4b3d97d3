"""Not a lever: torch's own optimizers switched to their fused kernels, which levers share."""

import types
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hotlap.records.run import OptimizerFacts

FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")
TYPES: Final = {"float32", "float64", "float16", "bfloat16"}


def unfit(optimizer: "OptimizerFacts") -> str | None:
    """Why the parameters of an optimizer are none for a fused kernel; None if they are."""
    if optimizer.sparse:
        return f"{optimizer.name} gets sparse gradients, which the fused kernel does not take"
    if len(optimizer.devices) != 1:
        return f"the parameters of {optimizer.name} lie on {len(optimizer.devices)} devices"
    if not set(optimizer.dtypes) <= TYPES:
        return f"{optimizer.name} has parameters of {', '.join(optimizer.dtypes)}"
    return None


def fuse(optimizer: Any) -> str | None:
    """Switch an optimizer to its fused kernel between two steps. Returns why it was left as it is, None if not."""
    import torch

    kind = type(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if kind.__name__ not in FUSED or not kind.__module__.startswith("torch.optim"):
        return f"{kind.__name__} has no fused implementation"
    if any(group.get("differentiable") or _dampens(group) for group in optimizer.param_groups):
        return f"{kind.__name__} is differentiable, or dampens its momentum"
    if len({p.device for p in parameters}) != 1 or any(not p.is_floating_point() for p in parameters):
        return f"the parameters of {kind.__name__} lie on several devices, or are none of floating point"
    if any(p.grad is not None and p.grad.layout != torch.strided for p in parameters):
        return f"{kind.__name__} gets sparse gradients, which the fused kernel does not take"
    for group in (*optimizer.param_groups, optimizer.defaults):  # groups that are added later take the defaults
        group["fused"], group["foreach"] = True, False
    for parameter, state in optimizer.state.items():  # a resumed run has its step counts already
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    optimizer._step_supports_amp_scaling = True
    optimizer._need_device_dtype_check_for_fused = True
    begin_at_zero(optimizer)
    return None


def _dampens(group: dict[str, Any]) -> bool:
    """Whether a group's first momentum is the whole gradient and later ones are not: it can't begin at zero."""
    return bool(group.get("momentum") and group.get("dampening"))


def begin_at_zero(optimizer: Any) -> None:
    """Let the momentum of a fused SGD begin at zero, in an optimizer that has no `_init_group` of its own yet.

    That is the same number (0 * momentum + gradient), and torch's fused SGD (seen in 2.13) goes wrong without: it
    raises TypeError where a parameter gets its first gradient later than others, and leaves the momentum
    uninitialized where a GradScaler skips the first update.
    """
    import torch

    if type(optimizer) is torch.optim.SGD and "_init_group" not in vars(optimizer):
        # A proxy, so that the optimizer does not hold itself. Copies and pickles of it take neither along.
        optimizer._init_group = types.MethodType(collect, weakref.proxy(optimizer))


def collect(optimizer: Any, group: dict[str, Any], *lists: Any) -> Any:
    """As `_init_group` of the optimizer's class: append a group's tensors to `lists`, momentum from zero."""
    import torch

    result = optimizer.__class__._init_group(optimizer, group, *lists)
    if optimizer.__class__ is torch.optim.SGD and group.get("fused") and not _dampens(group):
        _, gradients, momentum = lists
        for at, known in enumerate(momentum):
            if known is None:
                momentum[at] = torch.zeros_like(gradients[at])
    return result
