"""Device memory is asked of the driver in steady steps, where torch's cache should have it."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.run import MemoryFacts

from ._base import Measured

LEAST = 0.1
LEAST_CALLS = 5
"""Calls of cudaMalloc a step, and in all: a loop makes none after its first steps. Fewer may be an evaluation's."""
APART = 2.0
"""Memory that is reserved over the peak in use, from which the cache is said to hold what nobody can use."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold this time, and what the calls cost was not measured: a trace tells."""
    facts = measured.facts
    memory = facts.memory if facts else None
    if facts is None or memory is None:
        return None
    steps = memory.step - memory.since
    if memory.late_mallocs < LEAST_CALLS or memory.late_mallocs < LEAST * steps:
        return None
    shapes = max((root.shapes for root in facts.roots), default=0)
    return Finding(
        id="late-mallocs",
        bound="memory",
        share=0.0,
        title="memory is taken from the driver in steady steps",
        where=measured.place_of(measured.root),
        evidence="; ".join([_calls(memory, steps), *_held(memory), *_shapes(shapes)]),
        why="no block that is free has the size that is asked for, so the driver is asked for a new one; cudaMalloc "
        "may wait for the device, and what was taken stays in the cache",
        instead="keep shapes alike: pad to a few sizes, or write into buffers of the largest; "
        "PYTORCH_ALLOC_CONF=expandable_segments:True; take out torch.cuda.empty_cache()",
        levers=answering("allocator"),
        beneath=True,
    )


def _calls(memory: MemoryFacts, steps: int) -> str:
    retries = f", and {memory.retries} times the cache had to be freed first" if memory.retries else ""
    return f"{memory.late_mallocs} calls of cudaMalloc in {steps} steps after the first {memory.since}{retries}"


def _held(memory: MemoryFacts) -> list[str]:
    """What the cache holds, where that is much more than was in use."""
    peak, held = memory.peak_bytes, memory.peak_reserved_bytes
    if not peak or held < APART * peak:
        return []
    whole = f" of {memory.total_bytes / 2**30:.1f}" if memory.total_bytes else ""
    return [f"{held / 2**30:.1f}{whole} GiB reserved, for at most {peak / 2**30:.1f} GiB in use"]


def _shapes(shapes: int) -> list[str]:
    """Why sizes differ from step to step, as far as is known."""
    return [f"the model's inputs came in {shapes} shapes in its first forwards"] if shapes > 2 else []
