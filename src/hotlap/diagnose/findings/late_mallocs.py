"""Device memory is asked of the driver in steady steps, where torch's cache should have it."""

from hotlap.diagnose.source import call_of
from hotlap.levers import answering
from hotlap.records.diagnosis import LEAST_NAMED, Finding
from hotlap.records.durations import ms
from hotlap.records.run import MemoryFacts

from ._base import Measured

LEAST = 0.1
LEAST_CALLS = 5
"""Calls of cudaMalloc a step, and in all: a loop makes none after its first steps. Fewer may be an evaluation's."""
MOST, FAULT_MS = 0.5, 0.001
"""Calls a step, from which most steps have some; ms of a page fault, at most."""
SHORT = "use a smaller batch or checkpointing (torch.utils.checkpoint); free unused tensors before the peak; "
FRAGMENTED = 2.0
"""Memory that is reserved over the peak in use, from which the cache is said to hold what nobody can use."""


def find(measured: Measured) -> Finding | None:
    """Share: what the process is in the system's kernel, page faults aside, at most, where the driver is asked in most
    steps and the device waits for the host. Else 0: the phases hold this time, and a trace tells how much it is."""
    facts = measured.facts
    memory = facts.memory if facts else None
    if facts is None or memory is None:
        return None
    steps = memory.step - memory.since
    if memory.late_mallocs < LEAST_CALLS or memory.late_mallocs < LEAST * steps:
        return None
    kernel_ms = max(0.0, facts.host.system_ms - FAULT_MS * facts.host.faults) if facts.host else 0.0
    named = measured.host_matters and memory.late_mallocs >= MOST * steps
    named = named and kernel_ms >= LEAST_NAMED * measured.step_ms
    short = memory.late_retries >= LEAST * steps
    emptied = call_of(facts, ("empty_cache",))
    shapes = max((root.shapes for root in facts.roots), default=0)
    told = [_calls(memory, steps), *_reserved(memory), *_shapes(shapes)]
    if named:
        told.append(f"the process is in the Linux kernel, where such calls run, for {ms(kernel_ms)} a step")
    return Finding(
        id="late-mallocs",
        bound="memory",
        share=min(1.0, measured.of_step(kernel_ms)) if named else 0.0,
        cost_ms=min(kernel_ms, measured.step_ms) if named else None,
        title="memory is short: torch's cache is freed and filled again"
        if short
        else "memory is taken from the driver in steady steps",
        where=emptied or measured.place_of(measured.root),
        evidence="; ".join(told),
        why="a request does not fit beside the cache, so all cached memory goes back to the driver and is taken "
        "again; this waits for the device"
        if short
        else "no free block fits the request, so the driver is asked for a new one; cudaMalloc may wait for the "
        "device, and the cache grows",
        instead=(SHORT if short else "")
        + "keep shapes alike: pad to a few sizes, or write into buffers of the largest; "
        "PYTORCH_ALLOC_CONF=expandable_segments:True; take out torch.cuda.empty_cache()",
        levers=answering("allocator"),
        beneath=not named,
        named=named,
    )


def _calls(memory: MemoryFacts, steps: int) -> str:
    times = memory.late_retries or memory.retries
    retries = f"; {times} times the cache had to be freed first" if times else ""
    return f"{memory.late_mallocs} calls of cudaMalloc in {steps} steps after the first {memory.since}{retries}"


def _reserved(memory: MemoryFacts) -> list[str]:
    """What the cache holds, where that is much more than was in use."""
    peak, reserved = memory.peak_bytes, memory.peak_reserved_bytes
    if not peak or reserved < FRAGMENTED * peak:
        return []
    whole = f" of {memory.total_bytes / 2**30:.1f}" if memory.total_bytes else ""
    return [f"{reserved / 2**30:.1f}{whole} GiB reserved, for at most {peak / 2**30:.1f} GiB in use"]


def _shapes(shapes: int) -> list[str]:
    """Why sizes differ from step to step, as far as is known."""
    return [f"the model's inputs came in {shapes} shapes in its first forwards"] if shapes > 2 else []
