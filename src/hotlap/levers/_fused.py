"""Not a lever: torch's own optimizers switched to their fused kernels, which levers share."""

import types
import weakref
from typing import TYPE_CHECKING, Any, Final

from ._internals import internals

if TYPE_CHECKING:
    from hotlap.records.run import OptimizerFacts

FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")
FLAGS: Final = "_hotlap_kernel_flags"
KERNEL: Final = ("fused", "foreach")
TYPES: Final = {"float32", "float64", "float16", "bfloat16"}


def unfit(optimizer: "OptimizerFacts") -> str | None:
    """Why the parameters of an optimizer are none for a fused kernel; None if they are."""
    if optimizer.sparse:
        return f"{optimizer.name} gets sparse gradients, which the fused kernel does not support"
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
        return f"{kind.__name__} is differentiable, or uses dampening"
    if len({p.device for p in parameters}) != 1 or any(not p.is_floating_point() for p in parameters):
        return f"the parameters of {kind.__name__} lie on several devices, or are not floating point"
    if any(p.grad is not None and p.grad.layout != torch.strided for p in parameters):
        return f"{kind.__name__} gets sparse gradients, which the fused kernel does not support"
    if not hasattr(optimizer, FLAGS):
        setattr(optimizer, FLAGS, _Flags(optimizer))
    for group in (*optimizer.param_groups, optimizer.defaults):  # groups that are added later take the defaults
        group["fused"], group["foreach"] = True, False
    for parameter, state in optimizer.state.items():  # a resumed run has its step counts already
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    for name in internals().FUSED_FLAGS:
        setattr(optimizer, name, True)
    begin_at_zero(optimizer)
    return None


def unfuse(optimizer: Any) -> None:
    """Between two steps: an optimizer that was fused here updates as the script asked for, with the state that it has
    by now."""
    import torch

    flags: _Flags | None = vars(optimizer).pop(FLAGS, None)
    if flags is None:
        return
    for hook in flags.hooks:  # it saves and loads what it is
        hook.remove()
    later = len(optimizer.param_groups) - len(flags.groups)  # groups that were added meanwhile
    wanted = (*flags.groups, *[flags.defaults] * later, flags.defaults)
    for group, own in zip((*optimizer.param_groups, optimizer.defaults), wanted, strict=True):
        for name in KERNEL:
            group.pop(name, None)
        group.update(own)
    if flags.on_host:
        precise = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32  # as torch makes them
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to("cpu", precise)
    inner = internals()
    for name in inner.FUSED_FLAGS:
        vars(optimizer).pop(name, None)
    vars(optimizer).update(flags.attributes)
    if getattr(vars(optimizer).get(inner.INIT_GROUP), "__func__", None) is collect:
        delattr(optimizer, inner.INIT_GROUP)


class _Flags:
    """What the script asked of its optimizer's kernels: that is what it saves, and what others load. A run without the
    lever would go on fused from its checkpoint, and torch's fused SGD with momentum fails where some parameters had no
    gradient yet. Registered with an optimizer, whose copies and pickles take it not along."""

    def __init__(self, optimizer: Any) -> None:
        self.read(optimizer)
        self.defaults = _kernel(optimizer.defaults)
        self.attributes = {name: vars(optimizer)[name] for name in internals().FUSED_FLAGS if name in vars(optimizer)}
        self.hooks = (
            optimizer.register_state_dict_post_hook(self.saved),
            optimizer.register_load_state_dict_post_hook(self.loaded),
        )

    def read(self, optimizer: Any) -> None:
        self.groups = [_kernel(group) for group in optimizer.param_groups]
        self.on_host = not any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)

    def saved(self, optimizer: Any, saved: dict[str, Any]) -> None:
        """After `state_dict`, whose groups are of its own."""
        flags = [*self.groups, *[self.defaults] * len(saved["param_groups"])]
        for group, own in zip(saved["param_groups"], flags, strict=False):
            group.update(own)
        if self.on_host:
            saved["state"] = {
                key: {**state, "step": state["step"].cpu()} if hasattr(state.get("step"), "cpu") else state
                for key, state in saved["state"].items()
            }

    def loaded(self, optimizer: Any) -> None:
        """After `load_state_dict`, which brings the flags of what was saved."""
        self.read(optimizer)
        fuse(optimizer)


def _kernel(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in KERNEL if name in group}


def _dampens(group: dict[str, Any]) -> bool:
    """Whether a group's first momentum is the whole gradient and later ones are not: it can't begin at zero."""
    return bool(group.get("momentum") and group.get("dampening"))


def begin_at_zero(optimizer: Any) -> None:
    """Let the momentum of a fused SGD begin at zero, in an optimizer that has no `INIT_GROUP` of its own yet. A group
    that turns out to have sparse gradients is fused no more.

    That is the same number (0 * momentum + gradient), and torch's fused SGD (seen in 2.13) goes wrong without: it
    raises TypeError where a parameter gets its first gradient later than others, and leaves the momentum
    uninitialized where a GradScaler skips the first update.
    """
    import torch

    kinds, name = (torch.optim.SGD, torch.optim.Adagrad), internals().INIT_GROUP
    if type(optimizer) in kinds and name not in vars(optimizer):
        # A proxy, so that the optimizer does not hold itself. Copies and pickles of it take neither along.
        setattr(optimizer, name, types.MethodType(collect, weakref.proxy(optimizer)))


def collect(optimizer: Any, group: dict[str, Any], *lists: Any) -> Any:
    """As `INIT_GROUP` of the optimizer's class: append a group's tensors to `lists`, momentum from zero."""
    import torch

    result = getattr(optimizer.__class__, internals().INIT_GROUP)(optimizer, group, *lists)
    if group.get("fused") and (result[0] if isinstance(result, tuple) else result):  # of a layer that was frozen
        group["fused"] = False
    if optimizer.__class__ is torch.optim.SGD and group.get("fused") and not _dampens(group):
        _, gradients, momentum = lists
        for at, known in enumerate(momentum):
            if known is None:
                momentum[at] = torch.zeros_like(gradients[at])
    return result
