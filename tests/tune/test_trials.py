"""What is read from a trial's folder, and what is told to its processes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.launch.run import Request
from hotlap.launch.supervise import Ended
from hotlap.records.run import Environment, Facts, Run
from hotlap.tune import trials as module
from hotlap.tune.trials import Plan, Special, Trials, read_outcome

MACHINE = Environment(hotlap="0", python="3", os="", cpu="", cores=4, memory_gib=8.0)
ENDED = Ended(0, None)


def rank(
    folder: Path, number: int, wall_ms: float, rows: int | None = 4, world: int = 2, stopped: bool = True, **facts: Any
) -> None:
    path = folder / f"rank-{number}"
    path.mkdir(parents=True)
    known = Facts(pid=number, rank=number, world=world, argv=(), python="3", torch="2", mode="train", **facts)
    (path / "facts.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(known, stopped=stopped)))
    lines = [
        {"step": k, "time": 0.0, "wall_ms": wall_ms, "phases": {"forward": wall_ms}, "loss": 1.0, "samples": rows}
        for k in range(30)
    ]
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run(command=("x",), cwd="/", environment=MACHINE)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    return tmp_path


def test_the_step_of_several_ranks_is_the_slowest_and_its_rows_are_all(folder: Path) -> None:
    rank(folder, 0, 10.0, peak_memory_bytes=5, peak_rss_bytes=100)
    rank(folder, 1, 30.0, peak_memory_bytes=7, peak_rss_bytes=90)
    outcome, why, found = read_outcome(folder, ENDED, 60.0)
    assert (outcome, why) == ("measured", "")
    assert found["step_ms"] == pytest.approx(30.0) and found["rows"] == 8
    assert found["peak_memory_bytes"] == 7 and found["peak_rss_bytes"] == 100


def test_rows_that_one_rank_does_not_know_are_not_known(folder: Path) -> None:
    rank(folder, 0, 10.0)
    rank(folder, 1, 10.0, rows=None)
    assert read_outcome(folder, ENDED, 60.0)[2]["rows"] is None


def test_a_lever_that_one_rank_could_not_put_in_is_refused(folder: Path) -> None:
    rank(folder, 0, 10.0)
    rank(folder, 1, 10.0)
    problem = {"where": "lever tf32", "what": "no", "lever": "tf32"}
    (folder / "rank-1" / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    assert read_outcome(folder, ENDED, 60.0) == ("refused", "tf32 could not be put in: no", {"lever": "tf32"})


@pytest.mark.parametrize(("lever", "outcome"), [("tf32", "refused"), (None, "crashed")])
def test_of_a_trial_that_crashes_the_lever_that_was_not_put_in_is_known(
    folder: Path, lever: str | None, outcome: str
) -> None:
    rank(folder, 0, 10.0, world=1, stopped=False)
    problem = {"where": "x", "what": "no", "lever": lever}
    (folder / "rank-0" / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    assert read_outcome(folder, Ended(1, None), 60.0)[0] == outcome


@pytest.mark.parametrize(
    ("special", "least", "seconds", "profiled"),
    [(None, 20, 3.0, 0), (Special(brief=True), 10, 1.0, 0), (Special(profiled=True), 20, 3.0, 3)],
)
def test_brief_and_profiled_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, special: Special | None, least: int, seconds: float, profiled: int
) -> None:
    asked: list[Request] = []

    def run_apart(request: Request, *_: Any) -> tuple[None, Ended]:
        asked.append(request)
        (request.folder / "run.json").write_bytes(msgspec.json.encode(request.record()))
        rank(request.folder, 0, 10.0, world=1)
        return None, ENDED

    class Quiet:
        trial = step = result = staticmethod(lambda *_: None)

    monkeypatch.setattr(module, "run_apart", run_apart)
    plan = Plan(("x",), tmp_path, MACHINE, steps=400, seconds=3.0, seed=1, cwd=tmp_path)
    trials = Trials(plan, Quiet(), long_s=7.5)
    made = trials.run("baseline", (), special)
    assert made.outcome == "measured" and asked[0].long_s == 7.5
    assert (asked[0].least_steps, asked[0].seconds, asked[0].profile_steps) == (least, seconds, profiled)
    trials.least_steps = 8
    trials.run("baseline", (), special)
    assert asked[1].least_steps == 8
