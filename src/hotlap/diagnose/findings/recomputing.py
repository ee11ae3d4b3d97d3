"""Activations are recomputed in the backward, with memory to spare."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

SPARE = 0.4
"""Of memory at the peak, up to which there is some to spare: activations that are kept may take as much again."""
CALLS = ("checkpoint", "checkpoint_sequential", "gradient_checkpointing_enable")


def find(measured: Measured) -> Finding | None:
    """Share: the forward, which the backward runs again, at most."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None or not facts.recomputed or facts.mode != "train":
        return None
    if measured.memory is None or measured.memory[0] > SPARE * measured.memory[1]:
        return None
    used, whole = measured.memory
    forward = measured.took_ms("forward")
    return Finding(
        id="recomputing",
        bound="compute",
        share=measured.share("forward"),
        cost_ms=forward,
        title=f"activations of {root.name} are recomputed, with memory to spare",
        where=call_of(facts, CALLS) or measured.place_of(root),
        evidence=f"modules run inside the backward; at the peak {used / 2**30:.1f} of {whole / 2**30:.1f} GiB are "
        f"in use; the backward recomputes the forward, up to {ms(forward)}",
        why="checkpointing trades time for memory, and memory is not short here",
        instead="call the blocks directly, `x = block(x)`, or checkpoint only as many as memory requires",
        named=True,
    )
