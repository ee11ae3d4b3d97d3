"""Findings with the lines at which the host's time goes, from the samples of a profiled run."""

from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.profile import SampledLine, Samples

PHASE_OF: Final = {"input": "data", "host-code": "other"}
"""Findings about host time, and the phase that it is spent in."""
LEAST_SHARE: Final = 0.2
"""Of the phase's samples: a line with less does not stand for it."""
LEAST_LOOKS: Final = 10


def with_samples(diagnosis: Diagnosis, samples: Samples) -> Diagnosis:
    """The verdict with the line that most of a finding's host time is at, where there is one."""
    if samples.looks < LEAST_LOOKS:
        return diagnosis
    return msgspec.structs.replace(diagnosis, findings=tuple(_explained(one, samples) for one in diagnosis.findings))


def _explained(finding: Finding, samples: Samples) -> Finding:
    phase = PHASE_OF.get(finding.id)
    own = [row for row in samples.lines if row[0] == phase]
    total = sum(row[5] for row in own)
    by_line: dict[tuple[int, int, str], list[SampledLine]] = {}
    for row in own:
        if 0 <= row[1] < len(samples.files):
            by_line.setdefault((row[1], row[2], row[3]), []).append(row)
    if not by_line or not total:
        return finding
    (file, line, function), rows = max(by_line.items(), key=lambda item: sum(row[5] for row in item[1]))
    share = sum(row[5] for row in rows) / total
    if share < LEAST_SHARE:
        return finding
    inside = max(rows, key=lambda row: row[5])[4]
    where = Place(file=samples.files[file], line=line, function=function)
    said = f"{share:.0%} of it at this line" + (f", in {inside}" if inside else "")
    return msgspec.structs.replace(finding, where=where, evidence=f"{finding.evidence}; {said}")
