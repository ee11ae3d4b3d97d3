"""The whole verdict of a run: its steps, and what its traces and samples add where it was profiled."""

from pathlib import Path

import msgspec

from hotlap.records.diagnosis import Diagnosis, Place
from hotlap.records.errors import RecordError
from hotlap.records.files import rank_folders, read_facts, read_record, read_run, read_source_lines
from hotlap.records.profile import Samples
from hotlap.records.trace import TraceReport

from .compiled import with_compiled
from .diagnose import diagnose, without
from .sampled import with_samples


def verdict(folder: Path, traces: TraceReport | None = None) -> Diagnosis:
    """The verdict, from the folder alone. What a profile left that can't be read is said to be unknown.

    traces: the answers of the folder's traces, where they are known already. Raises NothingMeasured, RecordError.
    """
    found = with_compiled(_profiled(folder, traces), next(map(read_facts, rank_folders(folder)), None))
    levers = {lever.name for lever in read_run(folder).levers}  # a trace does not know what was in
    return msgspec.structs.replace(found, findings=tuple(without(one, levers) for one in found.findings))


def _profiled(folder: Path, traces: TraceReport | None) -> Diagnosis:
    found = diagnose(folder)
    try:
        if any(folder.glob("rank-*/trace.json.gz")):
            from .profiled import read_traces, with_traces  # polars takes a moment to import

            found = with_traces(found, traces or read_traces(folder, found.step_ms))
        sampled = folder / "rank-0" / "samples.json"
        return with_samples(found, read_record(sampled, Samples), _loop(folder)) if sampled.is_file() else found
    except RecordError as error:
        return msgspec.structs.replace(found, unknown=(*found.unknown, f"what the profile shows: {error}"))


def _loop(folder: Path) -> Place | None:
    """Where the loop asks for its batches, as far as that is known."""
    lines = read_source_lines(folder / "rank-0")
    at = lines.places.get("data") if lines is not None else None
    if lines is None or at is None or not 0 <= at[0] < len(lines.files):
        return None
    return Place(file=lines.files[at[0]], line=at[1], function=at[2])
