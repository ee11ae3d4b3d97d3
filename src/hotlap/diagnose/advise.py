"""What to try first: the decision table asked with what a person or a run says.

A run answers through its diagnosis: where a row of the table is about a finding, its share is that row's measure. A
finding that no row is about is told in its own words, and never by another one's row. The report page asks the same
table with the same rules (`report/page/templates/advise.js`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from hotlap.records.advice import Advice, AdvicePanel, Condition, Row, ShareOf, Suggestion, Table
from hotlap.records.diagnosis import Bound, Diagnosis, Finding
from hotlap.records.errors import RecordError, UsageError, missing_named
from hotlap.records.page import Page
from hotlap.records.run import Environment, Facts
from hotlap.records.trace import OpRoofline, RankTrace, TraceReport
from hotlap.records.tune import Tune
from hotlap.runs.folder import RunFolder, TuneFolder

from .advise_table import IDLE_PARTS, MEASURES, TABLE, WORTH
from .diagnose import diagnose
from .verdict import verdict_here

NAMES: Final = tuple(one.name for one in MEASURES)
MEASURE_OF: Final = {
    "input": "input",
    "h2d": "h2d",
    "sync": "sync",
    "launch": "launch_bound",
    "host-code": "host_code",
    "allocator": "allocator",
    "communication": "communication",
    "straggler": "straggler",
    "compute": "compute",
    "no-tensor-cores": "no_tensor_cores",
    "bandwidth": "bandwidth",
    "optimizer": "optimizer",
}
"""Findings that a row of the table is about, and the measures that their shares are."""
MEASURE_OF_BOUND: Final[dict[Bound, str]] = {"launch": "launch_bound", "memory": "allocator"}
"""What the shares of the other findings are part of, each told in its own words; other bounds are measures by the same
name, and an unknown one is of none."""
ROUNDED: Final = 1e-9
"""Sums of percentages are not exact."""
ROWS: Final = {row.id: row for row in (*TABLE.rows, *TABLE.otherwise)}

Values = Mapping[str, float]


# the table


def value_of(share: ShareOf, known: Values) -> float | None:
    """A share of the step from what is known; None where its first measure is not."""
    value = 1.0 if share.of == "step" else known.get(share.of)
    if value is None:
        return None
    for name in share.less:
        value = value - known.get(name, 0.0)
    value = max(0.0, value)
    for name in share.times:
        value = value * known.get(name, 1.0)
    return value


def holds(condition: Condition, known: Values, share: float | None) -> bool:
    """Whether a condition of a row with that share holds."""
    value = share if condition.measure == "share" else known.get(condition.measure)
    if condition.unknown or value is None:
        return condition.unknown and value is None
    over = condition.above is None or value > condition.above
    return over and (condition.at_most is None or value <= condition.at_most)


def percent(value: float) -> str:
    """As the page's script writes it: half a percent is rounded up, and little is not nothing."""
    whole = math.floor(value * 100 + 0.5)
    return "<1%" if whole == 0 and value > 0 else f"{whole}%"


def suggest(table: Table, known: Values) -> tuple[Suggestion, ...]:
    """The rows that hold, the largest share first; else the first of `otherwise` that does."""
    found = [one for row in table.rows if (one := _suggestion(row, known)) is not None]
    if not found:
        return next(((one,) for row in table.otherwise if (one := _suggestion(row, known)) is not None), ())
    return tuple(sorted(found, key=lambda one: -1.0 if one.share is None else one.share, reverse=True))


def _suggestion(row: Row, known: Values) -> Suggestion | None:
    share = value_of(row.share, known) if row.share else None
    if not all(holds(condition, known, share) for condition in row.conditions):
        return None
    because = row.because
    for name, value in (*known.items(), ("share", share)):
        if value is not None:
            because = because.replace(f"{{{name}}}", percent(value))
    return Suggestion(
        id=row.id,
        bound=row.bound,
        title=row.title,
        kind=row.kind,
        because=because,
        do=row.do,
        levers=row.levers,
        verify=_verify(row.levers, row.verify),
        share=share,
        at_most=1 / (1 - share) if row.removable and share is not None and share < 1 else None,
    )


def _verify(levers: Sequence[str], verify: str) -> str:
    return (f"`hotlap tune --only {','.join(levers)} COMMAND` tries them, with proof. " if levers else "") + verify


# answers


def advise_answers(answers: Values) -> Advice:
    """Advice from answers alone. Raises UsageError."""
    return _advice({}, answers)


def _advice(measured: Values, answers: Values | None, findings: Sequence[Finding] = (), **of: Any) -> Advice:
    """Advice from what a run says with answers in its place; of a measure that is answered, the run's finding is not
    told. of: the other fields of the advice. Raises UsageError."""
    given = _checked(answers or {})
    known, told = with_answers(measured, given), _not_given(findings, given)
    return Advice(
        measures=known,
        given=tuple(given),
        measured={name: value for name, value in measured.items() if known.get(name) != value},
        suggestions=_with_causes(_with_findings(suggest(TABLE, known), told), told),
        **of,
    )


def with_answers(measured: Values, given: Values) -> dict[str, float]:
    """What a run says with answers in its place: 0 is an answer, that it takes nothing. What the run says within a
    measure that is answered no longer holds; a whole that adds up from its parts follows them."""
    known = {one.name: measured[one.name] for one in MEASURES if one.name in measured and one.within not in given}
    known.update(given)
    for whole in MEASURES:
        if whole.adds_up and whole.name in measured and whole.name not in given:
            known[whole.name] = _sum_within(whole.name, known)
    return {name: known[name] for name in NAMES if name in known}


def _sum_within(whole: str, known: Values) -> float:
    return min(1.0, sum(known[one.name] for one in MEASURES if one.within == whole and one.name in known))


def _checked(answers: Values) -> dict[str, float]:
    for name, value in answers.items():
        if name not in NAMES:
            raise UsageError(f"no measure {name!r}; measures are {', '.join(NAMES)}")
        if not 0 <= value <= 1:
            raise UsageError(f"{name} is a percentage from 0 to 100, not {value * 100:g}")
    parts, idle = [name for name in IDLE_PARTS if name in answers], answers.get("idle", 1.0)
    total = sum(answers[name] for name in parts)
    if total > idle + ROUNDED:
        raise UsageError(f"the idle time is {idle:.0%}, but its parts {', '.join(parts)} add up to {total:.0%}")
    return {name: answers[name] for name in NAMES if name in answers}


# runs


def advise_folder(folder: Path, answers: Values | None = None) -> Advice:
    """Advice from a run, a tune (what is left with its recipe), or traces; answers take the place of what was measured.

    Raises RecordError, UsageError, and NothingMeasured where a run holds nothing to judge."""
    if not folder.exists():
        raise RecordError(f"{folder} is not there; give the folder of a run or a tune, or traces")
    if (tuned := TuneFolder(folder).tune) is not None:
        return _of_tune(tuned, str(folder), answers)
    run = RunFolder(folder)
    if not run.is_run:
        from hotlap.trace.answer import Options, report
        from hotlap.trace.files import trace_files

        return _of_traces(report(trace_files(folder), Options()), str(folder), answers)
    traces = _traces(run)
    diagnosis, ranks = verdict_here(folder, traces), traces.ranks if traces else ()
    return advise(diagnosis, str(folder), run.facts, run.record.environment, ranks, answers)


def _traces(run: RunFolder) -> TraceReport | None:
    """What a run's traces say; None where there are none. Of those that can't be read the verdict says why."""
    if not any(rank.trace.exists() for rank in run.ranks):
        return None
    try:
        with missing_named():
            from .profiled import read_traces  # polars takes a moment to import

            return read_traces(run.path, diagnose(run.path))
    except RecordError:
        return None


def _of_tune(tuned: Tune, source: str, answers: Values | None = None) -> Advice:
    left = tuned.tuned if tuned.kept and tuned.tuned is not None else None
    return advise(
        left or tuned.baseline, f"{source} (with its recipe)" if left else source, None, tuned.environment, (), answers
    )


def _of_traces(found: TraceReport, source: str, answers: Values | None = None) -> Advice:
    """Advice from traces alone. Raises RecordError where they show no device, and so no waits."""
    if not any(rank.breakdown for rank in found.ranks):
        raise RecordError(f"{source} holds no device work; advice on a CPU needs a run: `hotlap run --profile COMMAND`")
    first = max(found.findings, key=lambda one: one.share, default=None)
    return _advice(
        {**_measures(found.findings, len(found.ranks)), **_of_kernels(found.ranks)},
        answers,
        found.findings,
        source=source,
        bound=first.bound if first else None,
        step_ms=found.ranks[0].step_ms,
        device=found.ranks[0].device_name,
    )


def advise(
    diagnosis: Diagnosis,
    source: str,
    facts: Facts | None = None,
    machine: Environment | None = None,
    traces: Sequence[RankTrace] = (),
    answers: Values | None = None,
) -> Advice:
    """Advice from a diagnosis. facts, machine: for memory; traces: for the roofline. Raises UsageError."""
    return _advice(
        {**_measures(diagnosis.findings, diagnosis.ranks), **_of_kernels(traces), **_of_memory(facts, machine)},
        answers,
        diagnosis.findings,
        source=source,
        bound=diagnosis.bound,
        step_ms=diagnosis.step_ms,
        device=diagnosis.device_name or diagnosis.device,
        unknown=(*diagnosis.unknown, *(() if traces else _unknown(_not_given(diagnosis.findings, answers or {})))),
    )


def panel(page: Page) -> AdvicePanel:
    """What the report page asks the same table with, filled in from what the page shows."""
    return AdvicePanel(table=TABLE, advice=_of_page(page))


def _of_page(page: Page) -> Advice:
    ranks = page.traces.ranks if page.traces else ()
    if page.diagnosis is not None:
        return advise(page.diagnosis, page.folder, page.facts, page.run.environment if page.run else None, ranks)
    if page.tune is not None:
        return _of_tune(page.tune, page.folder)
    if page.traces is not None and any(rank.breakdown for rank in ranks):
        return _of_traces(page.traces, page.folder)
    return advise_answers({})


def _not_given(findings: Sequence[Finding], given: Values) -> Sequence[Finding]:
    return [one for one in findings if measure_of(one) not in given and not one.beneath]


def _unknown(findings: Sequence[Finding]) -> Iterator[str]:
    if any(map(_is_all_of_the_model, findings)):
        yield "how much of the step is spent waiting for launches is unknown; a trace tells (hotlap run --profile)"


def _is_all_of_the_model(finding: Finding) -> bool:
    """Whether it has the time of the whole model, the device's own work in it, as a run without a trace has it; a graph
    break or recompilations may stand for it (`compiled.py`)."""
    return finding.bound == "launch" and finding.share > 0 and finding.cost_ms is None and not finding.named


def measure_of(finding: Finding) -> str | None:
    """The measure that a finding's share is, or is part of; None where there is none."""
    if finding.id in MEASURE_OF:
        return MEASURE_OF[finding.id]
    return None if finding.bound == "unknown" else MEASURE_OF_BOUND.get(finding.bound, finding.bound)


def _measures(findings: Sequence[Finding], ranks: int) -> dict[str, float]:
    """The findings' shares by measure.

    Idle time is divided among a rank's findings, so waits at several lines add up. Others may hold the same time, and
    so may those of several ranks: of them the largest counts."""
    known: dict[str, float] = {}
    for finding in findings:
        name, share = measure_of(finding), min(1.0, max(0.0, finding.share))
        if finding.beneath or name is None:  # the time of other findings, or of no measure
            continue
        adds = name == "sync" and ranks == 1
        known[name] = min(1.0, known.get(name, 0.0) + share) if adds else max(known.get(name, 0.0), share)
    return {**known, "idle": _sum_within("idle", known)} if known.keys() & IDLE_PARTS else known


def _of_kernels(ranks: Sequence[RankTrace]) -> dict[str, float]:
    """How far the ops with a known peak are below it, by their time."""
    rows = [row for rank in ranks for row in rank.roofline if row.of_peak is not None]
    total = sum(row.ns for row in rows)
    return {"roofline_gap": min(1.0, max(0.0, 1 - sum(map(_reached, rows)) / total))} if total else {}


def _reached(row: OpRoofline) -> float:
    """The least time that an op's work allows, ns."""
    return row.ns * min(1.0, row.of_peak or 0.0)


def _of_memory(facts: Facts | None, machine: Environment | None) -> dict[str, float]:
    """The peak over the smallest GPU's memory: an upper estimate where GPUs differ."""
    sizes = [gpu.memory_gib for gpu in machine.gpus if gpu.memory_gib > 0] if machine else []
    if facts is None or not facts.peak_memory_bytes or not sizes:
        return {}
    return {"memory_pressure": min(1.0, facts.peak_memory_bytes / (min(sizes) * 2**30))}


def _with_findings(found: Sequence[Suggestion], findings: Sequence[Finding]) -> tuple[Suggestion, ...]:
    """The suggestions with what the run knows of each: the place, the evidence, the levers that are still open."""
    return tuple(_with_finding(one, list(_of(one, findings))) for one in found)


def _of(suggestion: Suggestion, findings: Sequence[Finding]) -> Iterator[Finding]:
    return (one for one in findings if one.id in MEASURE_OF and measure_of(one) == _measure_of_row(suggestion))


def _measure_of_row(suggestion: Suggestion) -> str:
    share = ROWS[suggestion.id].share
    return share.of if share is not None else ""


def _with_finding(suggestion: Suggestion, own: list[Finding]) -> Suggestion:
    if not own:
        return suggestion
    first = max(own, key=lambda finding: finding.share)
    more = f"; {len(own) - 1} more like it" if len(own) > 1 else ""
    own_way = (f"Here: {first.instead}.",) if first.instead else ()
    return msgspec.structs.replace(
        suggestion,
        bound=first.bound,
        evidence=(f"{first.title}: {first.evidence}" if first.evidence else first.title) + more,
        where=first.where,
        at_most=None if _is_all_of_the_model(first) else suggestion.at_most,
        levers=first.levers,
        verify=_verify(first.levers, ROWS[suggestion.id].verify),
        do=(*own_way, *suggestion.do),
    )


def _with_causes(rows: Sequence[Suggestion], findings: Sequence[Finding]) -> tuple[Suggestion, ...]:
    """With the findings that no row is about, in their own words and in place of the rows of measures that only they
    are of. Those that the verdict begins with come first."""
    own = [one for one in findings if one.id not in MEASURE_OF and (one.share > WORTH or _cost_unknown(one))]
    if not own:
        return tuple(rows)
    only_theirs = {measure_of(one) for one in own} - {measure_of(one) for one in findings if one.id in MEASURE_OF}
    rows = [one for one in rows if ROWS[one.id] in TABLE.rows and _measure_of_row(one) not in only_theirs]
    first = list(takewhile(lambda one: one in own, findings))
    others = [*rows, *(_in_its_words(one) for one in own if one not in first)]
    others.sort(key=lambda one: -1.0 if one.share is None else one.share, reverse=True)
    return (*map(_in_its_words, first), *others)


def _cost_unknown(finding: Finding) -> bool:
    """Whether it is a cause that the verdict tells although it does not know what it costs."""
    return finding.named and not finding.share and finding.cost_ms is None


def _in_its_words(finding: Finding) -> Suggestion:
    share = min(1.0, finding.share) or None
    costs = "What it costs is unknown" if share is None else f"{percent(share)} of the step"
    return Suggestion(
        id=finding.id,
        bound=finding.bound,
        title=finding.title or finding.id,
        because=f"{costs}: {finding.why}." if finding.why else f"{costs}.",
        do=(finding.instead,) if finding.instead else (),
        levers=finding.levers,
        verify=_verify(finding.levers, "`hotlap run COMMAND` before and after: the step is shorter."),
        share=share,
        at_most=1 / (1 - share) if share is not None and share < 1 and finding.cost_ms is not None else None,
        evidence=finding.evidence,
        where=finding.where,
    )
