"""Whether learning is unchanged: what a trial computed, against what the command itself computes.

Every judgement compares a trial with the baseline, step by step: the losses (each backward's on its own), the first
gradient norm of each optimizer, the change of sampled weights after the first and the last probed step, the samples
that arrived, and whether the forward still draws random numbers. How far they may differ is never a bare constant:

* exact:   bit for bit, or no farther than three times what two runs of the bare command differ (A/A).
* numeric: within the lever's stated tolerance; where rounding is amplified by the script itself, within
           `TWIN_FACTOR` times what a nudge of the weights by one bfloat16 rounding does to the bare command (a twin).
* redraw:  the samples and their order are the same but random transforms drew other numbers, as they do when worker
           processes draw them. Proven with the draws of each sample pinned, in the bare command and in the trial: then
           the above holds. Where draws can't be pinned (a dataset with a generator of its own): within `TWIN_FACTOR`
           times what reseeding the bare command after its first batch does, which is much weaker.

NaN or infinity where the baseline has none never passes, nor do steps that consist of other backward calls.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import msgspec
import numpy as np

from hotlap.diagnose.steps import of_mode
from hotlap.records.files import rank_folders, read_lines, read_steps
from hotlap.records.tune import Parity

AA_FACTOR: Final = 3.0
AA_LEAST: Final = 1e-4
"""Where the command differs from itself at all, relative differences below this are rounding: one pair of runs says
that there is noise, but hardly how much (the ratio of two such differences has no bounded variance)."""
TWIN_FACTOR: Final = 2.5
GRADIENT_TOLERANCE: Final = 0.02
UPDATE_TOLERANCE: Final = 0.05
DIRECTION_TOLERANCE: Final = 0.2
PATTERN_TOLERANCE: Final = 0.5
PATTERN_LEAST: Final = 2.0**-8
"""A loss whose steps differ by less than this, one bfloat16 rounding, has no pattern to tell its batches by."""
COMPARED_STEPS: Final = 64
"""Steps whose losses are compared: later ones differ by what rounding has grown to, whatever the lever."""
LEAST_STEPS: Final = 5
MOST_TOLERANCE: Final = 0.03


class ProbeLine(msgspec.Struct, frozen=True):
    """A line of `rank-K/probe.jsonl`."""

    what: str
    batch: int = 0
    leaves: tuple[dict[str, Any], ...] = ()
    draws: bool | None = None
    optimizer: int = 0
    step: int = 0
    gradient_norm: float | None = None
    update_norm: float | None = None
    update: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What one run computed. losses: a tuple a step, NaN where not finite, one entry a backward call."""

    losses: tuple[tuple[float, ...], ...]
    updates: tuple[ProbeLine, ...] = ()
    batches: tuple[ProbeLine, ...] = ()
    draws: bool | None = None


@dataclass(frozen=True)
class Rule:
    """How a set of levers is judged: the weakest of their risks."""

    numeric: bool
    tolerance: float
    redraws: bool


@dataclass(frozen=True)
class Twins:
    """Runs of the bare command that show its own sensitivity; made only when they are needed.

    nudged, redrawn: made one after another until what one of them does is enough, since a single run says little of the
    spread of single numbers.
    """

    nudged: Sequence[Callable[[], Evidence | None]]
    redrawn: Sequence[Callable[[], Evidence | None]]
    pinned: Callable[[], tuple[Evidence, Evidence] | None] = lambda: None
    """The bare command and the trial again, both with `levers._pinned_draws`."""


def read_evidence(folder: Path) -> Evidence:
    """The evidence in a run folder (rank 0)."""
    ranks = rank_folders(folder)
    if not ranks:
        return Evidence(())
    _, steps = of_mode(read_steps(ranks[0]))
    losses = tuple(
        (math.nan,) if step.nonfinite else tuple(_number(x) for x in step.losses or (step.loss,)) for step in steps
    )
    lines = list(read_lines(ranks[0] / "probe.jsonl", ProbeLine))
    draws = [line.draws for line in lines if line.what == "forward"]
    return Evidence(
        losses,
        tuple(line for line in lines if line.what == "update"),
        tuple(line for line in lines if line.what == "batch"),
        any(draws) if draws else None,
    )


def _number(value: float | None) -> float:
    return math.inf if value is None else value


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
    first_steps: dict[int, int] = {}
    for line in one:
        first_steps.setdefault(line.optimizer, line.step)
        other = others.get((line.optimizer, line.step))
        if other is None:
            update = math.inf
            continue
        update = max(update, _relative(line.update_norm, other.update_norm))
        if later or line.step == first_steps[line.optimizer]:
            gradient = max(gradient, _relative(line.gradient_norm, other.gradient_norm))
            direction = max(direction, _direction(line.update, other.update))
    return gradient, update, direction


def _relative(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return 0.0 if a == b else math.inf
    if a == b:
        return 0.0
    return abs(b - a) / abs(a) if a else math.inf


def _direction(one: Sequence[float | None], two: Sequence[float | None]) -> float:
    """1 - cosine of two updates; 0 when they are equal element by element."""
    if one == two:
        return 0.0
    a = np.array([math.nan if x is None else x for x in one])
    b = np.array([math.nan if x is None else x for x in two])
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return max(1e-12, 1 - float(a @ b) / norm) if norm else math.inf


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


NUDGED: Final = "a nudge of the weights by one bfloat16 rounding does to it"
PINNED: Final = "with the random draws of each sample pinned"
SAMPLES_SAID: Final = {
    "none": "no loader, so its samples were not compared",
    "same": "the same samples in the same order",
    "labels": "the same labels in the same order; random transforms drew other numbers",
    "floats": "as many samples, whose random transforms drew other numbers (there are no labels to tell them by)",
    "other": "other samples, or in another order",
}


def judge(rule: Rule, base: Evidence, again: Evidence, trial: Evidence, twins: Twins) -> Parity:
    """Judge a trial against the baseline. base, again: two runs of the bare command."""
    seen = samples(base, trial)
    refused = _never(base, again, trial, seen)
    own, found = gaps(base, again), gaps(base, trial)
    if refused:
        return _parity(False, "refused", refused, found, None, seen)
    if found.none and seen in {"same", "none"}:
        return _parity(True, "bitwise", "losses, gradients and updates are equal bit for bit", found, 0.0, seen)
    noise = Limits.times(own, AA_FACTOR)
    if not own.none:
        noise = noise.widest(Limits(AA_LEAST, AA_LEAST, AA_LEAST, AA_LEAST, AA_LEAST))
    noisy_data = samples(base, again) not in {"same", "none"}
    other_draws = seen in {"labels", "floats"}
    if other_draws and not rule.redraws and not noisy_data:
        return _parity(False, "samples", f"the lever changed the data: {SAMPLES_SAID[seen]}", found, None, seen)
    # Three runs of one command are alike, so the trial may be near either of the other two.
    if not own.none and (noise.hold(found) or noise.hold(gaps(again, trial))):
        return _parity(True, "run-to-run", "no farther than the command differs from itself", found, noise.loss, seen)
    if not rule.numeric and not (rule.redraws and other_draws):
        worst = noise.worst(found)
        return _parity(False, "exact", f"not equal, and {worst} is beyond run-to-run noise", found, noise.loss, seen)
    return _with_twins(rule, base, trial, noise, twins, other_draws, seen)


def _with_twins(
    rule: Rule, base: Evidence, trial: Evidence, noise: "Limits", twins: Twins, other_draws: bool, seen: str
) -> Parity:
    found = gaps(base, trial)
    limits = noise.widest(Limits.stated(rule.tolerance)) if rule.numeric else noise
    if rule.numeric and limits.hold(found):
        why = f"within the stated tolerance of {rule.tolerance:.1%}"
        return _parity(True, "numeric", why, found, limits.loss, seen)
    if other_draws and rule.redraws:
        pair = twins.pinned()
        if pair is not None and samples(*pair) in {"same", "none"}:
            return _pinned(rule, base, pair, limits, twins, seen)
        found = gaps(base, trial, later=True)
        # Few twins say little of the spread of single numbers, so these may always differ as numeric levers may.
        limits = limits.widest(
            Limits(0.0, PATTERN_TOLERANCE, GRADIENT_TOLERANCE, UPDATE_TOLERANCE, DIRECTION_TOLERANCE)
        )
        wide = _widened(limits, found, base, twins.redrawn, later=True)
        allowed = f"{TWIN_FACTOR:g} times what other random draws do to the bare command"
        level = "redraw"
    else:
        wide = _widened(limits, found, base, twins.nudged)
        level, allowed = "numeric", f"{TWIN_FACTOR:g} times what {NUDGED}"
    if wide is None:
        return _parity(False, level, "the twin runs that would show the script's own spread failed", found, None, seen)
    return _within(level, allowed, found, wide, seen)


def _widened(
    limits: "Limits", found: Gaps, base: Evidence, twins: Sequence[Callable[[], Evidence | None]], later: bool = False
) -> "Limits | None":
    """Limits widened by one twin after another, until they hold; None where no twin could be made."""
    wide: Limits | None = None
    for make in twins:
        twin = make()
        if twin is not None:
            wide = (wide or limits).widest(Limits.times(gaps(base, twin, later), TWIN_FACTOR))
        if wide is not None and wide.hold(found):
            break
    return wide


def _pinned(
    rule: Rule, base: Evidence, pair: tuple[Evidence, Evidence], limits: "Limits", twins: Twins, seen: str
) -> Parity:
    """Judge the pair of runs in which each sample's random draws are the same."""
    found = gaps(*pair)
    refused = _never(pair[0], pair[0], pair[1], "same")
    if refused:
        return _parity(False, "refused", f"{refused} ({PINNED})", found, None, seen)
    if found.none:
        return _parity(True, "redraw", f"{PINNED}, everything is equal bit for bit", found, 0.0, seen)
    if not limits.hold(found) and rule.numeric:
        limits = _widened(limits, found, base, twins.nudged) or limits
        return _within("redraw", f"{TWIN_FACTOR:g} times what {NUDGED} ({PINNED})", found, limits, seen)
    return _within("redraw", f"what is allowed ({PINNED})", found, limits, seen)


def _within(level: str, allowed: str, found: Gaps, limits: "Limits", seen: str) -> Parity:
    if limits.hold(found):
        return _parity(True, level, f"within {allowed}", found, limits.loss, seen)
    return _parity(False, level, f"{limits.worst(found)}: more than {allowed}", found, limits.loss, seen)


def _never(base: Evidence, again: Evidence, trial: Evidence, seen: str) -> str | None:
    """Reasons that no tolerance excuses."""
    steps = min(len(base.losses), len(trial.losses))
    if steps < LEAST_STEPS:
        return f"only {steps} steps to compare, at least {LEAST_STEPS} are needed"
    known = any(math.isfinite(x) for row in base.losses for x in row)
    if not known and not base.updates:
        return "neither a loss, an update nor an output of the script was seen, so nothing can be compared"
    if known and not any(math.isfinite(x) for row in trial.losses[:steps] for x in row):
        return "no loss was seen in the trial"
    for index, (a, b) in enumerate(zip(base.losses, trial.losses, strict=False)):
        if any(math.isnan(x) for x in b) and not any(math.isnan(x) for x in a):
            return f"the loss is not finite at step {index}"
    if any(math.isnan(x) for row in trial.losses[steps:] for x in row):
        return "the loss is not finite after the compared steps"
    if _calls(base) == _calls(again) != _calls(trial):
        return f"{_calls(trial):g} backward calls a step where the command makes {_calls(base):g}"
    if base.draws and again.draws and trial.draws is False:
        return "the forward no longer draws random numbers (dropout is gone)"
    if seen == "other" and samples(base, again) != "other":
        return f"{SAMPLES_SAID['other']}"
    return None


def _calls(evidence: Evidence) -> float:
    """Backward calls in a step, as most steps have them."""
    return median(len(row) for row in evidence.losses)


@dataclass(frozen=True)
class Limits:
    """What each gap may reach."""

    loss: float
    pattern: float
    gradient: float
    update: float
    direction: float

    @classmethod
    def times(cls, own: Gaps, factor: float) -> "Limits":
        """A multiple of measured gaps; one that is not finite allows nothing."""

        def of(*gaps: float) -> float:
            return max(factor * gap if math.isfinite(gap) else 0.0 for gap in gaps)

        return cls(of(own.loss, own.tail), of(own.pattern), of(own.gradient), of(own.update), of(own.direction))

    @classmethod
    def stated(cls, tolerance: float) -> "Limits":
        """From a lever's stated tolerance."""
        return cls(tolerance, PATTERN_TOLERANCE, GRADIENT_TOLERANCE, UPDATE_TOLERANCE, DIRECTION_TOLERANCE)

    def widest(self, other: "Limits") -> "Limits":
        """The wider of each."""
        return Limits(
            max(self.loss, other.loss),
            max(self.pattern, other.pattern),
            max(self.gradient, other.gradient),
            max(self.update, other.update),
            max(self.direction, other.direction),
        )

    def _over(self, found: Gaps) -> list[tuple[float, str]]:
        rows = (
            ("loss", found.loss, self.loss),
            ("late loss", found.tail, self.loss),
            ("change of the loss from step to step", found.pattern, self.pattern),
            ("first gradient norm", found.gradient, self.gradient),
            ("weight update", found.update, self.update),
            ("direction of the first update", found.direction, self.direction),
        )
        return [
            (gap / limit if limit else math.inf, f"{name} differs by {gap:.2%}, allowed {limit:.2%}")
            for name, gap, limit in rows
            if not gap <= limit  # a gap that is not a number is over any limit
        ]

    def hold(self, found: Gaps) -> bool:
        """Whether no gap is over its limit."""
        return not self._over(found)

    def worst(self, found: Gaps) -> str:
        """The gap that is farthest over its limit, in words."""
        return max(self._over(found), default=(0.0, "nothing"))[1]


def _parity(ok: bool, level: str, why: str, found: Gaps, allowed: float | None, seen: str) -> Parity:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return Parity(
        ok=ok,
        level=level,
        why=why,
        loss_gap=finite(found.loss),
        allowed=allowed,
        gradient_gap=finite(found.gradient),
        update_gap=finite(found.update),
        samples=SAMPLES_SAID[seen],
        steps=found.steps,
    )


def mean_loss(evidence: Evidence) -> float:
    """Mean finite loss, for tests and tables."""
    return fmean(x for row in evidence.losses for x in row if math.isfinite(x))
