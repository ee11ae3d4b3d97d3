"""Values that each step computes in the loop's own code, and few steps use: told of the outermost statement on the way
to them under which all that runs only computes."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from hotlap.records.diagnosis import Place
from hotlap.records.profile import SampledPath, Samples, UserFrame, place_in

from .batches import MODEL, NEXT_TO_NONE
from .causes import Cause
from .samples import COLLECTIVES, known_paths, under
from .source import called_in, function_at, loops_at, statement_at
from .statements import short
from .uses import Found, Use, Uses, branch_at, calls_writer, writes

READS: Final = frozenset({"cpu", "item", "numpy", "tolist"})
"""Calls that wait for a device, of which there is more to be said where they are added up."""
LEAST: Final = 0.2
"""Of the loop's own time."""


@dataclass(frozen=True)
class SeldomUsed:
    """Where most of what makes such values is. part: of the loop's own time. rest: samples of all else."""

    where: Place
    cause: Cause
    evidence: str
    part: float
    rest: Samples


def seldom_used(samples: Samples) -> SeldomUsed | None:
    """Of the loop's own code, what is told by one line's use of it and takes the most."""
    by_use: defaultdict[tuple[Use, bool], list[tuple[UserFrame, SampledPath]]] = defaultdict(list)
    for row, frame, use, adds in _told(known_paths(samples.paths, samples.files), samples.files):
        by_use[use, adds].append((frame, row))
    whole = sum(row[5] for row in samples.lines if row[0] == "other")
    if not by_use:
        return None
    (use, adds), most = max(by_use.items(), key=lambda one: sum(row[3] for _, row in one[1]))
    part = sum(row[3] for _, row in most) / max(whole, 1e-9)
    if part < LEAST:
        return None
    took: defaultdict[UserFrame, float] = defaultdict(float)
    left = {row[:5]: row[5] for row in samples.lines}
    for frame, (phase, path, inside, ms) in most:
        took[frame] += ms
        key = phase, *path[-1], inside
        left[key] = max(0.0, left.get(key, 0.0) - ms)
    where = place_in(samples.files, max(took, key=lambda one: took[one]))
    rest = msgspec.structs.replace(samples, lines=tuple((*key, ms) for key, ms in left.items()))
    return _of(where, use, adds, min(1.0, part), rest)


def _told(rows: Sequence[SampledPath], files: Sequence[str]) -> Iterator[tuple[SampledPath, UserFrame, Use, bool]]:
    """Rows of the loop's own code under such statements, the outermost that only compute, the first use, and whether
    they add up over steps."""
    own = [row for row in rows if row[0] == "other" and row[1]]
    uses = Uses(files, _step_loop(rows, files))
    took, running = under(own), under([row for row in rows if row[0] in MODEL])
    together = under([row for row in own if COLLECTIVES.search(row[2])])
    """With other ranks, which may not take the branch."""
    below: defaultdict[UserFrame, set[Place]] = defaultdict(set)
    for _, path, _, _ in own:
        for at, frame in enumerate(path):
            below[frame] |= {place_in(files, one) for one in path[at + 1 :]}

    def computes(frame: UserFrame) -> bool:
        """Whether all under a line only does that."""
        place = place_in(files, frame)
        statement, function = statement_at(place), function_at(place)
        if statement is None or calls_writer(statement) or frame in together:
            return False
        if uses.adds_up(place) and called_in(statement) & READS:
            return False
        inner = [one for one in map(function_at, below[frame]) if one is not None and one is not function]
        return running[frame] < NEXT_TO_NONE * took[frame] and not any(map(writes, inner))

    known: dict[Sequence[UserFrame], Found] = {}
    for row in own:
        places = [place_in(files, one) for one in row[1]]
        begins = next((at for at, one in enumerate(places) if uses.around(one) is not None), 0)
        not_each = any(map(branch_at, places)) or any(map(uses.is_conditional, places[begins:]))
        if not_each or any(map(uses.is_behind, places)):
            continue
        for at, frame in enumerate(row[1]):
            path = row[1][: at + 1]
            if path not in known:
                known[path] = uses.of(places[: at + 1]) if computes(frame) else None
            if found := known[path]:
                yield row, frame, min(found), uses.adds_up(places[at]) or any(use.adds for use in found)
                break


def _step_loop(rows: Sequence[SampledPath], files: Sequence[str]) -> Place | None:
    """The innermost loop that a backward lies in with an update."""
    for path in (row[1] for row in rows if row[0] == "backward"):
        updates = False
        for place in (place_in(files, frame) for frame in reversed(path)):
            for loop in loops_at(place):
                if updates or "step" in called_in(loop):
                    return Place(file=place.file, line=loop.lineno)
            function = function_at(place)
            updates |= function is not None and "step" in called_in(function)
    return None


def _of(where: Place, use: Use, adds: bool, part: float, rest: Samples) -> SeldomUsed:
    own, at = statement_at(where), f"line {use.line}" + (f" of {use.file}" if use.file != where.file else "")
    here = use.file == where.file and function_at(use.place) is function_at(where)
    value = own.value if isinstance(own, (ast.Assign, ast.Return)) and not here else own
    it = f"`{short(value)}`" if value is not None else ""
    if here and use.test and next(loops_at(where), None) is not next(loops_at(use.place), None):
        it = f"{it} and the loop around it"
    there = f"`if {use.test}:` ({at})" if use.test else f"after the loop, before {at}"
    if adds:
        instead = (
            f"add up only when it is shown: put {there} around {it} too, so that it counts those batches only; "
            "or keep its inputs, and add up there"
        )
    elif here and use.test:
        instead = (
            f"compute {it} only when it is used: move it into {there}; if its inputs change before that, as "
            "gradients do, put the same condition around it here"
        )
    elif here:
        instead = f"compute {it} only once, {there}"
    else:
        instead = f"compute {it} only when it is used, in {there}; here only keep its inputs"
    done = "numbers are added up" if adds else "a value is computed"
    cause = Cause(
        "seldom-used",
        f"{done} in each step and used only in some",
        "in all other steps nothing uses the result",
        instead,
    )
    return SeldomUsed(where, cause, f"{part:.0%} of it under such lines, used only {there}", part, rest)
