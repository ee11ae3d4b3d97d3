"""Activations that wait for the backward in host memory."""

from collections import Counter
from typing import Final

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.trace import CopyTime, RankTrace

from ..analyses.syncs import WITHIN_AN_OP
from ..scaling import idle_ms, per_step_ms, share
from ._base import between_waits, idle, inside, total

ID: Final = "offloaded-activations"
LEAST_BYTES: Final = 1 << 20
"""A step, from which it is told."""
KEEP: Final = "keep them on the device: remove `save_on_cpu`, or the option that offloads activations"


def kept(answers: RankTrace) -> tuple[CopyTime, ...]:
    """Copies of what the backward needs: out of the device in the forward's operations, and as much of it in again in
    the backward. Where both go both ways, as where a `torch.autograd.Function` computes on the host, it is none."""
    went: Counter[tuple[str, str]] = Counter()
    for one in answers.copies:
        went[one.way, one.within] += one.bytes
    out, back = went["out", "op"], went["in", "backward"]
    alike = out <= 2 * back and back <= 2 * out
    other = 2 * went["in", "op"] >= out or 2 * went["out", "backward"] >= back
    if out < LEAST_BYTES * answers.window.count or not alike or other:
        return ()
    return tuple(one for one in answers.copies if (one.way, one.within) in {("out", "op"), ("in", "backward")})


def part(answers: RankTrace) -> tuple[int, float]:
    """Exposed time of these copies, ns, and their part of that of all copies in, which the host may have to stage."""
    found = kept(answers)
    exposed = min(
        sum(one.exposed_ns for one in found),
        sum(one.exposed_copy_ns - one.exposed_inside_ns for one in answers.breakdown),
    )
    all_in = sum(one.bytes for one in answers.copies if one.way == "in")
    return exposed, sum(one.bytes for one in found if one.way == "in") / max(1, all_in)


def bytes_a_step(answers: RankTrace) -> int:
    """Of what is offloaded."""
    return sum(one.bytes for one in kept(answers) if one.way == "out") // answers.window.count


def waits_within(answers: RankTrace) -> set[object]:
    """Where the host waits many times a step for such copies: idle time between these waits is theirs."""
    found = {inside(one.where) for one in answers.syncs if one.cause == WITHIN_AN_OP} if kept(answers) else set()
    return {at for at in found if at in between_waits(answers)}


def most_at(copies: tuple[CopyTime, ...], exposed_ns: int = 0) -> Place | None:
    """The place of most of their time, half of it or more. exposed_ns: of which they are a part."""
    took: Counter[Place | None] = Counter()
    for one in copies:
        took[one.where] += one.exposed_ns
    at, most = max(took.items(), key=lambda item: item[1], default=(None, 0))
    return at if 2 * most >= max(took.total(), exposed_ns) else None


def find(answers: RankTrace) -> list[Finding]:
    """Exposed copies of theirs, waits for these, and idle time while the host stages them."""
    found = kept(answers)
    if not found:
        return []
    exposed, staged = part(answers)
    between = between_waits(answers)
    waited = sum(one.idle_ns for one in answers.syncs if one.cause == WITHIN_AN_OP)
    waited += sum(ns for at, ns in between.items() if at in waits_within(answers))
    waited += int(staged * total(idle(answers, "copy")))
    gib, cost = bytes_a_step(answers) / 2**30, per_step_ms(answers, exposed) + idle_ms(answers, waited)
    return [
        Finding(
            id=ID,
            bound="h2d",
            share=share(answers, cost),
            cost_ms=cost,
            title="activations are offloaded to host memory",
            where=most_at(tuple(one for one in found if one.way == "out")),
            evidence=f"{gib:.2g} GiB a step are copied to the host in the forward's operations "
            f"and back in the backward: {ms(per_step_ms(answers, exposed))} a step that no computation hides, and "
            f"{ms(idle_ms(answers, waited))} in which the device waits for the host between them",
            why="what autograd saves crosses the bus twice",
            instead=f"{KEEP}; where memory is short, checkpoint some blocks instead, or offload only the largest",
            named=True,
        )
    ]
