"""What the trace of a profiled run adds to its verdict: lines, what each cause costs, causes that only a trace shows.

Step time, phases and their shares are those of steps without the profiler. What a trace tells is made parts of these
(`trace/scaling.py`).
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from hotlap.levers import answering
from hotlap.records.diagnosis import (
    IN_NO_PHASE,
    Bound,
    Diagnosis,
    Finding,
    Place,
    in_order,
    left_beside,
    with_findings,
)
from hotlap.records.durations import ms
from hotlap.records.errors import NothingMeasured
from hotlap.records.profile import Lines
from hotlap.records.run import Facts, Phases
from hotlap.records.trace import HostTime, RankTrace, TraceReport
from hotlap.runs.folder import RankFolder, RunFolder
from hotlap.trace.analyses.utilisation import over_ranks
from hotlap.trace.answer import Options, report
from hotlap.trace.files import trace_files
from hotlap.trace.findings import convolution
from hotlap.trace.lines import places_of
from hotlap.trace.scaling import host_ms, per_step_ms
from hotlap.trace.tables import Trace

from . import masks, recasts
from .autocast import outside_of_forward
from .causes import ELEMENTS
from .copied_again import with_kept
from .diagnose import diagnose
from .findings import compute, debug_switches, h2d, python_modes, replaced
from .findings._base import MODEL, counted
from .in_the_model import WITH_ITS_BACKWARD
from .known_ops import known_ops
from .offloads import room, with_memory
from .optimizer_reads import with_reads
from .repeated import DOUBLE, of_lines
from .siblings import one_by_one
from .small_ops import small_ops

TOP_OPS: Final = 3
SMALL_NS: Final = 10_000
"""Of one operation in the mean, up to which Python and dispatch take most of it."""
MUCH_SMALL, MOSTLY_SMALL = 0.3, 0.5
"""Of the operations' time, what these take where they may be, and are, what limits the step."""
LITTLE: Final = 0.1
"""Of the operations' time, what arithmetic takes where to do it in fewer bits wins nothing."""
MOVES: Final = 0.5
"""Of the operations' time, what is neither arithmetic nor small operations where memory traffic limits the step."""
CONVOLVE: Final = re.compile(r"^(?!.*slow).*conv", re.IGNORECASE)
"""Convolutions that have a kernel for channels_last: torch's own slow one, as of few channels, has none."""
CONVOLVED: Final = 0.1
"""Of the operations' time, what convolutions take at least where their memory format matters."""
UNLIKE: Final = 1.5
"""A phase in the trace over what it is without the profiler, from which its ops contradict the phases."""
MULTIPLY: Final = re.compile(r"^aten::\w*(mm|bmm|mv|conv\w*|linear\w*|attention\w*|rnn\w*)$")
"""Ops that arithmetic limits, as far as a name tells."""
INSTEAD: Final[dict[str, frozenset[Bound]]] = {
    "compute": frozenset({"compute", "bandwidth"}),
    "launch": frozenset({"sync", "compute", "bandwidth", "memory", "communication"}),
}
"""Findings of a run that only say where the time goes, and the bounds of a trace that say why."""
IDLE: Final = ("host-code", "sync", "launch", "allocator", "communication")
SLOWED: Final = ("host-code", "launch")
"""Those of these that the profiler makes longer."""
BUSY: Final = ("compute", "bandwidth")
"""Bounds of findings of a trace about what the device does."""
SELDOM: Final = 2
"""Times as much as in the trace's steps, from which the run knows more of waits for batches: these come in waves."""
HOST_CODE: Final = 0.1
"""As in `findings/host_code.py`."""
COMPUTE: Final = 0.1
"""Share of the step below which the run's `compute` is not worth a line beside a trace."""
LATE_MALLOCS: Final = "late-mallocs"
"""Counted by the run; a trace shows what such calls cost, as `allocator`."""
COPIES: Final = ("h2d", h2d.WAITS)
"""By events around copies, which hold waits too."""
IDLE_ROWS: Final = "idle-rows"
DENSE: Final = "autograd::engine::evaluate_function: EmbeddingBackward"
"""How the op is called that makes the dense gradient of an embedding."""
SEARCHES: Final = "aten::_is_any_true"
SEARCH: Final = (SEARCHES, "aten::isnan")
"""What anomaly detection calls of each gradient: the first is called by nothing else."""
FILL: Final = "aten::fill_"
ZERO: Final = "aten::zero_"
LOADERS: Final = ("enumerate(DataLoader)", "hotlap:data")


def read_traces(folder: Path, found: Diagnosis) -> TraceReport:
    """The answers of a run's traces. found: what its steps without the profiler say. Raises RecordError."""
    options = Options(unprofiled_ms=_usual(found) * found.step_ms, unprofiled=found.phases, lines=_lines)
    return report(trace_files(folder), options)


def _usual(found: Diagnosis) -> float:
    """Share of the step that is left beside what long ones take more: a trace's few steps may hold none, or one."""
    return 1 - sum(one.share for one in found.findings if one.id == "long-steps")


def options_of(path: Path, top: int, what_if: bool, unprofiled_ms: float | None = None) -> Options:
    """What to ask of the traces at a path: of a run's, with its lines and its step time without the profiler."""
    if not RunFolder(path).is_run:
        return Options(top, what_if, unprofiled_ms)
    try:
        found = diagnose(path)
    except NothingMeasured:
        return Options(top, what_if, unprofiled_ms, lines=_lines)
    return Options(top, what_if, unprofiled_ms or _usual(found) * found.step_ms, found.phases, _lines)


def _lines(trace: Trace) -> dict[int, Place]:
    beside = RankFolder(Path(trace.source).parent).document(Lines)
    return places_of(trace, beside) if beside is not None else {}


def with_traces(
    diagnosis: Diagnosis,
    traces: TraceReport,
    made: Place | None = None,
    facts: Facts | None = None,
    lines: Lines | None = None,
) -> Diagnosis:
    """The verdict with the traces' findings: one of a bound that the run shows too takes its place, but for causes.

    made: the place that makes the loop's batches, as far as the run knows it. facts, lines: of the rank that is looked
    at. Of a run on the CPU only what the ops of its phases are is added.
    """
    measured = over_ranks([rank.utilisation for rank in traces.ranks if rank.utilisation])
    findings = diagnosis.findings
    diagnosis = msgspec.structs.replace(diagnosis, utilisation=measured)
    times = diagnosis.gpu_phases or diagnosis.phases
    forward, backward = times.forward or 0.0, times.backward or 0.0
    spare = list(of_lines(lines, backward / forward if forward else 1.0)) if lines is not None else []
    if any(one.id == "double-precision" for one in findings):
        spare = [one for one in spare if one.cause is not DOUBLE]
    masked = list(masks.of_lines(lines)) if lines is not None else []
    recast = list(recasts.of_lines(lines)) if lines is not None else []
    rank, step_ms = traces.ranks[0], diagnosis.step_ms
    if not any(one.breakdown for one in traces.ranks):  # a CPU: its ops are what the phases were timed around
        phases = sum(getattr(diagnosis.phases, name) or 0.0 for name in MODEL)
        told = [_beside_ops(_with_ops(one, rank, diagnosis.phases), traces, phases, step_ms) for one in findings]
        told = [_with_search(one, rank, step_ms) for one in told]
        known = known_ops(rank, told, step_ms, spare, masked, recast)
        return with_findings(diagnosis, (*known, *_in_loops(rank, told, lines, step_ms)))
    if any(one.id == "allocator" for one in traces.findings):
        findings = tuple(one for one in findings if one.id != LATE_MALLOCS)
    rest = left_beside(findings)
    scaled = tuple(msgspec.structs.replace(one, share=rest * one.share) for one in traces.findings)
    traces = msgspec.structs.replace(traces, findings=scaled)
    left = (_left(finding, traces, step_ms, rest) for finding in findings)
    kept = [finding for finding in left if finding is not None]
    made = next((one.where for one in diagnosis.findings if one.id == "input"), None) or made
    gone = replaced(kept)
    shown = [_with_batches(one, made, traces) for one in traces.findings if one.id not in gone]
    shown = [with_memory(one, diagnosis, traces, facts) for one in shown]
    shown = [outside_of_forward(one, lines, facts, rank) for one in shown]
    shown = [part for one in shown for part in with_kept(one, lines, rank, room(diagnosis))]
    kept, shown = with_reads(*_with_switch(kept, shown), facts)
    shown = _beside_input(shown, sum(one.share for one in kept if one.id == "input"))
    found = known_ops(rank, (*kept, *shown), step_ms, spare, masked, recast)
    ordered = tuple(in_order((*found, *_in_loops(rank, shown, lines, step_ms))))
    bound = ordered[0].bound if ordered else diagnosis.bound
    return msgspec.structs.replace(diagnosis, findings=ordered, bound=bound)


def _in_loops(rank: RankTrace, findings: Sequence[Finding], lines: Lines | None, step_ms: float) -> list[Finding]:
    """Small operations of loops: of modules that could be one, or of others."""
    return list(one_by_one(rank, findings, lines, step_ms)) or list(small_ops(rank, findings))


def _beside_input(shown: Sequence[Finding], waiting: float) -> list[Finding]:
    """A trace's findings beside waits for batches that its few steps lack: there is no more idle time than these leave.
    waiting: their share of all steps, 0 where the trace has them too."""
    if not waiting:
        return list(shown)
    rest = [one for one in shown if one.id != "input"]
    idle = sum(one.share for one in rest if one.id in SLOWED)
    others = sum(one.share for one in rest if one.bound in BUSY or (one.id in IDLE and one.id not in SLOWED))
    left = max(0.0, 1 - waiting - others)
    if idle <= left:
        return rest
    return [_scaled(one, left / idle) if one.id in SLOWED else one for one in rest]


def _with_switch(kept: Sequence[Finding], shown: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """What a trace's convolutions take that run without cuDNN, with the switch that the run saw."""
    off = next((one for one in kept if one.id == debug_switches.ID and one.title == debug_switches.CUDNN_OFF), None)
    if off is None:
        return list(kept), list(shown)
    title = f"{off.title}: {convolution.AS_WINDOWS}"

    def told(one: Finding) -> Finding:
        at = f"; the line of most is {one.where.line}" if off.where is not None and one.where is not None else ""
        return msgspec.structs.replace(
            one, title=title, where=off.where or one.where, evidence=one.evidence + at, instead=off.instead
        )

    with_it = [told(one) if one.id == convolution.ID else one for one in shown]
    return [one for one in kept if one is not off], with_it


def _scaled(finding: Finding, by: float) -> Finding:
    return msgspec.structs.replace(
        finding,
        share=finding.share * by,
        cost_ms=None if finding.cost_ms is None else finding.cost_ms * by,
        evidence=f"{finding.evidence}; in the trace's steps, which hardly waited for batches",
    )


def _left(finding: Finding, traces: TraceReport, step_ms: float, rest: float = 1.0) -> Finding | None:
    """A finding of the run beside those of its traces: None where they say it better, or say what it is instead.

    Device events hold waiting in collectives too, so of the run's `compute` stays what the traces call computing. Waits
    that come seldom may lie outside of the few steps of a trace: those for batches stay, where the run has far more of
    them. Of the loop's own code stays, where it is much, what neither the traces' idle time explains nor the device's
    work there, where the traces say what that is. rest: share of the step that the traces' steps stand for.
    """
    bounds = {one.bound for one in traces.findings}
    if finding.id == "own-graph":
        return None  # the trace sees into them
    if finding.id in COPIES and any(one.way == "in" for rank in traces.ranks for one in rank.copies):
        return None  # the trace has what they take
    if finding.named or finding.wrong or finding.beneath or finding.id in IN_NO_PHASE:  # no trace knows of it
        return finding
    if finding.id == "straggler":  # all steps of the run know more of it than the few of a trace
        return None if any(one.id == "straggler" for one in traces.findings) else finding
    seen = sum(one.share for one in traces.findings if one.id == "input")
    if finding.id == "input" and finding.share > SELDOM * seen:
        return finding
    if finding.bound in bounds - {"unknown"} or bounds & INSTEAD.get(finding.id, frozenset()):
        return None
    if finding.id == "compute":
        share = min(finding.share, rest * max(_computing_ms(rank) for rank in traces.ranks) / step_ms)
        return msgspec.structs.replace(finding, share=share) if share >= COMPUTE else None
    if finding.id != "host-code":
        return finding
    share = finding.share - sum(one.share for one in traces.findings if one.id in IDLE)
    share -= min(rest * _outside(traces) / step_ms, sum(one.share for one in traces.findings if one.bound in BUSY))
    return msgspec.structs.replace(finding, share=share) if share >= HOST_CODE else None


def _outside(traces: TraceReport) -> float:
    """Device time of work that was issued outside of the phases, ms a step, of the rank with most."""
    return max(per_step_ms(rank, rank.outside_ns or 0) for rank in traces.ranks)


def _computing_ms(rank: RankTrace) -> float:
    """Device time of kernels that are not communication, ms a step, as a mean over the rank's devices."""
    return per_step_ms(rank, sum(one.compute_ns for one in rank.breakdown))


def _with_batches(finding: Finding, made: Place | None, traces: TraceReport) -> Finding:
    """Where a trace shows only the loop that waits, the place that makes its batches, which the run knows."""
    loops = [row.where for rank in traces.ranks for row in rank.host if row.name.startswith(LOADERS)]
    slow = finding.id == "straggler" and traces.balance is not None and traces.balance.cause == "input"
    if made is None or not (finding.id == "input" or slow) or finding.where not in (None, *loops):
        return finding
    return msgspec.structs.replace(finding, where=made)


def with_backwards(diagnosis: Diagnosis, traces: TraceReport) -> Diagnosis:
    """The verdict of a run on the CPU, with what the backward takes of the causes in its model."""
    if any(rank.breakdown for rank in traces.ranks):
        return diagnosis
    found = diagnosis.findings
    step_ms, rank = diagnosis.step_ms, traces.ranks[0]
    backward = (diagnosis.phases.backward or 0.0) / step_ms
    return with_findings(diagnosis, (_with_backward(finding, found, rank, step_ms, backward) for finding in found))


def _with_backward(
    finding: Finding, findings: Sequence[Finding], rank: RankTrace, step_ms: float, backward: float
) -> Finding:
    """A cause in the model with what the backward takes of it, in which only a trace tells lines and ops apart.
    backward: that phase's share of the step, as a trace's steps may be longer in one phase than in others."""
    model = next((one.share for one in findings if one.id == "compute"), 0.0)
    whole = sum(row.ns for row in rank.model)
    if not whole or finding.where is None:
        return finding
    if finding.id == IDLE_ROWS:
        took = sum(row.total_ns for row in rank.model if row.name.startswith(DENSE))
        all_ = sum(row.total_ns for row in rank.model if row.name == "hotlap:backward")
        share = finding.share + (backward * min(1.0, took / all_) if all_ else model * took / whole)
        said = f"{finding.evidence}; with their dense gradients {ms(share * step_ms)}"
        with_them = msgspec.structs.replace(finding, share=share, cost_ms=share * step_ms, evidence=said)
        return with_them if took else finding
    at = finding.where
    there = [row for row in rank.model if row.where is not None and row.where.file == at.file]
    if finding.id in WITH_ITS_BACKWARD:
        took = sum(row.ns for row in there if row.where and row.where.line == at.line)
    elif finding.id == ELEMENTS.id and finding.bound == "launch":  # which are of lines of a function
        took = sum(row.ns for row in there if row.where and row.where.function == at.function)
    else:
        return finding
    return msgspec.structs.replace(finding, share=max(finding.share, model * took / whole))


def _with_ops(finding: Finding, rank: RankTrace, phases: Phases) -> Finding:
    """The computing of a run on the CPU with the ops that most of it is in, how much of it is arithmetic, and the
    dearest line; without, where the profiler's steps are not like the others."""
    ops = [row for row in rank.model if "::" in row.name]
    if finding.id != "compute" or not ops:
        return finding
    traced = {name: sum(row.total_ns for row in rank.model if row.name == f"hotlap:{name}") for name in MODEL}
    plain = {name: getattr(phases, name) or 0.0 for name in MODEL}
    in_trace = {name: host_ms(rank, ns) for name, ns in traced.items()}
    longest = max(MODEL, key=lambda name: in_trace[name] - plain[name])
    if in_trace[longest] > UNLIKE * plain[longest] + (UNLIKE - 1) * sum(plain.values()):
        unlike = f"the {longest} takes {ms(in_trace[longest])} in the profiled steps, so their operations say little"
        return msgspec.structs.replace(finding, why=finding.why or unlike)
    part = min(1.0, sum(plain.values()) / sum(in_trace.values())) if sum(traced.values()) else 1.0
    by_name: Counter[str] = Counter()  # the rows are of places
    for row in ops:
        by_name[row.name] += row.ns
    most = by_name.most_common(TOP_OPS)
    of = f"most time, in a trace of {counted(rank.window.count, 'step')}"
    said = ", ".join(f"{name} {ms(part * host_ms(rank, ns))}" for name, ns in most)
    multiplied = sum(ns for name, ns in by_name.items() if MULTIPLY.match(name)) / max(1, by_name.total())
    others = (row for row in ops if not MULTIPLY.match(row.name))
    small = sum(row.ns for row in others if row.ns < SMALL_NS * row.count) / max(1, by_name.total())
    convolved = sum(ns for name, ns in by_name.items() if CONVOLVE.search(name)) / max(1, by_name.total())
    issued, moves = small > max(multiplied, MUCH_SMALL), 1 - multiplied - small
    if issued:
        finding = _issued(finding, small, moves)
    elif convolved < CONVOLVED:
        finding = msgspec.structs.replace(finding, levers=_without(finding.levers, answering("layout")))
    if multiplied < LITTLE and not issued:
        instead, levers = compute.LOWER.sub("", finding.instead), _without(finding.levers, answering("precision"))
        finding = msgspec.structs.replace(finding, instead=instead, levers=levers)
    if moves > MOVES and not issued:
        finding = msgspec.structs.replace(finding, bound="bandwidth")
    where = _dearest(rank, ops)
    evidence = re.sub(compute.LINE_OF.format(".*?"), "", finding.evidence) if where else finding.evidence
    return msgspec.structs.replace(
        finding,
        evidence=f"{evidence}; {of}: {said}",
        where=where or finding.where,
        why=finding.why
        or f"in the trace arithmetic (matrix products, convolutions) takes {multiplied:.0%} of the operations' time, "
        + (
            f"operations under {SMALL_NS // 1000} us each, mostly spent on issuing them, {small:.0%}"
            if issued
            else "moving data and issuing small operations the rest"
        ),
    )


def _issued(finding: Finding, small: float, moves: float) -> Finding:
    """The computing where small operations take more than arithmetic: to compute these in fewer bits wins nothing.
    moves: what takes the rest."""
    what = finding.title.removesuffix(compute.OR_ISSUING)
    said: dict[str, object] = {
        "title": what + compute.OR_ISSUING,
        "bound": "launch" if small > moves else finding.bound,
    }
    if small >= MOSTLY_SMALL:
        said = {"title": what.replace("computing", "issuing small operations of", 1), "bound": "launch"}
    levers = _without(finding.levers, compute.LARGE_ONLY)
    return msgspec.structs.replace(finding, **said, instead=compute.FEWER, levers=levers)


def _without(levers: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in levers if one not in others)


def _dearest(rank: RankTrace, ops: Sequence[HostTime]) -> Place | None:
    """The line whose operations take most, their backward's among them; not that which begins a backward or an update,
    where those are that no line is known of."""
    begun = [row.where for row in rank.model if row.name in {"hotlap:backward", "hotlap:optimizer"}]
    took: Counter[Place] = Counter()
    for row in ops:
        if row.where is not None and row.where not in begun:
            took[row.where] += row.ns
    return took.most_common(1)[0][0] if took else None


def _beside_ops(finding: Finding, traces: TraceReport, model_ms: float, step_ms: float) -> Finding:
    """Modes in Python with what they take at most: what the model takes beside the operations themselves."""
    rank = traces.ranks[0]
    took = [row.ns for row in rank.model if "::" in row.name and not row.name.startswith("autograd::")]
    if finding.id != python_modes.ID or not finding.named or not took:
        return finding
    own_ms = sum(took) / rank.window.count / 1e6
    cost = max(0.0, model_ms - own_ms)
    said = f"{finding.evidence}; of the model's {ms(model_ms)} the operations themselves take {ms(own_ms)}"
    return msgspec.structs.replace(finding, share=min(1.0, cost / step_ms), cost_ms=cost, evidence=said)


def _with_search(finding: Finding, rank: RankTrace, step_ms: float) -> Finding:
    """Anomaly detection with what it takes at least: its search of the gradients, one `isnan` each. What it takes in
    all stays unknown. Deterministic fill with its fills, which are those that make no zeros."""
    counts, took = Counter[str](), Counter[str]()
    for row in rank.model:
        counts[row.name] += row.count
        took[row.name] += row.total_ns
    if finding.id == debug_switches.ID and finding.title == debug_switches.FILLED and counts.total():
        filled = took[FILL] * max(0.0, 1 - counts[ZERO] / max(1, counts[FILL]))
        cost, said = host_ms(rank, filled), "; by the trace these fills take {} of a step, which the phases hold"
        evidence = finding.evidence.replace(debug_switches.UNTOLD, said.format(ms(cost)))
        return msgspec.structs.replace(finding, share=min(1.0, cost / step_ms), cost_ms=cost, evidence=evidence)
    if finding.id != debug_switches.ID or finding.title != debug_switches.ANOMALY or not counts[SEARCHES]:
        return finding
    cost = host_ms(rank, sum(took[name] * min(1.0, counts[SEARCHES] / max(1, counts[name])) for name in SEARCH))
    said = f"; in the trace its check for NaN alone takes {ms(cost)} of a step, included in the phases"
    evidence = finding.evidence.replace(debug_switches.UNTOLD, said)
    return msgspec.structs.replace(finding, share=min(1.0, cost / step_ms), evidence=evidence)
