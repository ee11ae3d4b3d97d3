"""Where a new version loses its time: the phase that grew, and what it has that the baseline has not."""

from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.check import Cause, Version, grown
from hotlap.records.diagnosis import Diagnosis, Finding

CLEARLY: Final = 0.3
"""Of the growth of a step, that a finding has to cost more than before."""
MOST: Final = 3


def cause(before: Diagnosis, after: Diagnosis, base: Version, head: Version) -> Cause:
    """Of two verdicts. Places are told relative to each version's folder."""
    phases = grown(before.phases, after.phases)
    more_ms = max(after.step_ms - before.step_ms, 0.0)
    known = {_key(one, base): _cost(one, before) for one in before.findings}
    found = [(_cost(one, after) - known.get(_key(one, head), 0.0), one) for one in after.findings if not one.wrong]
    new = [(more, one) for more, one in found if more > 0 and more >= CLEARLY * more_ms]
    new.sort(key=lambda one: (not one[1].named, -one[0]))
    phase, ms = phases[0] if phases and phases[0][1] > 0 else (None, 0.0)
    return Cause(
        before=before.phases, after=after.phases, phase=phase, ms=ms,
        findings=tuple(_shown(one, head) for _, one in new[:MOST]),
    )  # fmt: skip


def _cost(finding: Finding, of: Diagnosis) -> float:
    """Ms a step."""
    return finding.cost_ms if finding.cost_ms is not None else finding.share * of.step_ms


def _key(finding: Finding, version: Version) -> tuple[str, str, str]:
    """The same finding in another version, whatever line it is at by now."""
    where = finding.where
    return finding.id, _relative(where.file, version) if where else "", (where.function or "") if where else ""


def _relative(file: str, version: Version) -> str:
    """Seen from the version's folder; as it is where it lies elsewhere."""
    path = Path(file)
    return str(path.relative_to(version.cwd)) if path.is_absolute() and path.is_relative_to(version.cwd) else file


def _shown(finding: Finding, version: Version) -> Finding:
    if finding.where is None:
        return finding
    place = msgspec.structs.replace(finding.where, file=_relative(finding.where.file, version))
    return msgspec.structs.replace(finding, where=place)
