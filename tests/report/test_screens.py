"""The screen of a run: what was put in and what was not, what comes next, in files as at terminals."""

import io
import shlex
from pathlib import Path

import msgspec
from rich.console import Console

import made_runs
from hotlap.cli import run as command
from hotlap.cli._price import Price
from hotlap.records import files
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.run import LeftOut, Lever, Phases, Problem, Run, Step
from hotlap.report.run_screen import run_screen

WORDS = ("python", "train.py", "--name", "two words", *(f"--option-{at}=1" for at in range(9)))
RUN = msgspec.structs.replace(made_runs.RUN, command=WORDS)
INPUT = Finding(id="input", bound="input", share=0.6, title="it waits", evidence="131 ms", levers=("loader-workers",))
DIAGNOSIS = Diagnosis(
    mode="train", bound="input", step_ms=100.0, spread=Spread(p10=90.0, p50=100.0, p90=110.0), steps=40,
    phases=Phases(data=60.0, forward=40.0), findings=(INPUT,), ranks=1,
    next="hotlap tune COMMAND...   (tries loader-workers and what else applies, with proof)",
)  # fmt: skip


def text(run: Run = RUN, folder: Path = Path("out"), problems: tuple[Problem, ...] = (), width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(run_screen(run, DIAGNOSIS, problems, folder))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_next_command_can_be_typed_as_it_stands() -> None:
    said, _, line = text().partition("next: a tune (tries loader-workers and what else applies, with proof)\n")
    assert said and "COMMAND" not in said + line
    assert shlex.split(line.replace("\\\n", "")) == ["hotlap", "tune", *WORDS]
    assert line.count("\n") > 1 and max(map(len, line.splitlines())) <= 80


def test_no_line_ends_with_blanks() -> None:
    lines = text(msgspec.structs.replace(RUN, left_out=(LeftOut(lever=Lever(name="tf32"), why="no"),))).splitlines()
    assert len(lines) > 10 and [line for line in lines if line != line.rstrip()] == []


def test_levers_that_did_not_take_hold_are_told_with_the_reason_and_are_no_problem() -> None:
    left = LeftOut(lever=Lever(name="attention"), why="no hand-written attention was found")
    run = msgspec.structs.replace(RUN, levers=(Lever(name="tf32"),), left_out=(left,), recipe="r.toml")
    refused, broken = (
        Problem(where="lever attention", what=f"{kind}: no attention", lever="attention")
        for kind in ("Refused", "RuntimeError")
    )
    said = text(run, problems=(refused,))
    assert "recipe r.toml · levers tf32\n" in said and "of hotlap's own" not in said
    assert "not in   attention: no hand-written attention was found\n" in said
    assert "1 problem of hotlap's own" in text(run, problems=(refused, broken))


def test_processes_that_trained_beside_the_one_that_is_told_of_are_counted(tmp_path: Path) -> None:
    for at in range(3):
        assert ("processes  " in text(folder=tmp_path)) is (at > 1)
        (tmp_path / f"rank-{at}").mkdir()
        (tmp_path / f"rank-{at}" / "steps.jsonl").touch()
    assert "processes  3 made training steps; this screen is of the one with the most. All" in text(folder=tmp_path)


def test_a_full_disk_does_not_cost_the_screen(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    step = Step(step=0, time=0.0, wall_ms=10.0, phases=Phases(forward=6.0, backward=4.0), loss=1.0)
    steps = [msgspec.structs.replace(step, step=at, time=at / 100) for at in range(40)]
    made_runs.folder_of(tmp_path, (steps, None), command=WORDS, status="running", exit_code=None)

    def full(**where: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.tempfile, "mkstemp", full)
    monkeypatch.setenv("COLUMNS", "100")
    command._finish(tmp_path, RUN, "", json=False, price=Price())
    said = capsys.readouterr().err
    assert "10.0 ms a step" in said and "forward" in said
    assert f"cannot write {tmp_path}/run.json: No space left on device; cannot write {tmp_path}/diagnosis.json" in said
    assert said.endswith(". The screen above shows what was in memory or already written\n")
