"""Pages of hand-made records: what is shown is what the records hold, and nothing of them is markup or script."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from hotlap.records.diagnosis import Bound, Diagnosis, Finding
from hotlap.records.page import Page
from hotlap.records.run import Lever, Phases
from hotlap.records.timeline import KINDS
from hotlap.records.trace import TraceReport
from hotlap.records.tune import Fitted, Interval, Reference
from hotlap.report.page import findings, plotly_source, ranks, render, roofline, timeline, waterfall
from hotlap.report.page.render import embedded
from hotlap.report.page.text import TERMS, term

from .pages import DIAGNOSIS, FINDINGS, HOSTILE, RUN_PAGE, TRACE_PAGE, TUNE, TUNE_PAGE, USAGE, advised, hostile

PAGES = {"run": RUN_PAGE, "tune": TUNE_PAGE, "trace": TRACE_PAGE}
each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
SHARED = "plotly.js"


class Parsed(HTMLParser):
    """Elements with their attributes, texts by section, data values."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.values: dict[str, list[float]] = {}
        self.section = ""
        self.inside = ""
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "section":
            self.section = str(found["id"])
        if tag == "data":
            self.values.setdefault(self.section, []).append(float(str(found["value"])))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.section = "" if tag == "section" else self.section
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.section:
            self.texts[self.section] = self.texts.get(self.section, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parsed(page: Page) -> Parsed:
    return Parsed(render(advised(page), SHARED))


def charts(page: Page) -> dict[str, Any]:
    html = render(advised(page), SHARED)
    found = re.search(r'<script type="application/json" id="hotlap-data">(.*?)</script>', html, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def test_run_shows_its_numbers() -> None:
    page = parsed(RUN_PAGE)
    assert (
        page.texts["verdict"]
        .strip()
        .startswith("61% of each 215 ms step: waiting for batches, at train.py:41 in main.")
    )
    assert {DIAGNOSIS.step_ms, DIAGNOSIS.throughput, 0.35} <= set(page.values["verdict"])
    assert {131.25, 4.25, 24.5, 48.125, 6.0, 1.1875, 100.0, 20.0, 10.0, 70.0, 50.0} <= set(page.values["breakdown"])
    shares = {finding.share for finding in FINDINGS} | {125.5, DIAGNOSIS.step_ms / (DIAGNOSIS.step_ms - 125.5)}
    assert shares <= set(page.values["findings"])
    assert "39" in page.texts["findings"] and "line 41 <b>" in page.texts["findings"]
    assert "changed after the run" in page.texts["findings"]
    assert {1.0, 9.0, 200.0, 150.0} <= set(page.values["ranks"])
    assert {3 << 30, 5 << 30, 2 << 30} <= set(page.values["memory"])
    assert {one.bytes for one in (*USAGE.parts, *USAGE.lines, *USAGE.holders, *USAGE.modules, *USAGE.stays)} | {
        USAGE.peak_bytes, USAGE.between_bytes, USAGE.reserved_bytes, USAGE.idle_gradients_bytes,
    } <= set(page.values["memory"])  # fmt: skip
    for said in (
        "in the backward of step 23",
        "net.py:7 in Net.forward",
        "best[…] as large as all weights",
        "inside of it /venv/lib/attend.py:9 in attend",
    ):
        assert said in page.texts["memory"]
    assert "kept with the graph that made it" in page.texts["memory"] and "train.py:44 in main" in page.texts["memory"]
    assert "python train.py --lr 3e-4" in page.texts["environment"]
    assert "/r/trace.json.gz" in page.texts["links"] and "/r/m.pickle" in page.texts["links"]
    assert "step time is not steady" in page.texts["verdict"] and "it broke" in page.texts["verdict"]


def test_tune_shows_its_numbers() -> None:
    page = parsed(TUNE_PAGE)
    assert page.texts["verdict"].strip().startswith("2.31× faster, proved (95% interval 2.25–2.38; 2 fresh")
    assert {2.3125, 215.25, 93.125} <= set(page.values["verdict"])
    assert {215.25, 93.125, 2.4375, 2.125, 1.5, 1.4375} <= set(page.values["waterfall"])
    assert "no convolution" in page.texts["waterfall"] and "the budget ended" in page.texts["verdict"]
    assert {0.00213, 0.0061} <= set(page.values["parity"])
    assert [curve["name"] for curve in charts(TUNE_PAGE)["parity"]["curves"]] == [
        "bare command",
        "bare command again",
        "recipe",
    ]


def test_waterfall_ends_where_the_recipe_was_measured() -> None:
    found = waterfall.data(TUNE_PAGE)
    assert found is not None
    bars = found["bars"]
    assert (bars[0]["to"], bars[-1]["to"]) == (215.25, 93.125)
    assert [(bar["name"], bar["change"]) for bar in bars] == [
        ("bare command", "whole"),
        ("loader-workers", "less"),
        ("slowish", "less"),
        ("recipe", "whole"),
    ]
    for left, right in pairwise(bars[:-1]):
        assert right["from"] == left["to"]
    assert bars[-2]["to"] == pytest.approx(bars[-1]["to"], rel=1e-3)


def test_waterfall_of_what_was_made_smaller() -> None:
    fewer = msgspec.structs.replace(
        TUNE,
        objective="memory",
        memory_before_bytes=8.0 * (1 << 30),
        memory_after_bytes=2.0 * (1 << 30),
        fitted=(Fitted(lever="checkpointing", settings={}, risk="exact", meaning="recompute"),),
        no_reference="no DataLoader feeds the training loop",
        reused=("the baseline",),
    )
    page = msgspec.structs.replace(TUNE_PAGE, tune=fewer)
    found = waterfall.data(page)
    assert found is not None
    assert [(bar["name"], bar["shown"]) for bar in found["bars"]] == [
        ("bare command", "8.00 GiB"),
        ("recipe", "2.00 GiB"),
    ]
    shown = parsed(page)
    assert {8.0 * (1 << 30), 2.0 * (1 << 30)} <= set(shown.values["verdict"])
    assert "≤ 1.50×" in shown.texts["waterfall"]
    assert "checkpointing" in shown.texts["waterfall"] and "reused: the baseline" in shown.texts["waterfall"]
    assert "were not measured" in shown.texts["waterfall"] and "no DataLoader feeds" in shown.texts["waterfall"]
    reference = Reference(
        parts=2, levers=(Lever(name="checkpointing"),), time_ratio=1.375, interval=Interval(low=1.25, high=1.5),
        turns=8, before_ms=8.0, after_ms=11.0, parity=TUNE.parity,
    )  # fmt: skip
    told = parsed(msgspec.structs.replace(page, tune=msgspec.structs.replace(fewer, reference=reference)))
    assert "checkpointing against the command alone, both with 1/2 of the batch" in told.texts["waterfall"]
    assert "a sample takes 1.38× of the time" in told.texts["waterfall"]


def test_failed_parity_is_no_gain() -> None:
    failed = msgspec.structs.replace(TUNE, parity=msgspec.structs.replace(TUNE.parity, ok=False, why="NaN"))
    page = parsed(msgspec.structs.replace(TUNE_PAGE, tune=failed))
    assert "parity failed: do not train with these levers" in page.texts["verdict"]
    assert "gain proved" not in page.texts["verdict"]
    assert "FAILED" in page.texts["parity"]


def test_trace_alone() -> None:
    page = parsed(TRACE_PAGE)
    assert "61% of each 200 ms step" in page.texts["verdict"]
    assert not {"steps", "waterfall", "parity"} & set(page.texts)
    assert "rank 1 of 2" in page.texts["verdict"]  # the one that the others wait for


def test_nothing_measured() -> None:
    page = msgspec.structs.replace(
        RUN_PAGE, diagnosis=None, traces=None, steps=(), why_none="no process imported torch"
    )
    shown = parsed(page)
    assert "No verdict: no process imported torch" in shown.texts["verdict"]
    assert "environment" in shown.texts and "timeline" not in shown.texts


def test_unknown_is_said_and_not_zero() -> None:
    bare = Diagnosis(mode="train", bound="unknown", step_ms=1.0, spread=DIAGNOSIS.spread, phases=Phases())
    shown = parsed(Page(title="t", folder="f", made="m", hotlap="h", run=RUN_PAGE.run, diagnosis=bare))
    assert "bound unknown" in shown.texts["verdict"]
    assert "breakdown" not in shown.texts
    assert "no cause that hotlap knows" in shown.texts["findings"]


@each_page
def test_hostile_texts_stay_text(page: Page) -> None:
    plain, bad = parsed(page), parsed(hostile(page))
    assert HOSTILE[:30] in "".join(bad.texts.values())
    assert len(bad.all("script")) == len(plain.all("script"))
    assert not {"img", "iframe", "object", "embed", "svg", "link", "base"} & {tag for tag, _ in bad.tags}
    assert "onerror=alert(1)>" not in render(advised(hostile(page)), SHARED)
    assert not any(name.startswith("on") for _, attributes in bad.tags for name in attributes)
    assert all(
        str(a["href"]).startswith(("#", "https://ui.perfetto.dev", "https://pytorch.org/memory_viz"))
        for a in bad.all("a")
    )


@each_page
def test_hostile_texts_stay_data(page: Page) -> None:
    html = render(advised(hostile(page)), SHARED)
    data = re.search(r'id="hotlap-data">(.*?)</script>', html, re.S)
    assert data is not None and not re.search(r"[<>&\u2028\u2029\u202e\x00]", data[1])
    json.loads(data[1])
    assert "\u202e" not in html and "\x00" not in html


def test_embedded_json_is_the_value() -> None:
    value = {"a": [1.5, None, True], "<b>": "</script> & <!-- \u2029", "n": list(range(3))}
    text = str(embedded(value))
    assert not set("<>&\u2029") & set(text)
    assert json.loads(text) == {"a": [1.5, None, True], "<b>": "</script> & <!--  ", "n": [0, 1, 2]}


@each_page
def test_policy_lets_only_our_scripts_run(page: Page) -> None:
    shown = parsed(page)
    policy = next(str(a["content"]) for a in shown.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    nonce = rules["script-src"].removeprefix("'nonce-").removesuffix("'")
    for attributes in shown.all("script"):
        assert attributes.get("nonce") == nonce or attributes.get("type") in {"application/json", "text/plain"}
    assert parsed(page).all("script")[0] != shown.all("script")[0] or nonce not in render(advised(page), SHARED)
    assert not any("src" in a or "href" in a for tag in ("img", "link", "iframe", "object") for a in shown.all(tag))


def test_page_is_whole_and_small() -> None:
    html = render(advised(RUN_PAGE))
    assert len(html.encode()) < 6 << 20
    assert not re.search(r"<script[^>]* src=", html)
    assert plotly_source()[:2000] in html


def test_shared_script_is_named_once() -> None:
    html = render(advised(RUN_PAGE), SHARED)
    assert len(html) < 400_000
    assert html.count(SHARED) == 1


def test_timeline_is_that_of_the_straggler() -> None:
    found = timeline.data(RUN_PAGE)
    assert found is not None
    assert found["ranks"] == [1, 0]
    assert found["chart"]["kinds"] == KINDS


def test_heat_is_distance_from_the_mean() -> None:
    assert ranks.heat([[1.0, 10.0], [3.0, None]]) == [[-1.0, 0.0], [1.0, 0.0]]
    assert ranks.heat([[5.0], [5.0]]) == [[0.0], [0.0]]


def test_one_rank_has_no_ranks_panel() -> None:
    assert ranks.data(msgspec.structs.replace(RUN_PAGE, traces=TraceReport(), diagnosis=None)) is None


def test_ranks_without_a_device_show_the_phases_of_the_run() -> None:
    assert RUN_PAGE.traces is not None
    host_only = tuple(msgspec.structs.replace(rank, breakdown=()) for rank in RUN_PAGE.traces.ranks)
    traces = msgspec.structs.replace(RUN_PAGE.traces, ranks=host_only)
    found = ranks.data(msgspec.structs.replace(RUN_PAGE, traces=traces))
    assert found is not None
    assert found["columns"][0] == "data" and found["ms"][1][0] == 131.25


def test_roofline_units() -> None:
    found = roofline.data(RUN_PAGE)
    assert found is not None
    mm, add, _ = found["chart"]["points"]
    assert (mm["tflops"], mm["gbs"], mm["intensity"], mm["ms"]) == (
        10**12 / 0.03 / 1e12,
        10**9 / 0.03 / 1e9,
        1000.0,
        10.0,
    )
    assert add["intensity"] is None
    assert dict(found["chart"]["roofs"]) == {"fp32": 66.9, "tf32": 494.7}


@pytest.mark.parametrize(("bound", "at_most"), [("sync", 2.0), ("launch", None), ("compute", None)])
def test_only_waits_are_said_to_go_away_whole(bound: Bound, at_most: float | None) -> None:
    """A launch share without a cost is all of the model's time, the device's work in it."""
    found = msgspec.structs.replace(DIAGNOSIS, findings=(Finding(id=bound, bound=bound, share=0.5),))
    shown = findings.data(msgspec.structs.replace(RUN_PAGE, diagnosis=found))
    assert shown is not None and shown["groups"][0][1][0]["at_most"] == at_most


def test_what_takes_memory_is_no_share_of_the_step() -> None:
    leak = Finding(id="memory-grows", bound="memory", share=0.0, title="each step leaves 2 MiB behind")
    found = msgspec.structs.replace(DIAGNOSIS, findings=(leak,))
    told = parsed(msgspec.structs.replace(RUN_PAGE, diagnosis=found)).texts["findings"]
    assert "of the step" not in told and "It takes memory" in told


def test_terms_have_their_meaning_at_hand() -> None:
    assert 'tabindex="0"' in term("launch") and TERMS["launch"] in str(term("launch"))
    assert term("<i>") == "<i>"  # escaped by the template, as any text
