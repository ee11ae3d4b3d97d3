"""Not a lever: large outputs in half precision, which the script gets as float32 that is not made before something
needs it. A compiled loss (`_losses`) reads the halves.

The forward inside, which may be compiled and captured, leaves them as they are; they are widened around it.
"""

import weakref
from typing import TYPE_CHECKING, Any, Final

from ._autocast import in_half
from ._large_head import LEAST_LOGITS
from ._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

ORDER: Final = 70
"""Outside of what compiles (20) and captures (60) a forward."""
DEVICES: Final = ("cuda",)
"""Where losses are compiled."""
WIDENED: Final["weakref.WeakSet[Any]"] = weakref.WeakSet()
"""Models whose outputs are widened here."""
PATIENCE: Final = 4
"""Forwards of which a loss must have taken such an output as it is."""


def large(tensor: Any) -> bool:
    """Whether an output in half precision is left to be widened outside of what compiles or captures the forward."""
    import torch

    many = tensor.dim() > 1 and tensor.numel() >= LEAST_LOGITS
    return many and tensor.device.type in DEVICES and torch.is_grad_enabled()


class Widening:
    """The outputs of one process' models."""

    def __init__(self, half: Any) -> None:
        self.half = half
        self.made = self.fused = 0

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around a forward that leaves them as they are."""
        device = next((p.device.type for p in module.parameters()), "cpu")
        WIDENED.add(module)

        def wide_forward(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            return output if in_half(device) else each_tensor(output, self._wide)

        return wide_forward

    def _wide(self, tensor: Any) -> Any:
        import torch

        if tensor.dtype != self.half:
            return tensor
        taken = hasattr(torch.nn.functional.cross_entropy, "of_half") and (self.made < PATIENCE or self.fused)
        if type(tensor) is not torch.Tensor or not tensor.requires_grad or not taken:
            return tensor.float()
        from ._lazy_logits import Product, Watch, alone, lazy_logits

        if not alone(tensor):
            return tensor.float()
        self.made += 1
        return lazy_logits(Product(tensor, None, None, torch.float32, Watch(self._count, lambda name: None)))

    def _count(self) -> None:
        self.fused += 1
