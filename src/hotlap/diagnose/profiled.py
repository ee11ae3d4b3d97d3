"""What the trace of a profiled run adds to its verdict: lines, what each cause costs, causes that only a trace shows.

Step time, phases and their shares are those of steps without the profiler. The profiler makes host time longer, not the
work on the device; so idle time of the trace is scaled to what is left of the unprofiled step beside that work.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.diagnosis import Bound, Diagnosis, Finding, Place
from hotlap.records.errors import NothingMeasured
from hotlap.records.files import read_record
from hotlap.records.profile import Lines
from hotlap.records.trace import TraceReport
from hotlap.trace.answer import Asked, report
from hotlap.trace.files import trace_files
from hotlap.trace.lines import places_of
from hotlap.trace.tables import Trace

from .diagnose import diagnose

TOP_OPS: Final = 3
INSTEAD: Final[dict[str, frozenset[Bound]]] = {
    "compute": frozenset({"bandwidth"}),
    "launch": frozenset({"sync", "compute", "bandwidth", "memory", "communication"}),
}
"""Findings of a run that only say where the time goes, and the bounds of a trace that say why."""
IDLE: Final = ("host-code", "sync", "launch", "allocator", "communication")
HOST_CODE: Final = 0.1
"""As in `findings/host_code.py`."""
LOADERS: Final = ("enumerate(DataLoader)", "hotlap:data")


def read_traces(folder: Path, unprofiled_ms: float | None) -> TraceReport:
    """The answers of a run's traces. Raises RecordError."""
    return report(trace_files(folder), Asked(unprofiled_ms=unprofiled_ms, lines=_lines_in(folder)))


def asked_of(path: Path, top: int, what_if: bool, unprofiled_ms: float | None = None) -> Asked:
    """What to ask of the traces at a path: of a run's, with its lines and its step time without the profiler."""
    if not (path / "run.json").is_file():
        return Asked(top, what_if, unprofiled_ms)
    try:
        known: float | None = diagnose(path).step_ms
    except NothingMeasured:
        known = None
    return Asked(top, what_if, unprofiled_ms or known, _lines_in(path))


def _lines_in(folder: Path) -> Callable[[Trace], dict[int, Place]]:
    def lines(trace: Trace) -> dict[int, Place]:
        beside = Path(trace.source).with_name("lines.json")
        return places_of(trace, read_record(beside, Lines)) if beside.is_file() else {}

    return lines


def with_traces(diagnosis: Diagnosis, traces: TraceReport) -> Diagnosis:
    """The verdict with the traces' findings: one of a bound that the run shows too takes its place.

    Of a run on the CPU, where the trace shows the ops that the phases were timed around, only what they are is added.
    """
    if not any(rank.breakdown for rank in traces.ranks):
        named = tuple(_with_ops(finding, traces) for finding in diagnosis.findings)
        return msgspec.structs.replace(diagnosis, findings=named)
    left = (_left(finding, traces.findings) for finding in diagnosis.findings)
    kept = [finding for finding in left if finding is not None]
    shown = [_with_batches(finding, diagnosis, traces) for finding in traces.findings]
    findings = sorted((*kept, *shown), key=lambda finding: -finding.share)
    bound = findings[0].bound if findings else diagnosis.bound
    return msgspec.structs.replace(diagnosis, findings=tuple(findings), bound=bound)


def _left(finding: Finding, shown: tuple[Finding, ...]) -> Finding | None:
    """A finding of the run beside those of its traces: None where they say it better, or say what it is instead.

    Waits that come seldom may lie outside of the few steps of a trace. So of the loop's own code stays what the traces'
    idle time does not explain, where that is still much.
    """
    bounds = {one.bound for one in shown}
    if finding.bound in bounds or bounds & INSTEAD.get(finding.id, frozenset()):
        return None
    if finding.id != "host-code":
        return finding
    share = finding.share - sum(one.share for one in shown if one.id in IDLE)
    return msgspec.structs.replace(finding, share=share) if share >= HOST_CODE else None


def _with_batches(finding: Finding, diagnosis: Diagnosis, traces: TraceReport) -> Finding:
    """Where a trace shows only the loop that waits, the place that makes its batches, which the run knows."""
    made = next((one.where for one in diagnosis.findings if one.id == "input"), None)
    loops = [row.where for rank in traces.ranks for row in rank.host if row.name.startswith(LOADERS)]
    if finding.id != "input" or made is None or finding.where not in (None, *loops):
        return finding
    return msgspec.structs.replace(finding, where=made)


def _with_ops(finding: Finding, traces: TraceReport) -> Finding:
    """The arithmetic of a run on the CPU with the ops that most of it is in, and the line of the largest."""
    rank = traces.ranks[0]
    ops = [row for row in rank.model if "::" in row.name][:TOP_OPS]
    if finding.id != "compute" or not ops:
        return finding
    said = ", ".join(f"{row.name} {row.ns / rank.window.count / 1e6:.1f} ms" for row in ops)
    return msgspec.structs.replace(
        finding, evidence=f"{finding.evidence}; under the profiler {said}", where=ops[0].where or finding.where
    )
