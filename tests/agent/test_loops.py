"""Every kind of loop: what is recorded, and that the script does exactly what it does without hotlap."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from hotlap.agent.core import SAMPLE_EVERY

from .harness import Runner, check_clean, check_lines, check_same, recorded_losses


@dataclass
class Case:
    """A script and what its records must show.

    samples: of each step, or of all. known_from: the first step whose forward is told apart (one of plain functions
    is known only after a backward that had none).
    """

    argv: str
    steps: int = 12
    samples: int | dict[int, int | None] | None = 6
    phases: tuple[str, ...] = ("forward", "backward", "optimizer")
    kind: str = "train"
    evaluations: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    code: int = 0
    per_step: int = 1
    known_from: int = 1


LOADED = ("data", "forward", "backward", "optimizer")
UNOPTIMIZED = ("forward", "backward")
CASES = [
    Case("loader.py map", phases=LOADED),
    Case("loader.py map --workers 2", phases=LOADED),
    Case("loader.py iterable", phases=LOADED),
    Case("loader.py subclass --workers 1", phases=LOADED),
    Case("loader.py len", phases=LOADED),
    Case("loader.py model --workers 0", phases=LOADED),
    Case("loader.py generator"),
    Case("loop.py plain"),
    Case("loop.py accumulate", samples=18, per_step=3),
    Case("loop.py own", phases=UNOPTIMIZED),
    Case("loop.py manual", phases=UNOPTIMIZED),
    Case("loop.py sub"),
    Case("loop.py several"),
    Case("loop.py rollout"),
    Case("loop.py forward"),
    Case("loop.py functional", samples=None),
    Case("loop.py lazy"),
    Case("loop.py checkpoint"),
    Case("loop.py script"),
    Case("loop.py passing"),
    Case("loop.py patched"),
    Case("by_hand.py bare 12", samples=None, phases=("backward",)),
    Case("by_hand.py model 12", phases=UNOPTIMIZED),
    Case("by_hand.py loader 12", phases=("data", *UNOPTIMIZED)),
    Case("by_hand.py jacobian 12", phases=UNOPTIMIZED),
    Case("inside.py one"),
    Case("inside.py some"),
    Case("optimizers.py gan 1 1", samples=18, per_step=2),
    Case("optimizers.py gan 5 1", samples=66, per_step=6),
    Case("optimizers.py together"),
    Case("optimizers.py folds 0", steps=36),
    Case("optimizers.py folds 1", steps=36),
    Case("optimizers.py unused", steps=20),
    Case("optimizers.py lbfgs", samples=18, per_step=3),
    Case("scaler.py", skipped=(5,)),
    Case("evaluation.py between", evaluations=(4, 8)),
    Case("evaluation.py before", evaluations=(0,)),
    Case("evaluation.py loader", phases=LOADED, evaluations=(4, 8)),
    Case("evaluation.py part", evaluations=(8,)),
    Case("evaluation.py whole", evaluations=(8,)),
    Case("evaluation.py frozen"),
    Case("evaluation.py graded", evaluations=tuple(range(1, 12))),
    Case("inference.py no_grad", steps=24, phases=("forward",), kind="inference", per_step=0),
    Case("inference.py inference_mode loader", steps=24, phases=("data", "forward"), kind="inference", per_step=0),
    Case("threads.py train"),
    Case("threads.py read", samples={0: None}),
    Case("copies.py"),
    Case("teacher.py"),
    Case("meta.py"),
    Case("scripted.py", evaluations=(10,)),
    Case("endings.py exit", steps=9, code=3),
    Case("endings.py raise", steps=9, code=1),
    Case("endings.py kill SIGINT", steps=9, code=-2),
    Case("endings.py kill SIGTERM", steps=9, code=-15),
    Case("endings.py kill SIGKILL", steps=9, code=-9),
    Case("compiled.py module eager"),
    Case("compiled.py method aot_eager"),
    Case("compiled.py function eager", samples=None),
    Case("compiled.py warm eager", samples={0: 6}, known_from=2),
    Case("compiled.py grad eager", samples=None),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.argv)
def test_loop(case: Case, runner: Runner) -> None:
    argv = case.argv.split()
    ran = runner.untouched(*argv)
    assert ran.code == case.code
    assert len(ran.ranks) == 1
    steps = ran.steps
    assert len(steps) == case.steps
    assert {step.kind for step in steps} == {case.kind}
    assert [step.step for step in steps if step.evaluation] == list(case.evaluations)
    assert [step.step for step in steps if step.skipped] == list(case.skipped)
    if isinstance(case.samples, dict):
        first, rest = case.samples[0], None if case.samples[0] else 6
        assert [step.samples for step in steps] == [first] + [rest] * (case.steps - 1)
    else:
        assert [step.samples for step in steps] == [case.samples] * case.steps
    for step in [step for step in steps[case.known_from :] if not step.skipped]:
        assert {name for name in case.phases if getattr(step.phases, name) > 0} == set(case.phases)
        unused = {"data", "h2d", "backward", "optimizer"} - set(case.phases)
        assert {name: getattr(step.phases, name) for name in unused} == dict.fromkeys(unused, 0)
    recorded = recorded_losses(steps)
    if case.code:  # the loss of the turn that did not end belongs to no step
        assert recorded == ran.losses[: len(recorded)]
    else:
        assert recorded == ran.losses
    assert [len(step.losses or ()) or (step.loss is not None) for step in steps] == [case.per_step] * case.steps
    if case.per_step > 1:
        assert [step.loss for step in steps] == [pytest.approx(sum(step.losses or ())) for step in steps]


def test_two_models_whose_optimizers_step_inside_the_backward_are_a_cycle(runner: Runner) -> None:
    ran = runner.untouched("inside.py", "two")
    assert [len(step.losses or ()) for step in ran.steps] == [2] * 12
    assert recorded_losses(ran.steps) == ran.losses


def test_failed_steps_caught_by_the_script_join_the_next(runner: Runner) -> None:
    ran = runner.untouched("endings.py", "broken")
    assert ran.output.count("caught no step today") == 2
    assert [step.samples for step in ran.steps] == [6, 6, 6, 18, *[6] * 6]
    assert recorded_losses(ran.steps) == ran.losses


def test_a_kill_among_short_steps_loses_one_group_at_most(runner: Runner) -> None:
    ran = runner.forked("endings.py", "kill", "SIGKILL", "150")
    check_lines(ran.folder)
    losses = recorded_losses(ran.steps)
    assert 150 - SAMPLE_EVERY < len(losses) <= 150
    assert losses == ran.losses[: len(losses)]


def test_an_exit_among_short_steps_loses_none(runner: Runner) -> None:
    ran = runner.forked("endings.py", "exit", "", "150")
    check_clean(ran)
    assert (ran.code, recorded_losses(ran.steps)) == (3, ran.losses[:150])


def test_a_compiled_optimizer_step_keeps_its_graph(runner: Runner) -> None:
    """Its hooks are compiled away, so steps are told apart only once that many backwards came without one."""
    argv = ("compiled.py", "step", "eager")
    ran = runner.untouched(*argv)
    assert recorded_losses(ran.steps) == ran.losses
    assert len(ran.steps[0].losses or ()) == 64
    assert {step.samples for step in ran.steps[1:]} == {6}


def test_moves_inside_a_compiled_region_keep_the_graph(runner: Runner) -> None:
    """`Tensor.to` is patched only in builds of torch that have a device: pretend that this is one."""
    ran = runner.untouched("compiled.py", "grad", "eager", ours="torch.version.cuda = '12.0'")
    assert recorded_losses(ran.steps) == ran.losses


def test_a_process_that_never_trains_says_so(runner: Runner) -> None:
    ran = runner.untouched("nothing.py")
    assert ran.steps == []
    assert ran.facts.mode == "none"
    assert (ran.facts.forwards, ran.facts.backwards, ran.facts.optimizer_steps) == (0, 0, 0)


@pytest.mark.parametrize(
    ("argv", "workers", "rows"), [("loader.py map", 0, 6), ("loader.py map --workers 2", 2, 6)], ids=["0", "2"]
)
def test_facts(argv: str, workers: int, rows: int, runner: Runner) -> None:
    facts = runner.forked(*argv.split()).facts
    assert facts.mode == "train"
    assert (facts.forwards, facts.backwards, facts.optimizer_steps) == (12, 12, 12)
    assert [(found.workers, found.batch_size, found.training) for found in facts.loaders] == [(workers, rows, True)]
    assert [(found.name, found.parameters, found.compiled) for found in facts.roots] == [("Sequential", 49, False)]
    assert [(found.name, found.tensors) for found in facts.optimizers] == [("SGD", 4)]
    assert facts.in_flight == 2 * workers


def test_facts_tell_a_model_that_the_script_compiled(runner: Runner) -> None:
    roots = runner.forked("compiled.py", "method", "aot_eager").facts.roots
    assert [root.compiled for root in roots] == [True]


LIBRARY = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((4,), float(index))

class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)
"""
USES_IT = """
import sys
sys.path.insert(0, {installed!r})
import torch
from an_installed_library import Model, Rows

def train():
    model = Model(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(Rows(), batch_size=4):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train()
"""


def test_what_is_a_librarys_is_placed_where_the_user_uses_it(runner: Runner, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "an_installed_library.py").write_text(LIBRARY)
    script = tmp_path / "uses.py"
    script.write_text(USES_IT.format(installed=str(installed)))
    ran = runner.forked(str(script))
    assert ran.code == 0
    facts = ran.facts
    places = [(one.file, one.line, one.function) for one in (facts.loaders[0], facts.roots[0])]
    lines = script.read_text().splitlines()
    looped, called = (next(at for at, text in enumerate(lines, 1) if word in text) for word in ("for x", "model(x)"))
    assert places == [(str(script), looped, "train"), (str(script), called, "train")]


def test_a_second_ctrl_c_while_hotlap_finishes_says_nothing(runner: Runner) -> None:
    bare, ran = runner.bare("endings.py", "again"), runner.forked("endings.py", "again")
    assert (bare.code, ran.code) == (0, 0)
    check_same(ran, bare)
    check_lines(ran.folder)


def test_a_frozen_part_put_in_eval_mode_each_step_is_looked_after_seldom(runner: Runner, tmp_path: Path) -> None:
    """To look at a call that follows `eval`, the class of all modules is patched, which takes time."""
    looks = tmp_path / "looks"
    count = f"""
import hotlap.agent.hooks.forward as forward
look = forward.Finder.look

def counted(self, evaluation=False):
    with open({str(looks)!r}, "a") as file:
        file.write("evaluation " if evaluation else "modules ")
    look(self, evaluation)

forward.Finder.look = counted
"""
    ran = runner.forked("evaluation.py", "frozen", before=count)
    check_clean(ran)
    assert looks.read_text().split() == ["modules", "evaluation"]


@pytest.mark.parametrize("kind", ["evaluation", "attack", "attacks", "micro", "aside", "passes", "ahead", "whole"])
def test_gradients_that_no_update_follows_make_no_steps_and_no_rows(kind: str, runner: Runner) -> None:
    """Rows are of batches that were learned from, however many others came while gradients were on."""
    ran = runner.untouched("graded.py", kind)
    assert len(ran.steps) == 30
    ahead = 12 if kind == "ahead" else 0
    assert [step.samples for step in ran.steps[:1]] == [{"aside": 12, "whole": 72}.get(kind, 6) + ahead]
    assert {step.samples for step in ran.steps[1:]} == {{"aside": 12, "whole": 72}.get(kind, 6)}
    left_out = [10, 20] if kind in {"evaluation", "attack", "passes"} else []
    assert [step.step for step in ran.steps if step.evaluation] == left_out


def test_a_model_that_is_trained_after_another_one_acted_is_seen(runner: Runner) -> None:
    ran = runner.untouched("acts_first.py")
    assert sum(step.kind != "inference" for step in ran.steps) == 30
    assert {root.name for root in ran.facts.roots} == {"Sequential", "Value"}


def test_a_model_in_a_wrapper_is_called_by_its_own_name(runner: Runner) -> None:
    ran = runner.untouched("data_parallel.py")
    (root,) = ran.facts.roots
    assert (root.name, root.wrapper, root.function) == ("Net", "DataParallel", "Net.forward")
    assert root.file is not None and root.file.endswith("data_parallel.py") and root.line == 12
    assert root.called is not None and root.called[1:] == (20, "<module>")


def test_wrappers_that_are_made_anew_in_each_step_are_seen_through(runner: Runner) -> None:
    """Neural ODEs: the class was patched and put back around each call, for ever, which doubled the time of a step."""
    ran = runner.untouched("wrapped_anew.py")
    assert "patched False" in ran.output
    assert [root.name for root in ran.facts.roots] == ["Slopes"]
    assert all(step.phases is not None and step.phases.forward for step in ran.steps[1:])


def test_how_much_is_trained_is_told_where_it_changes(runner: Runner) -> None:
    ran = runner.untouched("thaws.py")
    (first, frozen), (then, all_of_it) = [(one.step, one.trained) for one in ran.steps if one.trained is not None]
    assert (frozen, all_of_it) == (2, 4) and first < 30 <= then <= 46
