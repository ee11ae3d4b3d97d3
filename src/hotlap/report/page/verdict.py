"""The verdict in one sentence, and the few numbers that stand behind it."""

from collections.abc import Iterator
from typing import Any, Final

from ...records import durations
from ...records.diagnosis import Diagnosis, Finding, bound_text
from ...records.page import Page
from ...records.trace import RankTrace
from ...records.tune import Tune
from .. import console
from ..run_screen import ending_text
from ..tune_screen import interval_text, tune_headline
from .text import base, objective, shown_rank

TITLE: Final = "Verdict"
Number = tuple[str, str, float | None, str]
"""Label, as shown, exact, and what qualifies it."""


def data(page: Page) -> dict[str, Any]:
    """Always there."""
    if page.tune is not None:
        return _of_tune(page.tune)
    if page.diagnosis is not None and page.diagnosis.mode != "none":
        return _of_run(page, page.diagnosis)
    rank = shown_rank(page)
    if rank is not None and page.traces is not None:
        return _of_trace(page, rank, page.traces.findings)
    return _shape(f"No verdict: {page.why_none or 'no training or inference step was seen'}", "", [], [], "warn")


def _shape(
    text: str, badge: str, numbers: list[Number], warnings: list[str], tone: str, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    found = {"sentence": text, "badge": badge, "numbers": numbers, "tone": tone}
    return {**found, "warnings": [one for one in warnings if one], "notes": [one for one in notes if one]}


def sentence(step_ms: float, finding: Finding | None, cwd: str) -> str:
    """What the step is lost to."""
    step = durations.ms(step_ms)
    if finding is None:
        return f"A step takes {step}; no cause that hotlap knows takes a notable share of it."
    share = console.percent(finding.share) if finding.share else "An unknown share"
    return f"{share} of each {step} step: {finding.title or finding.id}{console.at_place(finding.where, cwd, ', ')}."


def _of_run(page: Page, found: Diagnosis) -> dict[str, Any]:
    first = found.findings[0] if found.findings else None
    return _shape(
        sentence(found.step_ms, first, base(page)),
        bound_text(found.bound),
        [*_run_numbers(found), *_device_numbers(shown_rank(page))],
        [
            ending_text(page.run) if page.run else "",
            "" if found.settled else "unsettled: step times never became steady, so the numbers are uncertain",
            f"{console.number(len(page.problems), 'problem')} of hotlap's own: {page.problems[0].what}"
            if page.problems
            else "",
        ],
        "plain",
        found.unknown,
    )


def _run_numbers(found: Diagnosis) -> Iterator[Number]:
    spread = console.between(found.spread.p10, found.spread.p90, " – ")
    of = f" of means over {found.spread.of} steps" if found.spread.of > 1 else ""
    clock = ", on the device" if found.clock == "device" else ""
    yield "step", durations.ms(found.step_ms), found.step_ms, f"p10–p90 {spread}{of}{clock}"
    if found.throughput is not None:
        rate = console.count(found.throughput)
        ranks = f"{console.number(found.ranks, 'rank')} together" if found.ranks > 1 else ""
        yield found.throughput_unit, rate, found.throughput, ranks
    yield "steady", str(found.steady_steps), found.steady_steps, f"of {console.number(found.steps, 'step')}"
    yield "device", found.device_name or found.device, None, ""


def _device_numbers(rank: RankTrace | None) -> Iterator[Number]:
    for one in (rank.breakdown if rank else ())[:1]:
        share = one.idle_ns / one.span_ns if one.span_ns else 0.0
        yield "idle", console.percent(share), share, "of the device's time, in the trace"


def _of_trace(page: Page, rank: RankTrace, findings: tuple[Finding, ...]) -> dict[str, Any]:
    first = findings[0] if findings else None
    many = len(page.traces.ranks) if page.traces else 1
    numbers: list[Number] = [("step", durations.ms(rank.step_ms), rank.step_ms, "mean, in the trace")]
    numbers += _device_numbers(rank)
    numbers.append(("steps", str(len(rank.window.steps)), len(rank.window.steps), f"found by {rank.window.found_by}"))
    numbers.append(("device", rank.device_name, None, f"rank {rank.rank} of {many}" if many > 1 else ""))
    numbers.append(("events", console.count(rank.events), rank.events, ""))
    badge = "" if first is None else bound_text(first.bound)
    return _shape(sentence(rank.step_ms, first, ""), badge, numbers, [], "plain", rank.trust.said)


def _of_tune(tune: Tune) -> dict[str, Any]:
    numbers: list[Number] = []
    if tune.speedup is not None:
        numbers.append(("as fast", console.ratio(tune.speedup), tune.speedup, interval_text(tune.interval)))
    before, after, shown = objective(tune)
    if before is not None and after is not None:
        numbers.append(("before", shown(before), before, bound_text(tune.baseline.bound)))
        numbers.append(("after", shown(after), after, bound_text(tune.tuned.bound) if tune.tuned else ""))
    if tune.parity is not None:
        holds = "holds" if tune.parity.ok else "FAILED"
        numbers.append(("parity", holds, None, tune.parity.level))
    numbers.append(("device", tune.baseline.device_name or tune.baseline.device, None, ""))
    failed = tune.parity is not None and not tune.parity.ok
    warnings = [
        "parity failed: do not train with these levers" if failed else "",
        "" if tune.complete else f"not finished: {tune.why_incomplete or 'the reason is unknown'}",
    ]
    text, tone = tune_headline(tune), "warn" if failed else "good" if tune.gain or tune.fitted else "plain"
    badge = "" if failed else "gain proved" if tune.gain else "fits in memory" if tune.fitted else ""
    badge = badge or ("not yet proved" if tune.unproved and not failed else "")
    return _shape(f"{text[:1].upper()}{text[1:].strip()}.", badge, numbers, warnings, tone)
