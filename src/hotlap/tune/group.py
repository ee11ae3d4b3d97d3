"""Several levers in one trial: what is known to hold of all together needs no trial of each.

If the trial runs, is faster and holds parity, all of them are kept, and leave-one-out says afterwards what each is
worth. Parity of the set is what counts, since the set is what the recipe uses; it is judged by the weakest of its risks
and the sum of its tolerances, as if they had been added one by one. If something is wrong with the set, it is parted:
first what is most likely the culprit from the rest, else in halves, each tried on top of what was kept by then.

A lever that could not be put in says so by name. Where it left nothing behind, the trial goes on as one of the others;
else it is dropped, and the others are the next set. What it says of one set need not hold of a smaller one (tensors of
constants are the compiler's where something is compiled): where those others fail, it is in their first part again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hotlap.records.tune import Trial

from .attempt import attempt, keep, try_uses
from .candidates import Candidate, excluded
from .state import State, use_text

COMPILERS: Final = ("compile", "compile-blocks")
GRAPHS: Final = "reduce-overhead"
"""The mode of `compile` that records CUDA graphs, one for each shape of what comes in."""
MUCH_SLOWER: Final = 0.67
MANY_RECOMPILES: Final = 6
"""torch.compile gives a function up after 8."""


def try_together(state: State, group: Sequence[Candidate]) -> bool:
    """Try levers at once, and in parts where that fails. Returns whether any was kept."""
    if not group:
        return False
    if len(group) == 1:
        return attempt(state, group[0])
    incumbent = state.best
    at = len(state.trials.done)
    success, ratio = try_uses(state, incumbent, [one.use for one in group], group)
    if success is not None:
        keep(state, incumbent, success, group)
        return True
    failed = state.trials.done[at]
    left = {one.lever.name for one in failed.left_out}
    named = [one for one in group if one.lever.name == failed.lever]
    if named:  # it says no by itself, so that the rest has not been tried yet
        rest = [replace(one, variants=one.variants[1:]) if one in named else one for one in group]
        if named[0].variants[1:]:
            state.say(f"not so  {use_text(named[0].use)}  {failed.why[:160]}")
        else:
            state.refuse(named[0].use, f"{failed.outcome}: {failed.why}", trial=failed)
        return try_together(state, _still_usable(state, [one for one in rest if one.variants]))
    back = [one for one in group if one.lever.name in left]
    if left:
        group = _still_usable(state, [one for one in group if one.lever.name not in left])
    return in_parts(state, group, ratio, failed, back)


def in_parts(
    state: State, group: Sequence[Candidate], ratio: float, failed: Trial, back: Sequence[Candidate] = ()
) -> bool:
    """What to do with levers that failed together, or won nothing (ratio above 0). back: that left themselves out."""
    if len(group) == 1:
        others = [replace(one, variants=one.variants[1:]) for one in group if one.variants[1:]]
        kept = try_together(state, others)
        return (not ratio and try_together(state, _once_more(state, [], back))) or kept
    blamed, why = blame(state, group, ratio, failed)
    if blamed is not None:
        _blamed(state, blamed, why, ratio, failed)
        kept = try_together(state, _once_more(state, [one for one in group if one is not blamed], back))
        return _otherwise(state, blamed, ratio) or kept
    if failed.outcome != "measured":
        what = f"{' + '.join(one.lever.name for one in group)} {failed.outcome} together: {failed.why}"
        state.showed |= {one.lever.name: (what, failed) for one in group}
    first, second = parts(group, slow=ratio > 0)
    usable = _still_usable(state, first)
    alone = [one for one in first if one not in usable]  # such as need what is in the second part
    first, second = (usable, [*second, *alone]) if usable else halves(group)
    kept = try_together(state, _once_more(state, first, back))
    return try_together(state, _still_usable(state, second)) or kept


def _once_more(state: State, group: Sequence[Candidate], back: Sequence[Candidate]) -> list[Candidate]:
    """A part of a set that failed, with those that left themselves out of the whole of it."""
    state.refused -= {one.lever.name for one in back}
    return _still_usable(state, [*group, *back])


def _blamed(state: State, one: Candidate, why: str, ratio: float, failed: Trial) -> None:
    """Note what a set showed of the lever that is to blame: before the rest is tried, as the budget may end in that."""
    state.say(f"blame  {use_text(one.use)}  {why}")
    if not ratio:
        state.blame(one.lever.name, why, failed)
    elif len(one.variants) < 2:
        state.blame(one.lever.name, f"slower: {why}", failed, ratio)
    else:
        state.showed[one.lever.name] = f"with {use_text(one.use)} slower: {why}", failed


def _otherwise(state: State, blamed: Candidate, ratio: float) -> bool:
    """Try a lever once more: with other settings than those that made a set slower, or as it is where the rest of a set
    crashed as all of it had."""
    state.blamed.pop(blamed.lever.name, None)
    if blamed.lever.name in state.refused:
        return False
    other = replace(blamed, variants=blamed.variants[1:]) if ratio else blamed
    return try_together(state, _still_usable(state, [other]))


def blame(state: State, group: Sequence[Candidate], ratio: float, failed: Trial) -> tuple[Candidate | None, str]:
    """The lever of a set that crashed with an error that it names; or the compiler of one that did not end, or whose
    steps are much slower where the compiler's own records say that it never comes to rest: (it and why, or None)."""
    compilers = [one for one in group if one.lever.name in COMPILERS]
    if len(compilers) == 1 and failed.outcome == "timeout":
        return compilers[0], f"not compiled in time: the trial {failed.why}, which a longer --budget makes longer"
    if failed.outcome == "crashed":
        theirs = [one for one in group if any(text in failed.why for text in one.lever.errors)]
        # A compiler fails on what others hand it, and tells of that in an error of its own.
        theirs = [one for one in theirs if one not in compilers] or theirs
        return (theirs[0], f"crashed: {failed.why}") if len(theirs) == 1 else (None, "")
    if len(compilers) != 1 or not 0 < ratio < MUCH_SLOWER:
        return None, ""
    if compilers[0].variants[0].get("mode") == GRAPHS:
        return compilers[0], f"{1 / ratio:.3g} times the step with CUDA graphs, of which each new shape needs another"
    facts = state.trials.rank(failed).facts
    functions = facts.compiled if facts is not None else ()
    worst = max(functions, key=lambda one: (one.reached, one.recompiles), default=None)
    if worst is None or not (worst.reached or worst.recompiles >= MANY_RECOMPILES):
        return None, ""
    return compilers[0], f"{1 / ratio:.3g} times the step: {worst.function} was compiled {worst.recompiles + 1} times"


def _still_usable(state: State, group: Sequence[Candidate]) -> list[Candidate]:
    """Those that go with what is kept by now, and with those before them."""
    usable: list[Candidate] = []
    active = dict(state.context(state.best).active)
    for one in group:
        why = excluded(state, one.lever, state.context(state.best, active))
        if why is not None:
            state.drop(one.lever.name, why)
            continue
        state.may_help_now(one.lever.name)
        usable.append(one)
        active[one.lever.name] = one.variants[0]
    return usable


def parts(group: Sequence[Candidate], slow: bool) -> tuple[list[Candidate], list[Candidate]]:
    """Two parts of a set that failed, both not empty, the one that more likely works first.

    slow: it worked and won nothing.
    """
    suspects = [] if slow else [one for one in group if _suspect(one, group)]
    if suspects and len(suspects) < len(group):
        return [one for one in group if one not in suspects], suspects
    return halves(group)


def halves(group: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """The first has what others need: those come after it."""
    half = (len(group) + 1) // 2
    return list(group[:half]), list(group[half:])


def _suspect(one: Candidate, group: Sequence[Candidate]) -> bool:
    """What most often breaks a script: compilers, then what rounds most."""
    compilers = [other for other in group if "compile" in other.lever.name or "graph" in other.lever.name]
    if compilers:
        return one in compilers
    return one.lever.tolerance == max(other.lever.tolerance for other in group) > min(o.lever.tolerance for o in group)
