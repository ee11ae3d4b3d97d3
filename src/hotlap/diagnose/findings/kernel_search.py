"""cuDNN looks for its fastest kernels anew, as the shapes of its inputs change."""

from hotlap.diagnose.source import mention_of
from hotlap.records.diagnosis import Finding

from ._base import Measured
from .late_mallocs import MOST
from .launch import waited

LEAST = 0.2
MANY = 8
"""Shapes in the first forwards: each had its search."""
REPLACES = ("launch", "late-mallocs")


def find(measured: Measured) -> Finding | None:
    """Share: in which the device waits for the host in the model, at most, while memory is asked of the driver, as each
    search does."""
    facts, share = measured.facts, waited(measured)
    if facts is None or not facts.cudnn_benchmark or not measured.cuda or share < LEAST:
        return None
    root = max((root for root in facts.roots if root.conv), key=lambda root: root.shapes, default=None)
    memory = facts.memory
    if root is None or memory is None or root.shapes < MANY:
        return None
    steps = memory.step - memory.since
    if memory.late_mallocs < max(1.0, MOST * steps):
        return None
    return Finding(
        id="kernel-search",
        bound="launch",
        share=share,
        title="cuDNN looks for its fastest kernels again for each new shape",
        where=mention_of(facts, ("benchmark",)) or measured.place_of(root),
        evidence=f"`torch.backends.cudnn.benchmark` is on; the model's inputs came in {root.shapes} shapes in its "
        f"first forwards; {memory.late_mallocs} calls of cudaMalloc in {steps} steps after the first {memory.since}",
        why="for each shape that it has not seen it runs all kernels that it knows, for each convolution, forward and "
        "backward, while the loop waits",
        instead="`torch.backends.cudnn.benchmark = False`; or pad or crop inputs to a few sizes, each of which is "
        "searched once",
        named=True,
    )
