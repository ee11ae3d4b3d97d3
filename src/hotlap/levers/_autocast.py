"""Not a lever: autocast to a half precision around the outermost forward, and what levers ask of it."""

from typing import TYPE_CHECKING, Any, Final

from . import _transforms
from ._internals import internals
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


def backward_by_dtypes() -> None:
    """Let compiled backwards compute in the dtypes that their forwards computed in, as eager ones do that are called
    outside of autocast.

    The compiler would make them under the autocast that is on around the compiled code. With a lever's autocast inside
    of that, it is the script's, which on CUDA may be one to float32 that is enabled: all products of the backward were
    in float32. With one to a half precision, products that a model keeps in float32 had a backward in that.
    """
    config = internals().functorch_config()
    if getattr(config, "backward_pass_autocast", None) == "same_as_forward":  # older torch has no choice
        config.backward_pass_autocast = "off"


def autocasting(module: Any, forward: "Forward") -> "Forward":
    """Autocast to bfloat16 around a forward whose caller gets float32 back."""
    import torch

    device = next((p.device.type for p in module.parameters()), "cpu")

    def widened(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    def half_forward(*args: Any, **kwargs: Any) -> Any:
        if in_half(device) or _transforms.vmapped():  # batch norm has no rule for both
            return forward(*args, **kwargs)
        with torch.autocast(device, dtype=torch.bfloat16):
            output = forward(*args, **kwargs)
        return each_tensor(output, widened)

    return half_forward
