"""Outermost forwards without gradients run in `torch.inference_mode` instead of `no_grad`.

Tensors made in it have no version counters and track no views, but may neither be changed in place outside of it nor
saved for a backward. So what the forward returns is copied outside of it, and forwards that leave tensors elsewhere (a
cache in the model or in an argument, hooks) are left alone: the first ones run as they are and are watched for that.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, not_inference
from ._effects import has_hooks, strange, tensors
from ._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

ORDER: Final = 40
"""Outside of autocast (10), compile (20) and what else wraps the forward."""
SHARE: Final = 0.15
"""Of the forward of a small attention, whose ops are mostly views: 1.13 to 1.19 times as fast with torch 2.13 on a CPU
(6 layers, width 32). A stack of linear layers and layer norms gained nothing (0.98 to 1.03 times)."""
WATCHED: Final = 4


class InferenceMode(Lever):
    name = "inference-mode"
    meaning = "forwards without gradients in torch.inference_mode, which costs the host less for each op"
    risk = "exact"
    switchable = True

    def applies(self, context: Context) -> Applies:
        why = not_inference(context)
        return Applies(False, why) if why else Applies(True, "the forward runs without gradients")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        seams.wrap_forward(in_inference_mode(lambda why: seams.refuse(self.name, why)), ORDER)

    def source(self, settings: Settings) -> str:
        return "with torch.inference_mode():  # instead of torch.no_grad()\n    output = model(inputs)"


def in_inference_mode(refuse: Callable[[str], None]) -> "Callable[[Any, Forward], Forward]":
    """A wrapper of forwards: in inference mode wherever gradients are off. refuse: told why one is left alone."""

    def wrap(module: Any, forward: "Forward") -> "Forward":
        import torch

        reference, left = weakref.ref(module), WATCHED

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left < 0 or torch.is_grad_enabled() or torch.is_inference_mode_enabled():
                return forward(*args, **kwargs)
            if left > 0:
                output, why = _watched(reference(), forward, args, kwargs)
                left -= 1
                if why:
                    left = -1
                    refuse(why)
                return output
            with torch.inference_mode():
                output = forward(*args, **kwargs)
            return each_tensor(output, _own)

        return call

    return wrap


def _watched(module: Any, forward: "Forward", args: Any, kwargs: Any) -> tuple[Any, str]:
    """The output of a forward as it is, and why later ones must not run in inference mode, "" if they may."""
    before = tensors((module, args, kwargs))
    output = forward(*args, **kwargs)
    if has_hooks(module):
        return output, "hooks on modules get tensors that are made inside of the forward"
    if tensors((module, args, kwargs)).keys() - before.keys():
        return output, "the forward leaves new tensors in the model or in its arguments"
    other = strange(output)
    return output, f"the forward returns an object of class {other}" if other else ""


def _own(tensor: Any) -> Any:
    """As an ordinary one."""
    return tensor.clone() if tensor.is_inference() else tensor


LEVER = InferenceMode()
