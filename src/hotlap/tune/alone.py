"""Leave-one-out: what each kept lever is worth beside the others, and out with those that are worth nothing."""

import math
from collections.abc import Sequence
from typing import Final

from hotlap.records import run as records
from hotlap.records.tune import Kept, Trial

from .attempt import again, unsure
from .budget import BudgetSpent
from .candidates import LEAST_GAIN, gain
from .state import State

SEVERAL: Final = 3
PART: Final = 3
"""Of more levers than SEVERAL, the PARTth part is left out at once where time is short."""
MUCH_MORE: Final = 5.0
"""Times a lever's share without another: of TF32 60 without bfloat16, of bfloat16 2 without TF32."""


def leave_one_out(state: State) -> None:
    """Take out each lever without which the step is no slower, those first that are expected to be worth least.

    The last one in was measured just so, unless it came in together with others. One that others need is left in. What
    another hides comes after all others: TF32 is worth nothing beside bfloat16, and may be worth more than that.
    Where there is no time for each by itself, those that are expected to be worth least go first, in one trial.
    """
    while _pressed(state, open_levers := _in_order(state)) and _together(state, open_levers):
        pass
    for at, kept in enumerate(open_levers):
        try:
            _without(state, kept)
        except BudgetSpent:
            names = ", ".join(other.lever for other in open_levers[at:])
            state.found.not_done = f"the budget ended before leave-one-out of {names}"
            raise


def _in_order(state: State) -> list[Kept]:
    return sorted(_to_measure(state), key=lambda kept: (_hidden(state, kept), kept.predicted or 1.0))


def _pressed(state: State, open_levers: Sequence[Kept]) -> bool:
    """Whether there is time for some trials, and not for one without each of these."""
    trials = state.budget.affordable()
    return len(open_levers) > SEVERAL and 1 <= trials < len(open_levers)


def _together(state: State, open_levers: Sequence[Kept]) -> bool:
    """Take out the part of them that is expected to be worth least, if the step is no longer without all of these."""
    least = [kept for kept in open_levers if not _hidden(state, kept)][: max(2, len(open_levers) // PART)]
    names = [kept.lever for kept in least]
    rest = [lever for lever in state.best.levers if lever.name not in names]
    if len(least) < 2 or _needed(state, rest):
        return False
    what = " + ".join(names)
    measured = _measure(state, rest, what)
    if measured is None:
        return False
    worth, trial = measured
    if worth >= LEAST_GAIN or not state.objective.allows(trial, state.bases[0]):
        too = f" with {_out_too(trial)}" if trial.left_out else ""
        state.say(f"worth  {what}  {worth:.2f}× beside the others, together{too}")
        return False
    for kept in least:
        _take_out(state, kept, trial, worth, what)
    return True


def _to_measure(state: State) -> list[Kept]:
    kept = [one for one in state.found.kept if one.leave_one_out is None]
    return kept[:-1] if kept and kept[-1] is state.found.kept[-1] and not kept[-1].together else kept


def _hidden(state: State, kept: Kept) -> bool:
    """Whether a lever could win more if one of the others were not there."""
    lever, active = state.levers[kept.lever], state.context(state.best).active
    beside = lever.share(state.context(state.best))
    contexts = (
        state.context(state.best, {name: use for name, use in active.items() if name != other.lever})
        for other in state.found.kept
        if other.lever != kept.lever
    )
    return any(lever.share(context) > MUCH_MORE * beside for context in contexts)


def _without(state: State, kept: Kept) -> None:
    rest = [lever for lever in state.best.levers if lever.name != kept.lever]
    gone = kept.lever not in {one.lever for one in state.found.kept}  # it left itself out of another's trial
    if gone or _needed(state, rest):
        return
    measured = _measure(state, rest, kept.lever)
    if measured is None:
        return
    worth, trial = measured
    if trial.left_out and worth >= LEAST_GAIN:
        state.say(f"open  {kept.lever}  {worth:.2f}× beside the others, together with {_out_too(trial)}")
        return
    changes = {"measured": worth} if kept.together else {}
    state.note(kept.lever, leave_one_out=worth, **changes)
    _predict_alone(state, kept)
    if worth < LEAST_GAIN and state.objective.allows(trial, state.bases[0]):
        _take_out(state, kept, trial, worth)
    else:
        state.say(f"worth  {kept.lever}  {worth:.2f}× beside the others")


def _out_too(trial: Trial) -> str:
    """Levers that left themselves out of a trial without others."""
    return f"{', '.join(one.lever.name for one in trial.left_out)}, not in either"


def _measure(state: State, rest: list[records.Lever], without: str) -> tuple[float, Trial] | None:
    """What the levers that are left out are worth beside the rest, and the trial; None where that was not measured."""
    trial = state.trial(f"without {without}", rest, brief=True, spare=rest)
    rest = list(trial.levers)
    if trial.outcome != "measured" or trial.step_ms is None or state.other_work(trial):
        return None
    if "compile" not in without:
        state.budget.like_best_took(trial.wall_s)
    worth = state.value(trial) / state.best.value
    if unsure(state, worth):
        worth = math.sqrt(worth / again(state, state.best, rest, f"without {without}", trial, brief=True))
    return worth, trial


def _needed(state: State, rest: Sequence[records.Lever]) -> bool:
    """Whether one of the rest does not apply any more."""
    for use in rest:
        lever = state.levers[use.name]
        before = {other.name: other.settings for other in state.best.levers if other.name != use.name}
        after = {other.name: other.settings for other in rest if other.name != use.name}
        if (
            lever.applies(state.context(state.best, before)).yes
            and not lever.applies(state.context(state.best, after)).yes
        ):
            return True
    return False


def _predict_alone(state: State, kept: Kept) -> None:
    """The prediction of what was measured: the step without this one lever over that with all."""
    use = records.Lever(name=kept.lever, settings=kept.settings)
    replayed = gain(state, state.best.levers, use) if kept.together else None
    if replayed is not None:
        state.note(kept.lever, predicted=replayed, predicted_by="replay")


def _take_out(state: State, kept: Kept, trial: Trial, worth: float, together: str = "") -> None:
    """together: the levers that were left out in that trial, where they are several. One that left itself out of it
    goes too."""
    verdict = "no gain" if worth >= 1 / LEAST_GAIN else "more memory" if state.objective.memory else "slower"
    what = "the memory is needed" if state.objective.memory else "the time is needed"
    without = f"without {together}" if together else "without it"
    why = f"{verdict} beside the others: {without} {worth:.2f} of {what}"
    state.drop(kept.lever, why, kept.measured or worth)
    state.say(f"drop  {kept.lever}  {verdict} beside the others ({worth:.2f}×)")
    state.found.kept = [other for other in state.found.kept if other.lever != kept.lever]
    state.leave_out(trial)
    state.best = state.incumbent(list(trial.levers), trial, min(state.best.value, state.value(trial)))
    state.found.tuned = state.best.diagnosis
