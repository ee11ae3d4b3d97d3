"""Which levers could help the incumbent, how much by prediction, and which of them can be tried at once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hotlap.levers._base import Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.tune import CAP

from .objective import cheapness, saves_memory
from .state import State

LEAST_SHARE: Final = 0.02
LEAST_GAIN: Final = 1.02
MOST_SHARE: Final = 1 - 1 / CAP


@dataclass(frozen=True)
class Candidate:
    """A lever with its most promising settings. predicted: the ratio of steps without and with it; None unknown."""

    lever: Lever
    variants: list[Settings]
    predicted: float | None
    by: Literal["replay", "share"] | None

    @property
    def use(self) -> records.Lever:
        """The lever with its first settings."""
        return records.Lever(name=self.lever.name, settings=self.variants[0])


def candidates(state: State, tried: set[tuple[str, str]]) -> list[Candidate]:
    """Levers that may help the incumbent and were not tried under its bound, the one that may win most first.

    Those that can't are noted as dropped, with the reason.
    """
    found = []
    context = state.context(state.best)
    for lever in _untried(state, tried):
        why = excluded(state, lever, context)
        if why is None:
            candidate = predict(state, lever, context)
            why = _too_little(state, candidate, lever, context)
        if why is not None:
            state.drop(lever.name, why)
            continue
        state.may_help_now(lever.name)
        found.append(candidate)
    if state.objective.memory:
        return sorted(found, key=lambda one: cheapness(one.lever))
    return sorted(found, key=_order)


def _untried(state: State, tried: set[tuple[str, str]]) -> list[Lever]:
    """Levers that are not in, nor refused, nor tried under this bound. tried: names, each with a bound."""
    active, bound = state.context(state.best).active, state.best.diagnosis.bound
    known = {*active, *state.refused}
    return [one for one in state.levers.values() if one.name not in known and (one.name, bound) not in tried]


def predict(state: State, lever: Lever, context: Context, variants: list[Settings] | None = None) -> Candidate:
    """What a lever that applies may win: by the replay where it knows, else the most by its share of the step.

    variants: by default those that the lever would try; the first of them is predicted.
    """
    variants = lever.variants(context) if variants is None else variants
    if state.objective.memory:
        return Candidate(lever, variants, None, None)
    uses = [records.Lever(name=name, settings=settings) for name, settings in context.active.items()]
    replayed = gain(state, uses, records.Lever(name=lever.name, settings=variants[0])) if variants else None
    most = 1 / (1 - min(lever.share(context), MOST_SHARE))
    if replayed is not None and (replayed >= most or not _outdated(state)):
        return Candidate(lever, variants, replayed, "replay")
    return Candidate(lever, variants, most, "share")


def _outdated(state: State) -> bool:
    """Whether the incumbent has levers that the replay knows nothing of. Its steps are then others than those that are
    replayed: with a compiler and another memory format the device of a GAN on an H100 waited for 90% of what was a
    compute-bound step, and CUDA graphs, of which the replay said that they win nothing, won 3 times."""
    return any(state.levers[use.name].scenario(use.settings) is None for use in state.best.levers)


def gain(state: State, uses: Sequence[records.Lever], lever: records.Lever) -> float | None:
    """The ratio of steps without and with a lever beside others, replayed; None where the replay knows nothing of it.

    Where another lever removes the same cause already, it is 1.
    """
    scenario = state.levers[lever.name].scenario(lever.settings)
    if state.whatif is None or scenario is None:
        return None
    others = (state.levers[use.name].scenario(use.settings) for use in uses if use.name != lever.name)
    beside = frozenset(name for name in others if name)
    after = state.whatif.step_ms(beside | {scenario})
    before = state.whatif.step_ms(beside) or state.whatif.before_ns / 1e6
    return None if after is None else before / max(after, 1e-9)


def _too_little(state: State, candidate: Candidate, lever: Lever, context: Context) -> str | None:
    """Why it is not worth a trial: neither its share nor the replay says that it could win anything."""
    if not candidate.variants:
        return "it has no settings to try here"
    if state.objective.memory:
        return None
    share = lever.share(context)
    replayed = 1 - 1 / max(1.0, candidate.predicted or 1.0) if candidate.by == "replay" else 0.0
    if share >= LEAST_SHARE or context.of_left(replayed) >= 1 - 1 / LEAST_GAIN:
        return None
    return f"could win at most {max(0.0, share):.1%} of the step here"


def excluded(state: State, lever: Lever, context: Context) -> str | None:
    """Why a lever is not tried beside those in the context; None if it may be."""
    asked = state.asked
    if asked.only and lever.name not in asked.only:
        return "left out by --only"
    if lever.name in asked.without:
        return "left out by --without"
    if lever.risk == "semantic" and not asked.semantic:
        return "changes training; only with --allow semantic"
    if state.objective.memory and not saves_memory(lever):
        return "saves no memory"
    applies = lever.applies(context)
    clash = clashing(state.levers, lever, context.active)
    if applies.yes and clash:  # else the reason stays true when the other is dropped
        return f"can't be used with {clash[0]}"
    return None if applies.yes else applies.why


def clashing(levers: Mapping[str, Lever], lever: Lever, active: Mapping[str, Settings]) -> list[str]:
    """Levers in use that exclude this one, or that it excludes."""
    return [name for name in active if name in lever.excludes or lever.name in levers[name].excludes]


def together(state: State, ordered: Sequence[Candidate], tried: set[tuple[str, str]]) -> list[Candidate]:
    """Those of the candidates that can be tried in one trial, each chosen as if those before it were in already. So
    levers are among them that others have to come before, and some that win little of the step as it is now.

    A lever that another makes needless (TF32 beside bfloat16), that excludes one before it, whose number has to be
    searched, or that changes training, is not among them. Nor is one that needs the trial's own bound to be known:
    where waiting for data is what counts, the rest is looked at afterwards. One that wins nothing before the second
    epoch waits until it is known what those leave that win at once.
    """
    if state.objective.memory or not ordered or not _groupable(ordered[0].lever, state.context(state.best)):
        return list(ordered[:1])
    return list(_compatible(state, ordered[0].lever, tried))


def _compatible(state: State, first: Lever, tried: set[tuple[str, str]]) -> Iterator[Candidate]:
    """Always the one that may win most beside those before it: which of two levers for one cause (TF32, bfloat16) that
    is depends on what the others leave."""
    active, left = dict(state.context(state.best).active), _untried(state, tried)
    left_ms = state.best.diagnosis.step_ms
    while left:
        context = state.context(state.best, active, left_ms)
        fit = [one for one in left if _groupable(one, context) and excluded(state, one, context) is None]
        beside = [predict(state, one, context) for one in fit]
        usable = [one for one in beside if _too_little(state, one, one.lever, context) is None]
        best = min(usable, key=_order, default=None)
        if best is None or (best.lever.late and best.lever is not first):
            return
        active[best.lever.name] = best.variants[0]
        left.remove(best.lever)
        left_ms /= likely(best)
        yield best


def likely(one: Candidate) -> float:
    """The ratio to reckon with: what is known to be the most is taken for half of it, as a logarithm."""
    predicted = max(1.0, one.predicted or 1.0)
    return predicted if one.by == "replay" else math.sqrt(predicted)


def _order(one: Candidate) -> tuple[bool, float]:
    """Those first that may win most."""
    return one.lever.late, -(one.predicted or 1.0)


def _groupable(lever: Lever, context: Context) -> bool:
    return not lever.searched(context) and lever.risk != "semantic"
