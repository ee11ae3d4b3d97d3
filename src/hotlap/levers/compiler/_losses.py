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
    """What compiles losses, once, and what takes that back, for levers that are switched."""
    left: list[Callable[[], None]] = []

    def on() -> None:
        if not left:
            left.append(compile_losses())

    def off() -> None:
        while left:
            left.pop()()

    return on, off


def compile_losses() -> Callable[[], None]:
    """Compile `F.cross_entropy` where its logits are many, on the device. Returns what takes it back; what was compiled
    is kept with torch's code, and found there if it is put in again."""
    import torch

    functional = torch.nn.functional
    original = functional.cross_entropy
    compiled, inside = torch.compile(original), True

    @functools.wraps(original)
    def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
        # The compiler's own passes call this again, by its name in torch, with tensors of types of their own.
        if torch.compiler.is_compiling() or type(input) is not torch.Tensor or not _large(input):
            return original(input, *args, **kwargs)
        return (compiled if inside else original)(input, *args, **kwargs)

    internals().script_instead(cross_entropy, original)
    functional.cross_entropy = cross_entropy

    def leave() -> None:
        nonlocal inside
        inside = False  # for names of the script's
        if functional.cross_entropy is cross_entropy:
            functional.cross_entropy = original

    return leave
