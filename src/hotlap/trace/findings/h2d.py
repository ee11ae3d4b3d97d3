"""Copies between host and device that nothing overlaps."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ..scaling import idle_ms, per_step_ms, share
from ._base import idle, place, total
from .offloaded import kept, most_at, part


def find(answers: RankTrace) -> list[Finding]:
    """Exposed copies between host and device, and idle time while the host stages pageable copies."""
    gaps = idle(answers, "copy")
    exposed = sum(one.exposed_copy_ns - one.exposed_inside_ns for one in answers.breakdown)
    offloaded, staged = part(answers)  # `offloaded` tells these
    exposed = max(0, exposed - offloaded)
    waited = idle_ms(answers, total(gaps)) * (1 - staged)
    cost = per_step_ms(answers, exposed) + waited
    if not cost:
        return []
    return [
        Finding(
            id="h2d",
            bound="h2d",
            share=share(answers, cost),
            cost_ms=cost,
            title="copies between host and device that no computation hides",
            where=place(gaps) or most_at(tuple(one for one in answers.copies if one not in kept(answers)), exposed),
            evidence=f"{ms(per_step_ms(answers, exposed))} a step of copies alone on the device, "
            f"{ms(waited)} idle while pageable memory is staged",
            why="a copy on the stream that computes, or from pageable memory, overlaps nothing",
            instead="pin the batches and copy the next one on a stream of its own while this one is computed; make "
            "small tensors of numbers once, in `__init__` as buffers, not with `torch.tensor([...])` in each forward",
            levers=answering("h2d"),
        )
    ]
