"""Several levers in one trial: what is known to hold of all together needs no trial of each.

If the trial runs, is faster and holds parity, all of them are kept, and leave-one-out says afterwards what each is
worth. Parity of the set is what counts, since the set is what the recipe uses; it is judged by the weakest of its risks
and the sum of its tolerances, as if they had been added one by one. If something is wrong with the set, it is parted:
first what is most likely the culprit from the rest, else in halves, each tried on top of what was kept by then. A lever
that could not be put in says so by name: it is dropped at once, and the others are the next set.
"""

import math
from collections.abc import Sequence

from .attempt import attempt, keep, try_uses
from .candidates import Candidate, excluded
from .state import State


def try_together(state: State, group: Sequence[Candidate]) -> bool:
    """Try levers at once, and in parts where that fails. Returns whether any was kept."""
    if not group:
        return False
    if len(group) == 1:
        return attempt(state, group[0])
    incumbent = state.best
    predicted = math.prod(one.predicted or 1.0 for one in group)
    at = len(state.trials.done)
    success, ratio = try_uses(state, incumbent, [one.use for one in group], predicted)
    if success is not None:
        keep(state, incumbent, success, group)
        return True
    failed = state.trials.done[at]
    named = [one for one in group if one.lever.name == failed.lever]
    if named:  # it says no by itself, so that the rest has not been tried yet
        state.refuse(named[0].use, f"{failed.outcome}: {failed.why}")
        return try_together(state, _still_usable(state, [one for one in group if one not in named]))
    first, second = parts(group, slow=ratio > 0)
    kept = try_together(state, first)
    return try_together(state, _still_usable(state, second)) or kept


def _still_usable(state: State, group: Sequence[Candidate]) -> list[Candidate]:
    """Those that go with what is kept by now, and with those before them."""
    usable: list[Candidate] = []
    active = dict(state.context(state.best).active)
    for one in group:
        if excluded(state, one.lever, state.context(state.best, active)) is None:
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
    half = (len(group) + 1) // 2
    return list(group[:half]), list(group[half:])


def _suspect(one: Candidate, group: Sequence[Candidate]) -> bool:
    """What most often breaks a script: compilers, then what rounds most."""
    compilers = [other for other in group if "compile" in other.lever.name or "graph" in other.lever.name]
    if compilers:
        return one in compilers
    return one.lever.tolerance == max(other.lever.tolerance for other in group) > min(o.lever.tolerance for o in group)
