"""A lever that needs a start of its own: its settings tried one after another, each taking turns with the best set."""

import math
from collections.abc import Sequence
from typing import Final

from hotlap.experiment.outcome import names
from hotlap.experiment.side import BY_ITSELF, LEAST_STEPS, Side
from hotlap.experiment.statistics import LEAST_GAIN, Ratio, within_process
from hotlap.experiment.turns import LEAST_ROUNDS, log_ratios
from hotlap.levers._base import Settings
from hotlap.records import run as records
from hotlap.records.durations import ms
from hotlap.records.errors import NothingMeasured
from hotlap.records.tune import How, Open, Worth

from .candidates import Candidate
from .objective import peak_bytes
from .state import PROMISING, TOO_SLOW, State, use_text, value_text, worth_text

ROUNDS: Final = (12, 40)
"""Of turns, at most; more of what promises a gain, where so many do not tell."""
MOST_S: Final = 40.0
MOST_SHARE: Final = 0.08
"""Of the budget: turns of one lever take no longer, unless they are fewer by then than an interval needs."""
SLOWER: Final = "slower"
NOW_S: Final = 10.0
"""Seconds for a turn that tells the pace by now."""
MOST_VARIANTS: Final = 4
MOST_FAILURES: Final = 2
ALIKE: Final = 1.1
"""Times as many rows a step as the best set's that a side may have."""


def try_start(
    state: State, candidate: Candidate, instead_of: Sequence[str] = (), now: records.Lever | None = None
) -> bool:
    """Try a lever on top of the best set, or in place of some of its levers; whether it is in now. Raises BudgetSpent.

    Where one of its settings is no good the next is tried. now: the lever as it is in; settings that are the neighbours
    of these are tried.
    """
    lever = candidate.lever
    state.tried.add((lever.name, state.best.diagnosis.bound))
    state.found.predicted.setdefault(lever.name, candidate.predicted)
    rest = [use for use in state.best.levers if use.name not in instead_of]
    search = now is not None or state.memory
    measured: dict[int, float] = {}
    if now is not None:
        measured = {at: LEAST_GAIN for at, one in enumerate(candidate.variants) if one == now.settings}
    best: tuple[records.Lever, Side, Worth] | None = None
    failures = 0
    while (at := next_variant(candidate.variants, measured, search)) is not None:
        what = f"{'another setting of ' if measured else ''}{lever.name}"
        state.budget.afford(state.budget.starts_s(1) + lever.costs_s + state.budget.turns_s(2, LEAST_ROUNDS), what)
        use = candidate.variant(at)
        one = _measured(state, [*rest, use], [use])
        measured[at] = _won(state, *one) if one else 0.0
        failures += one is None
        if one and _gains(state, one) and (best is None or measured[at] > _won(state, *best[1:]) * LEAST_GAIN):
            state.end_side(best[1] if best else None)
            best = (use, *one)
        elif one:
            state.end_side(one[0])
            if best is None and lever.name not in state.refused and now is None:
                state.no_gain([use], one[1], "")
        if len(measured) >= MOST_VARIANTS or (best is None and failures >= MOST_FAILURES):
            break
    if best is None:
        return False
    use, side, worth = best
    state.leave_out(side.measured)
    _keep(state, rest, [use], side, worth, "beside the others")
    if not instead_of:  # else it is worth what a step takes without it, which is measured later
        state.found.worth[use.name] = worth
    return True


def try_together(state: State, group: Sequence[Candidate]) -> bool:
    """Try several levers at once on top of the best set, where each would cost a start; whether any are in now. What
    each is worth is measured later. Where they fail together, the one at which the error points goes, and the others
    are tried; where it points at none, the first is tried alone. Raises BudgetSpent."""
    if len(group) == 1:
        return try_start(state, group[0])
    before, bound = list(state.best.levers), state.best.diagnosis.bound
    uses = [one.use for one in group]
    costs_s = sum(one.lever.costs_s for one in group)
    state.budget.afford(state.budget.starts_s(1) + costs_s + state.budget.turns_s(2, LEAST_ROUNDS), names(uses))
    one = _measured(state, [*before, *uses], uses)
    if one is None:
        left = [each for each in group if each.lever.name not in state.refused]
        return try_together(state, left) if len(left) < len(group) else try_start(state, group[0])
    state.tried |= {(each.lever.name, bound) for each in group}
    state.found.predicted |= {each.lever.name: each.predicted for each in group}
    side, worth = one
    out = {left.lever.name for left in side.measured.left_out}
    state.leave_out(side.measured)
    uses = [use for use in uses if use.name not in out]
    if not uses or not _gains(state, one):
        state.end_side(side)
        if uses:
            state.no_gain(uses, worth, "all together")
        return False
    _keep(state, before, uses, side, worth, "all together")
    return True


def _keep(
    state: State, rest: Sequence[records.Lever], uses: Sequence[records.Lever], side: Side, worth: Worth, how: str
) -> None:
    """These are in now, beside the rest."""
    state.end_side(state.side)
    state.side = side
    state.keep([*rest, *uses], side, ratio=worth.ratio)
    over = tuple(use.name for use in rest)
    state.leave_open(Open(levers=tuple(state.best.levers), over=over, ratio=worth.ratio, interval=worth.interval))
    state.say(f"keep  {' + '.join(map(use_text, uses))}  {worth_text(worth)}{how}; not proved yet")


def _measured(
    state: State, levers: Sequence[records.Lever], uses: Sequence[records.Lever]
) -> tuple[Side, Worth] | None:
    """A side with these levers and what the last ones are worth, None where it failed. Then one of these is refused:
    the only one, or the one at which the error points; none where it points at none."""
    purpose, trying = f"try {names(uses)}", state.trying(uses, spare=len(uses) > 1)
    how: How = "turns"
    incumbent: Side | None = None
    if state.sequential:
        how = "one after another"
        before = state.reference.measured if not state.best.levers else state.run("incumbent", state.best.levers)
        side = state.started(purpose, levers, trying)
        ratio = Ratio(ratio=(before.step_ms or math.nan) / (side.measured.step_ms or math.inf), interval=None)
    else:
        try:
            incumbent = state.incumbent()
        except NothingMeasured:
            return None
        side = state.started(purpose, levers, trying)
        if not incumbent.alive and side.measured.outcome == "measured":
            incumbent = state.incumbent()
        ratio = beside(state, incumbent, side) if side.ready else Ratio(ratio=0.0, interval=None)
        if not ratio.ratio and side.measured.ended in {"", BY_ITSELF} and side.measured.step_ms:  # no turn is left
            how = "one after another"
            ratio = Ratio((incumbent.measured.step_ms or math.nan) / side.measured.step_ms, None)
    if failed := _failed(state, side, ratio, incumbent):
        if blamed := uses[0] if len(uses) == 1 else state.blamed(failed[0], uses):
            state.refuse(blamed, *failed, trial=side.measured)
        else:
            state.say(f"fail  {names(uses)}  {failed[0][:160]}")
        state.end_side(side)
        return None
    others = tuple(one.name for one in levers if one not in uses)
    worth = Worth(ratio=ratio.ratio, interval=ratio.interval, beside=others, by=how)
    shown = " + ".join(map(use_text, uses))
    value = value_text(state.value(side), state.memory)
    if how == "turns" and not state.memory:  # the bare command's turns may take other than its first run
        value = f"{ms(side.step_ms * ratio.ratio)} → {value} in turns"
    state.say(f"try  {shown}  {value}  {worth_text(worth)}")
    return side, worth


def _failed(state: State, side: Side, ratio: Ratio, incumbent: Side | None) -> tuple[str, Worth | None] | None:
    """Why a side says nothing of its levers, with what it was worth where that is known; None where it does.
    incumbent: what it was to take turns with, if it was."""
    trial = side.measured
    if trial.outcome == "too slow":
        usual, now = _now_ms(state, incumbent or state.reference), trial.step_ms or math.inf
        if now > TOO_SLOW * usual:
            return SLOWER, Worth(ratio=usual / now)
        return f"a step took {ms(now)} as it started, and {ms(usual)} without it by now: other work has the cores", None
    if trial.outcome != "measured":
        return f"{trial.outcome}: {trial.why}", None
    if not ratio.ratio:
        return trial.ended or "it ended before its first turn", None
    why = other_work(state, trial.rows, side.requested)
    return (why, None) if why else None


def _now_ms(state: State, side: Side) -> float:
    """A step of a side by now: the machine may not be what it was when it started."""
    rounds = state.take_turns([side], 1, NOW_S) if side.alive else []
    return next(iter(rounds[0].values())) if rounds else side.measured.step_ms or math.nan


def beside(state: State, before: Side, after: Side) -> Ratio:
    """Two sides take turns until it is known whether one is faster."""

    def enough(so_far: list[dict[int, float]]) -> bool:
        if len(so_far) < LEAST_ROUNDS:
            return False
        found = within_process(log_ratios(so_far, before, after))
        known = found.interval
        if known is not None and (known.low > LEAST_GAIN or known.high < LEAST_GAIN):
            return True
        return len(so_far) >= ROUNDS[0] and found.ratio < PROMISING

    budget, per_row = state.budget, state.resized([*before.requested, *after.requested])
    seconds = min(
        MOST_S,
        MOST_SHARE * budget.seconds,
        max(budget.left - budget.first_proof_s - budget.narrow_s, budget.turns_s(2, LEAST_ROUNDS)),
    )
    rounds = state.take_turns([before, after], ROUNDS[1], seconds, enough=enough, per_row=per_row)
    logs = log_ratios(rounds, before, after)
    return within_process(logs) if logs else Ratio(ratio=0.0, interval=None)


def _won(state: State, side: Side, worth: Worth) -> float:
    """By what factor less time, or memory where that counts, is needed than without it."""
    if not state.memory:
        return worth.ratio
    return peak_bytes((state.side or state.reference).measured) / peak_bytes(side.measured)


def _gains(state: State, one: tuple[Side, Worth]) -> bool:
    """Whether it is worth a proof."""
    side, worth = one
    if state.memory:
        whole = worth.ratio * state.open_ratio * (state.found.proved.ratio if state.found.proved else 1.0)
        return _won(state, side, worth) >= LEAST_GAIN and whole >= 1 / (1 + state.request.slowdown)
    return worth.ratio >= LEAST_GAIN and (worth.interval is None or worth.interval.low > 1)


def other_work(
    state: State, one: float | None, levers: Sequence[records.Lever], steps: int = LEAST_STEPS
) -> str | None:
    """Why steps of so many rows can't be compared with the bare command's: they hold other numbers of rows, though no
    lever resizes them. In reinforcement learning, say, how long an episode lasts hangs on what the model computes.
    steps: that the number is the mean of; one of them may be the last of its epoch, and short."""
    usual = [bare.measured.rows for bare in state.bare if bare.measured.rows]
    if not one or not usual or state.memory or state.resized(levers):
        return None
    most = ALIKE * max(usual) / min(usual) / (1 - 1 / steps)
    if min(usual) / most <= one <= max(usual) * most:
        return None
    told = f"its steps held {one:.3g} rows each, the bare command's {usual[0]:.3g}"
    return f"{told}: steps do unequal work, so their times can't be compared"


def next_variant(variants: Sequence[Settings], measured: dict[int, float], search: bool) -> int | None:
    """The index of the settings to try next, None where it is enough.

    measured: ratios by index, 0 where settings failed. The first comes first. While none is any good the list is gone
    through in its order. Then, where a number is searched, its neighbours among those listed, the larger one first, as
    long as one is at least 2% better than what it was reached from.
    """
    if not measured or all(ratio < LEAST_GAIN for ratio in measured.values()):
        return next((at for at in range(len(variants)) if at not in measured), None)
    if not search:
        return None
    line = sorted(range(len(variants)), key=lambda at: (_number(variants, at), at))
    best = max(measured, key=lambda at: measured[at])
    others = [ratio for at, ratio in measured.items() if at != best and ratio > 0]
    place = line.index(best)
    neighbours = [line[at] for at in (place + 1, place - 1) if 0 <= at < len(line)]
    untried = [at for at in neighbours if at not in measured]
    flat = len(others) > 0 and len(untried) < len(neighbours) and measured[best] < max(others) * LEAST_GAIN
    return None if flat or not untried else untried[0]


def _number(variants: Sequence[Settings], at: int) -> float:
    """The number that the settings differ in."""
    for name in variants[0]:
        values = [settings.get(name) for settings in variants]
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) == len(values) and len(set(numbers)) > 1:
            return float(numbers[at])
    return float(at)
