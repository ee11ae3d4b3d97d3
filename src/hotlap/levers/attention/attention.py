"""Hand-written attention, softmax(q k^T) v with its scaling, biases and masks, becomes scaled_dot_product_attention.

The graphs that Dynamo captures from the outermost forward are rewritten before anything compiles them: before Inductor
where `compile` is in too, else they run eagerly. Masks that are provably causal become `is_causal`, which lets the
flash kernel run, and are guarded: where the script changes such a mask later, the forward is captured anew and passes
masks as they are. Each new form is compared with the old on random tensors first. Attention whose weights are returned,
logged or kept is left as it is.
"""

import json
import weakref
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from .. import _same_random
from .._base import Applies, Around, Context, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Facts

    from ..compiler._graph import Compiled
    from ._masks import Relied

PATIENCE: Final = 8
"""Outermost forwards in which some attention must have been found."""
SHARE: Final = 0.7
LAUNCH_SHARE: Final = 0.15
"""Of forward and backward, at most: the longer the sequences, the larger a part of them attention is."""
ERRORS: Final = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError, OSError)
"""What may go wrong in the pass or in writing down what it did. The compiler runs it, where no hook's guard reaches."""


class Attention(_same_random.DrawsOtherwise):
    """`torch.nn.functional.scaled_dot_product_attention` in place of softmax(q k^T) v by hand."""

    name = "attention"
    meaning = "hand-written attention as one fused kernel that never writes the weights to memory"
    causes = {"launches": 2, "attention": 0, "arithmetic": 3, "bytes": 2, "on-cpu": 3}
    risk = "numeric"
    tolerance = 0.005
    costs_s = 5.0
    switchable = True
    memory_order = 10
    signs = ("scaled_dot_product", "attn_mask", "attn_bias")

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not roots:
            return Applies(False, "no module's forward was seen")
        if not any(root.softmax for root in roots):
            return Applies(False, "no softmax with matrix products was found in the model's code")
        if not any(root.by_hand for root in roots):
            return Applies(False, "the model's code has a softmax, but made no weights of queries and keys by it")
        if all(root.compiled for root in roots):
            return Applies(False, "the script already compiles the model")
        return Applies(True, "the model's code calls softmax and multiplies matrices")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        """What runs within other levers is not looked at, so it is not offered beside them."""
        root = facts.model
        return root is None or root.compiled or not root.by_hand or bool(active and root.softmax_ran is None)

    def share(self, context: Context) -> float:
        most = LAUNCH_SHARE if context.diagnosis.bound == "launch" else SHARE
        return most * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ..compiler._graph import PASSES

        fused = Fused(seams, bool(settings.get(_same_random.SETTING)))
        seams.switch(lambda: PASSES.append(fused.rewrite), lambda: PASSES.remove(fused.rewrite))
        seams.wrap_forward(fused.wrap, Around.MASKS)
        seams.wrap_forward(fused.watch, Around.COUNTED)

    def source(self, settings: Settings) -> str:
        return (
            "# in place of softmax(q @ k.transpose(-2, -1) / sqrt(d), masked) @ v; attn_mask where it is not causal:\n"
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p if self.training else 0.0)"
        )


class Fused:
    """The rewriting in one process."""

    def __init__(self, seams: "Seams", same_random: bool) -> None:
        self.seams, self.same_random = seams, same_random
        self.relied: Relied = {}
        """What the compiled code relies on."""
        self.roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled: list[Compiled] = []
        self.constant_masks = True
        self.forwards = self.found = 0
        self.left: list[str] = []
        self.off = False

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward: check what masks rely on, and capture graphs where `compile` does not."""
        from ..compiler._graph import Compiled
        from ..compiler._traceable import traceable

        plain, compiled = forward, getattr(forward, "compiled", forward)
        if not isinstance(compiled, Compiled):
            forward = compiled = Compiled(traceable(module, forward), None)
        self.roots.add(module)
        self.compiled.append(compiled)

        def with_fused_attention(*args: Any, **kwargs: Any) -> Any:
            if self.off:
                return plain(*args, **kwargs)
            if not all(relied.same() for relied in self.relied.values()):
                # A mask that was taken for constant has changed: from here on masks are passed as they are.
                self.constant_masks = False
                self.relied.clear()
                for one in self.compiled:
                    one.again()
            return forward(*args, **kwargs)

        return with_fused_attention

    def watch(self, _: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward: say once where there was no attention to fuse."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            self.forwards += 1
            if self.forwards == PATIENCE and not self.found:
                # From here on no graphs are captured for nothing; those captured so far are as they were.
                self.off = True
                why = f" ({'; '.join(sorted(set(self.left))[:3])})" if self.left else ""
                self.seams.leave_out(LEVER.name, f"no hand-written attention was found{why}")
            return output

        return watched

    def rewrite(self, graph_module: Any, inputs: list[Any]) -> None:
        """The pass over each captured graph. An error of its own leaves the graph valid, and is recorded."""
        from ._rewrite import rewrite

        if self.off:
            return
        roots = list(self.roots) if self.constant_masks else []
        try:
            report = rewrite(graph_module, inputs, roots, self.relied, self.same_random)
            if report.rewritten or report.left:  # it has a softmax
                self.found += report.rewritten
                self.left += report.left
                self.seams.agent.append("attention.jsonl", json.dumps(asdict(report)) + "\n")
        except ERRORS as error:
            self.seams.refuse(LEVER.name, f"{type(error).__name__}: {error}")


LEVER = Attention()
