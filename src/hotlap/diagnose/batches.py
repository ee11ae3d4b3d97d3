"""Time of the loop's own code in which it asks for its next batch, or makes it: the iterator that it goes through, what
another thread or process hands over, what is handed to the model."""

import ast
import re
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

import msgspec

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import SampledPath, Samples, UserFrame, place_in

from .handed import is_argument, is_handed
from .samples import known_paths, under
from .source import (
    called_in,
    calls_in,
    function_at,
    is_block,
    name_at,
    name_of,
    parsed,
    simple_at,
    statement_at,
    statements_at,
)
from .statements import cause_at

TRAINS: Final = frozenset({"backward", "optimizer"})
MODEL: Final = TRAINS | {"forward"}
MOSTLY: Final = 0.6
NEXT_TO_NONE: Final = 0.1
"""Of a line's time, in which a model may run under it."""
BLOCKS: Final = re.compile(r"(multiprocessing|queue|selectors|socket|threading)\.")
"""Where a thread waits for another one, or for a process."""
NO_BATCHES: Final = frozenset({
    "barrier", "checkpointing", "collect", "empty-cache", "environment", "exchange-in-loop", "logging",
    "metric-on-host", "read-value",
})  # fmt: skip
"""Causes of what a generator may do beside making batches, as one that logs."""
GETS: Final = frozenset({"get", "get_nowait", "recv", "recv_bytes"})
ENVIRONMENT: Final = frozenset({"step", "reset"})
RUNS: Final = re.compile(r"torch\..*\.forward")
"""Where a module of torch's runs, and so a model."""


class Trained(NamedTuple):
    """at: lines from which the model is trained, or, where that does not happen, run. models: those that call it, or a
    function that does and trains it. runs: functions in which it or another one runs."""

    at: frozenset[Place] = frozenset()
    models: frozenset[Place] = frozenset()
    runs: frozenset[str] = frozenset()


def trained(samples: Samples, called: Collection[Place] = ()) -> Trained:
    """called: lines that call the model, known by other means."""
    known = known_paths(samples.paths, samples.files)
    rows = [row for row in known if row[0] in MODEL]
    updates = [row for row in rows if row[0] in TRAINS]
    at = frozenset(place_in(samples.files, one) for row in updates or rows for one in row[1])
    functions = {_function(one) for one in at}
    outside = [row[1][: None if row[0] == "forward" else -1] for row in rows]
    calls = {place_in(samples.files, one) for path in outside for one in takewhile(_is_outside, path)}
    runs = {_name(one) for row in known if _runs(row) for one in takewhile(_is_outside, row[1])}
    return Trained(at, frozenset(calls | {one for one in called if _function(one) in functions}), frozenset(runs))


def asking(paths: Sequence[SampledPath], files: Sequence[str], trained: Trained) -> list[SampledPath]:
    """What is sampled of the loop's own code while it asks for its next batch, or makes it."""
    rows = known_paths(paths, files) if trained.at else []
    own = [row for row in rows if row[0] == "other" and row[1]]
    took, running = under(own), under([row for row in rows if _runs(row)])
    frames = {one for one in took if running[one] < NEXT_TO_NONE * took[one]}
    asks = {one for one in frames if _asks(place_in(files, one), trained.at) or _makes(one, files, trained)}
    given = {pair for row in own for pair in pairwise(row[1]) if pair[1] in frames - asks}
    asks |= {inner for outer, inner in given if _is_given(inner, place_in(files, outer), trained)}
    return [row for row in own if _is_asking(row, files, asks)]


def bound_of_batches(samples: Samples, called: Collection[Place] = ()) -> Callable[[Finding], Finding]:
    """Puts code of the loop under the bound input, where that and most of all such code asks for the next batch, or
    makes it. called: as `trained` has it."""
    asks = asking(samples.paths, samples.files, trained(samples, called))
    own = [row for row in known_paths(samples.paths, samples.files) if row[0] == "other"]

    def is_at(where: Place, path: Sequence[UserFrame]) -> bool:
        return bool(path) and (samples.files[path[-1][0]], path[-1][2]) == (where.file, where.function)

    def share(where: Place | None) -> float:
        took, whole = (sum(row[3] for row in of if where is None or is_at(where, row[1])) for of in (asks, own))
        return took / whole if whole else 0.0

    def told(finding: Finding) -> Finding:
        if finding.id != "host-code" or min(of_all, share(finding.where)) < MOSTLY:
            return finding
        said = f"{finding.evidence}; for {of_all:.0%} of the loop's own time it makes or awaits its next batch"
        return msgspec.structs.replace(finding, bound="input", evidence=said)

    of_all = share(None)
    return told


def _function(place: Place) -> tuple[str, object]:
    return place.file, function_at(place)


def _name(frame: UserFrame) -> str:
    return frame[2].split(".")[-1]


def _runs(row: SampledPath) -> bool:
    """Whether a model runs there."""
    return row[0] in MODEL or RUNS.match(row[2]) is not None


def _is_outside(frame: UserFrame) -> bool:
    """Whether a frame, as those around it, is not in a module's forward."""
    return _name(frame) != "forward"


def _makes(frame: UserFrame, files: Sequence[str], trained: Trained) -> bool:
    """Whether the statement at a frame makes what is handed to the model."""
    place = place_in(files, frame)
    return is_handed(place, [one for one in trained.models if _function(one) == _function(place)], trained.runs)


def _is_given(inner: UserFrame, outer: Place, trained: Trained) -> bool:
    """Whether a function is called for what the call of the model at a line is given."""
    return outer in trained.models and is_argument(_name(inner), outer)


def _is_asking(row: SampledPath, files: Sequence[str], asks: Collection[UserFrame]) -> bool:
    """Whether a row is under one of these frames, or waits for what is handed over, and does nothing else there."""
    path = row[1]
    at = next((at for at, one in enumerate(path) if one in asks), None)
    if at is None and not _takes(place_in(files, path[-1]), row[2]):
        return False
    cause = cause_at(place_in(files, path[-1]), device=True, ranks=2, inside=row[2])
    if cause is not None and cause.id in NO_BATCHES:
        return False
    inner = path[-1:] if at is None else path[at + 1 :]
    return not any(_is_else(place_in(files, one)) for one in inner)


def _asks(place: Place, trained: Collection[Place]) -> bool:
    """Whether a line is the head of a loop in whose body the model is trained, or asks an iterator with `next`."""
    own, line = statement_at(place), place.line or 0
    if isinstance(own, ast.For) and line <= (own.iter.end_lineno or 0):
        names = called_in(own.iter)
        if "zip" not in names and names & {"range", "trange"}:
            return False
        body = range(own.body[0].lineno, (own.end_lineno or 0) + 1)
        there = (one for one in trained if (one.file, one.function) == (place.file, place.function))
        return any(one.line in body for one in there)
    calls = [call for call in calls_in(own) if name_of(call) == "next"] if own and not is_block(own) else []
    return any(isinstance(call.args[0], (ast.Name, ast.Attribute)) for call in calls if call.args)


def _takes(place: Place, inside: str) -> bool:
    """Whether a line waits for what another thread or process hands over: in `get` or `recv`, or asleep until there is
    something."""
    own, scope = simple_at(place), function_at(place) or parsed(place.file)
    if own is None or scope is None:
        return False
    if BLOCKS.match(inside) and _got(own):
        return True
    tests = [ast.walk(one.test) for one in statements_at(place) if isinstance(one, ast.While)]
    asks = any(isinstance(one, ast.expr) and ast.unparse(one) in _got(scope) for one in (*tests, ())[0])
    return asks and bool(called_in(own) & {"sleep", "wait"})


def _got(node: ast.AST) -> set[str]:
    """What something is taken from: a queue, a pipe."""
    calls = (call.func for call in calls_in(node) if isinstance(call.func, ast.Attribute) and call.func.attr in GETS)
    return {ast.unparse(one.value) for one in calls if isinstance(one.value, (ast.Name, ast.Attribute))}


def _is_else(place: Place) -> bool:
    """Whether a line prints, steps an environment, or is of its own `step`."""
    own = simple_at(place)
    called = {name_at(call.func) for call in calls_in(own) if call.args} if own is not None else set()
    return bool(called & (ENVIRONMENT | {"print"})) or (place.function or "").split(".")[-1] in ENVIRONMENT
