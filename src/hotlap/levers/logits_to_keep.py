"""Of a large vocabulary's logits only those positions are computed that the script uses.

Loops that generate text often compute logits for every position and use those of the last: `model(tokens)[:, -1, :]`.
The last linear layer returns logits that are computed when something needs them, and for the rows that it needs:
`[:, -1, :]`, other indices that leave the classes whole, and `view`, `float` and the like before or after them. All
else that is done with logits computes them as a whole, as before. Only without gradients; `transformers` has it as
`logits_to_keep`.

The first such rows are compared with those of the whole. Logits that nobody uses are never computed.
"""

from typing import TYPE_CHECKING, Final

from ._base import Applies, Context, Lever, Settings, not_inference, not_taken_over
from ._large_head import LEAST_CLASSES

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

ORDER: Final = 30
"""Outside of what compiles the forward (20, 21)."""
SHARE: Final = 0.3
"""Of the forward: of GPT-2's work the last layer is 31%."""


class LogitsToKeep(Lever):
    name = "logits-to-keep"
    meaning = "logits over a large vocabulary are computed for those positions only that the script uses"
    risk = "numeric"
    tolerance = 0.01
    excludes = ("graph-forward", "pad-vocabulary")
    costs_s = 3.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        if why := not_inference(context):
            return Applies(False, why)
        roots = context.facts.roots
        classes = max(root.classes for root in roots)
        if classes < LEAST_CLASSES:
            return Applies(False, f"no linear layer outside of repeated blocks has {LEAST_CLASSES} outputs or more")
        if why := not_taken_over(context):
            return Applies(False, why)
        return Applies(True, f"a linear layer has {classes} outputs")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._heads import Heads

        heads = Heads(lambda why: seams.refuse(self.name, why), rows=True, unsteady=seams.unsteady)
        seams.switch(heads.put_in, heads.take_out)
        seams.wrap_forward(heads.wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return "logits = self.lm_head(hidden[:, -1:, :])  # in the forward: the positions that are used"


LEVER = LogitsToKeep()
