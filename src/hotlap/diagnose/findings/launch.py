"""The device waits for the host to launch its kernels."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEVERS = (
    "grouped-experts", "compile", "graph-training", "attention", "fused-optimizer", "graph-optimizer",
    "constant-tensors", "causal-mask-check", "single-thread-backward", "combo-kernels",
    "compile-loss",
)  # fmt: skip
TRAINS = "compile the model, with CUDA graphs where shapes are static; fuse the optimizer; larger batches"
INFERS = "replay forwards as CUDA graphs, one for each shape of their inputs; compile the model; larger batches"
FOR_INFERENCE = ("graph-forward", "kv-cache", "grouped-experts", "compile", "attention", "constant-tensors")


def find(measured: Measured) -> Finding | None:
    """Share: forward, backward and optimizer, when the device has nothing queued at the step's end."""
    if not measured.cuda or not measured.drained:
        return None
    share = measured.share("forward", "backward", "optimizer")
    infers = measured.facts is not None and measured.facts.mode == "inference"
    return Finding(
        id="launch",
        bound="launch",
        share=share,
        title="the device waits for Python to launch its kernels",
        where=measured.place_of(measured.root),
        evidence=f"the host is at most {ms(measured.lead_ms)} ahead of the device in a step of {ms(measured.step_ms)}",
        why="each operation is small, so that issuing it takes the host longer than the device needs to run it",
        instead=INFERS if infers else TRAINS,
        levers=FOR_INFERENCE if infers else LEVERS,
    )
