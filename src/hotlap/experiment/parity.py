"""Whether learning is unchanged: what a trial computed, against what the command itself computes.

Every judgement compares a trial with the baseline, step by step: the losses (each backward's on its own), the first
gradient norm of each optimizer (before the script clips, and after), the change of sampled weights after the first and
the last probed step, the samples that arrived, and whether the forward still draws random numbers. How far they may
differ is never a bare constant:

* exact:   bit for bit, or no farther than three times what any two runs of the bare command differ (A/A). Later losses
           may have grown from that noise (a few runs say little of how far: 0.002% to 0.4% of the loss in one
           command): where first losses, gradients and updates are within it, twins tell, as for numeric.
* numeric: within the lever's stated tolerance; where rounding is amplified by the script itself, within
           `TWIN_FACTOR` times what a nudge of the weights by one bfloat16 rounding does to the bare command (a twin).
* redraw:  a lever may have random transforms draw other numbers, as worker processes do. Proven with the draws of each
           sample pinned, in the bare command and in the trial: then the above holds. Where draws can't be pinned (a
           dataset with a generator of its own) and others were seen: within `TWIN_FACTOR` times what reseeding the
           bare command after its first batch does, which is much weaker.

NaN or infinity where the baseline has none never passes, nor do steps that consist of other backward calls.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from hotlap.records.tune import Parity

from .evidence import COMPARED_STEPS, Evidence, Gaps, gaps, samples

AA_FACTOR: Final = 3.0
AA_LEAST: Final = 1e-4
"""Where the command differs from itself at all, relative differences below this are rounding: one pair of runs says
that there is noise, but hardly how much (the ratio of two such differences has no bounded variance)."""
TWIN_FACTOR: Final = 2.5
FEW_TWINS: Final = 2
NEAR: Final = 2.0
"""After FEW_TWINS more are made only of a trial that is over its limits by less than this. Were the gaps of all runs
drawn alike (normal, as where rounding grows until it fills what it can), one lever in 46 would be refused with two
nudged twins, and one in 180 with four."""
GRADIENT_TOLERANCE: Final = 0.02
UPDATE_TOLERANCE: Final = 0.05
DIRECTION_TOLERANCE: Final = 0.2
PATTERN_TOLERANCE: Final = 0.5
LEAST_STEPS: Final = 5
MOST_TOLERANCE: Final = 0.03


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
    spread of single numbers; see `_widened`.
    """

    nudged: Sequence[Callable[[], Evidence | None]]
    redrawn: Sequence[Callable[[], Evidence | None]]
    pinned: Callable[[], tuple[Evidence, Evidence] | None] = lambda: None
    """The bare command and the trial again, both with `levers._pinned_draws`."""


NUDGED: Final = "nudging the weights by one bfloat16 rounding changes"
PINNED: Final = "with the same random draws for each sample"
SAMPLES_SAID: Final = {
    "none": "no loader, so its samples were not compared",
    "same": "the same samples in the same order",
    "labels": "the same labels in the same order; random transforms differ",
    "floats": "as many samples; random transforms differ, and there are no labels to compare",
    "other": "other samples, or in another order",
}


def judge(
    rule: Rule, base: Evidence, again: Evidence, trial: Evidence, twins: Twins, more: Sequence[Evidence] = ()
) -> Parity:
    """Judge a trial against the baseline. base, again: two runs of the bare command; more: further ones."""
    found = msgspec.structs.replace(_judged(rule, base, (again, *more), trial, twins), change=_change(base))
    return msgspec.structs.replace(found, why=f"{found.why}; {found.weakness}") if found.ok and found.weak else found


def _judged(rule: Rule, base: Evidence, bare: Sequence[Evidence], trial: Evidence, twins: Twins) -> Parity:
    """bare: the other runs of the bare command."""
    again, seen = bare[0], samples(base, trial)
    refused = _never(base, again, trial, seen)
    own, found = [gaps(one, two) for one, two in combinations((base, *bare), 2)], gaps(base, trial)
    same = all(one.none for one in own)
    if refused:
        return _parity(False, "refused", refused, found, None, seen)
    if found.none and seen in {"same", "none"}:
        return _parity(True, "bitwise", "losses, gradients and updates are equal bit for bit", found, 0.0, seen)
    noise = functools.reduce(Limits.widest, (Limits.times(one, AA_FACTOR) for one in own))
    if not same:
        noise = noise.widest(Limits(*[AA_LEAST] * 5))
    noisy_data = samples(base, again) not in {"same", "none"}
    other_draws = seen in {"labels", "floats"}
    if other_draws and not rule.redraws and not noisy_data:
        return _parity(False, "samples", f"the lever changed the data: {SAMPLES_SAID[seen]}", found, None, seen)
    # Runs of one command are alike, so the trial may be near any of the others.
    if not same and any(noise.hold(gaps(one, trial)) for one in (base, *bare)):
        why = f"within {AA_FACTOR:g} times what two runs of the bare command differ, or {AA_LEAST:.2%}"
        return _parity(True, "run-to-run", why, found, noise.loss, seen)
    return _with_twins(rule, base, trial, noise, twins, seen)


def _grown(noise: "Limits", base: Evidence, trial: Evidence) -> bool:
    """Whether what differs may have grown from run-to-run noise: that is there, and first gradients, updates and the
    first LEAST_STEPS losses lie within it. noise: what runs of the bare command may differ by."""
    first, second = (replace(one, losses=one.losses[:LEAST_STEPS]) for one in (base, trial))
    return any(noise) and noise.hold(gaps(first, second))


def _with_twins(rule: Rule, base: Evidence, trial: Evidence, noise: "Limits", twins: Twins, seen: str) -> Parity:
    found = gaps(base, trial)
    outputs = not _losses_known(base) and all(line.gradient_norm is None for line in base.updates)
    stated = Limits.stated(rule.tolerance, outputs)
    limits, tolerance = noise.widest(stated) if rule.numeric else noise, f"the stated tolerance of {rule.tolerance:.1%}"
    if rule.numeric and stated.hold(found):
        return _parity(True, "numeric", f"within {tolerance}", found, stated.loss, seen)
    if rule.numeric and limits.hold(found):
        wider = f"{AA_FACTOR:g} times what two runs of the bare command differ ({noise.loss:.1%} of the loss)"
        return _parity(True, "numeric", f"within {tolerance}, or {wider} where that is more", found, limits.loss, seen)
    # Of more workers the first batches come from the same ones, with the same random numbers; later ones do not.
    if rule.redraws and seen != "none" and (pair := twins.pinned()) is not None and samples(*pair) in {"same", "none"}:
        return _pinned(rule, base, pair, limits, twins, seen)
    if rule.redraws and seen in {"labels", "floats"}:
        found = gaps(base, trial, later=True)
        # Few twins say little of the spread of single numbers, so these may always differ as numeric levers may.
        limits = limits.widest(Limits.stated(0.0))
        wide = _widened(limits, found, base, twins.redrawn, later=True)
        allowed = f"{TWIN_FACTOR:g} times what other random draws change in the bare command"
        level = "redraw"
    elif rule.numeric or _grown(noise, base, trial):
        wide = _widened(limits, found, base, twins.nudged)
        allowed = f"{TWIN_FACTOR:g} times what {NUDGED}"
        level = "numeric" if rule.numeric else "run-to-run"
    else:
        worst = noise.worst(found)
        return _parity(False, "exact", f"not equal, and beyond run-to-run noise: {worst}", found, noise.loss, seen)
    if wide is None:
        return _parity(False, level, "the extra runs that measure the script's own spread failed", found, None, seen)
    if wide.loss <= limits.loss:  # the twins widened other limits
        allowed = f"{allowed}, or {limits.loss:.1%} of the loss, which is always allowed"
    return _within(level, allowed, found, wide, seen)


def _widened(
    limits: "Limits", found: Gaps, base: Evidence, twins: Sequence[Callable[[], Evidence | None]], later: bool = False
) -> "Limits | None":
    """Limits widened by one twin after another, until they hold; None where no twin could be made."""
    wide: Limits | None = None
    for made, make in enumerate(twins):
        if made >= FEW_TWINS and wide is not None and wide.over(found) > NEAR:
            break
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
    if not limits.hold(found) and (rule.numeric or _grown(limits, *pair)):
        wide = _widened(limits, found, base, twins.nudged)
        if wide is not None:
            return _within("redraw", f"{TWIN_FACTOR:g} times what {NUDGED} ({PINNED})", found, wide, seen)
    return _within("redraw", f"the limits ({PINNED})", found, limits, seen)


def _within(level: str, allowed: str, found: Gaps, limits: "Limits", seen: str) -> Parity:
    if limits.hold(found):
        return _parity(True, level, f"within {allowed}", found, limits.loss, seen)
    return _parity(False, level, f"{limits.worst(found)}: more than {allowed}", found, limits.loss, seen)


def _never(base: Evidence, again: Evidence, trial: Evidence, seen: str) -> str | None:
    """Reasons that no tolerance excuses."""
    steps = min(len(base.losses), len(trial.losses))
    if steps < LEAST_STEPS:
        return f"only {steps} steps to compare, at least {LEAST_STEPS} are needed"
    known = _losses_known(base)
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
        return f"{_calls(trial):g} backward calls a step; the command makes {_calls(base):g}"
    if _clips(base) & _clips(again) & _clips(trial, whether=False):
        return "the command clips its gradients before the first update, and the trial does not"
    if base.draws and again.draws and trial.draws is False:
        return "the forward no longer draws random numbers (dropout is gone)"
    if seen == "other" and samples(base, again) != "other":
        return SAMPLES_SAID["other"]
    return None


def _change(base: Evidence) -> float | None:
    """How far the losses of the compared steps get, their last third from the first, over their mean: None unknown."""
    rows = [row for row in base.losses[:COMPARED_STEPS] if row and all(map(math.isfinite, row))]
    most = max((abs(x) for row in rows for x in row), default=0.0)
    known = [fmean(x / most for x in row) for row in rows] if most else []
    scale, third = fmean(map(abs, known)) if known else 0.0, max(1, len(known) // 3)
    return abs(fmean(known[-third:]) - fmean(known[:third])) / scale if scale else None


def _losses_known(evidence: Evidence) -> bool:
    return any(math.isfinite(x) for row in evidence.losses for x in row)


def _clips(evidence: Evidence, whether: bool = True) -> set[int]:
    """The optimizers before whose first update gradients were clipped, or were not; none of those whose gradients were
    not finite, of which that is not known."""
    first = {line.optimizer: line for line in reversed(evidence.updates)}
    known = {optimizer: line for optimizer, line in first.items() if line.gradient_norm is not None}
    return {optimizer for optimizer, line in known.items() if (line.unclipped_norm is not None) == whether}


def _calls(evidence: Evidence) -> float:
    """Backward calls in a step, as most steps have them."""
    return median(len(row) for row in evidence.losses)


class Limits(NamedTuple):
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
    def stated(cls, tolerance: float, outputs: bool = False) -> "Limits":
        """From a lever's stated tolerance. outputs: of inference, which are compared instead of updates: their norm,
        and by the angle between them their difference, may be off by the tolerance itself."""
        if outputs:
            return cls(tolerance, PATTERN_TOLERANCE, GRADIENT_TOLERANCE, tolerance, tolerance**2 / 2)
        return cls(tolerance, PATTERN_TOLERANCE, GRADIENT_TOLERANCE, UPDATE_TOLERANCE, DIRECTION_TOLERANCE)

    def widest(self, other: "Limits") -> "Limits":
        """The wider of each."""
        return Limits(*map(max, self, other))

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

    def over(self, found: Gaps) -> float:
        """How many times its limit the worst gap is; 1 where none is over."""
        return max((ratio for ratio, _ in self._over(found)), default=1.0)

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
