"""The whole verdict of a run: its steps, and what its traces and samples add where it was profiled."""

from pathlib import Path

import msgspec

from hotlap.records.diagnosis import Diagnosis, Place
from hotlap.records.errors import RecordError
from hotlap.records.files import rank_folders, read_facts, read_profile, read_record, read_run, read_source_lines
from hotlap.records.profile import Samples
from hotlap.records.profilers import NSYS_FILE
from hotlap.records.trace import Ranks, TraceReport

from .compiled import with_compiled
from .diagnose import diagnose, next_of, without
from .findings._base import Measured
from .findings._settled import settled
from .patchable import with_patch
from .sampled import with_samples


def verdict(folder: Path, traces: TraceReport | None = None) -> Diagnosis:
    """The verdict, from the folder alone. What a profile left that can't be read is said to be unknown.

    traces: the answers of the folder's traces, where they are known already. Raises NothingMeasured, RecordError.
    """
    facts = next(map(read_facts, rank_folders(folder)), None)
    found = with_compiled(_profiled(folder, traces), facts)
    run = read_run(folder)
    levers = settled(facts, [lever.name for lever in run.levers])  # a trace knows neither
    findings = tuple(with_patch(without(one, levers), folder, Path(run.cwd)) for one in found.findings)
    return msgspec.structs.replace(found, findings=findings, next=next_of(findings))


def _not_taken(rank: Path) -> str | None:
    """What a profile that was asked for does not show, and why; None where all is there, or none was asked for."""
    profile = read_profile(rank)
    if profile is None or (profile.file is not None and not profile.note):
        return None
    what = "would show" if profile.file is None else "does not show"
    return f"what the profile {what}: {profile.note or 'none was taken'}"


def _profiled(folder: Path, traces: TraceReport | None) -> Diagnosis:
    found, rank = diagnose(folder), folder / "rank-0"
    if (why := _not_taken(rank)) is not None:
        found = msgspec.structs.replace(found, unknown=(*found.unknown, why))
    try:
        if any(folder.glob("rank-*/trace.json.gz")) or (folder / NSYS_FILE).is_file():
            from .profiled import read_traces, with_traces  # polars takes a moment to import

            traces = traces or read_traces(folder, found)
            rank = _looked_at(folder, traces.balance)
            found = with_traces(found, traces, _makes_batches(rank))
        if not (rank / "samples.json").is_file():
            return found
        late = traces.balance.cause if traces and traces.balance else None
        return with_samples(found, read_record(rank / "samples.json", Samples), _loop(rank), late)
    except RecordError as error:
        return msgspec.structs.replace(found, unknown=(*found.unknown, f"what the profile shows: {error}"))


def _looked_at(folder: Path, balance: Ranks | None) -> Path:
    """The rank whose host is looked at: the one that the others wait for, else the first."""
    late = folder / f"rank-{balance.straggler}" if balance and balance.straggler is not None else None
    return late if late is not None and late.is_dir() else folder / "rank-0"


def _makes_batches(rank: Path) -> Place | None:
    """The place that makes the batches of a rank's loop."""
    facts = read_facts(rank)
    return Measured.place_of(facts.feeding) if facts is not None else None


def _loop(rank: Path) -> Place | None:
    """Where the loop asks for its batches, as far as that is known."""
    lines = read_source_lines(rank)
    at = lines.places.get("data") if lines is not None else None
    if lines is None or at is None or not 0 <= at[0] < len(lines.files):
        return None
    return Place(file=lines.files[at[0]], line=at[1], function=at[2])
