"""Facts that can't be told, and those of which torch has two."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotlap.agent import facts
from hotlap.diagnose.diagnose import diagnose
from hotlap.records.errors import NothingMeasured
from hotlap.records.files import write_record

from .harness import Runner, check_clean, check_lines, check_same

HIGH, NEW, ALL = (
    'torch.set_float32_matmul_precision("high")',
    'torch.backends.cuda.matmul.fp32_precision = "{}"',
    'torch.backends.fp32_precision = "{}"',
)


@pytest.mark.parametrize(
    ("before", "matmul"),
    [
        ("", False),
        (HIGH, True),
        (NEW.format("tf32"), True),
        (f"{HIGH}; {NEW.format('ieee')}", False),
        (ALL.format("tf32"), True),
        (ALL.format("ieee"), False),
    ],
)
def test_tf32_is_told_however_it_was_set(before: str, matmul: bool, runner: Runner) -> None:
    ran = runner.untouched("loader.py", "map", before=before)
    assert ran.facts.tf32_matmul == matmul
    assert len(ran.steps) == 12
    first = ran.steps[0]
    assert ran.facts.torch_imported is not None and ran.facts.torch_imported < first.time - first.wall_ms / 1000


def test_where_an_optimizer_is_made_is_told(runner: Runner) -> None:
    """What its groups are is decided there; the file may be gone when the run is judged."""
    ran = runner.forked("loader.py", "map")
    check_clean(ran)
    (optimizer,) = ran.facts.optimizers
    assert optimizer.made is not None and optimizer.stepped is not None
    lines = Path(optimizer.made[0]).read_text().splitlines()
    assert "torch.optim." in lines[optimizer.made[1] - 1] and ".step(" in lines[optimizer.stepped[1] - 1]


def test_a_model_on_meta_is_not_the_device_that_trains(runner: Runner) -> None:
    ran = runner.forked("meta.py")
    check_clean(ran)
    assert ran.facts.device == "cpu"
    assert {root.devices for root in ran.facts.roots} == {("meta",), ("cpu",)}


def test_numbers_that_are_numpys_are_told(runner: Runner) -> None:
    ran = runner.untouched("numpy_sizes.py")
    (loader,), (root,), (optimizer,) = ran.facts.loaders, ran.facts.roots, ran.facts.optimizers
    assert (loader.workers, loader.prefetch, loader.batch_size) == (1, 3, 6)
    assert (root.classes, optimizer.fused, ran.facts.argv[-1]) == (202, True, "7")


def test_the_model_is_the_one_that_an_optimizer_updates(runner: Runner) -> None:
    ran = runner.forked("teacher.py")
    check_clean(ran)
    roots = {root.name: (root.parameters, root.optimized) for root in ran.facts.roots}
    assert roots == {"Student": (49, 49), "Teacher": (385, 0)}
    assert ran.facts.model is not None and ran.facts.model.name == "Student"


def test_a_convolution_whose_weight_is_made_by_a_hook(runner: Runner) -> None:
    """Equalised learning rates: the module has no weight between its forwards, for which hotlap switched itself off."""
    ran = runner.forked("made_weight.py")
    check_clean(ran)
    assert [(root.name, root.conv, root.channels_last) for root in ran.facts.roots] == [("Sequential", 1, False)]


def test_a_part_that_is_also_called_by_itself_is_one(runner: Runner) -> None:
    """As the encoder of a VAE, whose codes another network looks at: it stood beside the VAE."""
    ran = runner.forked("parts.py")
    check_clean(ran)
    assert {root.name: root.part_of for root in ran.facts.roots} == {"Encoder": "Whole", "Whole": None, "Other": None}


def test_rooms_are_found_by_listing_and_asked_what_they_can_tell() -> None:
    """A function whose name nobody calls would tell nothing."""
    files = {path.stem for path in Path(facts.__file__).parent.glob("*.py")} - {"__init__"}
    assert {room.__name__.rpartition(".")[2] for room in facts.ROOMS} == files
    asked = {*re.findall(r"`(\w+)\(", facts.__doc__ or "")}
    told = [
        {name for name in vars(room) if name in asked or name.startswith(("describe", "look"))} for room in facts.ROOMS
    ]
    assert all(told) and {name for names in told for name in names} == asked
    text = Path(facts.__file__).read_text()
    assert all(text.count(f'"{name}"') == 1 for name in asked if name.startswith(("describe", "look")))


def test_a_new_room_is_all_that_a_new_fact_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    room = SimpleNamespace(
        describe_optimizer=lambda optimizer, parameters: {"largest": max(one.numel() for one in parameters)},
        describe_model=lambda model: {"kind": type(model.module()).__name__},
        handed=lambda model, leaves: {"given": len(leaves)},
    )
    monkeypatch.setattr(facts, "ROOMS", [*facts.ROOMS, room])
    module = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    script = facts.Script(SimpleNamespace(steps=SimpleNamespace(backwards=0)))  # type: ignore[arg-type]
    script.optimizer(optimizer)
    script.root(module, training=True, compiled=False)
    assert script.forward("handed", module, [torch.ones(1, 2)])["given"] == 1
    assert script.optimizers[id(optimizer)]["largest"] == 6
    assert script.roots[id(module)].facts["kind"] == script.roots[id(module)].facts["name"] == "Linear"


NO_FACTS = """
import hotlap.agent.facts.process as facts

def fail():
    raise RuntimeError("not to be told")

facts.tf32_matmul = fail
"""


@pytest.mark.parametrize(
    ("before", "fail_in", "what"), [(NO_FACTS, None, "not to be told"), ("", "facts", "injected into facts")]
)
def test_a_fact_that_cannot_be_told_ends_nothing(before: str, fail_in: str | None, what: str, runner: Runner) -> None:
    bare, ran = runner.bare("loader.py", "map"), runner.forked("loader.py", "map", before=before, fail_in=fail_in)
    check_same(ran, bare)
    check_lines(ran.folder)
    assert {(problem.where, problem.what) for problem in ran.problems} == {("facts", f"RuntimeError: {what}")}
    assert len(ran.problems) == 3  # at two steps and at the end
    assert len(ran.steps) == 12


def test_the_screen_says_why_there_are_none(runner: Runner) -> None:
    ran = runner.under(("by_hand.py", "model", "12"))
    (ran.ranks[0].path / "facts.json").unlink()
    died = "the model and loaders are unknown: the process died before hotlap wrote them down (facts.json)"
    failed = died.replace("the process died", "hotlap had a problem of its own")
    went_off = "hotlap had a problem of its own and may have missed what came later (problems.jsonl)"
    said = diagnose(ran.folder).unknown
    assert died in said and went_off not in said
    problems = ran.ranks[0].path / "problems.jsonl"
    for where, goes_on in (("facts", True), ("optimizer_end", False)):
        problems.write_text(json.dumps({"where": where, "what": "RuntimeError"}) + "\n")
        said = diagnose(ran.folder).unknown
        assert failed in said and died not in said
        assert (went_off in said) != goes_on


def test_a_loop_over_experts_is_told_where_it_looks_for_rows(runner: Runner) -> None:
    ran = runner.untouched("experts.py")
    (root,) = ran.facts.roots
    assert root.expert_loop is not None
    file, line, function = root.expert_loop
    assert "torch.where(chosen == number)" in Path(file).read_text().splitlines()[line - 1]
    assert function == "Layer.forward"


HANGS = """
import sys, time, torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, at):
        if at == int(sys.argv[1]):
            time.sleep(60)
        return torch.ones(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Rows(), num_workers=2, timeout=1):
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("at", "steps"), [(0, 0), (1, 1), (20, 20), (390, 390)])
def test_a_worker_that_hangs_is_told(at: int, steps: int, runner: Runner, tmp_path: Path) -> None:
    """In a step that is looked at, and in one that is only timed."""
    (tmp_path / "hangs.py").write_text(HANGS)
    before = "import hotlap.agent.loaders as f; f.HUNG_S = 0.5"
    ran = runner.forked(str(tmp_path / "hangs.py"), str(at), before=before, every_step=False)
    assert ran.code == 1 and "timed out" in ran.output and len(ran.steps) == steps
    write_record(ran.folder / "run.json", runner.request((sys.executable, "hangs.py"), ran.folder).record())
    hung = ran.facts.hung
    assert hung is not None and 0.5 < hung.waited_s < 30
    assert (hung.worker, hung.alive, hung.line) == (at % 2, True, 14)
    said = f"for a batch of worker {at % 2} (process {hung.worker_pid}, alive) at {tmp_path}/hangs.py:14 when it ended"
    if steps > 3:
        assert any(said in text for text in diagnose(ran.folder).unknown)
    else:
        with pytest.raises(NothingMeasured, match=re.escape(said)):
            diagnose(ran.folder)


def test_a_loop_that_ends_did_not_hang(runner: Runner) -> None:
    ran = runner.forked("habits.py", "plain", before="import hotlap.agent.loaders as f; f.HUNG_S = 0.0")
    check_clean(ran)
    assert ran.facts.hung is None


def test_models_that_run_without_gradients_besides_the_training(runner: Runner) -> None:
    ran = runner.untouched("besides.py")
    each, rare = sorted(ran.facts.besides, key=lambda one: -one.steps)
    assert (each.name, each.trained, each.calls, each.inference_mode) == ("Net", False, 2 * each.steps, True)
    assert each.steps == each.of > 20 and each.took_ms > 0 and each.place is not None and each.place[1] == 19
    assert rare.trained and 0 < rare.calls == rare.steps <= 3 and not rare.inference_mode
