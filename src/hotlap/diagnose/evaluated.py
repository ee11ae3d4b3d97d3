"""Where an evaluation's time goes, from the samples of a profiled run."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.profile import LongSamples, SampledPath, Samples, UserFrame, place_in

from .asleep import CauseOf
from .causes import Cause
from .findings.evaluation import LESS, TITLE
from .samples import known_paths, without_comprehension
from .statements import own_cause_at

EVALUATION: Final = "evaluation"
"""What the agent books such time under."""
LEAST_MS: Final = 50.0
MOSTLY: Final = 0.6
MUCH_OF_IT: Final = 0.3
"""Of an evaluation, from which a cause at several lines of a function is told."""


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
    where, at_line = place_in(files, path[-1]), under[0][1] == path
    cause_of = partial(own_cause_at, device=diagnosis.device != "cpu", ranks=diagnosis.ranks)
    cause = cause_of(where, inside=inside) if at_line else None
    said = f"{share:.0%} of an evaluation's time is spent under this line" + (
        f", in {inside}" if inside and at_line else ""
    )
    if not at_line and (own := _in_a_function(under, path, took, files, cause_of)) is not None:
        where, cause, part = own
        said = (
            f"{part:.0%} of an evaluation's time is spent at such lines of "
            f"{without_comprehension(where.function or '')}"
        )
    by_torch = sum(row[3] for row in rows if row[2].startswith("torch."))
    computes = diagnosis.device == "cpu" and by_torch >= MOSTLY * took  # else the host may wait for the device there

    def found(one: Finding) -> Finding:
        if one.title != TITLE:  # else its line is known
            return one
        evidence = f"{one.evidence}; {said}"
        one = msgspec.structs.replace(one, where=where, evidence=evidence, bound="compute" if computes else one.bound)
        if cause is None:
            return one
        instead = f"{cause.instead}; {LESS}"  # a larger batch and no gradients make the script's own code no less
        return msgspec.structs.replace(one, title=f"{one.title}: {cause.title}", why=cause.why, instead=instead)

    return msgspec.structs.replace(diagnosis, findings=tuple(map(found, diagnosis.findings)))


def _rows(seen: Samples | LongSamples) -> tuple[float, list[SampledPath]]:
    """Ms of evaluations, and the samples of them, most first."""
    rows = seen.paths if isinstance(seen, Samples) else seen.lines
    own = [row for row in known_paths(rows, seen.files) if row[0] == EVALUATION and row[1]]
    return sum(row[3] for row in own), sorted(own, key=lambda row: -row[3])


def _in_a_function(
    under: Sequence[SampledPath], path: Sequence[UserFrame], took: float, files: Sequence[str], cause_of: CauseOf
) -> tuple[Place, Cause, float] | None:
    """Where most of the time is the own code of a function that is called there, at several lines: the dearest line of
    the cause that takes most of it, if that is much; with the cause and its part of the evaluations."""
    own = [row for row in under if len(row[1]) == len(path) + 1 and not row[2].startswith("torch.")]
    functions: defaultdict[tuple[int, str], float] = defaultdict(float)
    for row in own:
        functions[row[1][-1][0], without_comprehension(row[1][-1][2])] += row[3]
    of = max(functions, key=lambda one: functions[one], default=None)
    if of is None or functions[of] < MOSTLY * took:
        return None
    causes: defaultdict[str, list[tuple[float, Place, Cause]]] = defaultdict(list)
    for row in own:
        frame = row[1][-1]
        if (frame[0], without_comprehension(frame[2])) == of:
            place = place_in(files, frame)
            if (cause := cause_of(place, inside=row[2])) is not None:
                causes[cause.id].append((row[3], place, cause))
    those = max(causes.values(), key=lambda rows: sum(row[0] for row in rows), default=[])
    part = sum(row[0] for row in those) / took
    if part < MUCH_OF_IT:
        return None
    _, place, cause = max(those, key=lambda row: row[0])
    return place, cause, part


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
