"""Time in which a list is searched by `in`. Python lets others look only at its next call or jump back: what is booked
there is the search's, where it takes longer than what else comes until then."""

import ast
from dataclasses import replace

from hotlap.records.diagnosis import Place
from hotlap.records.profile import SearchedList

from .asleep import CauseOf
from .causes import LIST, Cause
from .source import (
    COMPREHENSIONS,
    Loop,
    calls_in,
    function_at,
    loops_at,
    name_at,
    parsed,
    place_at,
    statement_at,
)
from .statements import LIGHT

LEAST_US, LEAST_OF_CALL_US = 1.0, 10.0
"""Of a search, from which it is most of what comes until the next call; the same where that call itself counts."""
Searched = tuple[SearchedList, ...]


def with_searches(cause_of: CauseOf, searched: Searched) -> CauseOf:
    """Causes of lines, with the searches whose time is booked there."""

    def cause(place: Place, inside: str) -> Cause | None:
        found = None if inside else search_at(place, searched)
        if found is None:
            return cause_of(place, inside=inside)
        return replace(LIST, instead=LIST.instead.replace("{it}", f"... in {found[2]}"))

    return cause


def search_at(place: Place, searched: Searched) -> SearchedList | None:
    """The longest search that the user's own time at a line is booked for."""
    own = statement_at(place)
    if own is None or place.line is None:
        return None
    light = all(name_at(call.func) in LIGHT for call in _of_head(own))
    least = LEAST_US if light else LEAST_OF_CALL_US
    function = function_at(place)
    near = [one for one in searched if one[0] == place.file and function_at(place_at(*one[:2])) is function]
    found = [one for one in near if one[4] >= least and place.line in booked(place_at(*one[:2]))]
    return max(found, key=lambda one: one[4], default=None)


def booked(search: Place) -> set[int]:
    """Lines at which a look may find the thread as it comes out of the searches at a line: the next call's, and where
    loops around it go on."""
    own, within, line = statement_at(search), function_at(search) or parsed(search.file), search.line or 0
    if own is None or within is None:
        return set()
    head = [own.test] if isinstance(own, (ast.If, ast.While)) else [own]
    compared = [one for of in head for one in ast.walk(of) if isinstance(one, ast.Compare) and one.lineno == line]
    inside = [one for of in head for one in ast.walk(of) if isinstance(one, COMPREHENSIONS)]
    later = [call for call in _of_head(own) if all(_ends_after(call, one) for one in compared)]
    if inside or later:
        return {line}
    ends = (own.body[-1].end_lineno or line) if isinstance(own, (ast.If, ast.While)) else line
    calls = sorted(call.lineno for call in calls_in(within) if call.lineno > line)
    found = {*calls[:1], *[at for at in calls if at > ends][:1]}
    if isinstance(own, (ast.If, ast.While)):
        found.add(own.body[0].lineno)
    goes_on = isinstance(own, ast.If) and isinstance(own.body[-1], ast.Continue)
    for depth, loop in enumerate(loops_at(search)):
        if (goes_on and not depth) or not any(ends < at <= (loop.end_lineno or 0) for at in calls):
            found |= {loop.lineno, loop.body[0].lineno}
    return found


def _of_head(own: ast.stmt) -> list[ast.Call]:
    """Calls of a statement, not of those that it holds."""
    last = own.body[0].lineno if isinstance(own, (ast.If, Loop, ast.With)) else None
    return [call for call in calls_in(own) if last is None or call.lineno < last]


def _ends_after(call: ast.Call, search: ast.Compare) -> bool:
    return (call.end_lineno or 0, call.end_col_offset or 0) > (search.end_lineno or 0, search.end_col_offset or 0)
