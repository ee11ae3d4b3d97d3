"""`scaled_dot_product_attention` by another of the kernels that torch allows for its inputs.

torch takes the first of an order of its own that can: flash, memory-efficient, separate products (math); on Hopper and
datacenter Blackwell cuDNN's before all. cuDNN plans anew for each shape that it has not seen: 45 ms on an H100, now and
then 500, where the kernel runs for 0.03. Where lengths vary that is most of the step, so cuDNN's is left out first; the
others need no plan. Where that wins nothing, and where torch would not take cuDNN's, the kernels that come first are
left out in turn: a trial tells whether the next one is faster here, and where it is slower the rest is not tried. An
input that a kernel does not take (a mask, float32, a large head) goes to those after it, as without the lever.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, unknown
from .._held import hold

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

PREFERS: Final = (9, 10)
"""Major compute capabilities on which torch tries cuDNN's attention first (`check_prefer_cudnn_attention` of its
sdp_utils.cpp)."""
FLASHES: Final = (8, 0)
"""Compute capability from which on it has the flash kernel."""
HALF: Final = ("bfloat16", "float16")
VARIED, FIXED = 0.9, 0.05
"""Of forward and backward, at most."""
BEFORE: Final[dict[str, tuple[str, ...]]] = {
    "flash": ("cudnn",),
    "efficient": ("cudnn", "flash"),
    "math": ("cudnn", "flash", "mem_efficient"),
}
"""The kernels that are left out so that this one is the first: `torch.backends.cuda.enable_NAME_sdp`."""
FLASH: Final = "flash"
"""What settings without a kernel mean: cuDNN's is left out, and no other."""


class SdpaBackend(Lever):
    name = "sdpa-backend"
    meaning = "attention by another of torch's kernels: not by cuDNN's, which plans anew for each length"
    risk = "numeric"
    needs_gpu = True
    tolerance = 0.005
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; the kernels are CUDA's")
        if facts.capability is None:
            return Applies(False, "which kernels of attention the device can run is not known")
        if not any(root.sdpa for root in facts.roots):
            return Applies(False, "no scaled_dot_product_attention was found in the code of the model")
        if _first(context) != "cudnn":
            return Applies(True, f"of attention torch takes the {_first(context)} kernel first")
        if context.varied:
            return Applies(True, "inputs come in many shapes, and cuDNN's attention plans anew for each")
        return Applies(True, "attention in half precision, for which torch prefers cuDNN's")

    def variants(self, context: Context) -> list[Settings]:
        """From the kernel after the one that torch takes, in its order: two at most."""
        efficient, math = {"kernel": "efficient"}, {"kernel": "math"}
        after = {"cudnn": [{}, efficient], "flash": [efficient, math], "efficient": [math]}
        return after.get(_first(context), [{}])

    def searched(self, context: Context) -> bool:
        """Where it leaves out what is mostly the fastest, it is tried by itself and not among others."""
        return _first(context) in {"flash", "efficient"}

    def share(self, context: Context) -> float:
        plans = _first(context) == "cudnn" and context.varied
        return (VARIED if plans else FIXED) * context.share_of("forward", "backward")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        chosen = settings.get("kernel", FLASH)
        if not isinstance(chosen, str) or chosen not in BEFORE:
            return f"kernel must be one of {', '.join(BEFORE)}, not {chosen!r}"
        return unknown(settings, ("kernel",))

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        for name in left_out(settings):
            switches = torch.backends.cuda
            hold(seams, getattr(switches, f"{name}_sdp_enabled"), getattr(switches, f"enable_{name}_sdp"), False)

    def source(self, settings: Settings) -> str:
        return "\n".join(lines(settings)) + "  # before the loop"


def left_out(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The kernels that torch may not take, by the names of its switches."""
    return BEFORE[settings.get("kernel", FLASH)]


def lines(settings: Mapping[str, Any]) -> list[str]:
    """The switches as they are written in source."""
    return [f"torch.backends.cuda.enable_{name}_sdp(False)" for name in left_out(settings)]


def _first(context: Context) -> str:
    """The kernel that torch tries first, "" where it is asked for none. Where lengths vary it is said to be cuDNN's in
    float32 too: bf16-autocast is tried together with this lever, or loses by the plans."""
    if not any(root.sdpa for root in context.facts.roots):
        return ""
    capability, half = context.facts.capability or (0, 0), _half(context)
    if capability[0] in PREFERS and (half or context.varied):
        return "cudnn"
    return FLASH if half and capability >= FLASHES else "efficient"


def _half(context: Context) -> bool:
    """Whether attention may run in half precision: by a lever, the script's autocast, or the model's own type."""
    if not {"bf16-autocast", "fp16-scaling"}.isdisjoint(context.active):
        return True
    return any(root.autocast in HALF or not set(HALF).isdisjoint(root.dtypes) for root in context.facts.roots)


LEVER = SdpaBackend()
