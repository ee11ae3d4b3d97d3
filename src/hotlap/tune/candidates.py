"""Which levers could help the best set, and how much by their share of the step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hotlap.levers._base import Context, Lever, Settings, Stage
from hotlap.records import run as records
from hotlap.records.tune import CAP

from .objective import cheapness, saves_memory
from .recipe import clashing
from .state import State

LEAST_SHARE: Final = 0.02
MOST_SHARE: Final = 1 - 1 / CAP


@dataclass(frozen=True)
class Candidate:
    """A lever with settings worth trying, the most promising first. predicted: the most it can win, as a ratio."""

    lever: Lever
    variants: list[Settings]
    predicted: float

    @property
    def use(self) -> records.Lever:
        """The lever with its first settings."""
        return self.variant(0)

    def variant(self, at: int) -> records.Lever:
        """The lever with other settings."""
        return records.Lever(name=self.lever.name, settings=self.variants[at])


def candidates(state: State, stage: Stage | None = None) -> list[Candidate]:
    """Levers of a stage that may help and were not tried under this bound, the one that may win most first.

    Those that can't are noted as dropped, with the reason. stage: None for all of them.
    """
    context = state.context()
    found = [one for lever in untried(state, stage) if (one := candidate_of(state, lever, context)) is not None]
    if state.memory:
        return sorted(found, key=lambda one: cheapness(one.lever))
    return sorted(found, key=lambda one: -one.predicted)


def untried(state: State, stage: Stage | None = None) -> list[Lever]:
    """Levers of a stage that are not in, nor refused, nor tried under this bound. stage: None for all of them."""
    bound, known = state.best.diagnosis.bound, {*state.context().active, *state.refused}
    return [
        lever
        for lever in state.levers.values()
        if stage in {None, lever.stage} and lever.name not in known and (lever.name, bound) not in state.tried
    ]


def candidate_of(state: State, lever: Lever, context: Context) -> Candidate | None:
    """A lever as a candidate; None where it is none, which is noted."""
    found = _considered(state, lever, context)
    if isinstance(found, Candidate):
        return found
    state.drop(lever.name, found)
    return None


def _considered(state: State, lever: Lever, context: Context) -> Candidate | str:
    """A lever as a candidate, or why it is none."""
    if (why := excluded(state, lever, context)) is not None:
        return why
    variants, share = lever.variants(context), lever.share(context)
    if not variants:
        return "it has no settings to try here"
    if share < LEAST_SHARE and not state.memory:
        return f"could win at most {max(0.0, share):.1%} of the step here"
    return Candidate(lever, variants, 1 / (1 - min(share, MOST_SHARE)))


def compatible(state: State, group: Sequence[Candidate], active: Sequence[str] = ()) -> list[Candidate]:
    """Those of a group that can be in together beside the active ones, in its order."""
    chosen: list[Candidate] = []
    for one in group:
        if not clashing(state.levers, one.lever, [*active, *(other.lever.name for other in chosen)]):
            chosen.append(one)
    return chosen


def excluded(state: State, lever: Lever, context: Context) -> str | None:
    """Why a lever is not tried beside those in the context; None if it may be."""
    request = state.request
    if request.only and lever.name not in request.only:
        return "left out by --only"
    if lever.name in request.without:
        return "left out by --without"
    if lever.risk == "semantic" and "semantic" not in request.allow:
        return "changes training; only with --allow semantic"
    if state.memory and not saves_memory(lever):
        return "saves no memory"
    applies = lever.applies(context)
    clash = clashing(state.levers, lever, context.active)
    if applies.yes and clash:  # else the reason stays true when the other is dropped
        return f"can't be used with {clash[0]}"
    return None if applies.yes else applies.why


def together(state: State, stage: Stage) -> list[Candidate]:
    """Switchable levers of a stage that can be in at once, each chosen as if those before it were: levers are among
    them that apply only beside others."""
    active, left = dict(state.context().active), [lever for lever in untried(state, stage) if lever.switchable]
    chosen: list[Candidate] = []
    while True:
        context = state.context(active)
        considered = [_considered(state, lever, context) for lever in left if lever.name not in active]
        fit = [one for one in considered if isinstance(one, Candidate)]
        if not fit:
            return chosen
        best = max(fit, key=lambda one: one.predicted)
        active[best.lever.name] = best.variants[0]
        chosen.append(best)
