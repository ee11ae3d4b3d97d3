"""Levers that leave themselves out: the run is one of the others from there on, and says so."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.agent.guard import Guard
from hotlap.agent.seams import NothingToDo, Refused, Seams
from hotlap.diagnose.diagnose import read_ranks
from hotlap.levers import all_levers
from hotlap.levers._process_settings import hold_attribute
from hotlap.records.files import write_record
from hotlap.records.run import Lever
from hotlap.tune.applied_levers import with_applied_levers

from .harness import NO_KERNELS, Ran, Runner, check_same

ATTENTION = (Lever(name="attention"), Lever(name="fused-optimizer"))


def said(ran: Ran) -> list[dict[str, Any]]:
    lines = (ran.ranks[0].path / "levers.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "left_out" in line]


def test_steps_before_it_left_itself_out_are_not_quoted_and_enough_follow(runner: Runner) -> None:
    """`attention` waits for eight forwards."""
    ran = runner.forked("endings.py", "catch", steps=8, levers=ATTENTION)
    (line,) = said(ran)
    assert (line["lever"], line["left_out"], line["step"]) == ("attention", "no hand-written attention was found", 7)
    assert [problem.lever for problem in ran.problems] == ["attention"] and ran.facts.stopped
    assert len(ran.steps) >= 8 + 8
    (rank,) = read_ranks(ran.folder)  # type: ignore[arg-type]
    assert all(step.probe for step in rank.steps[:8]) and not rank.steps[8].probe
    assert len(rank.steady.steps) >= 8 and min(step.step for step in rank.steady.steps) > 7


def test_what_was_computed_is_what_it_would_be_without(runner: Runner) -> None:
    check_same(runner.forked("endings.py", "none", levers=ATTENTION[:1]), runner.bare("endings.py", "none"))


def test_one_that_is_refused_before_the_first_step(runner: Runner) -> None:
    lever = Lever(name="checkpoint-blocks", settings={"every": 1})
    (line,) = said(runner.forked("updates.py", levers=(lever,)))
    assert "no repeated blocks" in line["left_out"] and line["step"] == 0


class Told:
    """Seams of an agent that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.problems: list[str | None] = []
        guard = Guard()
        guard.report = lambda where, what, trace, lever: self.problems.append(lever)
        self.stopper = SimpleNamespace(disturbed=[False] * 3, steady=object())
        agent = SimpleNamespace(
            guard=guard, begun=False, stopper=self.stopper, recorder=SimpleNamespace(index=3),
            session=SimpleNamespace(turns=""),
            append=lambda name, line: self.lines.append(json.loads(line)),
            timeline=SimpleNamespace(segment=SimpleNamespace(probe=False)),
        )  # fmt: skip
        self.agent, self.seams = agent, Seams(agent)  # type: ignore[arg-type]


class Once:
    """Refuses one of the modules that it is given."""

    def __init__(self, refused: str, error: type[Exception] = Refused) -> None:
        self.refused, self.error, self.seen = refused, error, []  # type: ignore[var-annotated]

    def install(self, seams: Seams, settings: dict[str, Any]) -> None:
        seams.on_root(self)

    def __call__(self, module: str) -> None:
        self.seen.append(module)
        if module == self.refused:
            raise self.error("not here")


def put_in(lever: Once, told: Told | None = None) -> Told:
    told = told or Told()
    told.seams.install("once", lever.install, {})
    told.agent.begun = True
    for module in ("first", "second"):
        told.seams.root(module, lambda: None)
    return told


def test_one_that_refuses_at_first_is_not_asked_again() -> None:
    lever = Once("first")
    told = put_in(lever)
    assert lever.seen == ["first"] and told.problems == ["once"]
    assert told.lines == [{"lever": "once", "left_out": "not here", "step": 3}]
    assert told.stopper.disturbed == [True] * 3 and told.stopper.steady is None
    assert told.agent.timeline.segment.probe


@pytest.mark.parametrize("lever", [Once("second"), Once("first", RuntimeError)], ids=["later", "an error"])
def test_one_that_has_changed_something_or_fails_is_a_problem_and_no_more(lever: Once) -> None:
    told = put_in(lever)
    assert lever.seen == ["first", "second"] and told.problems == ["once"]
    assert told.lines in ([{"lever": "once"}], []) and told.stopper.steady is not None


@pytest.mark.parametrize("error", [RuntimeError, IndexError, AssertionError, ZeroDivisionError, StopIteration, Refused])
def test_what_fails_half_way_is_taken_back(error: type[Exception]) -> None:
    """What refuses has changed nothing."""
    taken_back: list[str] = []
    lever = Once("second", error)
    lever.install = lambda seams, settings: seams.on_root(lever, taken_back.append)  # type: ignore[method-assign]
    told = put_in(lever)
    assert told.problems == ["once"] and taken_back == ([] if error is Refused else ["second"])
    assert told.agent.guard.on, "only that lever is out"


def test_of_an_installation_that_fails_nothing_stays() -> None:
    asked: list[str] = []
    process = SimpleNamespace(one=0, two=0)

    def install(seams: Seams, _: dict[str, Any]) -> None:
        hold_attribute(seams, process, "one", 1)
        hold_attribute(seams, process, "two", 1)
        seams.on_root(asked.append)
        seams.wrap_forward(lambda module, forward: asked.append(module) or forward, 0)  # type: ignore[func-returns-value]
        raise IndexError("list index out of range")

    told = Told()
    told.seams.install("half", install, {})
    assert (process.one, process.two) == (0, 0) and told.problems == ["half"]
    told.seams.root("model", lambda: None)
    told.seams.begun()
    assert not asked and not told.lines, "it is not said to be in either"


@pytest.mark.parametrize("fails", ["change", "wrap"])
def test_a_model_has_all_of_a_lever_or_nothing(fails: str) -> None:
    done: list[str] = []

    def act(what: str) -> Any:
        done.append(what)
        return lambda: None if what != fails else 1 // 0

    def change(module: str) -> None:
        act("change")()

    def wrap(module: str, forward: Any) -> Any:
        act("wrap")()
        return "wrapped"

    def install(seams: Seams, _: dict[str, Any]) -> None:
        seams.on_root(change, lambda module: done.append("undo"))
        seams.wrap_forward(wrap, 0)

    told = Told()
    told.seams.install("half", install, {})
    assert told.seams.root("model", "own") == "own"  # type: ignore[arg-type, comparison-overlap]
    assert done == [*(["change"] if fails == "change" else ["change", "wrap"]), "undo"] and told.problems == ["half"]


class OfItsOwn(DataLoader):  # type: ignore[type-arg]
    """A loader whose batches have a size that can be read only, once it is made."""

    @property
    def prefetch_factor(self) -> int | None:  # type: ignore[override]
        return None

    @prefetch_factor.setter
    def prefetch_factor(self, value: int | None) -> None:
        if value is not None:
            raise AssertionError("not here")


def test_a_loader_that_fails_half_way_is_the_script_s_own_again() -> None:
    told, loader = Told(), OfItsOwn([torch.ones(1)] * 4)
    told.seams.install("workers", all_levers()["loader-workers"].install, WORKERS.settings)
    for _ in range(2):
        told.seams.loader(loader, True)
        assert loader.num_workers == 0 and not loader.persistent_workers
        assert loader.check_worker_number_rationality.__self__ is loader
    assert told.problems == ["workers"] * 2 and len(list(loader)) == 4


HALF_WAY = """
import torch
import hotlap.levers._fused as fused
fused.begin_at_zero = lambda optimizer: [][0]
"""
INSTALLED_HALF_WAY = """
import torch
from hotlap.levers.memory._cycle import Cycle
Cycle._patch_scaler = lambda self: [][0]
"""
"""After all else is put in: schedulers would be held back, and gradients scaled."""


@pytest.mark.parametrize(
    ("script", "before", "lever"),
    [
        (("updates.py", "--schedule", "batch"), HALF_WAY, Lever(name="fused-optimizer")),
        (("updates.py", "--schedule", "batch"), INSTALLED_HALF_WAY, Lever(name="accumulate", settings={"parts": 2})),
    ],
    ids=["an optimizer", "an installation"],
)
def test_a_script_under_a_lever_that_fails_half_way_computes_the_same(
    runner: Runner, script: tuple[str, ...], before: str, lever: Lever
) -> None:
    ran = runner.forked(*script, before=before, levers=(lever,))
    check_same(ran, runner.bare(*script))
    assert {(one.lever, one.what) for one in ran.problems} == {(lever.name, "IndexError: list index out of range")}
    assert ran.steps, "hotlap goes on"


def test_a_full_disk_makes_it_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()

    def full(name: str, line: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(told.agent, "append", full)
    assert put_in(Once("first"), told).problems == ["once"]


WORKERS = Lever(name="loader-workers", settings={"workers": 1, "prefetch": 2, "pin_memory": False, "persistent": True})


@pytest.mark.parametrize("what", ["nothing", "attribute", "inside", "tensor", "start", "within"])
def test_workers_go_on_as_long_as_the_dataset_is_as_it_was(runner: Runner, tmp_path: Path, what: str) -> None:
    """A recommender draws its negatives anew before each epoch: from the second on it was trained on the first one's,
    with a recipe whose parity held bit for bit, as the steps that are compared were of one epoch."""
    bare = runner.bare("changing_data.py", what, str(tmp_path / "bare"))
    ran = runner.forked("changing_data.py", what, str(tmp_path / "ran"), levers=(WORKERS,))
    assert not ran.problems and ran.output == bare.output
    assert ("3 given 3" in bare.output) is (what in {"attribute", "inside", "tensor"})
    workers = (tmp_path / "ran").read_text().splitlines()
    assert all(workers) and len(set(workers)) == (1 if what == "nothing" else 4), "each epoch, or all"
    assert what != "within" or bare.output.splitlines()[-2:] == ["a sample 4", "rows 8 in pairs 8"]


def test_a_recipe_s_levers_that_change_nothing_are_not_said_to_be_in(runner: Runner) -> None:
    """LBFGS on linear layers, batches without a loader: all four were on the screen as if they had been in."""
    host = Lever(name="host-allocator", settings={"allocator": "glibc"})
    levers = (Lever(name="fused-optimizer"), Lever(name="channels-last"), host, WORKERS)
    ran = runner.forked("optimizers.py", "lbfgs", levers=levers)
    assert ran.folder is not None and not ran.problems
    check_same(ran, runner.bare("optimizers.py", "lbfgs"))
    run = runner.request(["python"], ran.folder, levers=levers).record()
    write_record(ran.folder / "run.json", run)
    run = with_applied_levers(ran.folder, run)
    assert [lever.name for lever in run.levers] == ["host-allocator"]
    assert {one.lever.name: one.why for one in run.left_out} == {
        "fused-optimizer": "LBFGS has no fused implementation",
        "channels-last": "Sequential has no 2-d convolutions",
        "loader-workers": "no DataLoader feeds the loop",
    }


@pytest.mark.parametrize(("script", "held"), [(("penalty.py", "inline"), True), (("slopes_alone.py",), False)])
def test_a_compiler_that_compiled_nothing_is_not_said_to_be_in(
    script: tuple[str, ...], held: bool, runner: Runner
) -> None:
    """Each forward was of an input whose gradient is differentiated again: the screen said `levers compile`."""
    levers = (Lever(name="compile", settings={"mode": "default"}),)
    ran = runner.forked(*script, before=NO_KERNELS, levers=levers)
    assert ran.folder is not None and not ran.problems and ran.code == 0
    write_record(ran.folder / "run.json", runner.request(["python"], ran.folder, levers=levers).record())
    run = with_applied_levers(ran.folder, runner.request(["python"], ran.folder, levers=levers).record())
    assert [one.why for one in run.left_out] == ([] if held else ["no forward could be compiled"])


def test_one_with_nothing_to_do_at_first_may_have_it_later() -> None:
    told = put_in(lever := Once("first", NothingToDo))
    assert lever.seen == ["first", "second"] and not told.problems
    assert told.lines == [{"lever": "once", "nothing": "not here"}, {"lever": "once"}]
    assert told.stopper.steady is not None and not told.agent.timeline.segment.probe
    told = put_in(Once("second", NothingToDo))
    assert told.lines == [{"lever": "once"}] and not told.problems


def test_nothing_to_do_before_the_loop_is_said_when_it_begins() -> None:
    told = Told()
    told.seams.install("once", Once("first", NothingToDo).install, {})
    told.seams.root("first", lambda: None)
    assert not told.lines
    told.agent.begun = True
    told.seams.begun()
    assert told.lines == [{"lever": "once", "nothing": "not here"}]
