"""A whole tune and its `--resume`, through the journal and the files, but for processes: runs are written, not made."""

import functools
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from machine import FakeLever, single

from hotlap.launch.run import Request
from hotlap.launch.supervise import Ended
from hotlap.records.errors import Interrupted
from hotlap.records.run import Facts
from hotlap.records.tune import Trial, Tune
from hotlap.tune import trials, tune
from hotlap.tune.search import Search

COMMAND = ("true",)
RUN_S = 10.0


class Runs:
    """Stands in for processes. gains: of runs with tf32, one after another, the last one ever after; now: the clock."""

    def __init__(self, gains: list[float], refused: str | None = None, interrupt_at: int | None = None) -> None:
        self.gains, self.bare = itertools.chain(gains, itertools.repeat(gains[-1])), iter([100.0, 104.0])
        self.refused = refused
        self.now, self.made, self.interrupt_at = 0.0, 0, interrupt_at

    def run_apart(self, request: Request, timeout_s: float, watch: Any) -> tuple[None, Ended]:
        if self.made == self.interrupt_at:
            raise KeyboardInterrupt
        self.made += 1
        with_it = "tf32" in [lever.name for lever in request.levers]
        step_ms = 100.0 / next(self.gains) if with_it else 100.0 if request.levers else next(self.bare, 100.0)
        self.now += RUN_S
        (request.folder / "run.json").write_bytes(msgspec.json.encode(request.record()))
        rank = request.folder / "rank-0"
        rank.mkdir()
        facts = Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", mode="train", stopped=True)
        (rank / "facts.json").write_bytes(msgspec.json.encode(facts))
        lines = [
            {"step": k, "time": 0.0, "wall_ms": step_ms, "phases": {"forward": step_ms}, "loss": 2.0 - 0.01 * k}
            for k in range(30)
        ]
        (rank / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if self.refused in [lever.name for lever in request.levers]:
            problem = {"where": "lever", "what": "not here", "lever": self.refused}
            (rank / "problems.jsonl").write_text(json.dumps(problem) + "\n")
            watch()
        return None, Ended(0, None)


class Quiet:
    """A listener that hears nothing."""

    trial = step = result = staticmethod(lambda *_: None)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session of a tune in one folder."""
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    levers = {"tf32": FakeLever("tf32", 0.6), "cudnn-benchmark": single("cudnn-benchmark", 0.5)}
    folder = tmp_path / "t"

    def made(runs: Runs, budget_s: float, resume: bool = False) -> Tune:
        clock = SimpleNamespace(monotonic=lambda: runs.now)
        monkeypatch.setattr(trials, "run_apart", runs.run_apart)
        monkeypatch.setattr(trials, "time", clock)
        monkeypatch.setattr(tune, "Search", functools.partial(Search, levers=levers, clock=clock.monotonic))
        request = tune.TuneRequest(command=COMMAND, cwd=str(tmp_path), budget_s=budget_s)
        if not resume:
            tune.begin(folder, request)
        return tune.tune(folder, request, Quiet(), resume)  # type: ignore[arg-type]

    return made


def journal(folder: Path) -> list[Trial]:
    lines = (folder / "t" / "trials.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Trial) for line in lines if line]


def test_a_confirmation_that_ended_early_goes_on(session: Any, tmp_path: Path) -> None:
    first = session(Runs([2.67, 1.78, 2.62]), 78.0)
    assert not first.gain and first.pairs == 2 and first.unproved == pytest.approx((1.78, 2.62))
    assert not first.complete and "1.78× and 2.62×" in first.why_incomplete and first.recipe is None

    runs = Runs([2.2, 2.3, 2.1, 2.2, 2.3, 2.2])
    second = session(runs, 60.0, resume=True)
    assert second.gain and second.pairs == 2 + runs.made // 2 and not second.unproved
    made = [trial for trial in journal(tmp_path) if trial.session == 1]
    assert {trial.purpose for trial in made} == {"confirm"} and len(made) == runs.made
    assert len({trial.id for trial in second.trials}) == len(second.trials) == 3 + 4 + runs.made
    assert (tmp_path / "t" / "recipe.toml").is_file()

    runs = Runs([2.2])
    third = session(runs, 400.0, resume=True)
    assert third.gain and third.complete and third.pairs >= second.pairs, "pairs of both sessions count"
    assert "cudnn-benchmark" in [lever.name for trial in third.trials for lever in trial.levers], "the search goes on"


def test_a_confirmation_that_was_interrupted_goes_on(session: Any, tmp_path: Path) -> None:
    first = session(Runs([2.0], interrupt_at=9), 400.0)
    assert not first.complete and not first.gain
    made = [bool(trial.levers) for trial in journal(tmp_path) if trial.purpose == "confirm"]
    assert made == [False, True, True]
    runs = Runs([2.0, 2.02])
    second = session(runs, 400.0, resume=True)
    assert second.gain and second.complete and second.pairs == 1 + runs.made // 2
    assert "1 of the confirmation's pairs is of an earlier session on this machine" in second.reused


def test_nothing_is_known_before_the_baseline(session: Any) -> None:
    with pytest.raises(Interrupted):
        session(Runs([1.0], interrupt_at=1), 400.0)


def test_a_trial_ends_as_soon_as_a_lever_was_refused(session: Any, tmp_path: Path) -> None:
    done = session(Runs([1.0], refused="tf32"), 200.0)
    refused = [trial for trial in journal(tmp_path) if trial.outcome == "refused"]
    assert [trial.lever for trial in refused] == ["tf32"] and refused[0].why == "tf32 could not be put in: not here"
    assert not done.kept and {one.lever: one.why for one in done.dropped}["tf32"].startswith("refused: tf32 could not")
