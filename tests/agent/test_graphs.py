"""CUDA graphs of a script's own, on a device that is made up: nothing is asked of it while one is recorded, and their
replays are steps."""

import pytest

from .harness import Ran, Runner, check_same, recorded_losses
from .test_faults import GRAPHS
from .test_step_sampling import SOON, unsampled

ASKED = """
import sys
import hotlap.agent.core as core

def recording():
    return bool(getattr(sys.modules["__main__"], "running", ()))

def checked(owner, name):
    original = getattr(owner, name)

    def call(self, *args, **kwargs):
        assert not recording(), name
        return original(self, *args, **kwargs)
    setattr(owner, name, call)

for name in ("_line", "_unsampled_lines"):
    checked(core.Recorder, name)
if "beside" not in sys.argv:
    checked(core.Agent, "_finished")
"""
"""An error of hotlap's own where the device is asked what it has done, or a step ends, while a graph is recorded."""


def run(runner: Runner, *argv: str, before: str = "", every_step: bool = True) -> Ran:
    ran = runner.untouched("captured.py", *argv, ours=ASKED + before, every_step=every_step)
    assert ran.code == 0
    return ran


@pytest.mark.parametrize(
    ("kind", "steps", "replayed"),
    [
        ("whole", 3 + 9 + 1, ("forward", "backward", "optimizer")),
        ("again", 3 + 9 + 9 + 1, ("forward", "backward", "optimizer")),
        ("partial", 3 + 9, ("forward", "backward")),
        ("two", 3 + 9, ("forward", "backward", "optimizer")),
        ("inside", 3 + 9, ()),
        ("failed", 3 + 9, ()),
        ("refused", 3 + 9, ()),
    ],
)
def test_what_is_recorded_is_no_step_and_its_replays_are(
    kind: str, steps: int, replayed: tuple[str, ...], runner: Runner
) -> None:
    ran = run(runner, kind, "9")
    assert len(ran.steps) == steps
    assert {step.kind for step in ran.steps} == {"train"}
    assert recorded_losses(ran.steps) == ran.losses
    assert ran.facts.replayed == replayed


@pytest.mark.parametrize(
    ("kind", "steps", "updates"),
    [
        ("forward", 3 + 9, 3 + 9),
        ("stale", 3 + 9, 3 + 9),
        ("beside", 3 + 9, 3 + 9),
        ("both", 3 + 9 + 1, 2 * (3 + 9 + 1)),
        ("unrolled", 3 + 9, 3 + 9 * 5),
        ("dropped", 3 + 9, 3 + 9),
        ("evaluation", 3 + 9, 3 + 9),
    ],
)
def test_what_else_scripts_do_with_graphs(kind: str, steps: int, updates: int, runner: Runner) -> None:
    ran = run(runner, kind, "9")
    assert (len(ran.steps), ran.facts.optimizer_steps) == (steps, updates)
    assert [step.step for step in ran.steps if step.evaluation] == ([5, 9] if kind == "evaluation" else [])
    if kind not in {"stale", "both"}:
        assert recorded_losses(ran.steps) == ran.losses


def test_replays_in_a_data_set_are_no_steps(runner: Runner) -> None:
    ran = run(runner, "data", "40")
    assert [step.kind for step in ran.steps] == ["inference"] * 40


def test_a_thread_that_records_something_is_not_the_one_that_runs_the_model(runner: Runner) -> None:
    ran = run(runner, "thread", "40")
    assert [step.kind for step in ran.steps] == ["inference"] * 40


def test_updates_and_backwards_of_replays_that_are_not_looked_at(runner: Runner) -> None:
    ran = run(runner, "unrolled", "80", before=SOON, every_step=False)
    assert len(unsampled(ran.steps)) > 15
    assert ran.facts.optimizer_steps == ran.facts.backwards == 3 + 80 * 5


def test_a_replay_of_several_phases_is_charged_to_none_of_them(runner: Runner) -> None:
    ran = run(runner, "whole", "9")
    assert ran.facts.optimizer_steps == 13
    for step in ran.steps[4:-1]:
        assert step.phases is not None
        assert (step.phases.forward, step.phases.backward, step.phases.optimizer) == (0, 0, 0)
        assert step.phases.other > 0 and step.loss is None and step.samples is None


def test_the_update_beside_a_recorded_backward_is_an_update(runner: Runner) -> None:
    ran = run(runner, "partial", "9")
    for step in ran.steps[4:]:
        assert step.phases is not None
        assert step.phases.optimizer > 0 and step.phases.other > 0 and step.phases.backward == 0


def test_replays_of_an_inference(runner: Runner) -> None:
    ran = run(runner, "infer", "40")
    assert [step.kind for step in ran.steps] == ["inference"] * 43
    assert all(step.phases is not None and step.phases.forward > 0 for step in ran.steps)


@pytest.mark.parametrize("kind", ["whole", "two", "partial", "infer", "again", "inside"])
def test_replays_that_are_not_looked_at(kind: str, runner: Runner) -> None:
    ran = run(runner, kind, "40", before=SOON, every_step=False)
    assert len(ran.steps) == {"again": 84, "whole": 44}.get(kind, 43)
    assert len(unsampled(ran.steps)) > 15


@pytest.mark.parametrize("hook", sorted(GRAPHS))
def test_an_error_in_a_hook(hook: str, runner: Runner) -> None:
    bare, ran = runner.bare("captured.py", "whole", "9"), runner.forked("captured.py", "whole", "9", fail_in=hook)
    check_same(ran, bare)
    assert [problem.where for problem in ran.problems] == [hook]
    assert len(ran.steps) == 3
