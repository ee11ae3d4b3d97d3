"""The whole verdict of a folder: which rank's host is looked at, and what to run next."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_diagnose import FACTS, phases, steps

from hotlap.diagnose.causes import KNOWN
from hotlap.diagnose.repeated import AGAIN, GATED
from hotlap.diagnose.verdict import adding_up, verdict
from hotlap.levers import all_levers
from hotlap.records.diagnosis import COMPARE, Diagnosis, Finding, Place, Spread
from hotlap.records.files import write_record
from hotlap.records.profile import Samples
from hotlap.records.trace import Breakdown, Ranks, RankTrace, TraceReport, Window
from hotlap.records.tune import NOT_TRIED, Dropped, Tune
from hotlap.runs.folder import RunFolder
from made_runs import folder_of

MS = 1_000_000


def traces() -> TraceReport:
    """Of two ranks; the others wait for rank 1."""
    device = Breakdown(
        device=0, span_ns=10 * MS, compute_ns=MS, exposed_communication_ns=8 * MS, exposed_copy_ns=0, idle_ns=MS,
        communication_ns=8 * MS, copy_ns=0, kernel_ns=9 * MS, streams=2, kernels=9,
    )  # fmt: skip
    window = Window(start_ns=0, end_ns=10 * MS, found_by="ProfilerStep", steps=((0, 10 * MS),))
    ranks = tuple(
        RankTrace(source="t", rank=at, device_name="GPU", events=1, window=window, step_ms=10.0, breakdown=(device,))
        for at in range(2)
    )
    late = Finding(id="straggler", bound="communication", share=0.8, evidence="x", levers=("loader-workers",))
    balance = Ranks(loads=(), imbalance=0.0, straggler=1, cost_ns=8 * MS, cause="input")
    return TraceReport(ranks=ranks, balance=balance, findings=(late,))


def cause(id_: str, bound: Any, share: float) -> Finding:
    return Finding(id=id_, bound=bound, share=share, named=True)


@pytest.mark.parametrize(
    ("causes", "share", "rest"),
    [
        ([cause("optimizer", "bandwidth", 0.26)], 0.56, 0.30),  # Rainbow's screen added up to 116%
        ([cause("few-rows", "compute", 0.26)], 0.30, 0.30),  # it was made without that
        ([cause("unused-forwards", "compute", 0.1), cause("optimizer", "launch", 0.2)], 0.46, 0.26),
        ([cause("unused-forwards", "compute", 0.1)], 0.46, 0.46),
        ([cause("input", "input", 0.4), cause("garbage-collection", "unknown", 0.4)], 0.56, 0.56),
        ([cause("double-precision", "compute", 0.56)], 0.56, None),
        ([cause("evaluation", "unknown", 0.5), cause("optimizer", "bandwidth", 0.1)], 0.28, 0.18),
    ],
)
def test_what_says_where_time_is_has_no_causes_in_it(causes: list[Finding], share: float, rest: float | None) -> None:
    general = Finding(id="compute", bound="compute", share=share, evidence="forward 5 ms")
    times = phases(forward=30.0, optimizer=26.0, other=44.0)
    spread = Spread(p10=1.0, p50=1.0, p90=1.0)
    before = Diagnosis(
        mode="train", bound="compute", step_ms=100.0, spread=spread, phases=times, findings=(*causes, general)
    )
    found = next((one for one in adding_up(before).findings if one.id == "compute"), None)
    assert (found and found.share) == (rest and pytest.approx(rest))
    said = f"{share:.0%} with {len(causes)} cause"
    assert found is None or found.evidence.startswith(said) is (found.share < share) or len(causes) > 1


def test_the_host_of_the_rank_that_the_others_wait_for_is_looked_at(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(FACTS, world=2)
    each = (steps(20, host=phases(data=1.0, forward=4.0, backward=5.0)), facts)
    folder = folder_of(tmp_path / "run", each, each)
    for rank, line in ((0, 3), (1, 28)):
        (folder / f"rank-{rank}" / "trace.json.gz").touch()
        said = Samples(steps=3, looks=100, files=("data.py",), lines=(("data", 0, line, "Disk.__getitem__", "", 90.0),))
        write_record(folder / f"rank-{rank}" / "samples.json", said)
    found = verdict(folder, traces())
    late = found.findings[0]
    assert (found.bound, late.id) == ("communication", "straggler")
    assert late.where == Place(file="data.py", line=28, function="Disk.__getitem__")
    assert "loader-workers" in found.next


def test_what_to_run_next_follows_from_what_the_traces_say(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    (folder / "rank-0" / "trace.json.gz").touch()
    waits = Finding(id="input", bound="input", share=0.9, levers=("loader-workers",))
    found = verdict(folder, TraceReport(ranks=traces().ranks[:1], findings=(waits,)))
    assert "tries loader-workers, fused-optimizer and" in found.next, "the dearest one's, then what answers others"


def test_what_the_recipes_tune_has_dropped_is_not_to_be_tried_next(tmp_path: Path) -> None:
    """`hotlap run --recipe` advised the tune to try bf16-autocast, which it had just found slower."""
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    run = RunFolder(folder).record
    tune = Tune(
        command=run.command, speedup=2.0, interval=None, gain=True, kept=(), parity=None, baseline=verdict(folder),
        tuned=None, environment=run.environment,
        dropped=(Dropped(lever="fused-optimizer", why="slower"), Dropped(lever="compile", why=f"x {NOT_TRIED}")),
    )  # fmt: skip
    assert {"fused-optimizer", "compile"} <= {*verdict(folder).findings[0].levers}
    write_record(tmp_path / "tune.json", tune)
    for recipe in (str(tmp_path / "recipe.toml"), "recipe.toml"):
        write_record(folder / "run.json", msgspec.structs.replace(run, recipe=recipe, cwd=str(tmp_path)))
        found = verdict(folder)
        assert "fused-optimizer" not in found.findings[0].levers and "compile" in found.next
    every = tuple(Dropped(lever=name, why="slower") for name in all_levers())
    write_record(tmp_path / "tune.json", msgspec.structs.replace(tune, dropped=every))
    assert verdict(folder).next.startswith("hotlap found nothing that it can change"), "what it tried is no advice"


def test_where_the_command_failed_that_is_what_to_mend_first(tmp_path: Path) -> None:
    """It advised to change how the loop makes its batches."""
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    ended = {"finished": 0, "failed": 1, "interrupted": 130}
    told = {}
    for status, code in ended.items():
        run = msgspec.structs.replace(RunFolder(folder).record, status=status, exit_code=code)
        write_record(folder / "run.json", run)
        told[status] = verdict(folder).next
    assert told["failed"].startswith("fix the command's own error") and COMPARE not in told["failed"]
    assert "mend" not in told["finished"] + told["interrupted"]


def test_a_run_on_the_cpu_is_told_nothing_of_devices() -> None:
    for one in (*(one.cause for one in KNOWN if not one.device), AGAIN, GATED):
        assert not re.search(r"GPU|on a device", f"{one.why} {one.instead}"), one


def test_what_samples_and_a_trace_tell_in_the_same_words_is_told_once(tmp_path: Path) -> None:
    """The loop's own all-reduces were 96% and, once more, 94%."""
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    (folder / "rank-0" / "trace.json.gz").touch()
    at = Place(file="train.py", line=40, function="main")
    twice = [
        Finding(id=id_, bound="communication", share=share, title="exchanges", where=at, named=True)
        for id_, share in (("exchange-in-loop", 0.9), ("communication", 0.8))
    ]
    told = verdict(folder, TraceReport(ranks=traces().ranks[:1], findings=tuple(twice))).findings
    assert [one.id for one in told if one.title == "exchanges"] == ["exchange-in-loop"]
