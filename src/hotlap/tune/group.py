"""Several levers in one trial: what is known to hold of all together needs no trial of each.

If the trial runs, is faster and holds parity, all of them are kept, and leave-one-out says afterwards what each is
worth. Parity of the set is what counts, since the set is what the recipe uses; it is judged by the weakest of its risks
and the sum of its tolerances, as if they had been added one by one. If something is wrong with the set, it is parted:
first what is most likely the culprit from the rest, else in halves, each tried on top of what was kept by then.
"""

import math
from collections.abc import Sequence

from .attempt import attempt, keep, try_uses
from .candidates import Candidate, excluded
from .state import State


def try_together(state: State, group: Sequence[Candidate]) -> bool:
    """Try levers at once, and in parts where that fails. Returns whether any was kept."""
    if len(group) == 1:
        return attempt(state, group[0])
    incumbent = state.best
    predicted = math.prod(one.predicted or 1.0 for one in group)
    failures = len(state.trials.done)
    success, ratio = try_uses(state, incumbent, [one.use for one in group], predicted)
    if success is not None:
        keep(state, incumbent, success, group)
        return True
    first, second = parts(group, state.trials.done[failures].why if ratio == 0 else "", slow=ratio > 0)
    kept = try_together(state, first)
    left = [one for one in second if excluded(state, one.lever, state.context(state.best)) is None]
    return (bool(left) and try_together(state, left)) or kept


def parts(group: Sequence[Candidate], why: str, slow: bool) -> tuple[list[Candidate], list[Candidate]]:
    """Two parts of a set that failed, both not empty, the one that more likely works first.

    why: of the failure, which names a lever that could not be put in; slow: it worked and won nothing.
    """
    named = [one for one in group if why.startswith(f"{one.lever.name} could not be put in")]
    suspects = named or ([] if slow else [one for one in group if _suspect(one, group)])
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
