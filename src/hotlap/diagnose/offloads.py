"""What a run knows of activations that its trace shows to be offloaded: the line, and whether memory asks for it."""

from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.run import Facts
from hotlap.records.trace import TraceReport
from hotlap.trace.findings.offloaded import ID, KEEP, bytes_a_step

from .findings._base import Measured
from .source import call_of

CALLS: Final = (
    "save_on_cpu", "OffloadActivations", "get_act_offloading_ctx_manager", "offload_wrapper", "saved_tensors_hooks",
)  # fmt: skip
"""What has activations offloaded: torch's own, and those of torchtune and TRL."""
FULL: Final = 0.9
"""Of the device's memory, up to which there is room beside the peak."""
SHORT: Final = (
    "checkpoint some blocks instead, as recomputing may be faster than copying; or offload only the largest "
    "tensors, on a separate stream that computing hides; or use smaller micro-batches"
)


def room(found: Diagnosis) -> float | None:
    """Bytes that the device's memory may hold beside the peak; None unknown."""
    return None if not found.memory_bytes else FULL * found.memory_bytes - (found.peak_bytes or 0.0)


def with_memory(finding: Finding, found: Diagnosis, traces: TraceReport, facts: Facts | None) -> Finding:
    """The finding with the line that has them offloaded, else the call of the forward, and with the advice that memory
    allows. What is saved twice counts twice: it then seems to need more than it would."""
    if finding.id != ID:
        return finding
    root = facts.model if facts else None
    where = call_of(facts, CALLS) or (Measured.place_at(root.called) if root else None) or finding.where
    finding = msgspec.structs.replace(finding, where=where)
    used, whole, free = found.peak_bytes, found.memory_bytes, room(found)
    if not used or not whole or free is None or facts is None:
        return finding
    at_once = max(map(bytes_a_step, traces.ranks)) / max(1, round(facts.backwards / max(1, facts.optimizer_steps)))
    said = f"{finding.evidence}; at the peak {used / 2**30:.1f} of {whole / 2**30:.1f} GiB of its memory are in use"
    if at_once > free:
        why = "what autograd saves crosses the bus twice; at the peak, the device's memory may not hold all of it"
        return msgspec.structs.replace(finding, evidence=said, why=why, instead=SHORT, named=False)
    return msgspec.structs.replace(
        finding,
        title="activations are offloaded to host memory, though the device has memory to spare",
        evidence=said,
        why="what autograd saves crosses the bus twice, though it would fit on the device",
        instead=KEEP,
    )
