"""A whole tune on a machine of our own making: what is written and when, how it ends, and how it goes on."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machine import FakeLever, Machine, Step, compiler, factors, starter, whole_tunes

from hotlap.records.errors import CommandFailed, Interrupted, NothingMeasured, RecordError
from hotlap.records.files import read_recipe, read_record
from hotlap.records.tune import Tune
from hotlap.tune.objective import TuneRequest
from hotlap.tune.search import Search
from hotlap.tune.tune import begin
from hotlap.tune.tune import tune as tune_whole

LEVERS = [starter("s", 0.6), FakeLever("vain", 0.4), compiler()]
STEP = factors(s=0.5, compile=0.6)
LISTENER = SimpleNamespace(result=lambda text: None, trial=lambda *_: None, step=lambda *_: None)
Session = Callable[..., Tune]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "t"


@pytest.fixture
def session(folder: Path) -> Session:
    """A session of the tune in one folder. after_proof: Ctrl-C comes so many calls of the bench after the first one."""

    def made(
        budget_s: float = 3600.0, step: Step = STEP, levers: list[FakeLever] = LEVERS, after_proof: int = 0,
        listener: Any = LISTENER, **more: Any,
    ) -> Tune:  # fmt: skip
        resume = folder.exists()
        request = TuneRequest(command=(sys.executable, "-c", "1"), cwd=str(folder.parent), budget_s=budget_s)
        if not resume:
            begin(folder, request)
        machine = Machine(step, folder, **more)
        sessions.append(machine)

        def said(text: str) -> None:
            if text.startswith("proved") and after_proof:
                machine.interrupt_at = machine.calls + after_proof

        machine.listener.result = said
        with whole_tunes([machine], levers):
            return tune_whole(folder, request, listener, resume)

    sessions: list[Machine] = []
    made.sessions = sessions  # type: ignore[attr-defined]
    return made


def names(found: Tune) -> list[str]:
    return [one.lever for one in found.kept]


def written(folder: Path) -> tuple[Tune, list[str]]:
    """What stands on disk: the tune, and the levers of its recipe."""
    recipe = folder / "recipe.toml"
    levers = [one.name for one in read_recipe(recipe).lever] if recipe.exists() else []
    return read_record(folder / "tune.json", Tune), levers


def test_a_whole_tune_is_written(session: Session, folder: Path) -> None:
    found = session()
    again, recipe = written(folder)
    assert found == again and names(found) == recipe == ["s", "compile"]
    assert found.gain and found.complete and found.speedup == pytest.approx(1 / 0.3) and found.unproved is None
    assert [proof.proved for proof in found.proofs] == [True, True] and found.starts == 2 and found.how == "turns"
    assert found.before_ms and found.after_ms == pytest.approx(found.before_ms * 0.3)
    assert [one.lever for one in found.dropped] == ["vain"] and found.recipe == str(folder / "recipe.toml")


def calls(folder: Path) -> int:
    machine = Machine(STEP, folder / "counted")
    with whole_tunes([machine], LEVERS):
        request = TuneRequest(command=(sys.executable, "-c", "1"), cwd=str(folder), budget_s=3600.0)
        begin(folder / "t", request)
        tune_whole(folder / "t", request, LISTENER)  # type: ignore[arg-type]
    return machine.calls


def test_whenever_ctrl_c_comes_what_is_proved_is_on_disk(tmp_path: Path, folder: Path, session: Session) -> None:
    """And what was on disk before it came, as a `kill -9` would have left it, is whole too."""
    (tmp_path / "c").mkdir()
    total = calls(tmp_path / "c")
    proofs = set()
    for at in range(1, total, 7):
        if folder.exists():
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        try:
            found = session(interrupt_at=at)
        except Interrupted:
            assert not (folder / "tune.json").exists()
            continue
        seen, recipe = written(folder)
        assert not found.complete and found.why_incomplete.startswith("interrupted") and seen == found
        told = [name for name in found.why_incomplete.partition("not tried: ")[2].split(", ") if name]
        left = [one.lever for one in found.dropped if one.why == "Ctrl-C came before it was tried"]
        measured = [use.name for use in found.unproved.levers] if found.unproved else []
        assert told == left and {"s", "compile"} <= {*names(found), *told, *measured}, "each has its word"
        assert names(found) == recipe and found.gain is bool(recipe)
        proofs.add(len(recipe))
    assert proofs == {0, 1, 2}


def test_at_each_proof_all_is_on_disk(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is after the proof and before anything else is done."""
    stands: list[tuple[Tune, list[str]]] = []
    before = Machine.turn

    def turn(self: Machine, *given: Any, **more: Any) -> Any:
        if (folder / "tune.json").exists():
            now = written(folder)
            if not stands or stands[-1][1] != now[1]:
                stands.append(now)
        return before(self, *given, **more)

    monkeypatch.setattr(Machine, "turn", turn)
    session()
    assert [recipe for _, recipe in stands] == [["s"], ["s", "compile"]]
    for found, recipe in stands:
        assert names(found) == recipe and found.gain and not found.complete and found.why_incomplete == "not ended yet"


def test_nothing_is_known_before_the_bare_command_is_measured(session: Session, folder: Path) -> None:
    with pytest.raises(Interrupted):
        session(interrupt_at=2)
    assert not (folder / "tune.json").exists() and session().gain


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, compiles: bool = True) -> None:
    """An error of hotlap's own: in the stage of the compilers, once something is proved, or in any stage."""
    before = Search.stage

    def stage(self: Search, stage: Any) -> None:
        if stage == "compiler" or not compiles:
            raise error
        before(self, stage)

    monkeypatch.setattr(Search, "stage", stage)


def test_an_error_after_a_proof_ends_the_tune_with_what_is_proved(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, RecordError("steps.jsonl: broken"))
    found = session()
    assert (found, names(found)) == (written(folder)[0], written(folder)[1]) and names(found) == ["s"]
    assert found.gain and not found.complete
    assert found.why_incomplete == "an error ended the search: steps.jsonl: broken; not tried: compile"
    assert {one.lever: one.why for one in found.dropped}["compile"] == "an error came before it was tried"


def test_a_fault_of_hotlaps_own_leaves_what_is_proved_and_says_where(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    listener = SimpleNamespace(result=said.append, trial=lambda *_: None, step=lambda *_: None)
    failing(monkeypatch, ZeroDivisionError("a fault"))
    with pytest.raises(ZeroDivisionError):
        session(listener=listener)
    found, recipe = written(folder)
    assert names(found) == recipe == ["s"] and found.gain and not found.complete
    assert said[-1] == f"hotlap itself failed; what was proved until then stands: {folder / 'recipe.toml'}"


@pytest.mark.parametrize("error", [RecordError("broken"), ZeroDivisionError("a fault")])
def test_an_error_before_a_proof_is_raised(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error, compiles=False)
    with pytest.raises(type(error)):
        session()
    assert not (folder / "recipe.toml").exists()


def test_a_command_that_fails_now_is_told_though_something_was_proved_before(session: Session, folder: Path) -> None:
    assert names(session(after_proof=5)) == ["s"]
    said: list[str] = []
    listener = SimpleNamespace(result=said.append, trial=lambda *_: None, step=lambda *_: None)
    with pytest.raises(CommandFailed):
        session(outcome=lambda uses: ("crashed", "exit code 1: no"), listener=listener)
    found, recipe = written(folder)
    assert names(found) == recipe == ["s"] and found.gain and not any("itself failed" in line for line in said)


# going on


def test_what_was_measured_and_not_proved_comes_first(session: Session, folder: Path) -> None:
    for budget in range(30, 60, 2):
        if folder.exists():
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        first = session(float(budget))
        if first.unproved is not None and not first.gain:
            break
    assert first.unproved is not None and [use.name for use in first.unproved.levers] == ["s"], "there is such a budget"
    assert not first.complete and first.recipe is None
    interrupted = session(interrupt_at=8)
    assert interrupted.why_incomplete.startswith("interrupted") and interrupted.unproved == first.unproved, (
        "it is not lost"
    )
    second = session()
    assert names(second) == ["s", "compile"] and second.complete and second.wall_s > first.wall_s
    purposes = [side.purpose for side in session.sessions[-1].sides]  # type: ignore[attr-defined]
    assert purposes[:4] == ["baseline", "baseline", "prove", "prove"], "no search before the proof"
    assert "try s" not in purposes


def test_what_was_proved_stands_and_the_search_goes_on(session: Session, folder: Path) -> None:
    first = session(after_proof=5)
    assert names(first) == ["s"] and first.gain and not first.complete
    second = session()
    assert names(second) == ["s", "compile"] and second.complete and second.speedup == pytest.approx(1 / 0.3)
    assert "try s" not in [side.purpose for side in session.sessions[-1].sides]  # type: ignore[attr-defined]
    assert [one.lever for one in second.dropped] == ["vain"]


@pytest.mark.parametrize("at", [1, 3, 5, 8, 11, 15, 20, 30, 60])
def test_ctrl_c_in_the_next_session_loses_nothing_of_the_last(session: Session, folder: Path, at: int) -> None:
    first = session(after_proof=5)
    assert names(first) == ["s"] and first.gain
    with contextlib.suppress(Interrupted):
        session(interrupt_at=at)
    found, recipe = written(folder)
    assert recipe == names(found) and names(found)[:1] == ["s"] and found.gain


@pytest.mark.parametrize("budget", [8.0, 12.0, 20.0, 30.0])
def test_nor_does_a_budget_that_is_too_small(session: Session, folder: Path, budget: float) -> None:
    assert names(session(after_proof=5)) == ["s"]
    with contextlib.suppress(NothingMeasured, CommandFailed):
        session(budget)
    found, recipe = written(folder)
    assert recipe == names(found) == ["s"] and found.gain


def test_what_failed_is_not_tried_again(session: Session) -> None:
    levers = [starter("s", 0.6), starter("bad", 0.5), FakeLever("worse", 0.4), compiler()]
    more = {
        "levers": levers,
        "outcome": lambda uses: ("crashed", "exit code 1: no") if "bad" in uses else ("measured", ""),
        "dies": lambda uses, turns: "signal 11" if "worse" in uses else "",
    }
    first = session(after_proof=40, **more)
    assert "s" in names(first) and {one.lever for one in first.dropped} >= {"bad", "worse"}
    second = session(**more)
    assert names(second) == ["s", "compile"]
    machine = session.sessions[-1]  # type: ignore[attr-defined]
    assert not [side for side in machine.sides if side.purpose == "try bad"], "a start that crashed"
    assert not [levers for _, levers in machine.log if "worse" in levers], "one that crashed when it was switched on"
    why = {one.lever: one.why for one in second.dropped}
    assert "exit code 1: no" in why["bad"] and "signal 11" in why["worse"]


def test_an_earlier_session_that_found_nothing(session: Session) -> None:
    slow = factors(s=1.1, compile=1.1)
    first = session(step=slow)
    assert not first.gain and first.complete and first.recipe is None and first.speedup is None
    assert not session(step=slow).gain


def test_a_tune_json_that_is_broken_is_an_error_and_is_kept(session: Session, folder: Path) -> None:
    session(after_proof=5)
    (folder / "tune.json").write_text("{")
    with pytest.raises(RecordError):
        session()
    assert (folder / "tune.json").read_text() == "{" and (folder / "recipe.toml").exists()
