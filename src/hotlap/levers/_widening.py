"""Not a lever: large outputs in half precision, which the script gets as float32 that is not made before something
needs it. A compiled loss (`_losses`) reads the halves.

The forward inside, which may be compiled and captured, leaves them as they are; they are widened around it.
"""

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
PATIENCE: Final = 4
"""Forwards of which a loss must have taken such an output as it is."""


def large(tensor: Any) -> bool:
    """Whether an output in half precision is left to be widened outside of what compiles or captures the forward."""
    import torch

    many = tensor.dim() > 1 and tensor.numel() >= LEAST_LOGITS
    return many and tensor.device.type in DEVICES and torch.is_grad_enabled()


class Later:
    """Large outputs of one process' models that are made as the script expects them once something needs them."""

    def __init__(self) -> None:
        self.made = self.fused = 0

    def __call__(self, tensor: Any, dtype: Any) -> Any:
        """An output, in a dtype and without gaps between its rows; at once where no loss takes it as it is."""
        import torch

        from ._lazy_logits import Product, Watch, alone, lazy_logits, product

        taken = hasattr(torch.nn.functional.cross_entropy, "of_half") and (self.made < PATIENCE or self.fused)
        if type(tensor) is not torch.Tensor or not tensor.requires_grad or not taken or not alone(tensor):
            return product(tensor, None, None, dtype)
        self.made += 1
        return lazy_logits(Product(tensor, None, None, dtype, Watch(self._count, lambda name: None)))

    def _count(self) -> None:
        self.fused += 1


class Widening:
    """The outputs of one process' models that are in half precision, as float32."""

    def __init__(self, half: Any) -> None:
        self.half = half
        self.later = Later()

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around a forward that leaves them as they are."""
        device = next((p.device.type for p in module.parameters()), "cpu")

        def wide_forward(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            return output if in_half(device) else each_tensor(output, self._wide)

        return wide_forward

    def _wide(self, tensor: Any) -> Any:
        import torch

        return self.later(tensor, torch.float32) if tensor.dtype == self.half else tensor
