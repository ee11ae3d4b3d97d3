"""What findings share."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.trace import Gap, OpRoofline, RankTrace

PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul")
MANY_WAITS: Final = 8
"""A step, in one function."""
Inside = tuple[str, str | int | None]
"""File, and function or line."""
ALIGNED: Final = {"bf16": 8, "fp16": 8, "tf32": 4}
"""What the fast kernels of a type want contiguous dimensions to be multiples of: 16 bytes (NVIDIA's Deep Learning
Performance Guide)."""
TILE, SLOW, NOTABLE = 64, 0.5, 0.2
"""What dimensions are best padded to; of the peak, what a product reaches at most that does not fit; of the products'
time, what those take at least that are told."""


def idle(answers: RankTrace, *causes: str) -> list[Gap]:
    """The idle time of some causes, by place, dearest first."""
    return [gap for gap in answers.gaps if gap.cause in causes]


def step_ms(answers: RankTrace) -> float:
    """The step without the profiler, where it is known. What a trace tells is a share of its own steps (`traced_ms`),
    and its ms are that share of this."""
    return answers.unprofiled_ms or answers.step_ms


def traced_ms(answers: RankTrace) -> float:
    """A step of the trace without what the profiler adds. That makes hosts slower and not devices: it lies between the
    device's work in it and what it took."""
    return min(answers.step_ms, max(step_ms(answers), answers.step_ms - _idle_ms(answers)))


def per_step_ms(answers: RankTrace, ns: float) -> float:
    """A total of busy time over the window as ms of a step, over the devices of the rank; no more than the step, which
    work of several streams may take together."""
    return min(step_ms(answers), mean_ms(answers, ns) * scale(answers))


def idle_ms(answers: RankTrace, ns: float) -> float:
    """A total of idle time over the window as ms of a step."""
    return per_step_ms(answers, ns * idle_scale(answers))


def host_ms(answers: RankTrace, ns: float) -> float:
    """A total of the host's time over the window as ms of a step, no more than it."""
    part = ns / answers.window.count / 1e6 / answers.step_ms if answers.step_ms else 0.0
    return min(1.0, part) * step_ms(answers)


def idle_scale(answers: RankTrace) -> float:
    """Idle time without the profiler over that under it."""
    profiled = _idle_ms(answers)
    return max(0.0, 1 - (answers.step_ms - traced_ms(answers)) / profiled) if profiled > 0 else 1.0


def _idle_ms(answers: RankTrace) -> float:
    """Under the profiler. Waiting for a later rank counts as idle: it is as long as that rank's host makes it."""
    return mean_ms(answers, sum(one.idle_ns for one in answers.breakdown) + (answers.waited_ns or 0))


def mean_ms(answers: RankTrace, ns: float) -> float:
    """A total over the window and the devices of the rank as ms of a step of the trace."""
    return ns / answers.window.count / max(1, len(answers.breakdown)) / 1e6


def scale(answers: RankTrace) -> float:
    """The run's step over one of the trace: its clocks, its data, its place in the run may be others."""
    traced = traced_ms(answers)
    return step_ms(answers) / traced if traced > 0 else 1.0


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


def inside(where: Place | None) -> Inside | None:
    """The function that a place is in, the line itself where that is not known; None without a place."""
    return None if where is None else (where.file, where.function or where.line)


def between_waits(answers: RankTrace) -> dict[Inside | None, int]:
    """Idle time (ns) under dispatch in functions that wait for the device many times a step, between these waits: the
    host can't be ahead there."""
    waits: Counter[Inside | None] = Counter()
    for sync in answers.syncs:
        waits[inside(sync.where)] += sync.count
    many: dict[Inside | None, int] = {
        at: 0 for at, count in waits.items() if at is not None and count >= MANY_WAITS * answers.window.count
    }
    for gap in idle(answers, "launch"):
        if (at := inside(gap.where)) in many:
            many[at] += gap.idle_ns
    return many


def dearest(gaps: Sequence[Gap]) -> tuple[Place | None, float]:
    """The dearest line of the function that most of their time is under, with the function's share of all (0 to 1)."""
    functions: defaultdict[Inside | None, Counter[Place]] = defaultdict(Counter)
    for gap in gaps:
        if gap.where is not None:
            functions[inside(gap.where)][gap.where] += gap.idle_ns
    most = max(functions.values(), key=Counter.total, default=Counter[Place]())
    if not most:
        return None, 0.0
    return most.most_common(1)[0][0], most.total() / max(1, total(gaps))


def doing(gaps: Sequence[Gap], most: int = 3) -> str:
    """What the host does under most of them."""
    names = dict.fromkeys(gap.doing.removeprefix("hotlap:") for gap in gaps if gap.doing)
    return ", ".join(list(names)[:most])


def unaligned(rows: Sequence[OpRoofline]) -> tuple[int, int] | None:
    """The contiguous dimension because of which most of a notable part of slow products run on kernels that take any
    size, and what it had better be a multiple of. The first dimension of a product is that of rows, as a batch's, and
    the last one of its second operand lies contiguous in its result; in a layer's forward both are the layer's own."""
    found: Counter[tuple[int, int]] = Counter()
    for row in rows:
        by, sizes = ALIGNED.get(row.dtype, 1), re.findall(r"\[([^]]*)\]", row.shape)
        if row.op not in PRODUCTS or not sizes or (row.of_peak is not None and row.of_peak >= SLOW):
            continue
        dims = [int(n) for n in re.findall(r"\d+", sizes[-1])]
        own = dims if row.op in {"aten::addmm", "aten::linear"} else dims[-1:]
        found.update({(n, by): row.ns for n in own if n > TILE and n % by})
    most = max(found, key=lambda one: found[one], default=None)
    return most if most and found[most] >= NOTABLE * sum(row.ns for row in rows) else None


def no_multiple(odd: tuple[int, int] | None) -> str:
    """What is said of such a dimension."""
    return f"; {odd[0]} is no multiple of {odd[1]}" if odd else ""


def padded(odd: tuple[int, int] | None) -> str:
    """What to do about it."""
    return f"{odd[0]}, a layer's width or a vocabulary's, padded to {-(-odd[0] // TILE) * TILE}; " if odd else ""


def predicted_ms(answers: RankTrace, change: str) -> float | None:
    """What a change would win, ms a step, by the share that the replay predicts; None where it was not replayed."""
    if answers.replay is None:
        return None
    found = next((one for one in answers.replay.predictions if one.change == change), None)
    if found is None or not math.isfinite(found.gain):
        return None
    return max(0.0, 1 - 1 / found.gain) * step_ms(answers) if found.gain > 0 else 0.0
