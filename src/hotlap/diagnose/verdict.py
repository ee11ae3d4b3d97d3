"""The whole verdict of a run: its steps, and what its traces and samples add where it was profiled."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hotlap.levers import settled
from hotlap.records.diagnosis import IN_NO_PHASE, OF_THE_MODEL, OUTSIDE, Diagnosis, Finding, Place, with_findings
from hotlap.records.errors import NothingMeasured, RecordError, missing_named
from hotlap.records.phases import PHASES
from hotlap.records.profile import Lines, LongSamples, Profile, Samples, WorkerSamples, place_in
from hotlap.records.run import LoaderFacts, Run
from hotlap.records.trace import Ranks, TraceReport
from hotlap.records.tune import NOT_TRIED
from hotlap.runs.folder import RankFolder, RunFolder, recipe_tune

from .between import with_between
from .compiled import with_compiled
from .diagnose import diagnose, next_of, without
from .evaluated import with_evaluation
from .findings import compute, expert_loop, own_graph, page_faults, steps_grow, unused_forwards
from .findings._base import LEAST_COST, MODEL, Measured, counted
from .in_methods import with_methods
from .in_the_loop import with_lines
from .left_out import with_left_out
from .long_samples import with_long_steps
from .of_the_loss import with_loss
from .older_graphs import with_older
from .patchable import with_patch
from .sampled import with_samples
from .source import reading_here

UNTOLD: Final = (compute.UNTOLD, expert_loop.UNTOLD, own_graph.UNTOLD)
"""What findings of a run say that a profile tells."""
ONLY_WHERE: Final = ("compute", "launch")
"""Findings of a run that say where the model's time is."""
MEND: Final = "fix the command's own error, then run again"


def verdict_here(folder: Path, traces: TraceReport | None = None) -> Diagnosis:
    """As `verdict`, of a folder that may come from elsewhere and name any file: none outside of the current folder is
    quoted. Where some lie there, it is the verdict of the run's end, which quotes nothing of this machine."""
    with reading_here() as refused:
        found = verdict(folder, traces)
    return (RunFolder(folder).diagnosis if refused else None) or found


def verdict(folder: Path, traces: TraceReport | None = None) -> Diagnosis:
    """The verdict, from the folder alone. What a profile left that can't be read is said to be unknown.

    traces: the answers of the folder's traces, where they are known already. Raises NothingMeasured, RecordError.
    """
    run = RunFolder(folder)
    found = with_compiled(_profiled(run, traces), run.facts)
    tried = _tried(run.record)
    levers = settled(run.facts, [lever.name for lever in run.record.levers]) | tried  # a trace knows none
    found = adding_up(_of_the_loop(with_findings(found, _once(found.findings))))
    findings = tuple(with_patch(without(one, levers), folder, Path(run.record.cwd)) for one in found.findings)
    pairs = zip(findings, found.findings, strict=True)
    left = [one for one, before in pairs if one.levers or not tried.intersection(before.levers)]
    then = MEND if run.record.failed_itself else next_of(left)
    return msgspec.structs.replace(found, findings=findings, next=then)


def _tried(run: Run) -> set[str]:
    """Levers that the tune tried which made the run's recipe, where that is there."""
    tune = recipe_tune(run)
    return {one.lever for one in tune.dropped if not one.why.endswith(NOT_TRIED)} if tune is not None else set()


def _of_the_loop(found: Diagnosis) -> Diagnosis:
    """With all shares as parts of the loop's time, where some of that lies outside of the steps, and in their order."""
    shares, left = {one.id: one.share for one in found.findings if one.id in OUTSIDE}, 1.0
    if "evaluation" in shares:
        shares["evaluation"] = found.evaluating
    for id_ in filter(shares.__contains__, OUTSIDE):
        shares[id_] *= left
        left -= shares[id_]
    if not shares:
        return found
    told = (msgspec.structs.replace(one, share=shares.get(one.id, left * one.share)) for one in found.findings)
    return with_findings(found, told)


def adding_up(found: Diagnosis) -> Diagnosis:
    """With what only says where the model's time is without the causes that are told of parts of it, so that shares add
    up. Some were made without these, so that what is left is no more than the model's phases leave."""
    times = found.gpu_phases or found.phases
    all_ms = found.unseen_ms + sum(getattr(times, name) or 0.0 for name in PHASES)
    causes = [one for one in found.findings if one.named and one.bound in OF_THE_MODEL and one.id not in IN_NO_PHASE]
    took = sum(one.share for one in causes if one.id != unused_forwards.ID)
    general = [one for one in found.findings if one.id in ONLY_WHERE and not one.named]
    if not took or not all_ms or not general:
        return found
    model = sum(getattr(times, name) or 0.0 for name in MODEL) / all_ms
    model *= 1 - sum(one.share for one in found.findings if one.id in OUTSIDE)
    left = model - sum(one.share for one in causes)
    said = f"with {counted(len(causes), 'cause')} listed separately"
    told: dict[int, Finding | None] = {}
    for one in general:
        rest = max(0.0, min(one.share, left))
        left -= rest
        if rest < one.share - LEAST_COST:
            evidence = f"{one.share:.0%} {said}; {one.evidence}"
            left_of_it = msgspec.structs.replace(one, share=rest, evidence=evidence)
            told[id(one)] = left_of_it if rest >= LEAST_COST else None
    kept = (told.get(id(one), one) for one in found.findings)
    return msgspec.structs.replace(found, findings=tuple(one for one in kept if one is not None))


def judged(folder: Path, traces: TraceReport | None = None, ours: bool = False) -> tuple[Diagnosis | None, str]:
    """The verdict, or why there is none. ours: of a run that hotlap itself just made. Raises RecordError."""
    try:
        return verdict(folder, traces) if ours else verdict_here(folder, traces), ""
    except NothingMeasured as error:
        return None, str(error)


def _not_taken(run: RunFolder, rank: RankFolder) -> str | None:
    """What a profile that was asked for does not show, and why; None where all is there, or none was asked for."""
    profile = rank.document(Profile)
    if profile is None and run.profiled and not (run.traces or rank.profiled):
        return "no profile was taken: the process was ended before its steps were profiled"
    if profile is None or (profile.file is not None and not profile.note):
        return None
    said = "no profile was taken" if profile.file is None else "the profile is incomplete"
    return f"{said}: {profile.note}" if profile.note else said


def _once(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Causes without those that are told of the same line in the same words, as from samples and from a trace."""
    told: set[tuple[str, Place]] = set()
    for one in findings:
        if one.where is None or not one.named or (one.title, one.where) not in told:
            yield one
        if one.where is not None and one.named:
            told.add((one.title, one.where))


def without_untold(finding: Finding) -> Finding:
    """What is said of a run without a profile is not said of one with it."""
    why, evidence = finding.why, finding.evidence
    for text in UNTOLD:
        why, evidence = why.replace(text, ""), evidence.replace(text, "")
    return msgspec.structs.replace(finding, why=why, evidence=evidence)


def _profiled(run: RunFolder, traces: TraceReport | None) -> Diagnosis:
    found, rank = diagnose(run.path), run.rank(0)
    if (why := _not_taken(run, rank)) is not None:
        found = msgspec.structs.replace(found, unknown=(*found.unknown, why))
    if run.profiled:
        found = msgspec.structs.replace(found, findings=tuple(map(without_untold, found.findings)))
    try:
        if run.traces:
            with missing_named():
                from .profiled import read_traces, with_backwards, with_traces  # polars takes a moment to import

                traces = traces or read_traces(run.path, found)
            rank = _looked_at(run, traces.balance)
            facts = rank.facts
            made = Measured.place_of(facts.feeding) if facts else None
            found = with_traces(found, traces, made, facts, rank.document(Lines))
        samples, called = rank.document(Samples), _called(rank)
        if (long := rank.document(LongSamples)) is not None:
            found = with_long_steps(found, long, samples, called)
        found = with_evaluation(found, samples, long)
        if samples is not None:
            found, samples = with_methods(found, samples, rank.document(Lines))
            late = traces.balance.cause if traces and traces.balance else None
            found = with_samples(
                found,
                samples,
                _loop(rank),
                late,
                _kept_ms(rank, found),
                _worker(rank),
                _feeding(rank),
                called,
                rank.facts.host if rank.facts else None,
            )
            found = with_lines(with_between(found, samples, rank.facts), called)
        if (lines := rank.document(Lines)) is not None:
            found = with_loss(found, lines, called)
            found = page_faults.at_line(with_older(with_left_out(found, lines), lines), lines)
        found = steps_grow.with_hooks(found, rank.facts)
        return with_backwards(found, traces) if run.traces and traces else found
    except RecordError as error:
        return msgspec.structs.replace(found, unknown=(*found.unknown, f"the profile can't be read: {error}"))


def _kept_ms(rank: RankFolder, found: Diagnosis) -> float:
    """Of a step, how long the loop's thread neither ran nor waited for a core or a batch; 0 where it is not known."""
    host = rank.facts.host if rank.facts else None
    if host is None or host.waited_ms is None:
        return 0.0
    return max(0.0, host.stood_ms - host.waited_ms - (found.phases.data or 0.0))


def _feeding(rank: RankFolder) -> LoaderFacts | None:
    return rank.facts.feeding if rank.facts else None


def _called(rank: RankFolder) -> list[Place]:
    """Where the user's code calls a model."""
    calls = (one.called for one in rank.facts.roots) if rank.facts else ()
    return [Place(file=file, line=line, function=function) for file, line, function in filter(None, calls)]


def _worker(rank: RankFolder) -> WorkerSamples | None:
    """What the first worker of the loader that feeds the loop was seen at."""
    loader = _feeding(rank)
    if loader is None or not loader.workers:
        return None
    return next((one for one in rank.workers if one.dataset == loader.dataset), None)


def _looked_at(run: RunFolder, balance: Ranks | None) -> RankFolder:
    """The rank whose host is looked at: the one that the others wait for, else the first."""
    late = run.rank(balance.straggler) if balance and balance.straggler is not None else None
    return late if late is not None and late.path.is_dir() else run.rank(0)


def _loop(rank: RankFolder) -> Place | None:
    """Where the loop asks for its batches, as far as that is known."""
    lines = rank.document(Lines)
    at = lines.places.get("data") if lines is not None else None
    if lines is None or at is None or not 0 <= at[0] < len(lines.files):
        return None
    return place_in(lines.files, at)
