"""bfloat16 autocast around the outermost forward; the caller gets float32 back."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._base import Applies, Context, Lever, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

ORDER = 10
HALF = ("bfloat16", "float16")


class Bf16Autocast(Lever):
    name = "bf16-autocast"
    meaning = "matrix products and convolutions of the forward and its backward in bfloat16, weights in float32"
    risk = "numeric"
    tolerance = 0.02
    excludes = ()

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if context.cuda and (facts.capability is None or facts.capability < (8, 0)):
            return Applies(False, f"{facts.device_name or 'the device'} has no bfloat16 tensor cores")
        if not context.cuda and not facts.cpu_bf16:
            return Applies(False, "this CPU does not multiply bfloat16 in hardware")
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if all(root.autocast in HALF for root in facts.roots):
            return Applies(False, f"the script runs in autocast({facts.roots[0].autocast}) already")
        if not any("float32" in root.dtypes for root in facts.roots):
            return Applies(False, f"the weights are {', '.join(facts.roots[0].dtypes)} already")
        return Applies(True, "the forward computes in float32")

    def share(self, context: Context) -> float:
        if context.diagnosis.bound == "launch":
            return 0.1 * context.share_of("forward", "backward")
        best = 0.35 if "tf32" in context.active or context.facts.tf32_matmul else 0.75
        return best * context.share_of("forward", "backward")

    def scenario(self, settings: Settings) -> str | None:
        return "bf16_matmuls"

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        seams.wrap_forward(autocasting(torch.bfloat16), ORDER)

    def source(self, settings: Settings) -> str:
        return 'with torch.autocast("cuda", dtype=torch.bfloat16):  # "cpu" on the CPU\n    output = model(inputs)'


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
            return to_float32(output, half)

        return half_forward

    return wrap


def to_float32(value: Any, half: Any) -> Any:
    """Tensors of a half precision in any nest of tuples, lists and mappings as float32; everything else as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == half else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[to_float32(item, half) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)([to_float32(item, half) for item in value])
    if isinstance(value, dict):
        if type(value) is dict:
            return {key: to_float32(item, half) for key, item in value.items()}
        for key, item in list(value.items()):  # ModelOutput and the like: keep the object
            value[key] = to_float32(item, half)
    return value


LEVER = Bf16Autocast()
