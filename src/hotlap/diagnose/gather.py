"""What a page shows of a run folder, a tune folder or traces: their documents, and what is read beside them."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from hotlap import __version__
from hotlap.memory.timeline import timeline
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.errors import RecordError, missing_named
from hotlap.records.memory import MemoryTimeline
from hotlap.records.page import Artefact, Curve, Page, Snippet
from hotlap.records.profile import Profile
from hotlap.records.run import Step
from hotlap.records.telemetry import TelemetrySample
from hotlap.records.trace import RankTrace, TraceReport
from hotlap.records.tune import Trial, Tune
from hotlap.runs.folder import RankFolder, RunFolder, TuneFolder

from .advise import panel
from .series import series, thinned
from .source import lines_of, reading_here
from .verdict import judged

ROWS: Final = 60
"""Rows of each table of a trace: what a page can show."""
DRAWN_RANKS: Final = 8
"""Ranks with a timeline of their own."""
MOST_SAMPLES: Final = 1000
MOST_LOSSES: Final = 1000
MOST_RANKS: Final = 64
"""Ranks whose single steps are on the page; of more, the first ones."""
MOST_POINTS: Final = 16_000
LEAST_POINTS: Final = 400
"""Steps that are drawn: of all ranks together, and of each at least."""
AROUND: Final = 3
"""Lines of context on each side."""
LONGEST_LINE: Final = 240
SNAPSHOTS: Final = ("*memory*.pickle", "*snapshot*.pickle")

Progress = Callable[[str, int], None]


def gather(path: Path, source: bool = True, progress: Progress = lambda name, at: None) -> Page:
    """Everything for the page of a run folder, a tune folder, or one trace or a folder of them.

    source: whether lines of the user's files are read. Raises RecordError.
    """
    page = _gathered(path, source, progress)
    return msgspec.structs.replace(page, advice=panel(page))


def _gathered(path: Path, source: bool, progress: Progress) -> Page:
    if (tuned := TuneFolder(path).tune) is not None:
        return _of_tune(path, tuned, source)
    if (run := RunFolder(path)).is_run:
        return _of_run(run, source, progress)
    return _of_traces(path, source, progress)


def _page(path: Path, title: str, **more: object) -> Page:
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    return Page(title=title, folder=str(path), made=made, hotlap=__version__, **more)  # type: ignore[arg-type]


# a run


def _of_run(run: RunFolder, source: bool, progress: Progress) -> Page:
    folder, record, ranks = run.path, run.record, run.ranks
    traces = None
    with contextlib.suppress(RecordError), missing_named():  # of traces that can't be read the verdict says so
        traces = _traces(folder, progress) if any(rank.trace.is_file() for rank in ranks) else None
    diagnosis, why = judged(folder, traces)
    page = _page(
        folder,
        f"run {folder.resolve().name}",
        run=record,
        diagnosis=diagnosis,
        why_none=why,
        facts=next((facts for rank in ranks if (facts := rank.facts)), None),
        profile=ranks[0].document(Profile) if ranks else None,
        problems=tuple(run.problems)[:100],
        steps=series(folder, max(LEAST_POINTS, MOST_POINTS // max(1, len(ranks))))[:MOST_RANKS],
        telemetry=_fewer(run.telemetry),
        memory=_memory(ranks[0]) if ranks else None,
        memory_series=ranks[0].memory_series if ranks else None,
        traces=traces,
        artefacts=tuple(_run_artefacts(run)),
    )
    findings = diagnosis.findings if diagnosis else ()
    return _with_source(page, findings, Path(record.cwd), record.started) if source else page


def _memory(rank: RankFolder) -> MemoryTimeline | None:
    window = rank.memory()
    return None if window is None else timeline(window)


def _fewer(samples: Sequence[TelemetrySample]) -> tuple[TelemetrySample, ...]:
    """The first, and of each stretch those with the most memory, of the processes and of each GPU: peaks stay."""
    if len(samples) <= MOST_SAMPLES:
        return tuple(samples)
    gpus = {gpu.index for sample in samples for gpu in sample.gpus}
    curves = [[sample.rss_bytes or 0 for sample in samples], *(_of_gpu(samples, index) for index in sorted(gpus))]
    every = -(-len(samples) * len(curves) // MOST_SAMPLES)
    kept = {0}
    for begin in range(0, len(samples), every):
        stretch = range(begin, min(begin + every, len(samples)))
        kept |= {max(stretch, key=curve.__getitem__) for curve in curves}
    return tuple(samples[at] for at in sorted(kept))


def _of_gpu(samples: Sequence[TelemetrySample], index: int) -> list[int]:
    used = ({gpu.index: gpu.memory_bytes or 0 for gpu in sample.gpus} for sample in samples)
    return [found.get(index, 0) for found in used]


def _run_artefacts(run: RunFolder) -> Iterable[Artefact]:
    for rank in run.ranks:
        yield from _trace_artefacts(rank.trace)
    for pattern in SNAPSHOTS:
        for found in sorted(run.path.rglob(pattern)):
            yield Artefact(kind="memory", path=str(found.resolve()), bytes=found.stat().st_size)


def _trace_artefacts(path: Path) -> tuple[Artefact, ...]:
    if path.is_dir():
        return tuple(one for file in sorted(path.glob("*.json*")) for one in _trace_artefacts(file))[:MOST_RANKS]
    if not path.is_file():
        return ()
    return (Artefact(kind="trace", path=str(path.resolve()), bytes=path.stat().st_size),)


# traces


def _of_traces(path: Path, source: bool, progress: Progress) -> Page:
    traces = _traces(path, progress)
    page = _page(path, f"trace {path.name}", traces=traces, artefacts=_trace_artefacts(path))
    return _with_source(page, traces.findings, Path.cwd()) if source else page


def _traces(path: Path, progress: Progress) -> TraceReport:
    """The answers with what a page draws."""
    from hotlap.trace.answer import report
    from hotlap.trace.files import trace_files

    from .profiled import options_of  # polars takes a moment to import

    options = replace(options_of(path, ROWS, what_if=True), drawn=True)
    found = report(trace_files(path), options, progress)
    if len(found.ranks) <= DRAWN_RANKS:
        return found
    late = found.balance.straggler if found.balance else None
    kept = {late, *(rank.rank for rank in found.ranks[: DRAWN_RANKS - 1])}
    ranks = tuple(rank if rank.rank in kept else _undrawn(rank) for rank in found.ranks)
    return msgspec.structs.replace(found, ranks=ranks)


def _undrawn(rank: RankTrace) -> RankTrace:
    return msgspec.structs.replace(rank, timeline=None, memory_curves=())


# a tune


def _of_tune(folder: Path, tune: Tune, source: bool) -> Page:
    page = _page(folder, f"tune {folder.resolve().name}", tune=tune, curves=tuple(_curves(folder, tune)))
    after = tune.tuned.findings if tune.tuned else ()
    return _with_source(page, (*tune.baseline.findings, *after), Path.cwd()) if source else page


def _curves(folder: Path, tune: Tune) -> Iterable[Curve]:
    """Losses of the bare command, twice where it ran twice, and of what is compared with it."""
    for name, trial in _shown(tune).items():
        steps = [step for step in _steps_of(folder, trial) if step.loss is not None or step.nonfinite]
        _, at = thinned([step.wall_ms for step in steps], MOST_LOSSES)
        if steps:
            yield Curve(
                name=name,
                trial=trial.id,
                step=tuple(steps[i].step for i in at),
                loss=tuple(steps[i].loss for i in at),
                levers=tuple(lever.name for lever in trial.levers if not lever.name.startswith("_")),
            )


def _shown(tune: Tune) -> dict[str, Trial]:
    """Trials by the name of their curve. Of the recipe the last proof's last one: levers were never switched in it, nor
    in those that were started as bare commands for a proof."""
    levers = {lever.lever for lever in tune.fitted} | {lever.lever for lever in tune.kept}
    known = [trial for trial in tune.trials if trial.outcome == "measured"]
    first, again = ([trial for trial in known if trial.purpose == purpose] for purpose in ("baseline", "bare"))
    shown = dict(zip(("bare command", "bare command again"), [*first[:1], *again, *first[1:]], strict=False))
    for trial in known:
        if trial.purpose.startswith("pinned"):
            shown.setdefault(trial.purpose, trial)
        elif tune.kept and trial.purpose == "prove" and {lever.name for lever in trial.levers} == levers:
            shown["recipe"] = trial
    return shown


def _steps_of(folder: Path, trial: Trial) -> Sequence[Step]:
    """The steps of a trial's first rank; none where its folder is not inside the tune's."""
    run = TuneFolder(folder.resolve()).trial(trial)
    ranks = run.ranks if run.path.resolve().is_relative_to(folder.resolve()) else ()
    return list(ranks[0].steps) if ranks else ()


# the user's source


def _with_source(page: Page, findings: Sequence[Finding], cwd: Path, started: float = 0.0) -> Page:
    places = dict.fromkeys(finding.where for finding in findings if finding.where is not None)
    found = (snippet(place, cwd, started) for place in places)
    return msgspec.structs.replace(page, snippets=tuple(one for one in found if one is not None))


def snippet(where: Place, cwd: Path, started: float = 0.0) -> Snippet | None:
    """Lines around a place, None where its file is not there, not Python, large, or ends before.

    The place comes from a record that anybody may have written, so nothing is read but source of the project that the
    user stands in.
    """
    path = cwd / where.file
    with reading_here():
        lines = lines_of(path)
    if where.line is None or len(lines) < where.line:
        return None
    first = max(1, where.line - AROUND)
    chosen = tuple(line.expandtabs(4)[:LONGEST_LINE] for line in lines[first - 1 : where.line + AROUND])
    with contextlib.suppress(OSError):
        return Snippet(where=where, first=first, lines=chosen, changed=bool(started) and path.stat().st_mtime > started)
    return None
