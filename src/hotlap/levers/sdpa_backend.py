"""cuDNN's attention is left out of those that `scaled_dot_product_attention` chooses from.

On Hopper and later torch prefers it for half precision, and it plans anew for each shape that it has not seen: 45 ms
on an H100, now and then 500, where the kernel runs for 0.03. Where lengths vary that is most of the step; the flash and
the memory-efficient kernel need no plan. With fixed shapes a trial tells which is the faster.
"""

from typing import TYPE_CHECKING, Final

from ._base import Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

PREFERS: Final = (9, 0)
"""Compute capability from which torch tries cuDNN's attention first (`check_prefer_cudnn_attention` of its
sdp_utils.cpp)."""
HALF: Final = ("bfloat16", "float16")
VARIED, FIXED = 0.9, 0.05
"""Of forward and backward, at most."""


class SdpaBackend(Lever):
    name = "sdpa-backend"
    meaning = "attention by the flash or memory-efficient kernel, not by cuDNN's, which plans anew for each length"
    risk = "numeric"
    tolerance = 0.005

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; cuDNN is CUDA's")
        if facts.capability is None or facts.capability < PREFERS:
            return Applies(False, f"on {facts.device_name or 'the device'} torch does not prefer cuDNN's attention")
        if not any(root.sdpa for root in facts.roots):
            return Applies(False, "no scaled_dot_product_attention was found in the code of the model")
        if context.varied:  # in float32 too: bf16-autocast is tried together with it, or loses by the plans
            return Applies(True, "inputs come in many shapes, and cuDNN's attention plans anew for each")
        if not _half(context):
            return Applies(False, "cuDNN's attention takes half precision only, and nothing is in it")
        return Applies(True, "attention in half precision, for which torch prefers cuDNN's")

    def share(self, context: Context) -> float:
        return (VARIED if context.varied else FIXED) * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        torch.backends.cuda.enable_cudnn_sdp(False)

    def source(self, settings: Settings) -> str:
        return "torch.backends.cuda.enable_cudnn_sdp(False)  # before the loop"


def _half(context: Context) -> bool:
    """Whether attention may run in half precision: by a lever, the script's autocast, or the model's own type."""
    if not {"bf16-autocast", "fp16-scaling"}.isdisjoint(context.active):
        return True
    return any(root.autocast in HALF or not set(HALF).isdisjoint(root.dtypes) for root in context.facts.roots)


LEVER = SdpaBackend()
