"""What findings share."""

import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.trace import Gap, OpRoofline, RankTrace

PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul")
VOCABULARY, ALIGNED, TILE = 4096, 8, 64
"""A dimension from which a product is taken for that of a head over a vocabulary, what it had better divide by, and
what it is best padded to."""


def idle(answers: RankTrace, *causes: str) -> list[Gap]:
    """The idle time of some causes, by place, dearest first."""
    return [gap for gap in answers.gaps if gap.cause in causes]


def step_ms(answers: RankTrace) -> float:
    """The step without the profiler, where it is known."""
    return answers.unprofiled_ms or answers.step_ms


def per_step_ms(answers: RankTrace, ns: float) -> float:
    """A total of busy time over the window as ms a step, over the devices of the rank."""
    return ns / answers.window.count / max(1, len(answers.breakdown)) / 1e6


def idle_ms(answers: RankTrace, ns: float) -> float:
    """A total of idle time over the window as ms a step, scaled to the unprofiled step."""
    return per_step_ms(answers, ns) * idle_scale(answers)


def idle_scale(answers: RankTrace) -> float:
    """Idle time without the profiler over that under it, at most 1. The profiler makes hosts slower and not devices, so
    what is left of it is what the unprofiled step, where it is known, has beside busy time. Waiting for a later rank
    counts as idle: it is as long as that rank's host makes it."""
    profiled = per_step_ms(answers, sum(one.idle_ns for one in answers.breakdown) + (answers.waited_ns or 0))
    left = max(0.0, step_ms(answers) - (answers.step_ms - profiled))
    return min(1.0, left / profiled) if profiled > 0 else 1.0


def share(answers: RankTrace, ms: float) -> float:
    """ms of a step as a share of it, at most 1."""
    return min(1.0, ms / step_ms(answers)) if step_ms(answers) else 0.0


def at_most_the_step(answers: RankTrace, finding: Finding) -> Finding:
    """With a cost that is no more than the step."""
    if finding.cost_ms is None or finding.cost_ms <= step_ms(answers):
        return finding
    return msgspec.structs.replace(finding, cost_ms=step_ms(answers))


def total(gaps: Sequence[Gap]) -> int:
    """Their idle time, ns."""
    return sum(gap.idle_ns for gap in gaps)


def place(gaps: Sequence[Gap]) -> Place | None:
    """The place that most of their time is under, of those that are known."""
    return next((gap.where for gap in gaps if gap.where is not None), None)


def doing(gaps: Sequence[Gap], most: int = 3) -> str:
    """What the host does under most of them."""
    names = dict.fromkeys(gap.doing.removeprefix("hotlap:") for gap in gaps if gap.doing)
    return ", ".join(list(names)[:most])


def odd_vocabulary(row: OpRoofline) -> int | None:
    """The dimension of a product over a vocabulary that fast kernels do not take; None where there is none."""
    if row.op not in PRODUCTS or row.dtype not in {"bf16", "fp16", "tf32"}:
        return None
    return next((n for n in map(int, re.findall(r"\d+", row.shape)) if n >= VOCABULARY and n % ALIGNED), None)


def padded(odd: int | None) -> str:
    """What to do about such a dimension."""
    return f"the vocabulary padded from {odd} to a multiple of {TILE}; " if odd else ""


def predicted_ms(answers: RankTrace, change: str) -> float | None:
    """What a change would win, ms a step, as the replay has it; None where it was not replayed."""
    if answers.replay is None:
        return None
    found = next((one for one in answers.replay.predictions if one.change == change), None)
    if found is None or not math.isfinite(found.gain):
        return None
    return max(0.0, found.ms * found.gain - found.ms)
