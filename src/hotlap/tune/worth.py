"""Each kept lever for itself: what it is worth beside all others that are kept, and out with what is worth nothing."""

from collections.abc import Sequence
from typing import Final

from hotlap.experiment.statistics import within_process
from hotlap.experiment.switching import SideLost, Variant
from hotlap.experiment.turns import LEAST_ROUNDS, ROUNDS, log_ratios
from hotlap.records import run as records
from hotlap.records.errors import NothingMeasured
from hotlap.records.tune import Worth

from .screening import SETTLE_S, switchable
from .state import State, worth_text

MEASURE_S: Final = 12.0
COMPILE_SETTLE_SHARE: Final = 0.12
"""Of the budget: without another lever, what is compiled is compiled anew."""


def each_for_itself(state: State) -> bool:
    """Measure what has no figure beside just these others; whether something went out. Raises BudgetSpent."""
    went = False
    if state.memory:  # they are kept for what they save, and cost time
        return False
    proof, own = state.found.proved, [use for use in state.best.levers if use not in state.given]
    if len(own) == 1 and own[0].name not in state.found.worth and proof is not None and not state.unproved:
        state.found.worth[own[0].name] = Worth(ratio=proof.ratio, interval=proof.interval, by=proof.how)
    done: set[str] = set()
    while todo := [use for use in _to_measure(state) if use.name not in done]:
        found = _measure(state, todo)
        done |= found.keys()
        low = {name: one for name, one in found.items() if one is not None and not _above(one)}
        for name, worth in found.items():
            if worth is not None and name not in low:
                state.found.worth[name] = worth
                state.say(f"worth  {name}  {worth_text(worth)}beside the others")
        if not low:
            continue
        least = min(low, key=lambda name: low[name].ratio)
        done -= low.keys() - {least}  # they may be worth something without it
        _take_out(state, least, low[least])
        went = True
    return went


def _above(worth: Worth) -> bool:
    return worth.interval is not None and worth.interval.low > 1


def _take_out(state: State, name: str, worth: Worth) -> None:
    """A lever that is worth nothing goes out. Its figure stays, should no time be left to prove the rest."""
    use = next(one for one in state.best.levers if one.name == name)
    state.no_gain([use], worth)
    state.found.worth[name] = worth
    state.refused.add(name)  # should the rest turn out to be slower, it is in again, and not looked at again
    state.best.levers = [one for one in state.best.levers if one.name != name]
    state.budget.to_prove = state.unproved


def _to_measure(state: State) -> list[records.Lever]:
    """Those that are expected to be worth least first; what compiles is dearest to take out beside others that it has
    compiled, and is worth most, so it comes last."""
    names = {use.name for use in state.best.levers}
    own = [use for use in state.best.levers if use not in state.given and use.name not in state.refused]

    def known(use: records.Lever) -> bool:
        worth = state.found.worth.get(use.name)
        return worth is not None and {*worth.beside} == names - {use.name}

    def order(use: records.Lever) -> tuple[bool, float]:
        worth = state.found.worth.get(use.name)
        return state.levers[use.name].compiles, worth.ratio if worth else 1.0

    return sorted([use for use in own if not known(use)], key=order) if len(own) > 1 else []


def _measure(state: State, todo: Sequence[records.Lever]) -> dict[str, Worth | None]:
    """Without each and with it: of the first of these in one process where that can be, else of all that need starts of
    their own, which they make at once. None where it can't be told. Raises BudgetSpent."""
    first = todo[0]
    if state.sequential or _needed(state, first):
        return {first.name: None}
    if _switched(state, first):
        return {first.name: _by_switching(state, first)}
    return _by_turns(state, [use for use in todo if not (_switched(state, use) or _needed(state, use))])


def _switched(state: State, use: records.Lever) -> bool:
    return state.levers[use.name].switchable and switchable(state, state.best.levers)


def _without(state: State, use: records.Lever) -> list[records.Lever]:
    return [one for one in state.best.levers if one != use]


def _needed(state: State, use: records.Lever) -> bool:
    """Whether one of the others does not apply without it."""
    for other in _without(state, use):
        lever = state.levers[other.name]
        beside = {one.name: one.settings for one in state.best.levers if one is not other}
        without = {name: settings for name, settings in beside.items() if name != use.name}
        if lever.applies(state.context(beside)).yes and not lever.applies(state.context(without)).yes:
            return True
    return False


def _afford(state: State, seconds: float, use: records.Lever) -> None:
    """For a figure. A first one comes before the interval of the whole is narrowed. Raises BudgetSpent."""
    known = use.name in state.found.worth
    state.budget.afford(seconds, f"what {use.name} is worth beside the others", narrowing=known)


def _by_switching(state: State, use: records.Lever) -> Worth | None:
    rest = _without(state, use)
    compiled = any(state.levers[one.name].compiles for one in rest)
    settle_s = COMPILE_SETTLE_SHARE * state.budget.seconds if compiled else SETTLE_S
    start_s = 0.0 if state.side is not None and state.side.ready else state.budget.best_start_s
    _afford(state, start_s + (settle_s if compiled else 2.0) + MEASURE_S, use)
    full: Variant = tuple(one.name for one in state.best.levers)
    without: Variant = tuple(one.name for one in rest)
    try:
        switching = state.switching()
        for variant in (full, without):
            if switching.settle(variant, settle_s) is None:
                return None
        switching.measure([full, without], lambda so_far: so_far.clear([(without, full)]), MEASURE_S)
    except (SideLost, NothingMeasured):
        state.side = None
        return None
    ratio = switching.ratio(without, full)
    return Worth(ratio=ratio.ratio, interval=ratio.interval, beside=without, by="switching") if ratio else None


def _by_turns(state: State, uses: Sequence[records.Lever]) -> dict[str, Worth | None]:
    """With processes that start without each, as many as there is time for, taking turns with one that has all. Left
    out are those for which memory has no room beside the others: it may have alone."""
    uses = _affordable(state, uses)
    found: dict[str, Worth | None] = {use.name: None for use in uses}
    try:
        full = state.incumbent()
    except NothingMeasured:
        return found
    if len(uses) == 1:
        sides = [state.started(f"without {uses[0].name}", _without(state, uses[0]))]
    else:
        sides = [state.start(f"without {use.name}", _without(state, use)) for use in uses]
        state.ready(*sides)
    by_side = {side: use for side, use in zip(sides, uses, strict=True) if side.ready}
    rounds = []
    if by_side and full.ready:
        most_s = MEASURE_S * (len(by_side) + 1) / 2
        rounds = state.take_turns([*by_side, full], ROUNDS, most_s, per_row=state.resized(list(by_side.values())))
    for side in sides:
        state.end_side(side)
    if len(uses) > 1 and any(side.measured.outcome == "memory" for side in sides):
        if not by_side:
            return _by_turns(state, uses[:1])
        found = {use.name: None for use in by_side.values()}
    if len(rounds) >= LEAST_ROUNDS:
        for side, use in by_side.items():
            ratio = within_process(log_ratios(rounds, side, full))
            beside = tuple(one.name for one in _without(state, use))
            found[use.name] = Worth(ratio=ratio.ratio, interval=ratio.interval, beside=beside, by="turns")
    return found


def _affordable(state: State, uses: Sequence[records.Lever]) -> Sequence[records.Lever]:
    """The first of these, as many as there is time for. Raises BudgetSpent where there is none for one."""
    budget = state.budget
    full_s = 0.0 if state.side is not None and state.side.ready else budget.best_start_s
    new = sum(use.name not in state.found.worth for use in uses)  # these come first

    def seconds(count: int) -> float:
        return full_s + budget.starts_s(count) + budget.turns_s(count + 1, LEAST_ROUNDS)

    _afford(state, seconds(1), uses[0])
    counts = range(len(uses), 1, -1)
    return uses[: next((n for n in counts if budget.affords(seconds(n), narrowing=n > new)), 1)]
