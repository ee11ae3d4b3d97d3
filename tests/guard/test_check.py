"""What a check makes of its attempts, and how that is shown."""

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_checks import DIFFERENT, FAILED, MEMORY, SLOWER, TARGET, attempt, check, judged, with_
from markdown_it import MarkdownIt
from rich.console import Console

from hotlap.guard.cause import cause
from hotlap.guard.check import Found, Request, decided, shown, verdict
from hotlap.records.check import Bisected, Check, Version
from hotlap.records.diagnosis import Diagnosis, Finding, Place, Spread
from hotlap.records.files import read_record, write_record
from hotlap.records.run import Lever, Phases
from hotlap.records.tune import Parity
from hotlap.report.check_comment import MARK, comment_of, junit_of
from hotlap.report.check_screen import check_screen, version_text

OPEN = judged(change=0.03, call="open")


def request(**more: Any) -> Request:
    version = Version(name="x", command=("x",), cwd="/")
    return Request(version, version, **more)


def said(*attempts: Any, target: Any = None, parity: Parity | None = None, **more: Any) -> tuple[str, str]:
    return verdict(Found(attempts=list(attempts), parity=parity), request(**more), target)


def test_a_slowdown_that_is_ruled_out_passes() -> None:
    assert said(attempt(judged(), MEMORY)) == ("pass", "more than 5% slower is ruled out (+0.2%)")


def test_a_slowdown_fails_only_if_it_was_shown_again() -> None:
    slow, fine = attempt(SLOWER, MEMORY), attempt(judged(), MEMORY)
    assert said(slow, slow) == ("fail", "step time +20.0%")
    assert said(slow, fine) == ("inconclusive", "step time: shown once, and fresh starts did not show it again")
    assert said(slow, attempt(OPEN, MEMORY))[1] == "step time: shown once, and the time ended before it was shown again"
    assert said(slow) == ("inconclusive", "step time: shown once, and the time ended before it was shown again")


def test_it_has_to_be_the_same_quantity_that_is_shown_again() -> None:
    more = judged("peak memory", change=0.3, call="slower")
    assert said(attempt(SLOWER, MEMORY), attempt(judged(), more))[0] == "inconclusive"
    assert said(attempt(SLOWER, more), attempt(SLOWER, more)) == ("fail", "step time +20.0%; peak memory +30.0%")


def test_missing_data_is_no_pass() -> None:
    unknown = judged("peak memory", None, "unknown")
    assert said(attempt(judged(), unknown)) == ("inconclusive", "peak memory: not measured")
    assert said()[0] == "inconclusive" and said(attempt())[0] == "inconclusive"
    assert said(attempt(OPEN, MEMORY))[1].startswith("step time: +2.0% to +4.0% with 5% allowed")


def test_what_does_not_count_and_is_not_told_stands_in_no_way() -> None:
    start = judged("start-up", change=0.1, call="open", counts=False)
    assert said(attempt(judged(), MEMORY, start))[0] == "pass"


def test_other_losses_fail_where_they_count() -> None:
    fine = attempt(judged(), MEMORY)
    assert said(fine, parity=DIFFERENT)[0] == "pass"
    assert said(fine, parity=DIFFERENT, losses=True) == ("fail", f"losses: {DIFFERENT.why}")
    assert said(fine, losses=True)[0] == "inconclusive"


def test_a_target() -> None:
    fine = attempt(judged(), MEMORY)
    assert said(fine, target=with_(TARGET, value=0.98))[0] == "pass"  # type: ignore[arg-type]
    assert said(fine, target=TARGET) == ("fail", "accuracy is 0.5, and >= 0.97 is wanted")
    assert said(fine, target=with_(TARGET, value=None))[0] == "inconclusive"  # type: ignore[arg-type]


def test_starts_go_on_until_what_counts_is_told() -> None:
    assert decided(attempt(judged(), MEMORY)) and not decided(attempt(OPEN, MEMORY)) and not decided(attempt())
    again = attempt(judged(), judged("peak memory", 0.03, "open"))
    assert decided(again, {"step time"}) and not decided(again, {"peak memory"})
    assert [one.what for one in shown(attempt(SLOWER, MEMORY))] == ["step time"]


def diagnosis(step_ms: float, findings: tuple[Finding, ...] = (), **phases: float) -> Diagnosis:
    return Diagnosis(
        mode="train", bound="compute", step_ms=step_ms, spread=Spread(p10=1, p50=1, p90=1), phases=Phases(**phases),
        findings=findings,
    )  # fmt: skip


def finding(file: str, cost: float, **more: Any) -> Finding:
    return Finding(id="waits", bound="sync", share=0.1, cost_ms=cost, where=Place(file=file, function="f"), **more)


def test_the_cause_is_what_the_baseline_has_not() -> None:
    base = Version(name="a", command=("x",), cwd="/tmp/base")
    head = Version(name="b", command=("x",), cwd="/tmp/head")
    before = diagnosis(10, (finding("/tmp/base/a.py", 2.0),), forward=6.0, backward=4.0)
    after = diagnosis(15, (finding("/tmp/head/a.py", 2.1), finding("/tmp/head/b.py", 4.0)), forward=11.0, backward=4.0)
    found = cause(before, after, base, head)
    assert (found.phase, found.ms) == ("forward", 5.0)
    assert [one.where.file for one in found.findings if one.where] == ["b.py"]


def test_a_finding_that_costs_clearly_more_is_a_cause_and_one_that_is_wrong_is_none() -> None:
    version = Version(name="a", command=("x",), cwd="/tmp")
    before = diagnosis(10, (finding("/tmp/a.py", 2.0),))
    after = diagnosis(15, (finding("/tmp/a.py", 7.0), finding("/tmp/c.py", 9.0, wrong=True)))
    assert [one.cost_ms for one in cause(before, after, version, version).findings] == [7.0]


def screen(made: Check, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False)
    console.print(check_screen(made, Path("hotlap-runs/x")))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_screen() -> None:
    shown_ = screen(FAILED)
    assert shown_.startswith("FAIL: step time +20.0%")
    for text in (
        "forward 4.00 ms → 6.00 ms",
        "the host waits at train.py:3",
        "main (1111111111)",
        "differ by up to 0.4%",
    ):
        assert text in shown_, shown_
    assert "cause" not in screen(check())


@pytest.mark.parametrize("width", [40, 80])
def test_no_number_is_cut_on_a_narrow_screen(width: int) -> None:
    assert "+20.0%" in screen(FAILED, width) and "1 GiB" in screen(FAILED, width)


def test_a_commit_that_was_found_and_one_that_was_not() -> None:
    found = with_(FAILED, bisected=Bisected(commit="abc" * 14, subject="model: more", tried=3, of=9))
    assert "abcabcabca model: more (3 commits of 9 measured)" in screen(found)
    lost = with_(FAILED, bisected=Bisected(commit=None, why="it is spread", tried=1, of=2, skipped=("x",)))
    assert "not found: it is spread (1 commit of 2 measured, 1 that do not run)" in screen(lost)


def test_versions_by_name() -> None:
    version = Version(name="the source tree", command=("x",), cwd="/", commit="a" * 40, changed=True)
    assert version_text(version) == "the source tree, with changes that are not committed"
    levers = Version(name="with r.toml", command=("x",), cwd="/", levers=(Lever(name="tf32", settings={}),))
    assert version_text(levers) == "with r.toml, levers tf32"


HOSTILE = "<script>|`@everyone` #1 [x](http://x) www.x.com :tada: \x1b[31m ]]> & **b**"


def test_a_comment_shows_what_is_from_outside_as_it_is() -> None:
    made = with_(
        FAILED, why=HOSTILE, notes=(HOSTILE,), head=Version(name=HOSTILE, command=(HOSTILE,), cwd="/"),
        bisected=Bisected(commit="a" * 40, subject=HOSTILE),
    )  # fmt: skip
    text = comment_of(made)
    assert text.startswith(MARK) and "❌" in text and "\x1b" not in text
    tokens = [
        one
        for block in MarkdownIt("commonmark").enable("table").parse(text)
        for one in (block, *(block.children or ()))
    ]
    kinds = {one.type for one in tokens}
    assert (
        not kinds & {"html_inline", "link_open", "em_open"}
        and len([one for one in tokens if one.type == "html_block"]) == 3
    )
    rendered = " ".join(one.content for one in tokens if one.type == "text")
    assert rendered.count("<script>|`") >= 3 and not re.search(r"[@#]\w|:/|www\.", rendered)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_junit() -> None:
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit_of(FAILED)).iter("testcase")}
    assert cases["step time"].find("failure") is not None and cases["peak memory"].find("failure") is None
    suite = ElementTree.fromstring(junit_of(check()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "0")


def test_junit_says_what_was_not_told_and_what_is_wanted() -> None:
    made = check(
        "inconclusive", HOSTILE, attempts=(attempt(OPEN, judged("start-up", 0.1, "open", counts=False)),),
        parity=DIFFERENT, parity_counts=True, target=TARGET,
    )  # fmt: skip
    suite = ElementTree.fromstring(junit_of(made))
    assert [suite.get(kind) for kind in ("tests", "errors", "skipped", "failures")] == ["4", "1", "1", "2"]
    nothing = ElementTree.fromstring(junit_of(check("inconclusive", "x", attempts=())))
    assert nothing.get("errors") == "1"


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "check.json", FAILED)
    assert read_record(tmp_path / "check.json", Check) == FAILED
