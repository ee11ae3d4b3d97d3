"""What one run computed, and how far two runs differ: losses, first gradients and updates, the samples that arrived."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hotlap.diagnose.steps import of_mode
from hotlap.records.tune import ProbeLine
from hotlap.runs.folder import RunFolder

PATTERN_LEAST: Final = 2.0**-8
"""A loss whose steps differ by less than this, one bfloat16 rounding, has no pattern to tell its batches by."""
LEAST: Final = 1e-12
"""Gap of what is not equal bit for bit, however little it differs."""
COMPARED_STEPS: Final = 64
"""Steps whose losses are compared: later ones differ by what rounding has grown to, whatever the lever."""


@dataclass(frozen=True)
class Evidence:
    """What one run computed. losses: a tuple a step, NaN where not finite, one entry a backward call."""

    losses: tuple[tuple[float, ...], ...]
    updates: tuple[ProbeLine, ...] = ()
    batches: tuple[ProbeLine, ...] = ()
    draws: bool | None = None


def read_evidence(folder: Path) -> Evidence:
    """The evidence in a run folder (rank 0)."""
    ranks = RunFolder(folder).ranks
    if not ranks:
        return Evidence(())
    _, steps = of_mode(list(ranks[0].steps))
    losses = tuple(
        (math.nan,) if step.nonfinite else tuple(math.inf if x is None else x for x in step.losses or (step.loss,))
        for step in steps
    )
    lines = ranks[0].lines(ProbeLine)
    draws = [line.draws for line in lines if line.what == "forward"]
    return Evidence(
        losses,
        tuple(line for line in lines if line.what == "update"),
        tuple(line for line in lines if line.what == "batch"),
        any(draws) if draws else None,
    )


@dataclass(frozen=True)
class Gaps:
    """Relative differences between two runs: all 0 means bit for bit.

    pattern: difference of the losses' changes from step to step over those changes. The same batches in the same order
    make the same ups and downs, even where the loss as a whole hardly moves and any data would pass its tolerance.
    """

    steps: int
    loss: float
    tail: float
    pattern: float
    gradient: float
    update: float
    direction: float

    @property
    def none(self) -> bool:
        """Bit for bit the same."""
        return not any((self.loss, self.tail, self.pattern, self.gradient, self.update, self.direction))


@np.errstate(over="ignore", invalid="ignore")
def gaps(one: Evidence, two: Evidence, later: bool = False) -> Gaps:
    """How far two runs differ; see `Gaps`. Losses: root mean square over the mean, worst of the backward calls.

    one: a run of the bare command, whose gradients alone say which elements of an update are left out.

    later: compare gradients and directions of later probed steps as well, for runs that don't begin alike.
    """
    pairs = list(zip(one.losses, two.losses, strict=False))[:COMPARED_STEPS]
    width = min((min(len(a), len(b)) for a, b in pairs), default=0)
    same_shape = all(len(a) == len(b) for a, b in pairs)
    loss = tail = 0.0 if same_shape or width else math.inf
    pattern = 0.0
    for column in range(width):
        a = np.array([row[column] for row, _ in pairs])
        b = np.array([row[column] for _, row in pairs])
        known = np.isfinite(a) & np.isfinite(b)
        if not known.any():
            continue
        a, b = _scaled(a[known], b[known])
        scale = float(np.abs(a).mean()) or 1.0
        late = slice(-max(1, len(a) // 3), None)
        loss = max(loss, float(np.sqrt(np.mean((b - a) ** 2))) / scale)
        tail = max(tail, abs(float((b[late] - a[late]).mean())) / scale)
        pattern = max(pattern, _pattern(a, b, scale))
    gradient, update, direction = _update_gaps(one.updates, two.updates, later)
    return Gaps(len(pairs), loss, tail, pattern, gradient, update, direction)


def _scaled(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both by one power of two, so that squares don't overflow and no bit is lost."""
    shift = -int(np.frexp(np.abs(a).max())[1])
    return np.ldexp(a, shift), np.ldexp(b, shift)


def _pattern(a: np.ndarray, b: np.ndarray, scale: float) -> float:
    """See `Gaps`; 0 where the baseline has no pattern."""
    own = float(np.sqrt(np.mean(np.diff(a) ** 2))) if len(a) > 1 else 0.0
    if own < PATTERN_LEAST * scale:
        return 0.0
    return float(np.sqrt(np.mean(np.diff(b - a) ** 2))) / own


def _update_gaps(one: Sequence[ProbeLine], two: Sequence[ProbeLine], later: bool) -> tuple[float, float, float]:
    """Relative gaps of the first gradient norm and the update norms, and 1 - cosine of the first updates."""
    gradient = update = direction = 0.0
    others = {(line.optimizer, line.step): line for line in two}
    if others.keys() - {(line.optimizer, line.step) for line in one}:
        update = math.inf
    firsts: dict[int, ProbeLine] = {}
    for line in one:
        first = firsts.setdefault(line.optimizer, line)
        other = others.get((line.optimizer, line.step))
        if other is None:
            update = math.inf
            continue
        known = _known(first, line)
        update = max(update, _norm_gap(line, other, known))
        if later or line.step == first.step:
            gradient = max(gradient, _relative(line.gradient_norm, other.gradient_norm))
            if line.unclipped_norm is not None and other.unclipped_norm is not None:
                gradient = max(gradient, _relative(line.unclipped_norm, other.unclipped_norm))
            direction = max(direction, _direction(line.update, other.update, known))
    return gradient, update, direction


def _known(first: ProbeLine, line: ProbeLine) -> tuple[int, ...] | None:
    """Places in an update that are compared, where that is not all: not those of which this gradient and the first one
    were but rounding."""
    rounding = set(first.rounding) & set(line.rounding)
    known = tuple(place for place in range(len(line.update)) if place not in rounding)
    return known if rounding and known else None


def _norm_gap(one: ProbeLine, two: ProbeLine, known: tuple[int, ...] | None) -> float:
    gap = _relative(one.update_norm, two.update_norm)
    if known is None or gap in {0.0, math.inf} or len(one.update) != len(two.update):
        return gap
    a, b = (float(np.linalg.norm(_numbers(line.update, known))) for line in (one, two))
    return max(LEAST, _relative(a, b)) if math.isfinite(a + b) else math.inf


def _relative(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return 0.0 if a == b else math.inf
    if a == b:
        return 0.0
    return abs(b - a) / abs(a) if a else math.inf


def _numbers(update: Sequence[float | None], known: tuple[int, ...] | None) -> np.ndarray:
    numbers = np.array([math.nan if x is None else x for x in update])
    return numbers if known is None else numbers[list(known)]


def _direction(one: Sequence[float | None], two: Sequence[float | None], known: tuple[int, ...] | None) -> float:
    """1 - cosine of two updates; 0 when they are equal element by element, all of them."""
    if one == two:
        return 0.0
    if len(one) != len(two):
        return math.inf
    a, b = _numbers(one, known), _numbers(two, known)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return max(LEAST, 1 - float(a @ b) / norm) if norm else math.inf


def samples(one: Evidence, two: Evidence) -> str:
    """How delivered samples compare: "none", "same", "labels" (integers same, floats other), or "other"."""
    if not one.batches or not two.batches:
        return "none"
    floats_differ = integers = False
    for a, b in zip(one.batches, two.batches, strict=False):
        if [leaf["kind"] for leaf in a.leaves] != [leaf["kind"] for leaf in b.leaves]:
            return "other"
        for left, right in zip(a.leaves, b.leaves, strict=True):
            integers |= left["kind"] == "int"
            if left["rows"] == right["rows"]:
                continue
            if left["kind"] == "int" or len(left["rows"]) != len(right["rows"]):
                return "other"
            floats_differ = True
    if not floats_differ:
        return "same"
    return "labels" if integers else "floats"
