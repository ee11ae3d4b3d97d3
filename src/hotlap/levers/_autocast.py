"""Not a lever: autocast to a half precision around the outermost forward, which levers share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

ORDER: Final = 10
HALF: Final = ("bfloat16", "float16")


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
