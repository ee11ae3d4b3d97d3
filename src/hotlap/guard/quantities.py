"""What is judged beside the step time: memory, waiting for data, the start, what is compiled."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from hotlap.experiment.side import Bench, Side
from hotlap.experiment.statistics import Effect
from hotlap.records.check import PEAK_MEMORY, Judged
from hotlap.records.run import Facts
from hotlap.runs.folder import RunFolder

from .rule import Told, as_interval, fraction, told

DATA: Final = "data time"
START: Final = "start-up"
BREAKS: Final = "graph breaks"
RECOMPILES: Final = "recompiles"
COMPILE: Final = "compile time"
START_LIMIT: Final = 0.25
"""A start may take so much longer: imports and files of a machine that others share."""
RESIDENT_LIMIT: Final = 0.1
"""Resident memory of a process differs by 3 to 6% from start to start, as its allocator and the libraries have it."""
LEAST_START_S: Final = 1.0
"""And is no slower for less than this."""


@dataclass(frozen=True)
class Quantity:
    """One. value: of a start, None unknown. limit: of the change, None: that of the check. logs: the change is relative
    to the baseline's own value, else to a step (`of_step`), or in whole things. least: a change in its unit that
    counts. counts: the verdict needs it; others only fail."""

    what: str
    unit: str
    value: Callable[["Start"], float | None]
    limit: float | None = None
    logs: bool = True
    of_step: bool = False
    least: float = 0.0
    counts: bool = False


@dataclass(frozen=True)
class Start:
    """A start of one version, as it was when it was ready."""

    side: Side
    facts: Facts | None
    data_ms: float | None

    @classmethod
    def of(cls, bench: Bench, side: Side) -> "Start":
        """What is known of it."""
        facts = RunFolder(side.folder).facts
        phases = bench.diagnosis(side.measured).phases if side.measured.mean_ms is not None else None
        return cls(side, facts, phases.data if phases else None)


def _peak(start: Start) -> float | None:
    return start.side.measured.peak_memory_bytes or start.side.measured.peak_rss_bytes


def _breaks(start: Start) -> float | None:
    return sum(len(one.breaks) for one in start.facts.compiled) if start.facts and start.facts.compiled else None


def _recompiles(start: Start) -> float | None:
    return sum(one.recompiles for one in start.facts.compiled) if start.facts and start.facts.compiled else None


def _compile_s(start: Start) -> float | None:
    return sum(one.seconds for one in start.facts.compiled) if start.facts and start.facts.compiled else None


QUANTITIES: Final = (
    Quantity(PEAK_MEMORY, "bytes", _peak, counts=True),
    Quantity(DATA, "ms", lambda start: start.data_ms, logs=False, of_step=True),
    Quantity(START, "s", lambda start: start.side.until_s, limit=START_LIMIT, least=LEAST_START_S),
    Quantity(COMPILE, "s", _compile_s, limit=START_LIMIT, least=LEAST_START_S),
    Quantity(BREAKS, "", _breaks, limit=1.0, logs=False),
    Quantity(RECOMPILES, "", _recompiles, limit=1.0, logs=False),
)


def judge_all(base: Sequence[Start], head: Sequence[Start], limit: float, step_ms: float) -> list[Judged]:
    """Each that both versions know. limit: a fraction. step_ms: of the baseline."""
    found = (_judge(one, base, head, limit, step_ms) for one in QUANTITIES)
    return [one for one in found if one is not None]


def _judge(one: Quantity, base: Sequence[Start], head: Sequence[Start], limit: float, step_ms: float) -> Judged | None:
    values = [[value for start in side if (value := one.value(start)) is not None] for side in (base, head)]
    if not all(values):
        if not any(values) and not one.counts:
            return None
        if not one.counts and one.unit != "ms":  # only one of them compiles, say
            values = [known or [0.0] * len(side) for known, side in zip(values, (base, head), strict=True)]
        else:
            return Judged(
                what=one.what, unit=one.unit, limit=one.limit or limit, call="unknown", counts=one.counts,
                before=_middle(values[0]), after=_middle(values[1]), why="it was not measured in each version",
            )  # fmt: skip
    before, after = values
    most = one.limit if one.limit is not None else limit
    if one.what == PEAK_MEMORY and all(start.side.measured.peak_memory_bytes is None for start in base):
        most = max(most, RESIDENT_LIMIT)
    logs = one.logs and min(*before, *after) > 0
    scale = 1.0 if logs or not (one.of_step or one.logs) else (step_ms if one.of_step else max(median(before), 1e-9))
    one_side, other = (
        [Effect(math.log(value) if logs else value / scale) for value in side] for side in (before, after)
    )
    result = told(one_side, other, math.log1p(most) if logs else most)
    call = result.call
    if call == "slower" and median(after) - median(before) < one.least:
        call = "within"
    return Judged(
        what=one.what, unit=one.unit, before=median(before), after=median(after),
        change=fraction(result.change, logs), interval=as_interval(result, logs), limit=most, call=call,
        counts=one.counts, why=_of_what(one),
    )  # fmt: skip


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _of_what(one: Quantity) -> str:
    return "of a step" if one.of_step else "" if one.logs else "more"


def step_time(found: Told, before_ms: float, limit: float, why: str = "") -> Judged:
    """The step's own row. found: of logarithms."""
    return Judged(
        what="step time", unit="ms", before=before_ms, after=before_ms * math.exp(found.change),
        change=fraction(found.change, logs=True), interval=as_interval(found, logs=True), limit=limit,
        call=found.call, why=why,
    )  # fmt: skip
