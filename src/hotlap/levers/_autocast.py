"""Not a lever: autocast to a half precision around the outermost forward, which levers share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

ORDER: Final = 10
HALF: Final = ("bfloat16", "float16")


def product_dtype(tensor: Any) -> Any:
    """The dtype that a product with a tensor is computed in."""
    import torch

    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def autocasting(half: Any, wanted: Callable[[], bool] = lambda: True) -> "Callable[[Any, Forward], Forward]":
    """Autocast to a dtype of torch around a forward whose caller gets float32 back; while it is wanted."""
    import torch

    halves = (torch.bfloat16, torch.float16)

    def wrap(module: Any, forward: "Forward") -> "Forward":
        device = next((p.device.type for p in module.parameters()), "cpu")

        def half_forward(*args: Any, **kwargs: Any) -> Any:
            # The dtype decides, not the flag: a script inside autocast(dtype=float32) has none of its own.
            own = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in halves
            if own or not wanted():
                return forward(*args, **kwargs)
            with torch.autocast(device, dtype=half):
                output = forward(*args, **kwargs)
            return each_tensor(output, lambda tensor: tensor.float() if tensor.dtype == half else tensor)

        return half_forward

    return wrap
