"""`hotlap advise` through its command line."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.records.diagnosis import Finding
from hotlap.records.files import read_record, write_record
from hotlap.records.run import LoaderFacts, Phases, Step
from hotlap.records.tune import Tune
from made_runs import ENVIRONMENT, FACTS, diagnosis_of, folder_of


def test_answers_as_options(printed: Any) -> None:
    said = json.loads(printed("advise", "--idle", "40", "--launch-bound", "30", "--json"))
    assert said["measures"] == {"idle": 0.4, "launch_bound": 0.3}
    assert [one["id"] for one in said["suggestions"]] == ["launch", "gaps"]
    assert said["suggestions"][0]["at_most"] == pytest.approx(1 / 0.7)
    screen = " ".join(printed("advise", "--idle", "40", "--launch-bound", "30").split())
    assert (
        "1. Launch less" in screen
        and "at most 1.43× as fast" in screen
        and "--only compile,graph-training,attention,fused" in screen
    )


def test_without_a_terminal_nothing_is_asked(printed: Any) -> None:
    assert "hotlap run --profile COMMAND" in printed("advise")


def test_on_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch, printed: Any) -> None:
    said = iter(["40 %", "", "30", "", "95"])
    monkeypatch.setattr("typer.prompt", lambda *words, **options: next(said))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "idle 40% · communication 30% · memory_pressure 95%" in printed("advise")


@pytest.mark.parametrize("words", [["--idle", "140"], ["--idle", "nan"], ["--idle", "10", "--launch-bound", "20"]])
def test_what_can_not_be_is_refused(words: list[str], hotlap: Any) -> None:
    code, _, err = hotlap("advise", *words)
    assert code == 125 and "hotlap:" in err


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, hotlap: Any) -> None:
    code, _, err = hotlap("advise", tmp_path / "none")
    assert code == 125 and "none" in err


def run_folder(folder: Path) -> Path:
    phases = Phases(data=8.0, forward=1.0, backward=1.0, optimizer=0.0, other=0.0)
    steps = [Step(step=at, time=100.0 + at, wall_ms=10.0, phases=phases, samples=4) for at in range(20)]
    loader = LoaderFacts(dataset="[red]D", iterable=False, workers=0, training=True, batches=9)
    return folder_of(folder, (steps, msgspec.structs.replace(FACTS, loaders=(loader,))))


def test_a_run_answers_by_itself_and_options_take_its_place(tmp_path: Path, printed: Any) -> None:
    folder = run_folder(tmp_path / "run")
    screen = printed("advise", folder)
    assert "input-bound" in screen and "80% of the step is waiting" in screen and "[red]D" in screen
    said = json.loads(printed("advise", folder, "--input", "0", "--json"))
    assert said["bound"] == "input" and said["suggestions"][0]["id"] == "compute"
    assert said["given"] == ["input"] and said["measured"]["input"] == pytest.approx(0.8)
    screen = printed("advise", folder, "--input", "0")
    assert "idle 0% (the run: 80%)" in screen.split("known")[1].split("given")[0]
    assert "input 0% (the run: 80%)" in screen.split("given")[1] and "[red]D" not in screen
    assert "input 80%" in printed("advise", folder, "--idle", "50").split("left out")[1]


def test_a_tune_answers_with_what_is_left(tmp_path: Path, printed: Any) -> None:
    finding = Finding(id="input", bound="input", share=0.7, title="t")
    baseline = diagnosis_of(bound="input", step_ms=5.0, findings=(finding,))
    tuned = Tune(
        command=("x",), speedup=None, interval=None, gain=False, kept=(), dropped=(), parity=None,
        baseline=baseline, tuned=None, environment=ENVIRONMENT,
    )  # fmt: skip
    write_record(tmp_path / "tune.json", tuned)
    assert read_record(tmp_path / "tune.json", Tune).baseline.bound == "input"
    assert json.loads(printed("advise", tmp_path, "--json"))["suggestions"][0]["id"] == "input"
