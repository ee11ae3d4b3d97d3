"""Cross-entropy straight from the last linear layer's input: the logits of a large vocabulary never exist as a whole.

The layer (the head) returns logits that are computed when something needs them. `F.cross_entropy` of class indices does
not: it makes them for some rows at a time, with their gradient, and drops them, in the forward or outside of it. In
between they may be reshaped, cast to float32, transposed for the loss or cut along their rows. All else that is done
with them (argmax, softmax, an index into the classes, soft targets, `reduction="none"`) computes them as before.
Without gradients, in float16 and inside `torch.utils.checkpoint` nothing is changed.

Logits that the script holds over an optimizer's step are those of before: the head's weights are copied for them,
one copy of its parameters.

What can't be had is the gradient of the logits themselves, where `retain_grad` or a hook is put on them after the loss.
"""

from typing import TYPE_CHECKING, Final

from ._base import Applies, Context, Lever, Settings
from ._large_head import large_head

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

ORDER: Final = 30
"""Outside of what captures the forward (20, 21)."""


class LinearCrossEntropy(Lever):
    name = "linear-cross-entropy"
    meaning = "cross-entropy over a large vocabulary in chunks, from the input of the last linear layer"
    risk = "numeric"
    tolerance = 0.005
    saves_memory = True
    costs_s = 5.0
    switchable = True
    memory_order = 50

    def applies(self, context: Context) -> Applies:
        facts, classes = context.facts, large_head(context)
        if isinstance(classes, Applies):
            return classes
        roots = [root for root in facts.roots if root.training]
        if not facts.optimizers:
            return Applies(
                False, "no optimizer was seen, before whose steps logits that are still held are looked after"
            )
        if facts.world > 1 or any(root.wrapper for root in roots):
            return Applies(False, "the model is wrapped or trained by several processes, which look at its output")
        if all(root.autocast == "float16" or "float16" in root.dtypes for root in roots):
            return Applies(False, "the logits are float16, whose sums over many rows overflow")
        return Applies(True, f"a linear layer has {classes} outputs")

    def share(self, context: Context) -> float:
        return 0.0  # the same products, in parts

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._heads import Heads

        found = Heads(lambda why: seams.refuse(self.name, why))
        seams.switch(found.put_in, found.take_out)
        seams.wrap_forward(found.wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "# torch 2.13; the forward returns what lm_head would get, as hidden (rows, features):\n"
            "options = torch.nn.LinearCrossEntropyOptions()  # how it is cut into chunks\n"
            "loss = F.linear_cross_entropy(\n"
            "    hidden, lm_head.weight, targets, linear_bias=lm_head.bias, options=options\n)\n"
            "# under autocast cast hidden, weight and bias first; the loss is then of their dtype"
        )


LEVER = LinearCrossEntropy()
