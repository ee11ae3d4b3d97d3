"""What a model computes outside of phases of its own: beside the calls of its parts, where one of its methods calls
them (`self.forward(x)`), and without gradients. The run's phases have it as code of the loop."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, with_findings
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, SampledPath, Samples, UserFrame, place_in
from hotlap.records.run import Phases

from .batches import RUNS
from .findings.host_code import BESIDES, HOLDS, LEAST, STANDS_STILL
from .samples import LEAST_LOOKS, known_paths
from .statements import cause_at, trains

OUTSIDE: Final = frozenset({"data", "optimizer"})
"""Phases that a method of the loop's own is seen in, and no method in which a model computes."""


def with_methods(diagnosis: Diagnosis, samples: Samples, lines: Lines | None) -> tuple[Diagnosis, Samples]:
    """The verdict with what samples tell of it among what the model computes, and samples that have it as the
    forward's. On a device the host's time says nothing of what that computes: there it is only told."""
    if samples.looks < LEAST_LOOKS or not samples.methods:
        return diagnosis, samples
    device, ranks = diagnosis.device != "cpu", diagnosis.ranks
    ops = {(lines.files[one[1]], one[2]) for one in lines.ops if one[1] < len(lines.files)} if lines else set()
    rows = known_paths(samples.paths, samples.files)
    computes = _computing(rows, samples)
    own = [row for row in rows if _is_computed(row, samples, computes, ops) and not _cause(row, samples, device, ranks)]
    took: defaultdict[str, float] = defaultdict(float)
    for _, path, _, took_ms in own:
        took[next(one[2] for one in reversed(path) if (one[0], one[2]) in computes).rpartition(".")[0]] += took_ms
    part = sum(took.values()) / max(1e-9, sum(row[5] for row in samples.lines if row[0] == "other"))
    names = " and ".join(sorted(took, key=lambda one: -took[one])[:2])
    there = not device and any(one.id == "compute" for one in diagnosis.findings)
    moved = sum(one.share for one in diagnosis.findings if _is_loops(one)) * part if there else 0.0
    if any(one.id == "host-code" and not _is_loops(one) for one in diagnosis.findings):
        return diagnosis, samples  # it is told already what runs there
    told = (_told(one, names, part, moved, diagnosis.step_ms, diagnosis.phases) for one in diagnosis.findings)
    return with_findings(diagnosis, [one for one in told if one is not None]), _as_forward(samples, own)


def _is_loops(finding: Finding) -> bool:
    """Whether it is code of the loop's own of which no more is known."""
    return finding.id == "host-code" and not finding.named and not finding.title.endswith(BESIDES)


def _computing(rows: Sequence[SampledPath], samples: Samples) -> set[tuple[int, str]]:
    """Methods of modules in which a model runs, but for those that train it, or are in their way."""
    methods = {*samples.methods}
    seen = {(frame[0], frame[2]): frame for row in rows for frame in row[1] if (frame[0], frame[2]) in methods}
    runs = {(one[0], one[2]) for row in rows if row[0] == "forward" or RUNS.match(row[2]) for one in row[1]}
    loops = {(one[0], one[2]) for row in rows if row[0] in OUTSIDE for one in row[1]}
    kept = {one for one in seen if one in runs or one[1].endswith(".forward")} - loops
    return {one for one in kept if not trains(place_in(samples.files, seen[one]))}


def _is_computed(row: SampledPath, samples: Samples, computes: set[tuple[int, str]], ops: set[tuple[str, int]]) -> bool:
    phase, path, inside, _ = row
    if phase != "other" or not any((one[0], one[2]) in computes for one in path):
        return False
    return inside.startswith("torch.") or (not inside and (samples.files[path[-1][0]], path[-1][1]) in ops)


def _cause(row: SampledPath, samples: Samples, device: bool, ranks: int) -> bool:
    return cause_at(place_in(samples.files, row[1][-1]), device, ranks, row[2]) is not None


def _told(finding: Finding, names: str, part: float, moved: float, step_ms: float, phases: Phases) -> Finding | None:
    """A finding with what is known of them now. moved: share of the step that is put with the computing."""
    if _is_loops(finding):
        why = HOLDS.sub(STANDS_STILL, finding.why)
        finding = msgspec.structs.replace(finding, why=why)
        if not part:
            return finding
        if not moved:
            said = f"{finding.evidence}; {part:.0%} of the host's time there is in operations of {names}"
            return msgspec.structs.replace(finding, evidence=said)
        whole, share = phases.other or 0.0, finding.share * (1 - part)
        said = f"{ms(whole * (1 - part))} of host time a step beside operations of {names}"
        said = finding.evidence.replace(f"{ms(whole)} of host time a step", said)
        return msgspec.structs.replace(finding, share=share, evidence=said) if share >= LEAST else None
    if finding.id == "compute" and moved:
        said = (
            f"{finding.evidence}; {ms(moved * step_ms)} of `other` are operations of {names} too: without gradients, "
        )
        said += "or between the calls of its parts"
        return msgspec.structs.replace(finding, share=min(1.0, finding.share + moved), evidence=said)
    return finding


def _as_forward(samples: Samples, own: Sequence[SampledPath]) -> Samples:
    left = {row[:5]: row[5] for row in samples.lines}
    moved: defaultdict[tuple[UserFrame, str], float] = defaultdict(float)
    for _, path, inside, took_ms in own:
        moved[path[-1], inside] += took_ms
    for (frame, inside), took_ms in moved.items():
        left["other", *frame, inside] = max(0.0, left.get(("other", *frame, inside), 0.0) - took_ms)
        left["forward", *frame, inside] = left.get(("forward", *frame, inside), 0.0) + took_ms
    lines = tuple(sorted(((*key, took_ms) for key, took_ms in left.items() if took_ms), key=lambda row: -row[5]))
    paths = tuple(("forward", *row[1:]) if row in own else row for row in samples.paths)
    return msgspec.structs.replace(samples, lines=lines, paths=paths)
