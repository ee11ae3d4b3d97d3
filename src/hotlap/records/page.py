"""What a report page shows beside the documents of a run, a trace or a tune: `report/page` renders a `Page`."""

from typing import Any, Literal

import msgspec

from .diagnosis import Clock, Diagnosis, Place
from .memory import MemorySeries, MemoryTimeline
from .profile import Profile
from .run import Facts, Phases, Problem, Run
from .telemetry import TelemetrySample
from .trace import TraceReport
from .tune import Tune

Mark = Literal["warm-up", "steady", "outlier", "left out"]


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a rank, column by column. ms: on the clock that the verdict's numbers are of; other_ms: on the other
    one; mark: `warm-up`, `left out` (compiled, probed or evaluated), `outlier` or `steady`. every: of so many steps two
    are here (1: all), the slowest and the middle one. outliers: of all steps. phases: host ms, mean over the steady
    steps."""

    rank: int
    step: tuple[int, ...]
    ms: tuple[float, ...]
    other_ms: tuple[float | None, ...]
    loss: tuple[float | None, ...]
    mark: tuple[Mark, ...]
    clock: Clock = "host"
    every: int = 1
    outliers: int = 0
    phases: Phases | None = None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of one trial by step. name: what it is; levers: those that were in."""

    name: str
    trial: int
    step: tuple[int, ...]
    loss: tuple[float | None, ...]
    levers: tuple[str, ...] = ()


class Snippet(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a user's file around a place. first: number of the first; changed: the file is younger than the run."""

    where: Place
    first: int
    lines: tuple[str, ...]
    changed: bool = False


class Artefact(msgspec.Struct, frozen=True, kw_only=True):
    """A file beside the page that another program opens. kind: `trace` (Perfetto) or `memory` (memory_viz)."""

    kind: Literal["trace", "memory"]
    path: str
    bytes: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page shows. Of run, traces and tune at least one is there. folder: what was reported on; why_none: why
    there is no verdict; advice: the document of `hotlap advise`. memory, memory_series: of the first rank, over the
    steps that `--memory` looked at and over the run."""

    version: int = 1
    title: str
    folder: str
    made: str
    hotlap: str
    run: Run | None = None
    diagnosis: Diagnosis | None = None
    why_none: str = ""
    facts: Facts | None = None
    profile: Profile | None = None
    problems: tuple[Problem, ...] = ()
    steps: tuple[RankSteps, ...] = ()
    telemetry: tuple[TelemetrySample, ...] = ()
    memory: MemoryTimeline | None = None
    memory_series: MemorySeries | None = None
    traces: TraceReport | None = None
    tune: Tune | None = None
    curves: tuple[Curve, ...] = ()
    snippets: tuple[Snippet, ...] = ()
    artefacts: tuple[Artefact, ...] = ()
    advice: Any = None
