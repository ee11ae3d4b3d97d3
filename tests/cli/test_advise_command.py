"""`hotlap advise` through its command line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import app as cli
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.files import read_record, write_record
from hotlap.records.run import Environment, Phases, Run
from hotlap.records.tune import Tune


def hotlap(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hotlap", *words])
    return cli._main()


def test_answers_as_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert hotlap(monkeypatch, "advise", "--idle", "40", "--launch-bound", "30", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["measures"] == {"idle": 0.4, "launch_bound": 0.3}
    assert [one["id"] for one in said["suggestions"]] == ["launch", "gaps"]
    assert said["suggestions"][0]["at_most"] == pytest.approx(1 / 0.7)
    assert hotlap(monkeypatch, "advise", "--idle", "40", "--launch-bound", "30") == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert (
        "1. Launch less" in screen
        and "at most 1.43× as fast" in screen
        and "--only compile,graph-training,attention,fused" in screen
    )


def test_without_a_terminal_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hotlap(monkeypatch, "advise") == 0
    assert "hotlap run --profile COMMAND" in capsys.readouterr().out


def test_on_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = iter(["40 %", "", "30", "", "95"])
    monkeypatch.setattr("typer.prompt", lambda *words, **options: next(said))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert hotlap(monkeypatch, "advise") == 0
    assert "idle 40% · communication 30% · memory_pressure 95%" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--idle", "140"], ["--idle", "nan"], ["--idle", "10", "--launch-bound", "20"]])
def test_what_can_not_be_is_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hotlap(monkeypatch, "advise", *words) == 125
    assert "hotlap:" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hotlap(monkeypatch, "advise", str(tmp_path / "none")) == 125
    assert "none" in capsys.readouterr().err


def _step(number: int) -> dict[str, Any]:
    phases = {"data": 8.0, "forward": 1.0, "backward": 1.0, "optimizer": 0.0, "other": 0.0}
    return {"step": number, "time": 100.0 + number, "wall_ms": 10.0, "phases": phases, "samples": 4}


def run_folder(folder: Path) -> Path:
    rank = folder / "rank-0"
    rank.mkdir(parents=True)
    write_record(folder / "run.json", Run(command=("python", "x.py"), cwd="/src", environment=machine()))
    (rank / "steps.jsonl").write_text("".join(json.dumps(_step(number)) + "\n" for number in range(20)))
    loader = {"dataset": "[red]D", "iterable": False, "workers": 0, "training": True, "batches": 9}
    facts = {"pid": 1, "rank": 0, "world": 1, "argv": [], "python": "", "torch": "", "loaders": [loader]}
    (rank / "facts.json").write_text(json.dumps(facts))
    return folder


def machine() -> Environment:
    return Environment(hotlap="0", python="", os="", cpu="", cores=1, memory_gib=1)


def test_a_run_answers_by_itself_and_options_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(run_folder(tmp_path / "run"))
    assert hotlap(monkeypatch, "advise", folder) == 0
    screen = capsys.readouterr().out
    assert "input-bound" in screen and "80% of the step is waiting" in screen and "[red]D" in screen
    assert hotlap(monkeypatch, "advise", folder, "--input", "0", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bound"] == "input" and said["suggestions"][0]["id"] == "compute"
    assert said["given"] == ["input"] and said["measured"]["input"] == pytest.approx(0.8)
    assert hotlap(monkeypatch, "advise", folder, "--input", "0") == 0
    screen = capsys.readouterr().out
    assert "idle 0% (the run: 80%)" in screen.split("known")[1].split("given")[0]
    assert "input 0% (the run: 80%)" in screen.split("given")[1] and "[red]D" not in screen
    assert hotlap(monkeypatch, "advise", folder, "--idle", "50") == 0
    assert "input 80%" in capsys.readouterr().out.split("left out")[1]


def test_a_tune_answers_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding(id="input", bound="input", share=0.7, title="t")
    baseline = Diagnosis(
        mode="train",
        bound="input",
        step_ms=5.0,
        spread=Spread(p10=4, p50=5, p90=6),
        phases=Phases(),
        findings=(finding,),
    )
    tuned = Tune(
        command=("x",), speedup=None, interval=None, gain=False, kept=(), dropped=(), parity=None,
        baseline=baseline, tuned=None, environment=machine(),
    )  # fmt: skip
    write_record(tmp_path / "tune.json", tuned)
    assert read_record(tmp_path / "tune.json", Tune).baseline.bound == "input"
    assert hotlap(monkeypatch, "advise", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["suggestions"][0]["id"] == "input"
