"""Forward and backward of a model as two CUDA graphs for each shape of its inputs, so that the device does not wait
while Python and autograd launch kernels.

The whole model is one function for autograd, as `torch.cuda.make_graphed_callables` makes it, but in place, and looked
after. A forward is watched first: one that makes the host wait, leaves something in the model or reads tensors from
elsewhere is left alone. It may draw random numbers on the device (dropout): a graph goes on where the generator is, as
ordinary kernels do. Each recording is replayed once beside an ordinary run and has to give the same.

What a forward does beside torch's ops (prints, counts outside of the model, kernels that are launched by other means
than torch's) a replay does not do, or does with the memory of the recording; the watch does not see all of that. Each
call looks whether the model, and values that its code reads from outside of it, are as they were recorded, but not at
what lies deeper than a list, dictionary or object there.

With `compile` the graphs are of what that made, without the checks that its own CUDA graphs (`reduce-overhead`) make at
each call. Forwards that await their backward when the next one comes, and those whose inputs are leaves that need a
gradient (penalties), are ordinary ones. A backward with `create_graph=True` ends it; the first such one can be
differentiated again unless the forward draws random numbers, writes to buffers or is under autocast.
"""

import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Around, Context, Lever, Settings, Unwritten
from .._internals import internals
from ..memory.allocator import EXPANDABLE
from ._compared import TOLERANCE
from ._device import Device
from ._training_graph import MOST_SHAPES, GraphedTraining

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Facts

SHARE: Final = 0.85
"""Of forward and backward: looking whether all is as it was, copies of inputs and outputs, and the loss remain."""


MAY_WAIT: Final = 0.5
"""Where the host does not run ahead of the device, and it is not known which of them waits."""


class GraphTraining(Lever):
    """As `torch.cuda.make_graphed_callables` of the model, in place, and by shape."""

    name = "graph-training"
    meaning = "forward and backward of the model are replayed as CUDA graphs, two for each shape of its inputs"
    causes = {"launches": 1, "backward": 0}
    risk = "numeric"
    needs_gpu = True
    tolerance = TOLERANCE
    excludes = ("activation-offload", "checkpoint-blocks")
    stage = "graphs"
    costs_s = 5.0
    signs = ("CUDA graph", "CUDAGraph", "captur", "cudaErrorStreamCapture")
    unwritten = Unwritten(
        "torch.cuda.make_graphed_callables needs sample inputs of every shape, gradients cleared before each "
        "backward, and one backward for each forward; the lever checks this in each call",
        "calls",
    )

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        trained = [root for root in facts.roots if root.training]
        if not context.cuda:
            return Applies(False, "the model runs on the CPU")
        if not trained or facts.mode == "inference":
            return Applies(False, "no model's forward was seen in training")
        if facts.world > 1:
            return Applies(False, "the ranks of a distributed run exchange gradients while the backward runs")
        if all(root.compiled for root in trained):
            return Applies(False, "the script already compiles the model, and may capture it")
        if any(root.sparse for root in trained):
            return Applies(False, "the model has sparse embeddings, whose gradients have no fixed size")
        if by := next((root.shapes_by for root in trained if root.shapes_by), ""):
            return Applies(False, f"its code uses {by}, so shapes depend on values")
        if any(root.shapes > MOST_SHAPES for root in trained):
            return Applies(False, f"its inputs come in more than {MOST_SHAPES} shapes")
        if EXPANDABLE in context.active.get("allocator", {}).values():
            return Applies(False, "CUDA graphs have hung with expandable segments")
        if context.diagnosis.clock == "device":
            return Applies(False, "the host runs ahead, so the device does not wait for launches")
        return Applies(True, "each step launches the kernels of forward and backward anew")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        trained = [root for root in facts.roots if root.training and not root.compiled]
        records = facts.world == 1 and any(root.shapes <= MOST_SHAPES and not root.shapes_by for root in trained)
        return super().settled(facts, active) or not records

    def share(self, context: Context) -> float:
        if context.diagnosis.clock == "device":
            return 0.0
        waits = 1.0 if context.diagnosis.bound == "launch" else MAY_WAIT
        return waits * SHARE * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        from hotlap.agent.seams import Refused

        made: list[Callable[[], Any]] = []  # models come and go
        out = False

        def gave_up(why: str) -> None:
            """Of several models that train, some may go on."""
            nonlocal out
            every = [reference() for reference in made]
            if all(one is None or one.given_up for one in every):
                out = not any(one is None or one.replays for one in every)
                (seams.leave_out if out else seams.refuse)(self.name, why)

        def wrap(module: Any, forward: "Forward") -> "Forward":
            if out:
                return forward
            if lacks := internals().missing_for_replays():
                raise Refused(f"this torch lacks {lacks}")
            found = graphed(module, forward, seams.unsteady, gave_up)
            made.append(weakref.ref(found))
            return found

        seams.wrap_forward(wrap, Around.REPLAYED)

    def source(self, settings: Settings) -> str:
        return (
            "model = torch.cuda.make_graphed_callables(model, (sample_inputs,))  # of the shape of every batch\n"
            "# its gradients lie where the next backward writes: zero_grad(set_to_none=True) before each"
        )


def graphed(
    module: Any,
    forward: "Forward",
    unsteady: Callable[[], None],
    gave_up: Callable[[str], None],
) -> GraphedTraining:
    """A forward of a module on a CUDA device that is replayed from some calls on. Raises Refused where it can't be."""
    from hotlap.agent.seams import Refused

    devices = {p.device for p in module.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise Refused("the model is not on one CUDA device")
    return GraphedTraining(module, forward, Device(devices.pop()), unsteady, gave_up)


LEVER = GraphTraining()
