"""Everything that is said of a trace, or of the traces of many ranks.

Ranks are read one after another, each by all cores; of each only the answers and its `Share` are kept. Whole tables
stay in memory for the replay of all ranks together as long as they fit `keep_bytes`; beyond it each rank is replayed
alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from hotlap.records.diagnosis import Place
from hotlap.records.errors import RecordError
from hotlap.records.run import Phases
from hotlap.records.trace import Gap, RankTrace, TraceReport

from .analyses.annotations import annotations, outside
from .analyses.breakdown import breakdown
from .analyses.collectives import collectives, match, talks_at
from .analyses.compiled import compiled
from .analyses.copies import copies
from .analyses.gaps import gaps
from .analyses.host_time import host_time, model_time
from .analyses.kernels import kernels
from .analyses.launches import launches
from .analyses.memory import memory, memory_curves
from .analyses.ranks import ranks, waited
from .analyses.roofline import roofline
from .analyses.shares import Share, share_of
from .analyses.syncs import syncs
from .analyses.timeline import timeline
from .analyses.trust import trust
from .analyses.utilisation import utilisation
from .files import TraceFile
from .findings import findings_of
from .findings._ranks import of_all
from .peaks import known_peaks
from .replay import replay
from .steps import find_windows
from .tables import TABLES, Trace
from .view import View

MODEL_ROWS: Final = 2000
"""Of host time in the model: shares are of the sum of all of them, so it is not cut as what is only shown."""
KERNEL_KEYS: Final = ("name", "op", "module", "shape", "line")
KEEP_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Options:
    """What to answer. top: rows of each table; what_if: replay too; unprofiled_ms: step time without the profiler;
    unprofiled: host ms a step by phase without it; lines: places of host rows that are known better than from the
    profiler's stacks; drawn: also what only a page draws; keep_bytes: see above."""

    top: int = 10
    what_if: bool = True
    unprofiled_ms: float | None = None
    unprofiled: Phases | None = None
    lines: Callable[[Trace], dict[int, Place]] | None = None
    drawn: bool = False
    keep_bytes: int = KEEP_BYTES


def view_of(trace: Trace, options: Options | None = None) -> View:
    """The trace over its steps."""
    window, host_window = find_windows(trace)
    lines = options.lines(trace) if options and options.lines else None
    return View(trace, window, lines, host_window, options.unprofiled if options else None)


def answer(view: View, rank: int, options: Options) -> RankTrace:
    """The answers about one rank, every row of every table, with its findings."""
    trace, window = view.trace, view.window
    name = trace.gpus[0].name if trace.gpus else ""
    idle = gaps(view)
    found = RankTrace(
        source=trace.source,
        rank=rank,
        device_name=name if view.devices else "cpu",
        events=len(trace.host) + len(trace.device) + len(trace.memory),
        window=window,
        step_ms=window.span_ns / window.count / 1e6,
        unprofiled_ms=options.unprofiled_ms,
        breakdown=breakdown(view),
        gaps=idle,
        idle_ns=_by_cause(idle),
        outside_ns=outside(view),
        talks_at=talks_at(view),
        launches=launches(view) if view.devices else None,
        syncs=syncs(view),
        copies=copies(view),
        kernels=tuple(row for by in KERNEL_KEYS for row in kernels(view, by, options.top)),
        host=host_time(view.on_host, options.top),
        model=model_time(view.on_host, MODEL_ROWS),
        annotations=annotations(view.on_host),
        compiled=compiled(view.on_host),
        memory=memory(view),
        roofline=roofline(view, known_peaks(name)),
        peaks=known_peaks(name),
        utilisation=utilisation(view, known_peaks(name), name, options.unprofiled_ms),
        timeline=timeline(view) if options.drawn else None,
        memory_curves=memory_curves(view) if options.drawn else (),
        trust=trust(view, options.unprofiled_ms),
        replay=replay([view], options.unprofiled_ms) if options.what_if else None,
    )
    return msgspec.structs.replace(found, findings=findings_of(found))


def _by_cause(idle: Sequence[Gap]) -> dict[str, int]:
    """Dearest first."""
    total: Counter[str] = Counter()
    for gap in idle:
        total[gap.cause] += gap.idle_ns
    return dict(total.most_common())


def _cut(found: RankTrace, top: int) -> RankTrace:
    """With the first rows of each table only."""
    return msgspec.structs.replace(
        found,
        gaps=found.gaps[:top],
        syncs=found.syncs[:top],
        annotations=found.annotations[:top],
        compiled=found.compiled[:top],
        roofline=found.roofline[:top],
    )


def report(
    files: Sequence[TraceFile], options: Options, progress: Callable[[str, int], None] = lambda name, at: None
) -> TraceReport:
    """The answers about every rank and about all of them together. Raises RecordError where a file is no trace, or
    two are of the same rank."""
    answers: list[RankTrace] = []
    shares: list[Share] = []
    views: list[View] = []
    size = 0
    for index, file in enumerate(files):
        trace = file.load(lambda at, name=file.name: progress(name, at))  # type: ignore[misc]
        rank = next(number for number in (trace.rank, file.rank, index) if number is not None)
        if any(rank == one.rank for one in answers):
            raise RecordError(f"{file.name} is of rank {rank}, like an earlier one; give the traces of one run")
        view = view_of(trace, options)
        answers.append(answer(view, rank, options))
        if len(files) > 1 or len(trace.collectives):
            shares.append(share_of(view, rank))
        size += sum(getattr(trace, name).estimated_size() for name in TABLES)
        views = [*views, view] if size <= options.keep_bytes else []
    calls = match(shares)
    found = TraceReport(collectives=collectives(calls)[: options.top])
    if len(answers) == 1:
        (only,) = answers
        return msgspec.structs.replace(found, ranks=(_cut(only, options.top),), findings=only.findings)
    balance, waits = ranks(calls), waited(calls)
    answers = [_beside_others(one, waits.get(one.rank)) for one in answers]
    whole = options.what_if and len(views) == len(answers)
    return msgspec.structs.replace(
        found,
        ranks=tuple(_cut(one, options.top) for one in answers),
        balance=balance,
        replay=replay(views, options.unprofiled_ms) if whole else None,
        findings=of_all(answers, balance),
    )


def _beside_others(found: RankTrace, waited_ns: int | None) -> RankTrace:
    """The rank's answers, now that it is known how long it waited for the others."""
    known = msgspec.structs.replace(found, waited_ns=waited_ns)
    return msgspec.structs.replace(known, findings=findings_of(known))
