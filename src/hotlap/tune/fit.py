"""A command that runs out of memory by itself: levers that save memory, cheapest first, until it runs. Of
those, first the levers that give enough here by themselves, where the record of how memory ran out tells.

What they cost, and whether learning is unchanged, is measured where the bare command runs too (`reference`). All else
is measured against the command with them.
"""

from collections.abc import Mapping

from hotlap.experiment.outcome import same_levers
from hotlap.experiment.side import Side
from hotlap.levers._base import Context, Lever
from hotlap.memory.changes import UNKNOWN_STEP, change_text, few
from hotlap.memory.ran_out import every_change, facts_of
from hotlap.records import run as records
from hotlap.records.durations import ms
from hotlap.records.errors import CommandFailed
from hotlap.records.ran_out import MemoryChange
from hotlap.records.tune import Fitted, Trial

from .candidates import excluded
from .objective import cheapness, saves_memory
from .reference import NO_TIME, SHARE, SmallerRuns
from .state import State, use_text


def fit(state: State, alone: Side) -> Side:
    """Make the command run, and return its first side that does. Raises CommandFailed where nothing makes it run."""
    failed = alone.measured
    run, environment = state.bench.run(failed), state.bench.plan.environment
    facts = facts_of(run)
    state.say(f"memory  the command alone runs out of memory: {failed.why[:160]}")
    if facts is None:
        raise _hopeless(state, failed, [])
    context = Context(UNKNOWN_STEP, facts, environment, {})
    given = {one.lever: one for one in every_change(run, environment)[0]}
    smaller = SmallerRuns(state, context)
    unproved = ""
    while True:
        try:
            uses = _fitting(state, failed, context, smaller, given)
        except CommandFailed as error:
            raise CommandFailed(f"{error}{unproved}") from error
        if smaller.hold(uses):
            state.judge.given = tuple(uses)
            return state.started("baseline", uses)
        why = f", which was not proved to leave learning unchanged: {smaller.why}" if smaller.why else ""
        unproved = f". It fits with {', '.join(map(use_text, uses))}{why}"


def _fitting(
    state: State, failed: Trial, context: Context, smaller: SmallerRuns, given: Mapping[str, MemoryChange]
) -> list[records.Lever]:
    """Levers with which it fits, of those that are not refused. given: what some of them give here, by the record of
    how memory ran out: those that can't give enough alone come after the others. Raises CommandFailed."""

    def order(lever: Lever) -> tuple[bool, bool, int, str]:
        semantic, place, name = cheapness(lever)
        known = given.get(lever.name)
        return semantic, bool(given and lever.frees) and not (known is not None and known.enough), place, name

    uses: list[records.Lever] = []
    allowed = [one for one in state.levers.values() if saves_memory(one) and one.name not in state.refused]
    for lever in sorted(allowed, key=order):
        active = {use.name: use.settings for use in uses}
        supposed = Context(UNKNOWN_STEP, context.facts, context.environment, active)
        if excluded(state, lever, supposed) is not None:
            continue
        if lever.risk == "numeric" and smaller.why:
            state.drop(lever.name, f"its parity can't be proved: {smaller.why}")
            continue
        before = uses
        for settings in lever.variants(supposed):
            use = records.Lever(name=lever.name, settings=settings)
            trial = _tried(state, [*before, use])
            if trial.outcome == "measured":
                return _only_needed(state, [*before, use], trial)
            if trial.outcome != "memory":
                state.refuse(use, f"{trial.outcome}: {trial.why}")
                break
            uses = [*before, use]
    raise _hopeless(state, failed, uses)


def _hopeless(state: State, failed: Trial, uses: list[records.Lever]) -> CommandFailed:
    with_them = ", ".join(use_text(use) for use in uses)
    tried = f", even with {with_them}" if uses else ", and no lever that saves memory can be used"
    refused = "".join(f"; {one.lever} is not used: {one.why}" for one in state.found.dropped.values())
    found, lacks = every_change(state.bench.run(failed), state.bench.plan.environment)
    chosen, _ = few(found, lacks)
    told = f". What leaves more memory: {'; '.join(map(change_text, chosen))}" if chosen else ""
    return CommandFailed(
        f"the command itself fails, without any lever: {failed.why}. It runs out of memory{tried}{refused}{told} "
        f"(see {state.bench.run(failed).output})"
    )


def _tried(state: State, uses: list[records.Lever]) -> Trial:
    """A trial of them, made once."""
    known = next((one for one in state.bench.done if one.purpose == "fit" and same_levers(one.levers, uses)), None)
    if known is not None:
        return known
    if _late(state):
        before = ", ".join(use_text(use) for use in uses[:-1])
        tried = f", even with {before}" if before else ""
        raise CommandFailed(f"the command runs out of memory{tried}, and {NO_TIME}; a larger --budget may find more")
    trial = state.run("fit", uses)
    outcome = ms(trial.step_ms or 0.0) if trial.outcome == "measured" else trial.outcome
    state.say(f"fit  {' + '.join(use_text(use) for use in uses)}  {outcome}")
    return trial


def _late(state: State) -> bool:
    """Whether its share of the budget is used up."""
    return state.budget.left < SHARE * state.budget.seconds


def _only_needed(state: State, uses: list[records.Lever], trial: Trial) -> list[records.Lever]:
    """Takes out again what is not needed beside the last one, which made it fit, from the dearest."""
    state.budget.run_took(trial)
    for use in list(reversed(uses))[1:]:
        if _late(state):
            break
        rest = [other for other in uses if other.name != use.name]
        if _tried(state, rest).outcome == "measured":
            state.say(f"fit  {use.name} is not needed")
            uses = rest
    return uses


def fitted(state: State) -> list[Fitted]:
    """Those of the levers that made it fit which are still in: all, where no others are kept that do without one."""
    return [_fitted(state, use) for use in state.given if use in state.proved]


def _fitted(state: State, use: records.Lever) -> Fitted:
    lever = state.levers[use.name]
    return Fitted(
        lever=use.name, settings=use.settings, risk=lever.risk, meaning=lever.meaning, source=lever.source(use.settings)
    )
