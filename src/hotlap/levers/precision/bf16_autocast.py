"""bfloat16 autocast around the outermost forward; the caller gets float32 back."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from .. import _same_random, _transforms, known
from .._base import Applies, Around, Context, Settings, single_precision
from .._nested import each_tensor

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Facts

HALF: Final = ("bfloat16", "float16")


class Bf16Autocast(_same_random.DrawsOtherwise):
    """`torch.autocast(device, dtype=torch.bfloat16)` around the forward."""

    name = "bf16-autocast"
    meaning = "matrix products and convolutions of the forward and its backward in bfloat16, weights in float32"
    causes = {"arithmetic": 0, "kernels": 1, "bytes": 3, "precision": 0, "memory": 0, "on-cpu": 6}
    risk = "numeric"
    tolerance = 0.02
    excludes = ()
    switchable = True
    memory_order = 20
    frees = {"activations": 0.5, "request": 0.5}
    takes = "rounding to 8 bits of mantissa; steps are mostly shorter"
    signs = ("BFloat16", "bfloat16", "same dtype")

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

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        root = facts.model
        able = facts.cpu_bf16 if facts.device != "cuda" else facts.capability is None or facts.capability >= (8, 0)
        return root is not None and (root.autocast is not None or not able or not single_precision(facts))

    def share(self, context: Context) -> float:
        tf32 = "tf32" in context.active or context.facts.tf32_matmul
        # In a replay a cast costs the host nothing, and compiled it is part of another kernel.
        free = any(one.compiles or "backward" in one.causes for one in known(context.active))
        if context.diagnosis.bound == "launch" and not free:
            # casts are launches too: what TF32 leaves to win, a replay has to show
            return (0.01 if tf32 else 0.1) * context.share_of("forward", "backward")
        return (0.35 if tf32 else 0.75) * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        super().install(seams, settings)
        seams.wrap_forward(autocasting, Around.CASTS)

    def source(self, settings: Settings) -> str:
        return "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):\n    output = model(inputs)"


def autocasting(module: Any, forward: "Forward") -> "Forward":
    """Autocast to bfloat16 around a forward whose caller gets float32 back."""
    import torch

    device = next((p.device.type for p in module.parameters()), "cpu")

    def widened(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    def half_forward(*args: Any, **kwargs: Any) -> Any:
        # The dtype decides, not the flag: a script inside autocast(dtype=float32) has none of its own.
        half = torch.get_autocast_dtype(device) in {torch.bfloat16, torch.float16}
        if (torch.is_autocast_enabled(device) and half) or _transforms.vmapped():  # batch norm has no rule for both
            return forward(*args, **kwargs)
        with torch.autocast(device, dtype=torch.bfloat16):
            output = forward(*args, **kwargs)
        return each_tensor(output, widened)

    return half_forward


LEVER = Bf16Autocast()
