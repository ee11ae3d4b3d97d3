"""Where an evaluation's time goes, from the samples of a profiled run."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.profile import LongSamples, SampledPath, Samples, UserFrame, place_in

from .findings.evaluation import TITLE
from .samples import known_paths
from .statements import own_cause_at

EVALUATION: Final = "evaluation"
"""What the agent books such time under."""
LEAST_MS: Final = 50.0
MOSTLY: Final = 0.6


def with_evaluation(diagnosis: Diagnosis, *seen: Samples | LongSamples | None) -> Diagnosis:
    """The verdict with the innermost line that most of the evaluations' time is under, in the samples that hold most of
    it; with what that line does, where its statement tells."""
    told = [one for one in diagnosis.findings if one.id == EVALUATION]
    known = [(*_rows(one), one.files) for one in seen if one is not None]
    took, rows, files = max(known, key=lambda one: one[0], default=(0.0, [], ()))
    if not told or took < LEAST_MS or (path := _innermost(rows, took)) is None:
        return diagnosis
    under = [row for row in rows if row[1][: len(path)] == path]
    share, inside = sum(row[3] for row in under) / took, max(under, key=lambda row: row[3])[2]
    where = place_in(files, path[-1])
    cause = own_cause_at(where, diagnosis.device != "cpu", diagnosis.ranks, inside) if under[0][1] == path else None
    by_torch = sum(row[3] for row in rows if row[2].startswith("torch."))
    computes = diagnosis.device == "cpu" and by_torch >= MOSTLY * took  # else the host may wait for the device there

    def found(one: Finding) -> Finding:
        if one.title != TITLE:  # else its line is known
            return one
        said = f"{one.evidence}; {share:.0%} of an evaluation's time is under this line"
        said += f", in {inside}" if inside and under[0][1] == path else ""
        one = msgspec.structs.replace(one, where=where, evidence=said, bound="compute" if computes else one.bound)
        if cause is None:
            return one
        instead = f"{cause.instead}; {one.instead}"
        return msgspec.structs.replace(one, title=f"{one.title}: {cause.title}", why=cause.why, instead=instead)

    return msgspec.structs.replace(diagnosis, findings=tuple(map(found, diagnosis.findings)))


def _rows(seen: Samples | LongSamples) -> tuple[float, list[SampledPath]]:
    """Ms of evaluations, and the samples of them, most first."""
    rows = seen.paths if isinstance(seen, Samples) else seen.lines
    own = [row for row in known_paths(rows, seen.files) if row[0] == EVALUATION and row[1]]
    return sum(row[3] for row in own), sorted(own, key=lambda row: -row[3])


def _innermost(rows: Sequence[SampledPath], total: float) -> tuple[UserFrame, ...] | None:
    """Frames down to the innermost under which most of the time is."""
    path: tuple[UserFrame, ...] = ()
    while True:
        took: defaultdict[UserFrame, float] = defaultdict(float)
        for _, frames, _, ms in rows:
            if len(frames) > len(path) and frames[: len(path)] == path:
                took[frames[len(path)]] += ms
        most = max(took, key=lambda one: took[one], default=None)
        in_model = most is not None and path and most[2].split(".")[-1] == "forward"  # its lines are in the phases
        if most is None or in_model or took[most] < MOSTLY * total:
            return path or None
        path = (*path, most)
