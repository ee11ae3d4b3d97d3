"""Each kept lever for itself: what it is worth beside all others that are kept, and out with what is worth nothing."""

from typing import Final

from hotlap.experiment.statistics import within_process
from hotlap.experiment.switching import SideLost, Variant
from hotlap.experiment.turns import LEAST_ROUNDS, ROUNDS, log_ratios
from hotlap.records import run as records
from hotlap.records.errors import NothingMeasured
from hotlap.records.tune import Worth

from .screening import switchable
from .state import State, worth_text

MEASURE_S: Final = 12.0
SETTLE_S: Final = 20.0
COMPILE_SETTLE_SHARE: Final = 0.12
"""Of the budget: without another lever, what is compiled is compiled anew."""


def each_for_itself(state: State) -> bool:
    """Measure what has no figure beside just these others; whether something went out. Raises BudgetSpent."""
    out: list[str] = []
    if state.memory:  # they are kept for what they save, and cost time
        return False
    proof, own = state.found.proved, [use for use in state.best.levers if use not in state.given]
    if len(own) == 1 and own[0].name not in state.found.worth and proof is not None and not state.unproved:
        state.found.worth[own[0].name] = Worth(ratio=proof.ratio, interval=proof.interval, by=proof.how)
    for use in _to_measure(state):
        worth = _measure(state, use)
        if worth is None:
            continue
        if worth.interval is not None and worth.interval.low > 1:
            state.found.worth[use.name] = worth
            state.say(f"worth  {use.name}  {worth_text(worth)}beside the others")
            continue
        state.no_gain([use], worth)
        state.refused.add(use.name)  # should the rest turn out to be slower, it is in again, and not looked at again
        out.append(use.name)
        state.best.levers = [one for one in state.best.levers if one.name != use.name]
        state.budget.to_prove = state.unproved
    return bool(out)


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


def _measure(state: State, use: records.Lever) -> Worth | None:
    """Without it and with it, in one process where that can be. None where it can't be told. Raises BudgetSpent."""
    rest = [one for one in state.best.levers if one != use]
    if _needed(state, use, rest):
        return None
    if state.levers[use.name].switchable and switchable(state, state.best.levers) and not state.sequential:
        return _by_switching(state, use, rest)
    return _by_turns(state, use, rest) if not state.sequential else None


def _needed(state: State, use: records.Lever, rest: list[records.Lever]) -> bool:
    """Whether one of the others does not apply without it."""
    for other in rest:
        lever = state.levers[other.name]
        beside = {one.name: one.settings for one in state.best.levers if one is not other}
        without = {name: settings for name, settings in beside.items() if name != use.name}
        if lever.applies(state.context(beside)).yes and not lever.applies(state.context(without)).yes:
            return True
    return False


def _alone(use: records.Lever) -> str:
    """What a measurement is of, for where no time is left for it."""
    return f"what {use.name} is worth beside the others"


def _by_switching(state: State, use: records.Lever, rest: list[records.Lever]) -> Worth | None:
    compiled = any(state.levers[one.name].compiles for one in rest)
    settle_s = COMPILE_SETTLE_SHARE * state.budget.seconds if compiled else SETTLE_S
    start_s = 0.0 if state.side is not None and state.side.ready else state.budget.best_start_s
    state.budget.afford(start_s + (settle_s if compiled else 2.0) + MEASURE_S, _alone(use))
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


def _by_turns(state: State, use: records.Lever, rest: list[records.Lever]) -> Worth | None:
    """With a process that starts without it."""
    state.budget.afford(2 * state.budget.best_start_s + state.budget.turns_s(2, LEAST_ROUNDS), _alone(use))
    try:
        full = state.incumbent()
    except NothingMeasured:
        return None
    side = state.started(f"without {use.name}", rest)
    if not (side.ready and full.ready):
        state.end_side(side)
        return None
    rounds = state.take_turns([side, full], ROUNDS, MEASURE_S, per_row=state.resized([use]))
    state.end_side(side)
    if len(rounds) < LEAST_ROUNDS:
        return None
    found = within_process(log_ratios(rounds, side, full))
    return Worth(ratio=found.ratio, interval=found.interval, beside=tuple(one.name for one in rest), by="turns")
