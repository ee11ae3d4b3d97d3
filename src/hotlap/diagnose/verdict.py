"""The whole verdict of a run: its steps, and what its traces and samples add where it was profiled."""

from pathlib import Path

import msgspec

from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import RecordError
from hotlap.records.files import read_record
from hotlap.records.profile import Samples

from .diagnose import diagnose
from .sampled import with_samples


def verdict(folder: Path) -> Diagnosis:
    """The verdict, from the folder alone. What a profile left that can't be read is said to be unknown.

    Raises NothingMeasured, RecordError.
    """
    found = diagnose(folder)
    try:
        if any(folder.glob("rank-*/trace.json.gz")):
            from .profiled import read_traces, with_traces  # polars takes a moment to import

            found = with_traces(found, read_traces(folder, found.step_ms))
        sampled = folder / "rank-0" / "samples.json"
        return with_samples(found, read_record(sampled, Samples)) if sampled.is_file() else found
    except RecordError as error:
        return msgspec.structs.replace(found, unknown=(*found.unknown, f"what the profile shows: {error}"))
