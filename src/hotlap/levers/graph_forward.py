"""Forwards without gradients as CUDA graphs, one for each shape of their inputs, so that the device does not wait while
Python launches kernels.

Inputs are copied to buffers that the graph reads, what it returns is copied out, and graphs of one stream share a pool
of memory. A forward is watched first: one that makes the host wait, draws random numbers, leaves something in the model
or reads tensors from elsewhere is left alone. Each graph is replayed once beside an ordinary run and has to give the
same. A cache that the forward writes to is used where it lies, in the model or among the arguments.

What a forward does beside torch's ops (prints, counts outside of the model, kernels that are launched by other means
than torch's) a replay does not do, or does with the memory of the recording; the watch does not see all of that. Each
call looks whether the model, and values that its code reads from outside of it, are as they were recorded, but not at
what lies deeper than a list, dictionary or object there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu, not_inference
from ._forward_graph import MOST_SHAPES, TOLERANCE, GraphedForward
from ._internals import internals
from .allocator import EXPANDABLE

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

ORDER: Final = 60
"""Outside of autocast (10), compile (20) and inference mode (40), which are recorded with the forward."""
SHARE: Final = 0.8
"""Of the forward: looking whether all is as it was and copying remain."""


class GraphForward(Lever):
    name = "graph-forward"
    meaning = "forwards without gradients are replayed as CUDA graphs, one for each shape of their inputs"
    risk = "numeric"
    tolerance = TOLERANCE
    excludes = ("compile",)
    stage = "graphs"
    costs_s = 5.0

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU")
        if why := not_inference(context):
            return Applies(False, why)
        if all(root.compiled for root in facts.roots):
            return Applies(False, "the script compiles the model itself, and may capture it itself")
        if any(root.shapes > MOST_SHAPES for root in facts.roots):
            return Applies(False, f"its inputs come in more than {MOST_SHAPES} shapes")
        if EXPANDABLE in context.active.get("allocator", {}).values():
            return Applies(False, "with expandable segments CUDA graphs have hung")
        if context.diagnosis.clock == "device":
            return Applies(False, "the host runs ahead of the device, which does not wait for launches")
        shapes = max(root.shapes for root in facts.roots)
        return Applies(True, f"each forward launches its kernels anew, on inputs of {shapes or 'few'} shapes")

    def share(self, context: Context) -> float:
        return 0.0 if context.diagnosis.clock == "device" else SHARE * context.share_of("forward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        def wrap(module: Any, forward: "Forward") -> "Forward":
            return graphed(module, forward, seams.unsteady, lambda why: seams.refuse(self.name, why))

        seams.wrap_forward(wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "pool = torch.cuda.graph_pool_handle()  # memory that the graphs of all shapes share\n"
            "static = torch.empty_like(inputs)\n"
            "graph = torch.cuda.CUDAGraph()\n"
            "with torch.no_grad(), torch.cuda.graph(graph, pool=pool):  # after some ordinary calls on another stream\n"
            "    result = model(static)\n"
            "static.copy_(inputs)\n"
            "graph.replay()\n"
            "output = result.clone()"
        )


def graphed(
    module: Any,
    forward: "Forward",
    unsteady: Callable[[], None],
    gave_up: Callable[[str], None],
    kind: type[GraphedForward] = GraphedForward,
) -> GraphedForward:
    """A forward of a module on a CUDA device that is replayed from some calls on. Raises Refused where it can't be."""
    from hotlap.agent.seams import Refused

    from .graph_optimizer import capture, pools

    devices = {p.device for p in module.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise Refused("the model is not on one CUDA device")
    device = devices.pop()
    pool = pools(device)  # a backward is recorded on the stream of its forward

    def rehearse(work: Callable[[], None]) -> None:
        import torch

        current, aside = torch.cuda.current_stream(device), pool()[1]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            work()
        current.wait_stream(aside)

    return kind(
        module,
        forward,
        lambda work: capture(work, device, *pool()),
        rehearse=rehearse,
        where=lambda: where(device),
        unsteady=unsteady,
        gave_up=gave_up,
        room=lambda: room(device),
    )


def room(device: Any) -> bool:
    """Whether as much as a step takes beside what is there now would fit beside the most that was allocated so far."""
    import torch

    from .graph_optimizer import room as fits

    return fits(torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device), device)


def where(device: Any) -> tuple[Any, ...] | None:
    """What a record depends on beside the model and its inputs; None while the script captures a graph itself."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    stream = internals().raw_stream(device.index)  # as compiled code asks for it, in each call
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return stream, torch.is_inference_mode_enabled(), autocast


LEVER = GraphForward()
