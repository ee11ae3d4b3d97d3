"""Causes at lines of the forward, the update and what lies between, from samples."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from hotlap.records.diagnosis import Finding, Place, left_beside
from hotlap.records.profile import SampledLine, Samples

from . import small_ops
from .causes import (
    ADDS_UP,
    CELL,
    CROSS_ENTROPY,
    DIAGONAL,
    ONE_HOT,
    PAIRS,
    PARAMETERS,
    PARAMETRIZED,
    THROUGH_NUMPY,
    VALIDATES,
    Cause,
    Known,
)
from .repeated import AGAIN
from .samples import (
    LEAST_LOOKS,
    LEAST_SHARE,
    LEAST_SURE,
    MOSTLY_THERE,
    at_least,
    known_lines,
    place_of,
    without_comprehension,
)
from .source import calls_in, name_at, parsed
from .statements import cause_at, cross_entropy_at, elements, over_parameters, pairs_at, through_numpy, trains

WITH_ITS_BACKWARD: Final = frozenset(
    cause.id for cause in (CELL, CROSS_ENTROPY, DIAGONAL, ONE_HOT, PAIRS, PARAMETRIZED.cause)
)
"""Causes whose backward does as much again: of the looks outside of it, LEAST_SHARE is enough."""
CELLS: Final = re.compile(r"^(torch\.)?(LSTM|GRU|RNN)Cell\.")
"""Functions of torch's recurrent cells."""


def _nested(place: Place, inside: str) -> Cause | None:
    """Python's own time: what a function of torch takes inside a loop may be computing."""
    cause = None if inside else elements(place, nested=True)
    adds_up = ADDS_UP if cause and cause.instead.endswith(ADDS_UP) else ""
    return cause and replace(cause, bound="launch", instead=small_ops.INSTEAD + adds_up)


def _parameters(place: Place, inside: str) -> Cause | None:
    """An optimizer of the user's own, say."""
    return replace(PARAMETERS, bound="launch") if over_parameters(place) else None


def _inside(known: Known) -> Callable[[Place, str], Cause | None]:
    return lambda place, inside: known.cause if known.is_inside(inside) else None


IN_FUNCTIONS: Final[tuple[tuple[Callable[[Place, str], Cause | None], str], ...]] = (
    (_inside(VALIDATES), "check arguments of distributions"),
    (_inside(PARAMETRIZED), "compute a parametrization"),
    (lambda place, inside: THROUGH_NUMPY if through_numpy(place) and not trains(place) else None, "compute with numpy"),
    (lambda place, inside: pairs_at(place), "hold all pairs"),
    (lambda place, inside: cross_entropy_at(place), "compute a cross entropy"),
    (_parameters, "go through parameters"),
    (_nested, "lie in nested loops"),
)
"""Causes that are told of the lines of a function together, and what these lines do."""


def in_the_model(findings: Sequence[Finding], samples: Samples, device: bool, ranks: int) -> Iterator[Finding]:
    """Causes at lines, or else in functions, of the forward, the update and what lies between, as a loss: by their
    share of all looks, as these phases hold much else."""
    total, left = sum(row[5] for row in samples.lines), left_beside(findings)
    outside = sum(row[5] for row in samples.lines if row[0] != "backward")
    phases = {"forward", "optimizer", *(() if any(one.id == "host-code" for one in findings) else ("other",))}
    own = [row for row in known_lines(samples.lines, samples.files) if row[0] in phases]
    told: set[tuple[int, str]] = set()

    def notable(rows: Sequence[SampledLine], cause: Cause | None = None) -> bool:
        """Whether they take enough to be told of a cause; where that is not known, of any."""
        every = cause is not None and cause.id not in WITH_ITS_BACKWARD
        share = sum(row[5] for row in rows) / max(1e-9, total if every else outside)
        of = {row[0] for row in samples.lines if every or row[0] != "backward"}
        return samples.looks >= LEAST_LOOKS and share >= LEAST_SHARE and at_least(share, samples, of) >= LEAST_SURE

    def finding(rows: Sequence[SampledLine], cause: Cause, at: str) -> Finding:
        looks, first = sum(row[5] for row in rows) / total, max(rows, key=lambda row: row[5])
        where = place_of(samples, first)
        return cause.finding(
            left * looks, where, f"{looks:.0%} of {samples.looks} samples of the host's stack were {at}"
        )

    for rows in filter(notable, _grouped(own, lambda row: row[1:4])):
        cell = all(CELLS.match(row[4]) for row in rows)
        cause = CELL if cell else cause_at(place_of(samples, rows[0]), device, ranks)
        if cause is not None and cause is not PARAMETERS and notable(rows, cause):
            told.add((rows[0][1], rows[0][3]))
            yield finding(rows, cause, "at this line")
    for cause_of, doing in IN_FUNCTIONS:
        of_cause = [row for row in own if cause_of(place_of(samples, row), row[4])]
        for rows in _grouped(of_cause, lambda row: (row[1], without_comprehension(row[3]))):
            most = max(rows, key=lambda row: row[5])
            cause = cause_of(place_of(samples, most), most[4])
            if cause is not None and notable(rows, cause) and (most[1], most[3]) not in told:
                told.add((most[1], most[3]))
                yield finding(rows, cause, f"at lines of {most[3]} that {doing}")


def _grouped(rows: Iterable[SampledLine], key: Callable[[SampledLine], object]) -> list[list[SampledLine]]:
    groups: dict[object, list[SampledLine]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def with_parametrizations(findings: Sequence[Finding], samples: Samples) -> Iterator[Finding]:
    """What is computed again as what it is, where that is a parametrization: most of the looks at its line, outside of
    the backward, were in one of torch's, or it is the forward of one of the user's. What else is told of it is left
    out."""
    cause = PARAMETRIZED.cause
    again = [one.where for one in findings if one.id == AGAIN.id and _is_parametrization(one.where, samples)]
    for one in findings:
        if one.where in again and one.id == AGAIN.id:
            yield msgspec.structs.replace(cause.named(one), id=cause.id)
        elif one.where not in again or one.id != cause.id:
            yield one


def _is_parametrization(where: Place | None, samples: Samples) -> bool:
    if where is None:
        return False
    kind, _, method = (where.function or "").rpartition(".")
    if method == "forward" and kind.split(".")[-1] in _registered(where.file):
        return True
    at = where.file, where.line
    lines = [row for row in known_lines(samples.lines, samples.files) if row[0] != "backward"]
    there = [row for row in lines if (samples.files[row[1]], row[2]) == at]
    took = sum(row[5] for row in there if PARAMETRIZED.is_inside(row[4]))
    return took > 0 and took >= MOSTLY_THERE * sum(row[5] for row in there)


def _registered(file: str) -> set[str]:
    """Classes of which a file registers a parametrization."""
    calls = [call for call in calls_in(parsed(file) or ast.Pass()) if name_at(call.func) == "register_parametrization"]
    return {name_at(made.func) for call in calls for given in call.args for made in calls_in(given)}
