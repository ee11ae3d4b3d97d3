"""The products of a head over a vocabulary with an odd number of classes, on sizes that the tensor cores take.

GPT-2's 50257 classes make rows of 100514 bytes, and the fast kernels want rows in multiples of 16. The head multiplies
with a copy of its weight that has rows of zeros behind it, up to a multiple of 64, made anew in each forward out of
the cast that autocast makes anyway. The script gets the first columns of the result, as a view; the gradient gets
columns of zeros. So all three products (forward, and the two of the backward) have even sizes, and the padding is
never seen: parameters, their gradients, `state_dict`, the shape of the logits and the loss are those of before.

Of the numbers only rounding changes, since other kernels add in another order, so `numeric` would be right by what the
words mean. It is `semantic` all the same, tried only where that is allowed: padding a vocabulary otherwise means
another model, and the logits are rows with gaps, which `is_contiguous()` tells and `.view(-1)` of all raises on, as
for any slice. Its losses are compared like those of a `numeric` lever, within the tolerance of those that have other
kernels multiply: in bfloat16 on an H100 the gradient that comes through the head is 5.0e-3 from that in float64, and
2.3e-3 with padding (relative; benchmarks/results/heads-and-windows-h100.json), a difference larger than a nudge of the
weights by one rounding makes.
"""

from typing import TYPE_CHECKING, Final

from ._autocast import HALF
from ._base import WATCHES, Applies, Context, Lever, Settings, no_gpu
from ._large_head import large_head

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

ALIGNED: Final = 8
"""Elements of a half precision in the 16 bytes that tensor cores want rows in multiples of:
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"""
SHARE: Final = 0.3
COMPILED_SHARE: Final = 0.1
"""Of forward and backward, at most: Inductor pads some products itself, with a copy of each (`shape_padding`)."""


class PadVocabulary(Lever):
    name = "pad-vocabulary"
    meaning = "the products of a head with an odd number of classes padded to a multiple of 64; logits keep their shape"
    risk = "semantic"
    tolerance = 0.005

    def applies(self, context: Context) -> Applies:
        facts, classes = context.facts, large_head(context)
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; it is tensor cores that want even sizes")
        if facts.capability is None or facts.capability < (7, 0):
            return Applies(False, f"{facts.device_name or 'the device'} has no tensor cores")
        if isinstance(classes, Applies):
            return classes
        if classes % ALIGNED == 0:
            return Applies(False, f"the {classes} outputs of the largest head are a multiple of {ALIGNED} already")
        if not _on_tensor_cores(context):
            return Applies(False, "the head multiplies in float32 without TF32, which leaves the tensor cores unused")
        return Applies(True, f"a linear layer has {classes} outputs, no multiple of {ALIGNED}")

    def share(self, context: Context) -> float:
        if context.diagnosis.bound == "launch":
            return 0.0
        compiled = "compile" in context.active
        return (COMPILED_SHARE if compiled else SHARE) * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._padded_head import PaddedHeads

        padded = PaddedHeads(lambda why: seams.refuse(self.name, why))
        seams.on_root(padded.take)
        seams.wrap_forward(padded.watch, WATCHES)

    def source(self, settings: Settings) -> str:
        return (
            "# in the forward, in place of logits = self.head(hidden), whose V classes are no multiple of 64:\n"
            "weight = F.pad(self.head.weight, (0, 0, 0, -V % 64))\n"
            "logits = F.linear(hidden, weight)[..., :V]  # the bias, where there is one, padded too"
        )


def _on_tensor_cores(context: Context) -> bool:
    """Whether some training forward multiplies in a half precision or in TF32."""
    active, facts = context.active, context.facts
    if "bf16-autocast" in active or "fp16-scaling" in active or "tf32" in active or facts.tf32_matmul:
        return True
    return any(root.autocast in HALF or not {"float32", "float64"} & set(root.dtypes) for root in facts.roots)


LEVER = PadVocabulary()
