"""The zoo: its hand-tuned scripts compute what the naive ones do, and its table says what the runs say."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zoo
import zoo_sides
import zoo_table

from hotlap.guard.suite import read_suite

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHEAP = "tiny_gpt,moe,dlrm,vit,lstm,gan,decode"
"""`make zoo-check` has those too that take a second or more."""


def test_hand_tuned_scripts_compute_what_the_naive_ones_do() -> None:
    command = [sys.executable, str(BENCHMARKS / "zoo.py"), "check", "--steps", "3", "--scripts", CHEAP]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("same: ") == len(CHEAP.split(","))


def test_every_naive_script_has_a_twin() -> None:
    for name in zoo.SCRIPTS:
        assert (BENCHMARKS / "zoo" / f"{name}.py").is_file()
        assert (BENCHMARKS / "zoo" / f"{name}_hand.py").is_file()


def row(script: str = "a.py", kept: bool = True, **ms: list[float]) -> dict[str, object]:
    runs = {
        kind: [{"round": number, "step_ms": value, "loss_gap": 1e-4} for number, value in enumerate(values)]
        for kind, values in ms.items()
    }
    lever = {"lever": "compile", "settings": {"mode": "default"}}
    tune = {"kept": [lever] if kept else [], "bound": "compute", "wall_s": 100.0, "trials": 9, "complete": True}
    where = {"device": "H100", "cores": 16, "torch": "2.11", "date": "2026-11-21", "cache": "cold"}
    return {"script": script, **where, "tune": tune, "runs": runs}


def with_ratios(given: dict[str, object]) -> dict[str, object]:
    return {**given, "ratios": zoo_table.ratios(given)}


def test_printed_lines_are_read() -> None:
    text = "1M parameters\nstep 10 loss 2.5 mean 2.75 12.5 ms/step\nstep 20 loss nan mean 1.0 7.25 ms/step\n"
    lines = zoo_table.printed(text)
    assert lines[10] == ({"loss": 2.5, "mean": 2.75}, 12.5)
    assert lines[20][0]["loss"] != lines[20][0]["loss"] and lines[20][1] == 7.25
    assert zoo_table.printed("step 5 loss_d 1.5 loss_g 0.25 judged 0.5 3.00 ms/step")[5][0]["loss_g"] == 0.25


def test_warm_up_does_not_count() -> None:
    lines = {step: ({}, ms) for step, ms in enumerate([60000.0, 300.0, 10.0, 11.0, 12.0, 13.0])}
    assert zoo_table.step_ms(lines) == 11.5
    with pytest.raises(ValueError, match="only 2 lines"):
        zoo_table.step_ms({0: ({}, 1.0), 1: ({}, 1.0)})


def test_losses_that_part_and_nan_are_seen() -> None:
    one = {step: ({"loss_d": 2.0, "loss_g": 1.0}, 1.0) for step in (10, 20)}
    assert zoo_table.loss_gap(one, one) == 0
    other = {10: ({"loss_d": 2.0, "loss_g": 1.5}, 1.0), 20: ({"loss_d": 2.0, "loss_g": 1.5}, 1.0)}
    assert zoo_table.loss_gap(one, other) == pytest.approx(0.5)
    broken = {10: ({"loss_d": float("nan"), "loss_g": 1.0}, 1.0)}
    assert zoo_table.loss_gap(one, broken) != zoo_table.loss_gap(one, broken)
    assert zoo_table.loss_gap(one, {30: ({"loss_d": 1.0}, 1.0)}) is None


def test_ratios_pair_runs_of_the_same_round() -> None:
    given = row(naive=[100.0, 200.0], hand=[50.0, 100.0], hotlap=[40.0, 80.0], compile=[80.0])
    found = zoo_table.ratios(given)
    assert found["hotlap_over_naive"]["ratio"] == pytest.approx(2.5)
    assert found["hotlap_over_hand"]["ratio"] == pytest.approx(1.25)
    assert found["hotlap_over_hand"]["low"] == pytest.approx(1.25)
    assert found["compile_over_naive"] == {"ratio": 1.25, "low": None, "high": None, "pairs": 1}


def test_a_tune_that_kept_nothing_leaves_the_naive_script() -> None:
    found = zoo_table.ratios(row(kept=False, naive=[100.0, 100.0], hand=[50.0, 50.0]))
    assert found["hotlap_over_naive"]["ratio"] == 1
    assert found["hotlap_over_hand"]["ratio"] == pytest.approx(0.5)


def test_a_recipe_that_could_not_be_run_is_no_ratio() -> None:
    given = row(naive=[100.0], hand=[50.0])
    given["runs"]["hotlap"] = [{"round": 0, "error": "exit code 1"}]  # type: ignore[index]
    found = zoo_table.ratios(given)
    assert found["hotlap_over_naive"] is None and found["hotlap_over_hand"] is None
    assert "Could not be measured: a.py (hotlap)." in zoo_table.summary([with_ratios(given)])


def test_nothing_to_win_is_said_only_where_the_hand_wins_nothing_either() -> None:
    even = with_ratios(row("even.py", kept=False, naive=[100.0, 101.0, 100.0], hand=[100.0, 100.0, 101.0]))
    missed = with_ratios(row("missed.py", kept=False, naive=[100.0, 101.0], hand=[50.0, 50.5]))
    unclear = with_ratios(row("unclear.py", kept=False, naive=[100.0, 100.0], hand=[50.0, 150.0]))
    lines = zoo_table.markdown({"scripts": [even, missed, unclear]}).splitlines()
    said = {line.split(" | ")[0].strip("| "): line for line in lines if "nothing kept" in line}
    assert "nothing to win here" in said["even.py"]
    assert "no gain shown" in said["missed.py"] and "no gain shown" in said["unclear.py"]


def test_summary() -> None:
    rows = [
        with_ratios(row("a.py", naive=[90.0] * 2, hand=[30.0] * 2, hotlap=[10.0] * 2, compile=[20.0] * 2)),
        with_ratios(row("b.py", naive=[100.0] * 2, hand=[50.0] * 2, hotlap=[100.0] * 2, compile=[50.0] * 2)),
    ]
    text = "\n".join(zoo_table.summary(rows))
    assert "over naive: 3.00× (2 scripts)" in text
    assert "Of hand: 1.22× on the geometric mean" in text and "the worst is b.py, 0.50×" in text
    assert "on 1 of 2 scripts; behind on b.py." in text
    even = with_ratios(row("c.py", naive=[9.0] * 2, hotlap=[1.0, 1.1], compile=[1.1, 1.0]))
    assert zoo_table.summary([*rows, even])[-1].endswith("on 1 of 3 scripts; not told apart on c.py; behind on b.py.")


def test_merge_replaces_scripts_and_keeps_the_rest(tmp_path: Path) -> None:
    into, part = tmp_path / "all.json", tmp_path / "part.json"
    zoo.write(into, {"tunes": [1], "scripts": [{"script": "gan.py", "n": 1}, {"script": "gpt.py", "n": 1}]})
    zoo.write(part, {"scripts": [{"script": "gpt.py", "n": 2}, {"script": "vit.py", "n": 2}]})
    merged = zoo.merged(zoo.read(into), zoo.read(part), zoo.read(tmp_path / "none.json"))
    assert merged["tunes"] == [1]
    assert [(r["script"], r["n"]) for r in merged["scripts"]] == [("gpt.py", 2), ("vit.py", 2), ("gan.py", 1)]


def test_a_run_past_its_time_is_ended() -> None:
    code, out, err = zoo.run([sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)"], 2, {})
    assert code != 0 and out == "on\n" and "ended after 2 s" in err


RECIPE = 'format = 1\nhotlap = "zoo"\n[[lever]]\nname = "{}"\nrisk = "numeric"\n[lever.settings]\n'


def test_sides_of_a_script_are_measured_and_a_broken_recipe_is_told(tmp_path: Path) -> None:
    fused, broken, out = tmp_path / "fused.toml", tmp_path / "broken.toml", tmp_path / "sides.json"
    fused.write_text(RECIPE.format("fused-optimizer"), encoding="utf-8")
    broken.write_text(RECIPE.format("no-such-lever"), encoding="utf-8")
    out.write_text('{"note": "kept", "sides": [{"script": "earlier"}]}', encoding="utf-8")
    command = [sys.executable, str(BENCHMARKS / "zoo.py"), "sides", "tiny_gpt", "naive", str(broken), str(fused)]
    options = ["--tiny", "--steps", "12", "--runs", "1", "--keep", str(tmp_path / "keep"), "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    document = json.loads(out.read_bytes())
    assert document["note"] == "kept" and document["sides"][0] == {"script": "earlier"}
    found = document["sides"][1]
    assert (found["script"], found["steps"], "rounds_why" in found) == ("tiny_gpt.py", 12, False)
    assert "sides tiny_gpt naive" in found["command"]
    assert [side["name"] for side in found["sides"]] == ["naive", str(broken), str(fused)]
    assert [side["recipe"] for side in found["sides"]] == [None, broken.read_text(), fused.read_text()]
    naive, wrong, ours = (side["runs"] for side in found["sides"])
    assert [len(naive), len(wrong), len(ours)] == [1, 1, 1]
    assert "no-such-lever" in wrong[0]["error"] and "step_ms" not in wrong[0]
    assert len(naive[0]["lines_ms"]) == len(ours[0]["lines_ms"]) == 6
    assert naive[0]["loss_gap"] == 0 and ours[0]["loss_gap"] < 0.01
    assert ours[0]["levers"] == [{"lever": "fused-optimizer"}]

    told = done.stdout.splitlines()[-5:]
    assert told[0].startswith("| side |") and told[2].startswith("| naive |") and str(fused) in told[4]
    assert told[3].startswith(f"| {broken} | – | – | – | – | exit code ")


def test_a_side_that_is_no_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo.parse(["sides", "tiny_gpt", "naive", "nowhere.toml"])
    assert "'nowhere.toml' is neither `naive` nor `hand` nor the file of a recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("deadline", "failing", "order"),
    [
        (3600.0, "", "naive hand a.toml a.toml hand naive naive hand a.toml"),
        (3600.0, "1-2", "naive hand a.toml a.toml hand naive naive hand"),
        (3600.0, "0-0", "naive hand a.toml a.toml hand hand a.toml"),
        (10.0, "", "naive hand a.toml"),
    ],
)
def test_rounds_of_sides(monkeypatch: pytest.MonkeyPatch, deadline: float, failing: str, order: str) -> None:
    """Every second round goes backwards; a side that failed is not run again; no round starts that can't end."""
    ran = []

    def measured(command: str, out: Path, *_: object) -> tuple[dict[str, Any], Any]:
        ran.append(command)
        if out.name == failing:
            return {"wall_s": 4.0, "error": "exit code 1"}, {}
        return {"wall_s": 4.0, "step_ms": 1.0, "lines_ms": [1.0]}, {2: ({"loss": 2.0 + (command == "hand")}, 1.0)}

    monkeypatch.setattr(zoo_sides, "measured", measured)
    monkeypatch.setattr(zoo_sides, "command", lambda name, _: name)
    monkeypatch.setattr(zoo_sides, "time", SimpleNamespace(monotonic=lambda: 0.0))
    args = zoo.parse(["sides", "tiny_gpt", "naive", "hand", "--runs", "3"])
    found: dict[str, Any] = {"sides": [{"name": name, "runs": []} for name in ("naive", "hand", "a.toml")]}
    told = list(zoo_sides.rounds(found, args, Path("keep"), deadline))
    assert " ".join(ran) == order and len(told) == len(ran)
    assert found.get("rounds_why") == (None if deadline > 10 else "the deadline allowed 1 of 3 rounds")
    first = None if failing == "0-0" else 0.5
    assert {run["loss_gap"] for run in found["sides"][1]["runs"]} == {first}
    errors = [run for side in found["sides"] for run in side["runs"] if "error" in run]
    assert [f"{run['round']} {run['error']}" for run in errors] == ([f"{failing[0]} exit code 1"] if failing else [])


def test_table_of_sides() -> None:
    left_out = {"levers": [{"lever": "tf32"}, {"lever": "compile", "left_out": "no | compiler"}]}
    runs: dict[str, Any] = {
        "a.toml": [{"step_ms": 4.0, "loss_gap": 0.0}, {"step_ms": 8.0, "loss_gap": 1e-5}],
        "naive": [{"step_ms": 2.0, "loss_gap": 0.01} | left_out, {"error": "x" * 500, "loss_gap": None}],
        "hand": [{"step_ms": 1.0, "loss_gap": 0.02}, {"step_ms": 2.0, "loss_gap": 0.01}],
    }
    found = [
        {"name": name, "runs": [{"round": n, **run} for n, run in enumerate(runs[name])]}
        for name in ("a.toml", "naive", "hand", "a.toml")
    ]
    where = {"device": "H100", "cores": 16, "torch": "2.11", "date": "2026-11-21", "cache": "as found"}
    text = zoo_table.sides_markdown({"script": "gan.py", "steps": 60, **where, "rounds_why": "ended", "sides": found})
    lines = text.splitlines()
    assert lines[0] == "gan.py, 60 steps; H100, 16 cores, torch 2.11, 2026-11-21; compile cache as found"
    assert lines[1:3] == ["ended", ""]
    assert "| over a.toml (95%) | losses apart from a.toml |" in lines[3]
    assert lines[5] == "| a.toml | 6 | 4, 8 | – | 1.0e-05 |  |"
    assert lines[6].startswith("| naive | 2 | 2 | 2.00× (one pair) | 1.0e-02 | left out: compile, no / compiler; xxx")
    assert "xxx … xxx" in lines[6] and len(lines[6]) < 250
    assert lines[7] == "| hand | 1.5 | 1, 2 | 4.00× (4.00–4.00) | 2.0e-02 |  |"
    assert lines[8] == "| a.toml | 6 | 4, 8 | 1.00× (1.00–1.00) | 1.0e-05 |  |"
    both = zoo_table.markdown({"sides": [{"script": "gan.py", "steps": 60, **where, "sides": found}]})
    assert both.count("| hand |") == 1 and "hand over naive" not in both


def test_the_zoo_is_a_suite() -> None:
    """Of `hotlap bench`: each script with its twin at full size, and small."""
    full, small = (read_suite(BENCHMARKS / name) for name in ("zoo.toml", "zoo_tiny.toml"))
    assert {one.name for one in full} == {f"{name}{twin}" for name in zoo.SCRIPTS for twin in ("", "_hand")}
    assert {one.name for one in small} == {*zoo.SCRIPTS}
    assert all((one.cwd / one.words[1]).is_file() for one in (*full, *small))
