"""One lever on top of the incumbent: its settings tried one after another, a second look where noise may decide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hotlap.levers._base import Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.tune import Kept, Parity, Trial, foretold

from .budget import BudgetSpent, log_ratio
from .candidates import LEAST_GAIN, Candidate, likely, predict
from .state import Incumbent, State, use_text, value_text

UNSURE: Final = (1.03, 1.12)
"""Ratios within three times the noise of two baselines, and within these bounds, are measured again before they decide
(where noise itself exceeds the most, noise decides)."""
DOUBT: Final = 0.005
"""Where the machine is still, only ratios this near (as a logarithm) the least gain, or so near as twice the noise."""
ELSEWHERE: Final = 0.02
"""The least noise that is supposed of an incumbent that is bound by something else than the bare command."""
BEYOND: Final = 3.0
"""A gain beyond this many times (in logarithms) what its lever can win at most is measured again: more likely the
machine was slow when the incumbent was measured."""
MOST_VARIANTS: Final = 4
MOST_FAILURES: Final = 3
WORTH_MORE: Final = 1.1
"""A lever that can win less than this by prediction, and is slower with its most promising settings, is not tried with
others: on an H200 three counts of workers took 52 s of a tune, for the 6% of a step that waited for data."""
UNSETTLED: Final = "may be noise, and no time was left to look again"
NO_GAIN, SLOWER, MORE_MEMORY = "no gain", "slower", "more memory"


@dataclass(frozen=True)
class Success:
    """Levers with which the step was shorter (or memory less) and parity held. levers: all of the trial."""

    trial: Trial
    ratio: float
    uses: tuple[records.Lever, ...]
    levers: tuple[records.Lever, ...]
    parity: Parity


def attempt(state: State, candidate: Candidate) -> bool:
    """Try a lever; if one of its settings is worth it, it becomes part of the incumbent."""
    incumbent = state.best
    best: Success | None = None
    measured: dict[int, float] = {}
    failures = 0
    search = candidate.lever.searched(state.context(incumbent)) or state.objective.memory
    while (at := next_variant(candidate.variants, measured, search)) is not None:
        try:
            to_beat = best.ratio if best else 0.0
            success, ratio = try_uses(state, incumbent, (_use(candidate, at),), (candidate,), to_beat)
        except BudgetSpent:
            if best is None:
                raise
            break  # a variant that was measured and judged stands, whatever others might have been worth
        measured[at] = ratio
        best = success or best
        failures += success is None
        hung = success is None and state.trials.done[-1].outcome == "timeout"  # and another would cost as much
        hung = hung and candidate.variants[at].get("compile") is not True  # but for what was compiled
        if best is None and 0 < ratio < 1 / LEAST_GAIN and (candidate.predicted or WORTH_MORE) < WORTH_MORE:
            break
        if hung or len(measured) >= MOST_VARIANTS or (best is None and failures >= MOST_FAILURES):
            break
    if best is None:
        return False
    if best.uses[0] != candidate.use:  # the replay may know of other settings only
        candidate = predict(state, candidate.lever, state.context(incumbent), [best.uses[0].settings])
    keep(state, incumbent, best, (candidate,))
    return True


def _use(candidate: Candidate, at: int) -> records.Lever:
    return records.Lever(name=candidate.lever.name, settings=candidate.variants[at])


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
    beside = [line[at] for at in (place + 1, place - 1) if 0 <= at < len(line)]
    untried = [at for at in beside if at not in measured]
    flat = len(others) > 0 and len(untried) < len(beside) and measured[best] < max(others) * LEAST_GAIN
    return None if flat or not untried else untried[0]


def _number(variants: Sequence[Settings], at: int) -> float:
    """The number that the settings differ in."""
    for name in variants[0]:
        values = [settings.get(name) for settings in variants]
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) == len(values) and len(set(numbers)) > 1:
            return float(numbers[at])
    return float(at)


def try_uses(
    state: State,
    incumbent: Incumbent,
    uses: Sequence[records.Lever],
    foretold: Sequence[Candidate] = (),
    to_beat: float = 0.0,
    instead_of: Sequence[str] = (),
) -> tuple[Success | None, float]:
    """One trial of levers on top of the incumbent: (success, or None; the ratio, 0 where there is none).

    A single lever that is no success is noted as dropped; of several the caller has to find out which. instead_of: the
    incumbent's levers that they replace. foretold: what is predicted of the uses, where something is. Levers that left
    themselves out of the trial are noted, and it counts as one of the others.
    """
    levers = [*(use for use in incumbent.levers if use.name not in instead_of), *uses]
    purpose = f"try {' + '.join(use.name for use in uses)}"
    trial = state.trial(purpose, levers, trying=uses, likely=math.prod(likely(one) for one in foretold))
    if trial.left_out:
        state.leave_out(trial)
        uses, levers = [use for use in uses if use in trial.levers], list(trial.levers)
        foretold = [one for one in foretold if one.lever.name in {use.name for use in uses}]
    single = uses[0] if len(uses) == 1 else None
    title = " + ".join(use_text(use) for use in uses)
    known = [one.predicted for one in foretold if one.predicted]
    most = math.prod(known)
    measured = trial.outcome == "measured" and trial.step_ms is not None
    why = state.other_work(trial) if measured else f"{trial.outcome}: {trial.why}"
    if why is not None:
        state.acquit(trial)
        _failed(state, single, title, why, trial=None if measured else trial)
        return None, 0.0
    ratio = incumbent.value / state.value(trial)
    looks = [ratio]
    longer = ratio >= LEAST_GAIN and _on_the_mean(state, incumbent.trial, trial) < 1 / LEAST_GAIN
    if longer or unsure(state, ratio) or (known and math.log(ratio) > BEYOND * math.log(max(most, 1.001))):
        try:
            looks.append(again(state, incumbent, levers, purpose, trial))
            ratio = _agreed(looks)
            mean = _on_the_mean(state, *state.trials.done[-2:]) if longer else math.inf
            ratio = min(ratio, mean) if mean < 1 / LEAST_GAIN else ratio
        except BudgetSpent:
            if ratio >= LEAST_GAIN:  # others may still be worth a trial, which is cheaper than a second look
                _unsettled(state, single, title, ratio)
                return None, ratio
    if not state.objective.allows(trial, state.bases[0]):
        _failed(state, single, title, f"a step takes {_slower(state, trial):.0%} longer, more than is allowed", ratio)
        return None, 0.0
    if ratio < max(LEAST_GAIN, to_beat * LEAST_GAIN):
        if ratio < LEAST_GAIN and not to_beat:
            if single is not None:
                _gained_nothing(state, single.name, ratio, _disagree(looks))
            state.say(f"drop  {title}  {_shown(state, trial, looks)}")
        return None, ratio
    judged = _judged(state, levers, single, title, trial, ratio)
    if judged is None and _were_others_in(trial):  # the fault may be theirs
        return try_uses(state, incumbent, uses, foretold, to_beat, instead_of)
    if judged is None:
        return None, 0.0
    state.gained(trial)
    return Success(judged[0], ratio, tuple(uses), tuple(levers), judged[1]), ratio


def _shown(state: State, trial: Trial, looks: Sequence[float]) -> str:
    """What was measured, in both of two looks: each has an incumbent of its own beside it."""
    seen = [trial, *(state.trials.done[-1:] if len(looks) > 1 else ())]
    times = ", ".join(state.shown(one) for one in seen if one.step_ms is not None)
    return f"{times}  {' and '.join(f'{look:.2f}×' for look in looks)}{' in two looks' if len(looks) > 1 else ''}"


def _on_the_mean(state: State, one: Trial, other: Trial) -> float:
    """The ratio of mean steps; infinite where none is known, or time does not count. A hiccup of the machine decides
    it, but loops that do heavy work every few steps have short trials in which the typical steps are the others."""
    if state.objective.memory or one.mean_ms is None or other.mean_ms is None:
        return math.inf
    return one.mean_ms * state.row_scale(one) / (other.mean_ms * state.row_scale(other))


def _judged(
    state: State, levers: Sequence[records.Lever], single: records.Lever | None, title: str, trial: Trial, ratio: float
) -> tuple[Trial, Parity] | None:
    """The trial with its parity; None where learning changed, which is noted if no other levers were in at first.
    Raises BudgetSpent."""
    try:
        parity = state.proof.judge(levers, trial)
    except BudgetSpent:
        _not_judged(state, single, title, ratio)
        raise
    trial = state.trials.amend(trial, ratio=ratio, parity=parity)
    if not parity.ok:
        if not _were_others_in(trial):
            _failed(state, single, title, f"parity: {parity.why}", ratio)
        return None
    return trial, parity


def _were_others_in(trial: Trial) -> bool:
    """Whether levers were in at first that left themselves out."""
    return any(one.was_in for one in trial.left_out)


def _failed(
    state: State,
    single: records.Lever | None,
    title: str,
    why: str,
    ratio: float | None = None,
    trial: Trial | None = None,
) -> None:
    if single is not None:
        state.refuse(single, why, ratio, trial)
    else:
        state.say(f"not all at once  {title}  {why[:160]}")


def _not_judged(state: State, single: records.Lever | None, title: str, ratio: float) -> None:
    """A gain of which no time was left to see whether it leaves learning unchanged."""
    why = "no time was left to prove parity"
    if single is not None:
        state.drop(single.name, why, ratio)
    state.found.not_done = f"{why} of {title}, which measured {ratio:.2f}×"


def _unsettled(state: State, single: records.Lever | None, title: str, ratio: float) -> None:
    """A ratio that noise could have made, and no time for a second look. Another tune may find it a gain."""
    if single is not None:
        state.drop(single.name, UNSETTLED, ratio)
    state.say(f"open  {title}  {ratio:.2f}×  may be noise; no time now to look again and confirm what comes of it")


def _gained_nothing(state: State, name: str, ratio: float, unclear: bool) -> None:
    """Of several settings that won nothing, the best is what is told of their lever. unclear: two looks disagreed;
    where they are a gain together, which is not believed, 1 is nothing that was measured."""
    known = state.found.dropped.get(name)
    if known is None or known.why not in {NO_GAIN, SLOWER, MORE_MEMORY} or (known.ratio or 0.0) < ratio:
        state.drop(name, NO_GAIN if unclear else _no_gain(state, ratio), None if unclear and ratio == 1.0 else ratio)


def _no_gain(state: State, ratio: float) -> str:
    if ratio >= 1 / LEAST_GAIN:
        return NO_GAIN
    return MORE_MEMORY if state.objective.memory else SLOWER


def _slower(state: State, trial: Trial) -> float:
    return (trial.step_ms or 0.0) / (state.bases[0].step_ms or math.inf) - 1


def unsure(state: State, ratio: float) -> bool:
    """Whether noise could have made this ratio."""
    noise = _noise(state)
    if state.budget.quiet:
        return log_ratio(ratio, LEAST_GAIN) < max(DOUBT, 2 * noise)
    if ratio < 1:  # a gain that noise has hidden; nothing is kept for being slower
        return -math.log(ratio) < max(noise, min(2 * noise, math.log(UNSURE[1])))
    return math.log(ratio) < max(noise, min(max(3 * noise, math.log(UNSURE[0])), math.log(UNSURE[1])))


def _noise(state: State) -> float:
    """By how much (as a logarithm) two runs of the incumbent may differ. Where it is bound by something else than the
    bare command, what made two runs of that differ is gone: then what single steps of its trial say, if it is less."""
    known, bare, now = state.budget.noise or 0.0, state.found.baseline, state.best.diagnosis
    if bare is None or bare.bound == now.bound or state.objective.memory:
        return known
    return min(known, max(ELSEWHERE, noise_within(now)))


def noise_within(run: Diagnosis) -> float:
    """By how much (as a logarithm) the step times of two such runs may differ, from the spread of single steps: the
    standard error of a difference of means, where steps are independent and 80% of them lie within 2.56 deviations."""
    spread = run.spread
    deviation = (spread.p90 - spread.p10) / 2.56 / spread.p50 if spread.p50 > 0 else 0.0
    return deviation * math.sqrt(2 / max(1, run.steady_steps))


def again(
    state: State, incumbent: Incumbent, levers: Sequence[records.Lever], purpose: str, first: Trial, brief: bool = False
) -> float:
    """A second look at an uncertain ratio: incumbent and candidate once more, one after the other.

    Where one of the two fails, the first look again. Raises BudgetSpent.
    """
    state.second_look("incumbent again", incumbent.levers, incumbent.trial.wall_s + first.wall_s)
    one = state.trial("incumbent again", incumbent.levers, brief)
    two = state.trial(f"{purpose} again", levers, brief)
    if one.step_ms is None or two.step_ms is None:
        return incumbent.value / state.value(first)
    return state.value(one) / state.value(two)


def _agreed(looks: Sequence[float]) -> float:
    """The ratio of two looks. Those that disagree about the direction are no gain."""
    return min(1.0, math.sqrt(math.prod(looks))) if _disagree(looks) else math.sqrt(math.prod(looks))


def _disagree(looks: Sequence[float]) -> bool:
    """Whether one of two says that it is faster, and the other that it is not."""
    return len(looks) > 1 and min(looks) <= 1 <= max(looks)


def keep(state: State, incumbent: Incumbent, success: Success, candidates: Sequence[Candidate]) -> None:
    """The levers of a success are part of the incumbent from here on. candidates: those that were tried, in order."""
    names = tuple(use.name for use in success.uses)
    candidates = [one for one in candidates if one.lever.name in names]
    for candidate, use in zip(candidates, success.uses, strict=True):
        state.found.dropped.pop(use.name, None)
        state.found.kept.append(
            Kept(
                lever=use.name,
                settings=use.settings,
                risk=candidate.lever.risk,
                meaning=candidate.lever.meaning,
                predicted=candidate.predicted,
                predicted_by=candidate.by,
                measured=success.ratio if len(names) == 1 else None,
                together=names if len(names) > 1 else (),
                late=candidate.lever.late,
                parity=success.parity,
                source=candidate.lever.source(use.settings),
                output_error=success.trial.output_errors.get(use.name),
            )
        )
    state.found.parity = success.parity
    value = incumbent.value / success.ratio
    state.best = state.incumbent(success.levers, success.trial, value)
    state.found.tuned = state.best.diagnosis
    title = " + ".join(use_text(use) for use in success.uses)
    state.say(
        f"keep  {title}  {value_text(value, state.objective)}  {success.ratio:.2f}×{_predicted(candidates)}  "
        f"{success.parity.level}{_changed_outputs(success)}; now {state.best.diagnosis.bound}-bound"
    )


def _changed_outputs(success: Success) -> str:
    """By how much the levers of a success change what the model returns, if they do."""
    errors = (success.trial.output_errors.get(use.name) for use in success.uses)
    return "".join(f", outputs change by {error.relative:.2%}" for error in errors if error is not None)


def _predicted(candidates: Sequence[Candidate]) -> str:
    """What was predicted of a single lever."""
    one = candidates[0] if len(candidates) == 1 else None
    ratio = foretold(one.predicted, one.by) if one is not None else None
    if one is None or ratio is None:
        return ""
    most = "at most " if one.by == "share" else ""
    return f" ({most}{ratio:.2f}× predicted)"
