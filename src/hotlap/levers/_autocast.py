"""Not a lever: autocast to a half precision around the outermost forward, which levers share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

ORDER: Final = 10
WIDENING: Final = 70
"""Outside of what compiles (20) and captures (60) a forward."""
HALF: Final = ("bfloat16", "float16")
DEVICES: Final = ("cuda",)
"""Where losses are compiled."""
LEAST_LOGITS: Final = 1 << 22
"""Fewer cost less to widen than it costs to look after them."""
PATIENCE: Final = 4
"""Forwards of which a loss must have taken such an output as it is."""


def in_half(device: str) -> bool:
    """Whether the script's own autocast is to a half precision. The dtype decides, not the flag: a script inside
    autocast(dtype=float32) has none of its own."""
    import torch

    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in {torch.bfloat16, torch.float16}


def product_dtype(tensor: Any) -> Any:
    """The dtype that a product with a tensor is computed in."""
    import torch

    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def autocasting(
    half: Any, wanted: Callable[[], bool] = lambda: True, left: Callable[[Any], bool] = lambda tensor: False
) -> "Callable[[Any, Forward], Forward]":
    """Autocast to a dtype of torch around a forward whose caller gets float32 back; while it is wanted. left: which
    outputs are left to others to widen."""
    import torch

    def wrap(module: Any, forward: "Forward") -> "Forward":
        device = next((p.device.type for p in module.parameters()), "cpu")

        def widened(tensor: Any) -> Any:
            return tensor if tensor.dtype != half or left(tensor) else tensor.float()

        def half_forward(*args: Any, **kwargs: Any) -> Any:
            if in_half(device) or not wanted():
                return forward(*args, **kwargs)
            with torch.autocast(device, dtype=half):
                output = forward(*args, **kwargs)
            return each_tensor(output, widened)

        return half_forward

    return wrap


def large(tensor: Any) -> bool:
    """Whether an output in half precision is left to be widened outside of what compiles or captures the forward."""
    import torch

    many = tensor.dim() > 1 and tensor.numel() >= LEAST_LOGITS
    return many and tensor.device.type in DEVICES and torch.is_grad_enabled()


class Widening:
    """Large outputs in half precision, which the caller gets as float32 that is not made before something needs it: a
    compiled loss (`_losses`) reads the halves."""

    def __init__(self, half: Any) -> None:
        self.half = half
        self.made = self.fused = 0

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around a forward that leaves them as they are."""
        device = next((p.device.type for p in module.parameters()), "cpu")

        def wide_forward(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            return output if in_half(device) else each_tensor(output, self._wide)

        return wide_forward

    def _wide(self, tensor: Any) -> Any:
        import torch

        if tensor.dtype != self.half or not large(tensor):
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
