"""The optimizer's state waits on the host between its steps, so that it does not lie beside the activations.

Each step brings it back, updates it where it always was, and takes it away again: every number stays the same.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, Unwritten

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import OptimizerFacts

STATES: Final = {
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "SGD",
}  # fmt: skip


class OptimizerOffload(Lever):
    """The tensors of `optimizer.state`, on the host but in `optimizer.step()`."""

    name = "optimizer-offload"
    meaning = "the optimizer's state is kept in pinned host memory between its steps"
    risk = "exact"
    needs_gpu = True
    saves_memory = True
    memory_order = 90
    frees = {"optimizer state": 1.0}
    takes = "as much host memory, and copies of it there and back in each update"
    unwritten = Unwritten(
        "it needs two hooks of about 20 lines that move the optimizer's state; checkpoints and other code that "
        "reads the state between steps would need review",
        "optimizers",
    )

    def applies(self, context: Context) -> Applies:
        optimizers = context.facts.optimizers
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; its optimizer's state is in host memory already")
        if not any(root.training for root in context.facts.roots):
            return Applies(False, "no module's forward was seen in training")
        whys = [_why_not(optimizer) for optimizer in optimizers]  # none seen: memory ran out before the first step
        if whys and all(whys):
            return Applies(False, whys[0] or "")
        names = ", ".join(o.name for o, why in zip(optimizers, whys, strict=True) if not why) or "the optimizer"
        return Applies(True, f"{names} keeps its state on the device while activations are made")

    def install(self, seams: "Seams", settings: Settings) -> None:
        seams.on_optimizer(partial(offload, guarded=partial(seams.guarded, self.name)))

    def source(self, settings: Settings) -> str:
        return (
            "optimizer.register_step_pre_hook(to_device)  # optimizer.state's tensors to their parameters' device\n"
            "optimizer.register_step_post_hook(to_host)"
        )


def _why_not(optimizer: "OptimizerFacts") -> str | None:
    if not optimizer.builtin or optimizer.name not in STATES:
        return f"{optimizer.name} is not one of torch's own, so how it uses its state is unknown"
    if optimizer.capturable:
        return f"{optimizer.name} is capturable, so its state must stay at its address"
    return None


def offload(optimizer: Any, guarded: Callable[[Callable[[], None]], Callable[..., Any]], host: str = "cpu") -> None:
    """From its next step on, an optimizer of torch's own has its state on the host between steps, until that fails:
    host memory may have no room for it. Raises Refused for others.

    guarded: gets what takes it back, returns what calls under the guard (`Seams.guarded`). host: a device, for tests.
    """
    import torch

    from hotlap.agent.seams import Refused

    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ not in STATES:
        raise Refused(f"{kind.__name__} is not one of torch's own")
    if any(group.get("capturable") for group in optimizer.param_groups):
        raise Refused(f"{kind.__name__} is capturable, so its state must stay at its address")
    home: dict[tuple[int, str], Any] = {}
    reference, failed = weakref.ref(optimizer), False

    def bring_back(optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                device = home.pop((id(parameter), name), None)
                if device is not None:
                    state[name] = value.to(device, non_blocking=True)

    def leave() -> None:
        nonlocal failed
        failed = True
        bring_back(reference(), (), {})

    call = guarded(leave)

    def take_away(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not failed:
            call(moved, optimizer)

    def moved(optimizer: Any) -> None:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                # A moment, not a count of steps.
                if isinstance(value, torch.Tensor) and value.dim() > 0 and value.device.type != host:
                    home[id(parameter), name] = value.device
                    state[name] = on_host(value, host)
        for device in set(home.values()):
            if device.type == "cuda":  # the script may look at the state, or save it, at any time
                torch.cuda.current_stream(device).synchronize()

    optimizer.register_step_pre_hook(bring_back)
    optimizer.register_step_post_hook(take_away)


def on_host(value: Any, host: str) -> Any:
    """A copy, pinned where it comes from a GPU, that is there when the current stream has come so far."""
    import torch

    kept = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=host, pin_memory=value.is_cuda)
    return kept.copy_(value, non_blocking=True)


LEVER = OptimizerOffload()
