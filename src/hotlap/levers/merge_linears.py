"""Linear layers that read the same input (query, key and value of an attention by hand, gate and up of a gated MLP) are
computed as one product: their weights are put together in each forward, and the result is parted again.

Parameters, optimizer, gradients, state_dict and checkpoints stay as they are: the weights that stand together are made
anew from the parameters each time, and gradients flow back through that. What it saves is kernels, and readings of the
input: of three layers two products in the forward, four in the backward, and two sums of gradients.

The graphs of `compile` are changed before its compiler sees them. Merged are layers whose weights are parameters or
buffers themselves, of one dtype, all with a bias or all without, between which nothing is written in place and no
autocast or no_grad begins or ends; and only where the weights are small, or few beside the input. Each new form is
compared with the old on random tensors first. Layers whose output is written in place, leaves the graph, or is viewed
in a way that a part of a larger tensor does not allow, stay as they are.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ._base import WATCHES, Applies, Context, Lever, Settings
from .attention import ERRORS, PATIENCE
from .compile import LEVER as COMPILE

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

    from ._merged_linears import Report

LAUNCH_SHARE: Final = 0.15
"""Of forward and backward, at most. Of six linear layers of a transformer's block three are merged, which saves 2 of 6
products forward and 4 of 12 backward; the attention, norms and the MLP between them are launched as before."""
SHARE: Final = 0.06
"""Where products take their time by what they compute: that stays the same. One large product keeps a device somewhat
busier than three small ones, and its input is read once."""


class MergeLinears(Lever):
    name = "merge-linears"
    meaning = "linear layers that read the same input (query, key, value; gate, up) as one matrix product"
    risk = "numeric"
    tolerance = 0.005
    excludes = ("compile-blocks",)
    stage = "compiler"
    compiles = True
    costs_s = 3.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not roots:
            return Applies(False, "no module's forward was seen")
        if all(root.compiled for root in roots):
            return Applies(False, "the script compiles the model itself")
        holding = sum(root.sibling_linears for root in roots if not root.compiled)
        if not holding:
            return Applies(False, "no module of the model holds two linear layers with equally many inputs")
        if COMPILE.name not in context.active:
            return Applies(False, "the graphs that it changes are those of compile, which comes first")
        return Applies(True, f"modules with linear layers of equally many inputs, which may share them: {holding}")

    def share(self, context: Context) -> float:
        most = LAUNCH_SHARE if context.diagnosis.bound == "launch" else SHARE
        return most * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._graph import PASSES

        merging = Merging(seams)
        seams.switch(lambda: PASSES.append(merging.rewrite), lambda: PASSES.remove(merging.rewrite))
        seams.wrap_forward(merging.watch, WATCHES)

    def source(self, settings: Settings) -> str:
        return (
            "# in __init__, in place of the layers for query, key and value:\n"
            "self.qkv = nn.Linear(dim, 3 * dim)  # weights of a checkpoint: torch.cat([q, k, v])\n"
            "# in forward:\n"
            "q, k, v = self.qkv(x).split(dim, dim=-1)"
        )


class Merging:
    """The merging in one process."""

    def __init__(self, seams: "Seams") -> None:
        self.seams = seams
        self.forwards = self.graphs = self.merged = 0
        self.left: list[str] = []
        self.off = False

    def watch(self, _: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward: give up where none of its graphs had anything to merge."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if not (self.off or self.merged):
                self.count()
            return output

        return watched

    def count(self) -> None:
        """One more forward. An evaluation before the training runs as it was written, and has no graphs."""
        import torch

        self.forwards += self.graphs > 0 or torch.is_grad_enabled()
        if self.forwards >= PATIENCE:
            self.give_up()

    def rewrite(self, graph_module: Any, inputs: list[Any]) -> None:
        """The pass over each captured graph. An error of its own leaves the graph valid, and is recorded."""
        from ._merged_linears import rewrite

        if self.off:
            return
        self.graphs += 1
        try:
            self.note(rewrite(graph_module, inputs))
        except ERRORS as error:
            self.seams.refuse(LEVER.name, f"{type(error).__name__}: {error}")

    def note(self, report: "Report") -> None:
        """Write down what became of a graph in which linear layers share an input."""
        if report.groups or report.left:
            self.merged += report.groups
            self.left += report.left
            self.seams.agent.append("merge-linears.jsonl", json.dumps(asdict(report)) + "\n")

    def give_up(self) -> None:
        """Nothing to do here: say so. The graphs captured so far are as they were."""
        self.off = True
        why = "no linear layers that share their input were found"
        if not self.graphs:
            why = f"no graph of the model was captured, as the lever {COMPILE.name} does"
        elif self.left:
            why = f"linear layers that share their input were left alone ({'; '.join(sorted(set(self.left))[:3])})"
        self.seams.leave_out(LEVER.name, why)


LEVER = MergeLinears()
