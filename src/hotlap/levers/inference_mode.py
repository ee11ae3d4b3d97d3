"""Outermost forwards without gradients run in `torch.inference_mode` instead of `no_grad`.

Tensors made in it have no version counters and track no views. What the forward returns is copied outside of it, so
that the script may go on with it as before.
"""

from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

ORDER: Final = 40
"""Outside of autocast (10), compile (20) and what else wraps the forward."""
SHARE: Final = 0.15
"""Of a forward of small ops: 0.10 to 0.13 of its CPU time were saved with torch 2.13 (24 blocks of a linear layer and a
layer norm, width 32). Large ones gain next to nothing."""


class InferenceMode(Lever):
    name = "inference-mode"
    meaning = "forwards without gradients in torch.inference_mode, which costs the host less for each op"
    risk = "exact"

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if facts.mode != "inference":
            return Applies(False, "the command trains")
        if any(root.training for root in facts.roots):
            return Applies(False, "the forward runs with gradients enabled")
        return Applies(True, "the forward runs without gradients")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        seams.wrap_forward(in_inference_mode, ORDER)

    def source(self, settings: Settings) -> str:
        return "with torch.inference_mode():  # instead of torch.no_grad()\n    output = model(inputs)"


def in_inference_mode(module: Any, forward: "Forward") -> "Forward":
    """The forward, in inference mode wherever gradients are off."""
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return forward(*args, **kwargs)
        with torch.inference_mode():
            output = forward(*args, **kwargs)
        return own(output)

    return call


def own(value: Any) -> Any:
    """Tensors made in inference mode as ordinary ones, in any nest of tuples, lists and mappings."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[own(item) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)([own(item) for item in value])
    if isinstance(value, dict):
        for key, item in list(value.items()):  # ModelOutput and the like: keep the object
            value[key] = own(item)
    return value


LEVER = InferenceMode()
