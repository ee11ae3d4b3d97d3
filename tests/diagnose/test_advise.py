"""What to try first: the table, its rules, what a run answers, and the page's script that asks the same table."""

import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import advise_planted
import msgspec
import pytest

import hotlap.report.page
from hotlap.diagnose.advise import (
    MEASURE_OF,
    NAMES,
    ROWS,
    advise,
    advise_answers,
    holds,
    measure_of,
    panel,
    percent,
    suggest,
    value_of,
)
from hotlap.diagnose.advise_table import TABLE
from hotlap.diagnose.findings import all_findings as run_findings
from hotlap.levers import modules
from hotlap.records.advice import Advice, AdvicePanel, Condition, ShareOf, Table
from hotlap.records.diagnosis import Bound, Diagnosis, Finding, Place, in_order
from hotlap.records.errors import UsageError
from hotlap.records.files import to_json
from hotlap.records.page import Page
from hotlap.records.run import Environment, Facts, Gpu, Phases
from hotlap.records.trace import OpRoofline, RankTrace, TraceReport, Window
from hotlap.report.page import advise as page_panel
from hotlap.trace.findings import all_findings as trace_findings
from made_runs import diagnosis_of

ROOT = Path(__file__).parents[2]
SCRIPT = Path(hotlap.report.page.__file__).parent / "templates" / "advise.js"
NODE = shutil.which("node")


def finding(id: str, bound: Bound, share: float, **more: Any) -> Finding:
    return Finding(id=id, bound=bound, share=share, title=id, **more)


def diagnosis(*findings: Finding, ranks: int = 1) -> Diagnosis:
    found = tuple(sorted(findings, key=lambda one: -one.share))
    return diagnosis_of(
        bound=found[0].bound if found else "unknown", step_ms=10.0, phases=Phases(data=1.0), findings=found, ranks=ranks
    )


def ids(advice: Advice) -> list[str]:
    return [one.id for one in advice.suggestions]


# the table


def test_the_table_is_data_that_survives_json() -> None:
    assert msgspec.json.decode(to_json(TABLE), type=Table) == TABLE


def test_rows_ask_only_what_there_is_and_name_levers_that_exist() -> None:
    assert len({row.id for row in TABLE.rows}) == len(TABLE.rows) and len(set(NAMES)) == len(NAMES)
    for row in ROWS.values():
        asked = {condition.measure for condition in row.conditions} - {"share"}
        if row.share is not None:
            asked |= {row.share.of, *row.share.less, *row.share.times} - {"step"}
        assert asked <= set(NAMES), row.id
        assert set(row.levers) <= set(modules()), row.id
        assert row.do and row.verify and row.because
        told = row.because.format_map(dict.fromkeys((*NAMES, "share"), "7%"))
        assert "{" not in told


FOUND = sorted({name.replace("_", "-") for name in (*run_findings(), *trace_findings())} | {*MEASURE_OF, "busy-thread"})


@pytest.mark.parametrize("name", FOUND)
def test_a_finding_has_a_row_of_its_own_or_is_told_in_its_own_words(name: str) -> None:
    beside = finding("compute" if name == "host-code" else "host-code", "unknown", 0.3)
    for bound in get_args(Bound):
        for named in (True, False):
            one = finding(name, bound, 0.6, named=named, why="it waits", instead="change it")
            first, *others = advise(diagnosis(one, beside), "run").suggestions
            assert first.do[0] in ("change it", "Here: change it.") and len(others) == 1
            if name in MEASURE_OF:
                assert ROWS[first.id].share == ShareOf(of=MEASURE_OF[name]) and first.evidence.startswith(name)
            else:
                assert (first.title, first.because) == (name, "60% of the step: it waits.") and first.share == 0.6


def test_a_row_is_about_findings_of_its_own_bound_only() -> None:
    assert {*MEASURE_OF} == {*(name for name, _ in CAUSES), "optimizer"}
    for name, bound in CAUSES:
        row = next(row for row in TABLE.rows if row.share == ShareOf(of=MEASURE_OF[name]))
        assert row.bound == bound or (name, bound) == ("host-code", "launch")
    for bound in set(get_args(Bound)) - {"unknown"}:
        assert measure_of(finding("one that was added later", bound, 0.5)) in NAMES


def test_waiting_for_a_core_is_not_the_loop_s_own_code() -> None:
    crowded = finding(
        "cpu-crowded",
        "unknown",
        0.65,
        cost_ms=6.5,
        named=True,
        instead="fewer intra-op threads",
        levers=("cpu-threads",),
    )
    said = advise(diagnosis(crowded, finding("compute", "compute", 0.3), finding("host-code", "unknown", 0.01)), "run")
    assert ids(said) == ["cpu-crowded", "compute"] and said.measures["host_code"] == 0.01
    first = said.suggestions[0]
    assert first.do == ("fewer intra-op threads",) and "--only cpu-threads COMMAND" in first.verify
    assert first.at_most == pytest.approx(1 / 0.35)
    alone = advise(diagnosis(crowded), "run")
    assert ids(alone) == ["cpu-crowded"] and alone.measures == {}, "that something is known is not to be measured first"


def test_a_cause_that_the_verdict_begins_with_comes_first() -> None:
    rows = finding("rows-one-by-one", "input", 0.2, named=True)
    switches = finding("debug-switches", "unknown", 0.0, named=True)
    copies = finding("worker-copies", "unknown", 0.0)
    found = diagnosis(finding("compute", "compute", 0.7), rows, switches, copies)
    found = msgspec.structs.replace(found, findings=tuple(in_order(found.findings)))
    said = advise(found, "run")
    assert ids(said) == ["rows-one-by-one", "debug-switches", "compute"] and said.measures["input"] == 0.2
    assert said.suggestions[1].because == "What it costs is unknown."
    assert ids(advise(found, "run", answers={"input": 0.3})) == ["debug-switches", "compute", "input"]


@pytest.mark.parametrize("stale", ["nvFuser", "bottleneck", "cuda.amp", "all_gather_base", "GradScaler('cuda')"])
def test_nothing_stale_is_advised(stale: str) -> None:
    assert stale not in to_json(TABLE).decode()


# its rules


def test_a_share_is_less_and_times_what_is_known() -> None:
    share = ShareOf(of="idle", less=("input", "sync"), times=("roofline_gap",))
    assert value_of(share, {}) is None and value_of(share, {"input": 0.5}) is None
    assert value_of(share, {"idle": 0.5}) == 0.5
    assert value_of(share, {"idle": 0.5, "input": 0.125, "roofline_gap": 0.5}) == 0.1875
    assert value_of(share, {"idle": 0.25, "input": 0.5}) == 0.0
    assert value_of(ShareOf(of="step", less=("idle",)), {"idle": 0.25}) == 0.75


def test_a_condition_holds_on_its_side_of_the_threshold_only() -> None:
    above = Condition(measure="idle", above=0.3)
    assert holds(above, {"idle": 0.31}, None) and not holds(above, {"idle": 0.3}, None) and not holds(above, {}, None)
    most = Condition(measure="idle", at_most=0.3)
    assert holds(most, {"idle": 0.3}, None) and not holds(most, {"idle": 0.31}, None) and not holds(most, {}, None)
    missing = Condition(measure="idle", unknown=True)
    assert holds(missing, {}, None) and not holds(missing, {"idle": 0.0}, None)
    assert holds(Condition(measure="share", above=0.1), {}, 0.2)


def test_percent_is_rounded_as_people_do() -> None:
    assert [percent(value) for value in (0, 0.001, 0.005, 0.125, 1)] == ["0%", "<1%", "1%", "13%", "100%"]


# answers


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        ({}, "profile"),
        ({"idle": 0.04, "roofline_gap": 0.1}, "fine"),
        ({"idle": 0.4}, "gaps"),
        ({"idle": 0.4, "launch_bound": 0.35}, "launch"),
        ({"idle": 0.4, "input": 0.3}, "input"),
        ({"idle": 0.1, "roofline_gap": 0.6}, "kernels"),
        ({"communication": 0.3, "idle": 0.1}, "communication"),
        ({"memory_pressure": 0.95}, "memory"),
        ({"memory_pressure": 0.95, "idle": 0.2}, "gaps"),
    ],
)
def test_the_flow_of_the_lesson(answers: dict[str, float], first: str) -> None:
    assert ids(advise_answers(answers))[0] == first


def test_what_is_explained_is_not_asked_again() -> None:
    said = advise_answers({"idle": 0.5, "launch_bound": 0.2, "input": 0.25})
    assert ids(said) == ["input", "launch"]
    assert said.suggestions[0].share == 0.25 and said.suggestions[0].at_most == pytest.approx(4 / 3)
    assert said.suggestions[0].because == "25% of the step is waiting for the next batch."


def test_arithmetic_has_no_speed_up_as_if_it_could_go_away() -> None:
    said = advise_answers({"compute": 0.9})
    assert ids(said) == ["compute"] and said.suggestions[0].at_most is None


@pytest.mark.parametrize(
    "answers",
    [
        {"idle": 1.2},
        {"idle": -0.1},
        {"idle": float("nan")},
        {"nope": 0.1},
        {"idle": 0.1, "launch_bound": 0.2},
        {"idle": 0.3, "input": 0.2, "sync": 0.2},
    ],
)
def test_answers_that_can_not_be_are_refused(answers: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        advise_answers(answers)


# runs


SHARES = (0.06, 0.2, 0.45, 0.8)
CAUSES: tuple[tuple[str, Bound], ...] = (
    ("input", "input"),
    ("h2d", "h2d"),
    ("host-code", "unknown"),
    ("host-code", "launch"),
    ("launch", "launch"),
    ("sync", "sync"),
    ("allocator", "memory"),
    ("communication", "communication"),
    ("straggler", "communication"),
    ("compute", "compute"),
    ("no-tensor-cores", "compute"),
    ("bandwidth", "bandwidth"),
)


@pytest.mark.parametrize("first", CAUSES, ids=lambda one: f"{one[0]}-{one[1]}")
def test_the_first_suggestion_is_the_bound_of_the_diagnosis(first: tuple[str, Bound]) -> None:
    for second, (more, less) in itertools.product(CAUSES, itertools.combinations(SHARES, 2)):
        if second[0] == first[0]:
            continue
        found = diagnosis(finding(*first, less), finding(*second, more))
        assert advise(found, "run").suggestions[0].bound == found.bound
        found = diagnosis(finding(*first, more), finding(*second, less))
        assert advise(found, "run").suggestions[0].bound == found.bound


def test_a_suggestion_has_the_place_the_evidence_and_the_levers_of_its_finding() -> None:
    where = Place(file="train.py", line=3)
    one = finding(
        "input", "input", 0.7, where=where, evidence="7 ms", instead="more workers", levers=("loader-workers",)
    )
    said = advise(diagnosis(one, finding("compute", "compute", 0.3)), "run").suggestions[0]
    assert (said.where, said.evidence, said.levers) == (where, "input: 7 ms", ("loader-workers",))
    assert said.do[0] == "Here: more workers." and "--only loader-workers COMMAND" in said.verify
    none_left = advise(diagnosis(finding("compute", "compute", 0.9)), "run").suggestions[0]
    assert none_left.levers == () and "tune" not in none_left.verify


def test_waits_at_several_lines_of_one_rank_add_up() -> None:
    waits = [finding("sync", "sync", share) for share in (0.2, 0.15, 0.1)]
    said = advise(diagnosis(*waits, finding("compute", "compute", 0.4)), "run")
    assert said.measures["sync"] == pytest.approx(0.45) and said.measures["idle"] == pytest.approx(0.45)
    assert ids(said) == ["sync", "compute"] and said.suggestions[0].evidence.endswith("2 more like it")
    of_two = advise(diagnosis(*waits, finding("compute", "compute", 0.4), ranks=2), "run")
    assert of_two.measures["sync"] == 0.2


def test_a_launch_share_that_holds_the_model_s_own_work_promises_nothing() -> None:
    told = advise(diagnosis(finding("launch", "launch", 0.95)), "run")
    assert told.suggestions[0].at_most is None and any("launches" in text for text in told.unknown)
    broken = advise(diagnosis(finding("graph-break", "launch", 0.95)), "run")
    assert broken.suggestions[0].at_most is None and broken.unknown == told.unknown
    harmless = advise(diagnosis(finding("compute", "compute", 0.9), finding("graph-break", "launch", 0.0)), "run")
    assert not harmless.unknown
    traced = advise(diagnosis(finding("launch", "launch", 0.5, cost_ms=5.0)), "run")
    assert traced.suggestions[0].at_most == 2.0 and not traced.unknown
    of_a_trace = advise(diagnosis(finding("small-ops", "launch", 0.5, named=True)), "run")
    assert not of_a_trace.unknown, "nothing that a trace told is said to take one"
    window = Window(start_ns=0, end_ns=1000, found_by="none")
    rank = RankTrace(source="", rank=0, device_name="", events=0, window=window, step_ms=1.0)
    assert not advise(diagnosis(finding("launch", "launch", 0.95)), "run", traces=(rank,)).unknown


def test_memory_and_roofline_come_from_facts_and_traces() -> None:
    machine = Environment(
        hotlap="", python="", os="", cpu="", cores=1, memory_gib=1, gpus=(Gpu(name="GPU", memory_gib=10.0),)
    )
    facts = Facts(pid=1, rank=0, world=1, argv=(), python="", torch="", peak_memory_bytes=int(9.5 * 2**30))
    ops = [
        OpRoofline(op="mm", shape="", dtype="", ns=ns, count=1, flops=1, bytes=1, limit="compute", of_peak=peak)
        for ns, peak in ((300, 0.5), (100, 1.5), (600, None))
    ]
    window = Window(start_ns=0, end_ns=1000, found_by="none")
    rank = RankTrace(source="", rank=0, device_name="", events=0, window=window, step_ms=1.0, roofline=tuple(ops))
    said = advise(diagnosis(finding("compute", "compute", 0.9)), "run", facts, machine, (rank,))
    assert said.measures["memory_pressure"] == pytest.approx(0.95)
    assert said.measures["roofline_gap"] == pytest.approx(1 - (150 + 100) / 400)
    assert ids(said) == ["compute", "memory"]


def test_answers_take_the_place_of_what_was_measured() -> None:
    found = diagnosis(finding("input", "input", 0.7), finding("compute", "compute", 0.3))
    said = advise(found, "run", answers={"input": 0.0})
    assert ids(said) == ["compute"], "idle follows its parts: no time without a cause is left over"
    assert said.measures == {"idle": 0.0, "input": 0.0, "compute": 0.3}
    assert said.given == ("input",) and said.measured == {"input": 0.7, "idle": 0.7}
    assert advise(found, "run").given == () and advise(found, "run").measured == {}


def test_an_answer_takes_the_place_of_what_the_run_says_within_it() -> None:
    found = diagnosis(
        finding("launch", "launch", 0.4, cost_ms=4.0), finding("sync", "sync", 0.2), finding("compute", "compute", 0.3)
    )
    said = advise(found, "run", answers={"idle": 0.5})
    assert said.measures == {"idle": 0.5, "compute": 0.3} and said.measured.keys() == {"idle", "launch_bound", "sync"}
    assert ids(said) == ["gaps", "compute"]
    both = advise(found, "run", answers={"idle": 0.5, "sync": 0.1})
    assert both.measures == {"idle": 0.5, "sync": 0.1, "compute": 0.3}
    kernels = advise(found, "run", answers={"roofline_gap": 0.6})
    assert "kernels" in ids(kernels) and "compute" not in kernels.measures


def test_of_an_answer_nothing_is_told_that_the_run_found() -> None:
    found = diagnosis(finding("launch", "launch", 0.9, evidence="9 ms", levers=("compile",)))
    said = advise(found, "run", answers={"launch_bound": 0.5})
    first = said.suggestions[0]
    assert (first.id, first.evidence, first.at_most) == ("launch", "", 2.0) and not said.unknown


# the page


def test_the_panel_shows_what_a_run_says_and_no_name_becomes_markup() -> None:
    hostile = "</script><b onclick=x>"
    found = diagnosis(finding("input", "input", 0.7, where=Place(file=hostile, function=hostile), evidence=hostile))
    page = Page(title="", folder="", made="", hotlap="", diagnosis=found)
    page = msgspec.structs.replace(page, advice=panel(page))
    shown = page_panel.data(page)
    assert shown is not None and shown["suggestions"][0]["place"].startswith(hostile)
    assert [measure.name for measure in shown["main"]][:2] == ["idle", "launch_bound"]
    html = hotlap.report.page.render(page)
    part = html.split('<section id="advise"')[1].split("</section>")[0]
    assert 'id="advise-input" min="0" max="100" step="any" value="70"' in part
    assert "<b onclick" not in html and "&lt;b onclick" in part and "70% of the step" in part
    assert "style=" not in part and "onclick" not in part.replace("&lt;b onclick", "")
    assert page_panel.data(Page(title="", folder="", made="", hotlap="")) is None


def test_a_page_without_a_verdict_asks_from_nothing() -> None:
    made = panel(Page(title="", folder="", made="", hotlap="", traces=TraceReport()))
    assert isinstance(made, AdvicePanel) and ids(made.advice) == ["profile"]


@pytest.mark.skipif(NODE is None, reason="no node here: the page's script is not run")
def test_the_page_s_script_gives_the_same_answers_over_a_grid() -> None:
    steps = (None, 0.0, 0.05, 0.1, 0.3, 0.62)
    main = [
        {name: value for name, value in zip(NAMES[:5], values, strict=True) if value is not None}
        for values in itertools.product(steps, repeat=5)
    ]
    draw = random.Random(7)
    finer = [{name: draw.random() for name in draw.sample(NAMES, draw.randrange(len(NAMES)))} for _ in range(600)]
    grid = main[::4] + finer
    program = (
        "const {suggest} = require(process.argv[1]);"
        "const {table, grid} = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "const few = (one) => [one.id, one.share, one.at_most, one.because, one.verify, one.levers];"
        "console.log(JSON.stringify(grid.map((known) => suggest(table, known).map(few))));"
    )
    asked = json.dumps({"table": msgspec.to_builtins(TABLE), "grid": grid})
    ran = subprocess.run(
        [str(NODE), "-e", program, str(SCRIPT)], input=asked, capture_output=True, text=True, check=True
    )
    said = json.loads(ran.stdout)
    assert len(said) == len(grid)
    for known, rows in zip(grid, said, strict=True):
        here = [[s.id, s.share, s.at_most, s.because, s.verify, list(s.levers)] for s in suggest(TABLE, known)]
        assert rows == here, known


# the planted suite


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "results").glob("planted-*.json")), ids=lambda p: p.stem)
def test_advice_agrees_with_the_verdicts_of_the_planted_scripts(file: Path) -> None:
    rows = json.loads(file.read_text(encoding="utf-8"))["scripts"]
    judged = [advise_planted.of_record(row) for row in rows if row["status"] == "run"]
    assert judged
    assert [row["script"] for row in judged if not row["agrees"]] == []
