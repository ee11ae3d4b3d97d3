"""Not a lever: the loss function, which lies outside of the model's forward, compiled beside it."""

import functools
from collections.abc import Callable
from typing import Any, Final

from .._internals import internals

LARGE: Final = 1 << 20


def _large(logits: Any) -> bool:
    """A cross-entropy over many logits on the device is several passes over them in eager mode, one or two compiled."""
    return bool(logits.is_cuda and logits.numel() >= LARGE)


def switched_losses() -> tuple[Callable[[], None], Callable[[], None]]:
    """What compiles `F.cross_entropy` where its logits are many, on the device, and what takes that back, for levers
    that are switched. What was compiled is kept with torch's code, and found there if it is put in again."""
    import torch

    functional = torch.nn.functional
    original = functional.cross_entropy
    compiled: Callable[..., Any] | None = None
    inside = False

    @functools.wraps(original)
    def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
        # The compiler's own passes call this again, by its name in torch, with tensors of types of their own.
        if compiled is None or not inside or torch.compiler.is_compiling():
            return original(input, *args, **kwargs)
        large = type(input) is torch.Tensor and _large(input)
        return (compiled if large else original)(input, *args, **kwargs)

    internals().script_instead(cross_entropy, original)

    def on() -> None:
        nonlocal compiled, inside
        compiled, inside = compiled or torch.compile(original), True
        if functional.cross_entropy is original:
            functional.cross_entropy = cross_entropy

    def off() -> None:
        nonlocal inside
        inside = False  # for names of the script's
        if functional.cross_entropy is cross_entropy:
            functional.cross_entropy = original

    return on, off
