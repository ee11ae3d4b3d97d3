"""Whether others used a GPU of the command's while it trained, from telemetry. What NVML says of a whole card is then
of them too."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from hotlap.records.run import Facts, Step
from hotlap.records.telemetry import TelemetrySample

LEAST_BUSY: Final = 0.05
"""Share of the steady steps in which others' kernels ran, from which it is told."""
OWN_BYTES: Final = 3 * 2**30
"""Of a card's memory beside a process's tensors: the driver's and the CUDA context's, 1.4 GiB on an H200, and what
libraries hold of their own."""
LEAST_OF_TIME: Final = 0.1
"""Share of the steady steps in which more is in use than the command's."""
BEGIN_S: Final = 1.1
"""NVML looks back over a second at most: a later sample shows nothing of a job that ended before this one began."""
BUSY_BEFORE: Final = 50.0
"""Percent, before the command can have used the device."""
HOLD_FOR_BOTH: Final = "times, watts and energy are of both; measure again without it"


def shared_gpu(samples: Sequence[TelemetrySample], steps: Sequence[Step], ranks: Sequence[Facts | None]) -> str:
    """What shows that another process was on a GPU of these ranks', in a sentence; "" where nothing does."""
    if not steps:
        return ""
    begin, end = steps[0].time - steps[0].wall_ms / 1000, steps[-1].time
    for card in {facts.device_uuid for facts in ranks if facts is not None and facts.device_uuid}:
        own = [facts for facts in ranks if facts is not None and facts.device_uuid == card]
        seen = [(one.time, gpu) for one in samples for gpu in one.gpus if gpu.uuid == card]
        inside = [gpu for at, gpu in seen if begin <= at <= end]
        others = [gpu.others_percent for gpu in inside if gpu.others_percent is not None]
        if others:
            if (busy := fmean(others) / 100) >= LEAST_BUSY:
                return f"another process computed on this GPU, {busy:.0%} of the time by NVML: {HOLD_FOR_BOTH}"
            continue  # NVML tells processes apart, and so it was alone
        imported = min((facts.torch_imported or 0.0 for facts in own), default=0.0)
        before = [gpu.busy_percent for at, gpu in seen if samples[0].time + BEGIN_S <= at <= imported]
        known = [busy for busy in before if busy is not None]
        if known and (busy := fmean(known)) >= BUSY_BEFORE:
            return (
                f"another process computed on this GPU: it was {busy:.0f}% busy before the command used it; "
                f"{HOLD_FOR_BOTH}"
            )
        ours = sum(facts.memory.peak_reserved_bytes if facts.memory else 0 for facts in own) + len(own) * OWN_BYTES
        beyond = [gpu.memory_bytes - ours for gpu in inside if gpu.memory_bytes is not None]
        more = [one for one in beyond if one > 0]
        if more and all(facts.memory for facts in own) and len(more) >= LEAST_OF_TIME * len(beyond):
            return (
                f"another process was on this GPU: up to {(max(more) + OWN_BYTES) / 2**30:.0f} GiB of its memory "
                f"are not this command's; if it computed, {HOLD_FOR_BOTH}"
            )
    return ""
