"""Samples of the host put into findings."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.diagnose import small_ops
from hotlap.diagnose.causes import ELEMENTS
from hotlap.diagnose.findings.host_code import BESIDES, WITHOUT_A_PROFILE
from hotlap.diagnose.long_samples import with_long_steps
from hotlap.diagnose.repeated import AGAIN
from hotlap.diagnose.sampled import with_samples
from hotlap.diagnose.small_ops import INSTEAD
from hotlap.records.diagnosis import Bound, Diagnosis, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import LongSamples, Samples, WorkerSamples
from hotlap.records.run import LoaderFacts
from made_runs import diagnosis_of

LOOP = Place(file="train.py", line=1)


def verdict(id_: str, bound: Bound) -> Diagnosis:
    found = Finding(id=id_, bound=bound, share=0.5, where=LOOP, evidence="x")
    return diagnosis_of(bound=bound, step_ms=1.0, findings=(found,))


def samples(*lines: tuple[str, int, int, str, str, float], looks: int = 100) -> Samples:
    return Samples(steps=3, looks=looks, files=("a.py", "b.py"), lines=lines)


@pytest.mark.parametrize(("finding", "bound", "phase"), [("input", "input", "data"), ("host-code", "unknown", "other")])
def test_the_line_with_most_time_of_the_phase_is_the_place(finding: str, bound: Bound, phase: str) -> None:
    other = "forward" if phase == "data" else "data"
    said = samples(
        (other, 0, 99, "f", "", 900.0),
        (phase, 0, 3, "load", "", 30.0),
        (phase, 1, 7, "decode", "json.loads", 40.0),
        (phase, 1, 7, "decode", "", 20.0),
        (phase, -1, 0, "", "wait", 10.0),
    )
    found = with_samples(verdict(finding, bound), said).findings[0]
    assert found.where == Place(file="b.py", line=7, function="decode")
    assert found.evidence == "x; 60% of it at this line, in json.loads"


@pytest.mark.parametrize(
    "said",
    [
        samples(("data", 0, 3, "f", "", 50.0), looks=3),  # too few looks
        samples(*[("data", 0, line, "f", "", 10.0) for line in range(10)]),  # no line stands out
        samples(("data", -1, 0, "", "wait", 50.0)),  # no line of the user's
        samples(("data", 5, 3, "f", "", 50.0)),  # no such file
        samples(("other", 0, 3, "f", "", 50.0)),  # another phase
    ],
)
def test_otherwise_the_finding_stays(said: Samples) -> None:
    before = verdict("input", "input")
    assert with_samples(before, said) == before


@pytest.mark.parametrize(
    ("equal_looks", "said"),
    [
        ({}, "x; 32% of it at this line, in json.loads"),
        ({"other": 40.0}, "x; 32% of it at this line, in json.loads"),
        ({"other": 8.0}, "x; 70% of it in save, 32% at this line"),
        ({"other": 1.5}, "x"),
    ],
)
def test_a_line_is_told_where_enough_looks_are_sure(equal_looks: dict[str, float], said: str, tmp_path: Path) -> None:
    """One of 75 looks came 12 ms late, and a third of the loop's own time was told at a line that takes none."""
    rows = (
        ("other", 0, 3, "save", "json.loads", 32.0),
        ("other", 0, 5, "save", "", 20.0),
        ("other", 0, 7, "save", "", 18.0),
    )
    rest = (("other", 1, 9, "g", "", 15.0), ("other", 1, 7, "f", "", 15.0))
    (tmp_path / "a.py").write_text("\ndef save(x):\n    a = f(x)\n\n    b = g(a)\n\n    return h(b)\n")
    seen = samples(*rows, *rest, looks=75)
    seen = msgspec.structs.replace(seen, equal_looks=equal_looks, files=(str(tmp_path / "a.py"), "b.py"))
    found = with_samples(verdict("host-code", "unknown"), seen)
    assert found.findings[0].evidence == said


@pytest.mark.parametrize(
    ("looks", "why"), [(100, "it stands"), (3, "it stands; 3 stack samples of the profile name no line")]
)
def test_with_a_profile_none_is_asked_for(looks: int, why: str) -> None:
    before = verdict("host-code", "unknown")
    (found,) = (msgspec.structs.replace(one, why=f"it stands; {WITHOUT_A_PROFILE}") for one in before.findings)
    said = samples(("other", 0, 3, "f", "", 50.0), looks=looks)
    assert with_samples(msgspec.structs.replace(before, findings=(found,)), said).findings[0].why == why


@pytest.mark.parametrize(("late", "line"), [("input", 3), ("python", 8), ("host", 1), (None, 1)])
def test_a_straggler_is_at_the_line_of_what_makes_it_late(late: str | None, line: int) -> None:
    said = samples(("data", 0, 3, "load", "", 50.0), ("other", 0, 8, "main", "", 70.0))
    found = with_samples(verdict("straggler", "communication"), said, LOOP, late).findings[0]
    assert found.where is not None and found.where.line == line


def test_findings_about_the_device_are_left_alone() -> None:
    before = verdict("compute", "compute")
    assert with_samples(before, samples(("forward", 0, 3, "f", "", 50.0))) == before


def test_what_a_samples_file_may_hold_is_bounded() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"lines": [["data", 0, -3, "f", "", 1.0]]}', type=Samples)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"lines": [["data", 0, 3, "f", "", 1e300]]}', type=Samples)


def test_a_wait_for_workers_says_less_than_the_place_that_makes_the_batches() -> None:
    before = verdict("input", "input")
    loop = Place(file="a.py", line=36, function="main")
    waits = samples(("data", 0, 36, "main", "_PollLikeSelector.select", 80.0), ("data", 0, 36, "main", "", 9.0))
    assert with_samples(before, waits, loop) == before
    assert with_samples(before, waits).findings[0].where == loop
    inside = samples(("data", 0, 36, "main", "", 9.0), ("data", 1, 4, "pad", "", 80.0))
    assert with_samples(before, inside, loop).findings[0].where == Place(file="b.py", line=4, function="pad")


@pytest.mark.parametrize(
    ("inside", "waits"), [("torch.all_reduce", True), ("torch.barrier", True), ("json.dumps", False)]
)
def test_code_of_the_loop_that_waits_for_other_ranks_is_communication(inside: str, waits: bool) -> None:
    said = samples(("other", 0, 40, "main", inside, 80.0), ("other", 0, 41, "main", "", 20.0))
    found = with_samples(verdict("host-code", "unknown"), said)
    assert found.bound == ("communication" if waits else "unknown")
    assert found.findings[0].share == pytest.approx(0.4 if waits else 0.5)
    assert found.findings[0].where == Place(file="a.py", line=40, function="main")


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ("torch._Simplex.check", True),
        ("torch._IndependentConstraint.check", True),
        ("torch.Distribution.__init__", True),
        ("torch.Distribution._validate_sample", True),
        ("torch.Categorical.sample", False),
        ("gym._Simplex.check", False),
    ],
)
@pytest.mark.parametrize("dearest", [True, False])
def test_arguments_of_distributions_that_are_checked_each_time_are_a_cause(
    inside: str, told: bool, dearest: bool, tmp_path: Path
) -> None:
    """minimalRL's ppo-lstm draws each action of one environment; without the checks it was 1.15 to 1.25 times as fast.
    Told beside a dearer line of no known cause, too."""
    (tmp_path / "ppo.py").write_text("def main():\n    prob = model(x)\n    m = Categorical(prob)\n")
    rows = (
        ("other", 0, 3, "main", inside, 30.0),
        ("other", 0, 3, "main", "torch.Categorical.__init__", 10.0),
        ("other", 0, 2, "main", "torch.LSTM.forward", 35.0 if dearest else 45.0),
        ("other", -1, 0, "", "select", 25.0 if dearest else 15.0),
    )
    said = Samples(steps=3, looks=100, files=(str(tmp_path / "ppo.py"),), lines=rows)
    first, *left = with_samples(verdict("host-code", "unknown"), said).findings
    assert (first.title == "torch.distributions checks its arguments on each call") is told
    if told:
        assert first.named and "set_default_validate_args(False)" in first.instead
        assert first.share == pytest.approx(0.5 * 0.3) and [one.share for one in left] == [pytest.approx(0.5 * 0.7)]
        assert first.where is not None and first.where.line == 3
        assert dearest or (left[0].where is not None and left[0].where.line == 2)


def test_of_two_causes_in_a_function_the_dearer_one_is_told_though_no_line_of_it_is_the_dearest(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text(
        "def sample(n):\n    scaled = [p ** 2 for p in priorities]\n    probs = [s / total for s in scaled]\n"
        "    picks = np.random.choice(len(items), n, p=probs)\n"
    )
    rows = (
        ("other", 0, 4, "sample", "", 30.0),
        ("other", 0, 2, "sample.<locals>.<listcomp>", "", 26.0),
        ("other", 0, 3, "sample.<locals>.<genexpr>", "", 24.0),
        ("other", 0, 99, "main", "", 20.0),
    )
    said = msgspec.structs.replace(samples(*rows), files=(str(tmp_path / "memory.py"),))
    first, left = with_samples(verdict("host-code", "unknown"), said).findings
    assert first.title.startswith("a Python loop over single elements; rows are drawn by weights")
    assert "50% of it at such lines of sample; 30% at line 4" in first.evidence
    assert first.where is not None and first.where.line == 2
    assert (first.share, left.share) == (pytest.approx(0.4), pytest.approx(0.1))


def test_small_operations_at_the_line_of_a_cause_are_not_told_beside_it() -> None:
    rows = (
        ("forward", 0, 22, "Net.forward", "torch._Orthogonal.forward", 18.0),
        ("backward", 0, 46, "main", "torch._engine_run_backward", 77.0),
    )
    before = verdict("compute", "compute")
    where = Place(file="a.py", line=22, function="Net.forward")
    small = Finding(id="small-ops", bound="launch", share=0.4, where=where, named=True)
    found = with_samples(msgspec.structs.replace(before, findings=(*before.findings, small)), samples(*rows)).findings
    assert [one.id for one in found] == ["parametrized-again", "compute"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((18.0, 4.0), ["parametrized-again", "decomposition", "compute"]),
        ((2.0, 0.5), ["parametrized-again", "decomposition", "compute"]),  # too few looks for a cause by itself
        ((18.0, 40.0), ["computed-again", "decomposition", "parametrized-again", "compute"]),  # it encodes again, too
        ((0.0, 18.0), ["computed-again", "decomposition", "compute"]),
    ],
)
def test_a_parametrization_that_is_computed_again_is_told_with_its_own_change(
    rows: tuple[float, float], told: list[str]
) -> None:
    """gait_orthornn: told to compute it once, before the loop, which a weight that is read inside can't be."""
    said = samples(
        ("forward", 0, 22, "Net.forward", "torch._Orthogonal.forward", rows[0]),
        ("forward", 0, 22, "Net.forward", "torch.Linear.forward", rows[1]),
        ("forward", 0, 23, "Net.forward", "", 1.0),
        ("backward", 0, 46, "main", "torch._engine_run_backward", 77.0),
    )
    where, before = Place(file="a.py", line=22, function="Net.forward"), verdict("compute", "compute")
    again = AGAIN.finding(0.6, where, "36 times a step", 0.6)
    other = Finding(id="decomposition", bound="compute", share=0.55, where=where, named=True)
    found = with_samples(msgspec.structs.replace(before, findings=(again, other, *before.findings)), said)
    assert [one.id for one in found.findings] == told
    first = found.findings[0]
    assert ("parametrize.cached()" in first.instead) is (told[0] == "parametrized-again")
    assert (first.evidence, first.share, first.where) == ("36 times a step", 0.6, where)


@pytest.mark.parametrize(("registered", "told"), [("Skew()", "parametrized-again"), ("Other()", "computed-again")])
def test_a_parametrization_of_the_user_s_own_is_known_by_its_registration(
    registered: str, told: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "net.py")
    script = "class Skew:\n    def forward(self, x):\n        return x - x.mT\n"
    Path(file).write_text(f"{script}register_parametrization(layer, 'weight', {registered})\n")
    where, before = Place(file=file, line=3, function="Skew.forward"), verdict("compute", "compute")
    again = AGAIN.finding(0.6, where, "30 times a step")
    said = samples(("backward", 0, 46, "main", "torch._engine_run_backward", 77.0))
    found = with_samples(msgspec.structs.replace(before, findings=(again, *before.findings)), said)
    assert found.findings[0].id == told


def test_checks_of_distributions_in_a_model_count_over_the_lines_of_a_function() -> None:
    rows = (
        ("forward", 0, 3, "act", "torch._Simplex.check", 15.0),
        ("forward", 0, 4, "act", "torch.Distribution._validate_sample", 10.0),
        ("forward", 0, 5, "act", "torch.Linear.forward", 30.0),
        ("backward", 0, 9, "main", "torch._engine_run_backward", 45.0),
    )
    found = with_samples(verdict("compute", "compute"), samples(*rows)).findings
    assert [(one.id, one.share) for one in found] == [("validated-arguments", 0.25), ("compute", 0.5)]


@pytest.mark.parametrize(
    ("kept_ms", "ran", "device", "told"),
    [(0.6, 0.9, "cpu", True), (0.1, 0.9, "cpu", False), (0.6, 0.1, "cpu", False), (0.6, 0.9, "cuda", False)],
)
def test_a_thread_that_keeps_the_interpreters_lock(kept_ms: float, ran: float, device: str, told: bool) -> None:
    """Of a step of 1 ms. Beside a device the loop's thread stands while that computes."""
    before = msgspec.structs.replace(verdict("compute", "compute"), device=device)
    said = msgspec.structs.replace(samples(), beside=((0, 5, "waits", 0.0), (1, 9, "Feeder.run", ran)))
    found = with_samples(before, said, kept_ms=kept_ms).findings[0]
    assert (found.id == "busy-thread") is told
    if told:
        assert found.share == pytest.approx(0.6) and found.where == Place(file="b.py", line=9, function="Feeder.run")


def test_a_function_that_takes_most_is_told_at_its_dearest_line(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def encode(x):\n" + "    x = f(x)\n" * 9 + "def load(x):\n    return g(x)\n")
    lines = [("data", 0, 2 + at, "encode", "re.sub", 10.0 + (at == 4)) for at in range(7)]
    said = Samples(
        steps=3, looks=100, files=(str(tmp_path / "data.py"),), lines=(*lines, ("data", 0, 12, "load", "", 29.0))
    )
    found = with_samples(verdict("input", "input"), said).findings[0]
    assert found.where is not None and found.where.line == 6
    assert found.evidence == "x; 71% of it in encode, 11% at this line"
    assert found.title == "texts are tokenized"


def test_a_model_that_runs_besides_stays_at_the_line_that_calls_it() -> None:
    before = verdict("host-code", "unknown")
    model = msgspec.structs.replace(before.findings[0], title=f"Net {BESIDES}", where=Place(file="t.py", line=9))
    said = samples(("other", 0, 3, "forward", "torch.linear", 50.0))
    (found,) = with_samples(msgspec.structs.replace(before, findings=(model,)), said).findings
    assert found.where == Place(file="t.py", line=9) and found.title == model.title


@pytest.mark.parametrize(
    ("phase", "share", "told"), [("other", 0.5, True), ("backward", 0.5, False), ("other", 0.1, False)]
)
def test_growth_in_the_loops_own_code_is_told_at_its_dearest_line(phase: str, share: float, told: bool) -> None:
    """A record that was written whole in each step, and got one entry more."""
    before = verdict("host-code", "unknown")
    own = msgspec.structs.replace(before.findings[0], share=share)
    evidence = f"8.25 ms a step at first, 34.0 ms 1215 steps later (+23.6 ms in {phase}): 0.02 ms more in each"
    grows = Finding(id="steps-grow", bound="unknown", share=0.6, named=True, evidence=evidence)
    said = samples(("other", 0, 3, "add", "json.dump", 50.0))
    found = with_samples(msgspec.structs.replace(before, findings=(grows, own)), said).findings
    (one,) = [one for one in found if one.id == "steps-grow"]
    assert (one.where == Place(file="a.py", line=3, function="add")) is told
    assert ("append one line" in one.instead) is told


def test_a_line_that_another_finding_has_as_its_cause_is_told_once() -> None:
    before = verdict("host-code", "unknown")
    said = samples(("other", 0, 3, "get", "", 50.0))
    at = Finding(id="iterator-each-step", bound="input", share=0.4, where=Place(file="a.py", line=3), named=True)
    both = msgspec.structs.replace(before, findings=(*before.findings, at))
    assert [one.id for one in with_samples(both, said).findings] == ["iterator-each-step"]
    elsewhere = msgspec.structs.replace(at, where=Place(file="a.py", line=4))
    both = msgspec.structs.replace(before, findings=(*before.findings, elsewhere))
    assert [one.id for one in with_samples(both, said).findings] == ["iterator-each-step", "host-code"]


LOSS = """
import numpy as np
import torch


class Loss(torch.nn.Module):
    def weights(self, logits):
        scores = logits.detach().numpy()
        scores = np.exp(scores)
        return torch.from_numpy(scores / scores.sum(1, keepdims=True))

    def forward(self, logits, state):
        for at in range(9):
            state = self.cell(logits, state)
        return self.weights(logits) * state


def train(model):
    out = model(np.ones(3))
    out.backward()


def pairs(x, y):
    far = x[:, None] - y[None]
    return far.square().sum(-1)


def bank(n):
    for row in range(n):
        for at in range(n):
            if at < row:
                filled[row, at] = 1.0
"""
CELL = "torch.LSTMCell.forward"


@pytest.mark.parametrize(("rest", "shares"), [(30.0, [0.35, 0.15]), (5.0, [0.5])])
def test_a_cause_has_what_it_takes_and_no_more(rest: float, shares: list[float], tmp_path: Path) -> None:
    """A loop over parameters that took 40% of a loop's own code was told with all of that."""
    text = "def update(a, b):\n    for p in a.parameters():\n        p.mul_(2)\n        p.add_(1)\n    c = f(a, b)\n"
    (tmp_path / "loop.py").write_text(text)
    rows = [
        ("other", 0, 3, "update", "", 60.0),
        ("other", 0, 4, "update.<locals>.<listcomp>", "", 10.0),
        ("other", 0, 4, "update_all", "", rest / 2),
        ("other", 0, 5, "update", "", rest / 2),
    ]
    said = Samples(steps=3, looks=100, files=(str(tmp_path / "loop.py"),), lines=tuple(rows))
    found = with_samples(verdict("host-code", "unknown"), said)
    assert [one.share for one in found.findings] == pytest.approx(shares)
    assert [one.named for one in found.findings] == [True, False][: len(shares)]
    assert found.findings[0].cost_ms == pytest.approx(shares[0] * found.step_ms)


def test_a_buffer_that_is_cut_is_told_at_the_cut(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "def records(file):\n    data = file.read()\n    while data:\n        body, n = data[:4], data[4]\n"
        "        data = data[n:]\n        yield body\ndef rows(file):\n    for body in records(file):\n"
        "        label = unpack(body[:4])\n        x = np.frombuffer(body)\n        yield x, label\n"
    )
    lines = (("data", 0, 9, "rows", "", 70.0), ("data", 0, 10, "rows", "", 30.0))
    said = Samples(steps=3, looks=100, files=(str(tmp_path / "data.py"),), lines=lines)
    found = with_samples(verdict("input", "input"), said).findings[0]
    assert found.where == Place(file=str(tmp_path / "data.py"), line=5, function="records")
    assert found.evidence == "x; 70% of it from there to the next call, at line 9"
    assert found.named and found.share == pytest.approx(0.35)


@pytest.mark.parametrize(("inside", "id_"), [("", "element-by-element"), ("torch.Tensor.split", "input")])
def test_the_users_own_loop_in_a_dataset_is_named(inside: str, id_: str, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def collate(rows):\n    for row in rows:\n        x[row] = row\n")
    said = Samples(
        steps=3, looks=100, files=(str(tmp_path / "data.py"),), lines=(("data", 0, 3, "collate", inside, 9.0),)
    )
    found = with_samples(verdict("input", "input"), said).findings[0]
    assert found.where is not None and found.where.line == 3
    assert found.title == (ELEMENTS.title if id_ != "input" else "")
    assert found.named is (id_ != "input")


@pytest.mark.parametrize(
    ("rows", "id_", "line"),
    [
        ((("forward", 0, 24, "pairs", "", 12.0), ("other", 0, 25, "pairs", "", 13.0)), "all-pairs", 25),
        ((("forward", 0, 31, "bank", "", 12.0), ("forward", 0, 32, "bank", "", 9.0)), "element-by-element", 31),
        ((("forward", 0, 31, "bank", "torch.relu", 12.0), ("forward", 0, 32, "bank", "", 9.0)), None, None),
        ((("other", 0, 8, "Loss.weights", "", 20.0), ("other", 0, 9, "Loss.weights", "", 30.0)), "through-numpy", 9),
        ((("other", 0, 9, "Loss.weights", "", 60.0),), "through-numpy", 9),
        ((("forward", 0, 14, "Loss.forward", CELL, 60.0),), "cell-by-cell", 14),
        ((("forward", 0, 14, "Loss.forward", "Cells.forward", 60.0),), None, None),
        ((("forward", 0, 15, "Loss.forward", "", 60.0),), None, None),
        ((("backward", 0, 9, "Loss.weights", "", 60.0),), None, None),
        ((("other", 0, 9, "Loss.weights", "", 10.0),), None, None),
        ((("forward", 0, 19, "train", "", 60.0),), None, None),
    ],
)
def test_a_cause_in_the_model_or_its_loss_is_named(
    rows: Any, id_: str | None, line: int | None, tmp_path: Path
) -> None:
    (tmp_path / "loss.py").write_text(LOSS)
    rest = ("optimizer", 0, 99, "main", "", 100.0 - sum(row[5] for row in rows))
    said = Samples(steps=3, looks=100, files=(str(tmp_path / "loss.py"),), lines=(*rows, rest))
    found = with_samples(verdict("compute", "compute"), said).findings
    assert len(found) == 1 + bool(id_)
    assert (found[0].id, found[0].where.line if found[0].named and found[0].where else None) == (id_ or "compute", line)
    if id_:
        looks = sum(row[5] for row in rows) / 100
        assert found[0].share == pytest.approx(looks)
        before = verdict("compute", "compute")
        crowded = Finding(id="cpu-crowded", bound="unknown", share=0.5, named=True, title="threads wait for a core")
        found = with_samples(msgspec.structs.replace(before, findings=(crowded, *before.findings)), said).findings
        assert next(one for one in found if one.id == id_).share == pytest.approx(0.5 * looks), "taken from all alike"
    if id_ == "element-by-element":  # in the model's own loop its advice was added to that of small operations
        assert next(one for one in found if one.id == id_).instead == small_ops.INSTEAD


LION = """
class Lion(Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                update = self.state[p] * 0.9 + p.grad * 0.1
                p.add_(update.sign(), alpha=-0.1)
"""


def test_waits_of_a_trace_for_launches_stay_where_it_has_them(tmp_path: Path) -> None:
    """The host's time in the model, which is not where the device waits, was told in their place."""
    file = tmp_path / "train.py"
    file.write_text("def loss_of(rows):\n    return sum(row.exp() for row in rows)\n\n\ndef main():\n    step()\n")
    here, loop = Place(file=str(file), line=2, function="loss_of"), Place(file=str(file), line=6, function="main")
    own = (("other", 0, 2, "loss_of", "", 40.0), ("forward", 0, 99, "Net.forward", "torch.Linear.forward", 60.0))
    before = msgspec.structs.replace(verdict("launch", "launch"), device="cuda")
    for where, cost_ms, line in ((here, 0.5, 2), (loop, 0.5, 99), (here, None, 99)):
        launch = msgspec.structs.replace(before.findings[0], where=where, cost_ms=cost_ms, instead="compile")
        said = msgspec.structs.replace(samples(*own), files=(str(file),))
        (found,) = with_samples(msgspec.structs.replace(before, findings=(launch,)), said).findings
        assert found.where is not None and found.where.line == line
        assert (found.instead == INSTEAD) is (line == 2)  # it is not the model's


def test_python_at_the_line_of_a_wait_is_told_with_it() -> None:
    at = Place(file="a.py", line=3, function="f")
    wait = Finding(id="allocator", bound="memory", share=0.3, cost_ms=3.0, where=at, title="memory", evidence="y")
    python = Finding(id="host-code", bound="launch", share=0.2, cost_ms=2.0, where=at, evidence="x", title="own code")
    elsewhere = msgspec.structs.replace(python, where=Place(file="a.py", line=9, function="f"))
    before = msgspec.structs.replace(verdict("launch", "launch"), device="cuda")
    found = with_samples(msgspec.structs.replace(before, findings=(wait, python)), samples()).findings
    assert [(one.id, one.share, one.cost_ms, one.bound) for one in found] == [("allocator", 0.5, 5.0, "memory")]
    assert "y; at this line also x" in found[0].evidence and found[0].title == "memory"
    named = msgspec.structs.replace(python, named=True, title="the cache is emptied", instead="leave it")
    (found_named,) = with_samples(msgspec.structs.replace(before, findings=(wait, named)), samples()).findings
    assert (found_named.title, found_named.instead, found_named.named) == ("the cache is emptied", "leave it", True)
    assert len(with_samples(msgspec.structs.replace(before, findings=(wait, elsewhere)), samples()).findings) == 2
    less = msgspec.structs.replace(wait, id="sync", bound="sync", share=0.1)
    shares = [
        one.share
        for one in with_samples(msgspec.structs.replace(before, findings=(less, wait, python)), samples()).findings
    ]
    assert shares == [0.5, 0.1], "it is told once"


@pytest.mark.parametrize(
    ("line", "said"), [("torch.save(state, path)", ": a checkpoint is written"), ("draw(state)", "")]
)
def test_long_steps_have_the_line_that_takes_their_time(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"def save(state, path):\n    {line}\n")
    main, saves = (0, 9, "main"), (0, 7, "train")
    found = LongSamples(
        looks=40,
        files=(str(tmp_path / "train.py"),),
        lines=(
            ("other", (main, saves, (0, 2, "save")), "torch.save", 900.0),
            ("other", (main, (0, 5, "train")), "", 90.0),
            ("forward", (main, (0, 4, "train"), (0, 99, "Net.forward")), "", 2000.0),
        ),
        usual=(main, (0, 4, "train"), (0, 5, "train")),
    )
    before = verdict("long-steps", "unknown")
    title = msgspec.structs.replace(before.findings[0], title="one step in 20 takes 32 times as long", where=None)
    before = msgspec.structs.replace(before, findings=(title,))
    (one,) = with_long_steps(before, found).findings
    assert one.where == Place(file=str(tmp_path / "train.py"), line=2, function="save")
    assert one.title == f"one step in 20 takes 32 times as long{said}"
    elsewhere = msgspec.structs.replace(found, usual=(*found.usual, (0, 2, "save")))  # as a forward in an evaluation
    (called,) = with_long_steps(before, elsewhere).findings
    assert called.where is not None and (called.where.line, called.where.function) == (7, "train")
    every = msgspec.structs.replace(found, usual=tuple(one for row in found.lines for one in row[1]))
    (innermost,) = with_long_steps(before, every).findings
    assert innermost.where == one.where and "others" not in innermost.evidence
    assert with_long_steps(before, msgspec.structs.replace(found, looks=3)) == before
    assert with_long_steps(before, msgspec.structs.replace(found, files=())) == before


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("sizes = [len(self.data[i]) for i in range(9)]", True),
        ("for i in range(9): sizes.append(len(self.data[i]))", True),
        ("for i in range(9): yield self.data[i]", False),  # which is what it is for
        ("first = self.data[0]", False),
    ],
)
def test_a_sampler_that_makes_all_items_before_the_first_batch_is_named(body: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"def __iter__(self):\n    {body}\n\ndef get(i):\n    return torch.tensor(i)\n")
    path = (0, 9, "main"), (0, 2, "Buckets.__iter__"), (0, 5, "Texts.__getitem__")
    rows = (("other", path, "", 80.0), ("other", path[:2], "", 10.0))
    found = LongSamples(looks=40, files=(str(tmp_path / "train.py"),), lines=rows, usual=((0, 9, "main"),))
    (one,) = with_long_steps(verdict("long-steps", "unknown"), found).findings
    assert ("makes all items" in one.title) is told
    assert one.where is not None and one.where.line == (2 if told else 5)
    assert (one.bound == "input") is told


def test_lines_of_a_function_that_call_one_are_gone_through(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def of(x):\n    return numpy.histogram(x)\n")
    main, one, two, of = (0, 9, "main"), (0, 5, "record"), (0, 6, "record"), (0, 2, "of")
    rows = [((main, one, of), 400.0), ((main, two, of), 450.0), ((), 9000.0)]
    found = LongSamples(
        looks=40,
        files=(str(tmp_path / "train.py"),),
        lines=tuple(("other", path, "numpy.histogram", took) for path, took in rows),
        usual=(main,),
    )
    (told,) = with_long_steps(verdict("long-steps", "unknown"), found).findings
    assert told.where is not None and told.where.line == 2 and "histograms" in told.instead
    apart = msgspec.structs.replace(found, lines=tuple((*row[:1], row[1][:2], *row[2:]) for row in found.lines))
    (told,) = with_long_steps(verdict("long-steps", "unknown"), apart).findings
    assert told.where != Place(file=str(tmp_path / "train.py"), line=6, function="record"), "half is not most of it"


def test_a_sampler_that_numbers_all_rows_for_a_few_batches(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for x, y in loader:\n    train(x, y)\n")
    row = ("other", ((0, 1, "<module>"),), "torch.RandomSampler.__iter__", 900.0)
    found = LongSamples(looks=40, files=(str(tmp_path / "train.py"),), lines=(row,), usual=row[1])
    said = with_long_steps(verdict("long-steps", "unknown"), found)
    assert said.bound == "input" and said.findings[0].where is not None and "num_samples" in said.findings[0].instead


def test_an_optimizer_of_the_user_s_own_is_a_loop_over_parameters(tmp_path: Path) -> None:
    """On a GPU that waits for the host; the line was that of the model's forward, which took less."""
    (tmp_path / "train.py").write_text(LION)
    lines = (
        ("optimizer", 0, 6, "Lion.step", "", 25.0),
        ("optimizer", 0, 7, "Lion.step", "", 20.0),
        ("forward", 0, 99, "Net.forward", "torch.Linear.forward", 15.0),
        ("backward", 0, 98, "main", "torch._engine_run_backward", 40.0),
    )
    said = msgspec.structs.replace(samples(*lines), files=(str(tmp_path / "train.py"),))
    before = msgspec.structs.replace(verdict("launch", "launch"), device="cuda")
    before = msgspec.structs.replace(before, findings=(msgspec.structs.replace(before.findings[0], share=0.9),))
    cause, rest = with_samples(before, said).findings
    assert (cause.id, cause.bound, cause.share) == ("loop-over-parameters", "launch", pytest.approx(0.45))
    assert cause.where == rest.where == Place(file=str(tmp_path / "train.py"), line=6, function="Lion.step")
    assert "_foreach" in (cause.instead or "")
    assert rest.share == pytest.approx(0.45)
    assert (
        rest.evidence
        == "x; 75% of the host's time outside of the backward is in Lion.step, with the cause listed separately"
    )


def test_waits_for_launches_are_where_the_host_issues_most_of_them() -> None:
    lines = (
        ("forward", 0, 5, "Net.forward", "torch.relu", 10.0),
        ("optimizer", 0, 40, "main", "torch.Adam.step", 30.0),
        ("backward", 0, 39, "main", "torch._engine_run_backward", 90.0),
    )
    (found,) = with_samples(
        msgspec.structs.replace(verdict("launch", "launch"), device="cuda"), samples(*lines)
    ).findings
    assert found.where == Place(file="a.py", line=40, function="main")
    assert found.evidence == "x; 75% of the host's time outside of the backward is at this line, in torch.Adam.step"


def test_waits_for_launches_stay_where_a_trace_has_them_if_the_source_is_gone() -> None:
    """Else the trace's function stood beside a line of another one."""
    where = Place(file="gone.py", line=27, function="Layer.forward")
    before = msgspec.structs.replace(verdict("launch", "launch"), device="cuda")
    one = msgspec.structs.replace(before.findings[0], where=where, cost_ms=7.0, evidence="79% of it in Layer.forward")
    before = msgspec.structs.replace(before, findings=(one,))
    (found,) = with_samples(before, samples(("optimizer", 0, 89, "main", "torch._fused_adam", 30.0))).findings
    assert (found.where, found.evidence) == (where, one.evidence)


@pytest.mark.parametrize(
    ("tensors", "taking_ms", "handed_ms", "share"),
    [(576, 950.0, 5400.0, 0.5), (576, 950.0, 900.0, 0.3), (6, 950.0, 5400.0, 0), (576, 100.0, 5400.0, 0),
     (576, 950.0, 90.0, 0), (576, 950.0, 0.0, 0)],
    ids=["many", "and samples that take their time", "few", "a wait for the worker", "it makes them", "not known"],
)  # fmt: skip
def test_many_tensors_that_workers_hand_over_are_a_cause(
    tensors: int, taking_ms: float, handed_ms: float, share: float
) -> None:
    """A list of samples: one worker took 131 ms a batch, of which 3 were to make it; stacked, 4. Where two compute
    for 370 ms a batch, who asks them for its tensors waits for most of that, and stacking them changed little."""
    main = samples(("data", 0, 84, "main", "threading.Condition.wait", 1000.0), ("forward", 1, 3, "f", "", 50.0))
    main = msgspec.structs.replace(main, taking_over_ms=taking_ms)
    rows = ((("data", 0, 2, "get", "", 80.0)),)
    worker = WorkerSamples(
        dataset="Clips", looks=80, files=("c.py",), lines=rows, ran_ms=600.0, handed_over_ms=handed_ms
    )
    loader = LoaderFacts(
        dataset="Clips", iterable=False, workers=2, batch_tensors=tensors, collate=("c.py", 45, "collate")
    )
    first, *left = with_samples(verdict("input", "input"), main, worker=worker, loader=loader).findings
    assert (first.id == "many-tensors") is bool(share)
    if share:
        assert first.where == Place(file="c.py", line=45, function="collate") and "576 tensors" in first.title
        assert first.share == pytest.approx(share) and sum(one.share for one in (first, *left)) == pytest.approx(0.5)
        assert "`collate_fn`" in first.instead and f"{taking_ms / 10:.0f}% of the wait" in first.evidence
        torchs = msgspec.structs.replace(loader, default_collate=True, collate=None)
        (first, *_) = with_samples(verdict("input", "input"), main, worker=worker, loader=torchs).findings
        assert first.where == LOOP and "`__getitem__`" in first.instead
    else:
        assert first.where == Place(file="c.py", line=2, function="get")
        assert ("a batch is 576 tensors" in first.evidence) is (tensors == 576), "the run's fact"
    assert with_samples(verdict("input", "input"), main, worker=None, loader=loader).findings[0].id == "input"


def test_a_sampler_that_takes_long_is_told_before_what_workers_do(tmp_path: Path) -> None:
    """It runs in the process that trains; told was a worker's line, and that tensors are handed over slowly."""
    (tmp_path / "train.py").write_text("def draw(rng, n, p):\n    return rng.choice(n, p=p)\n")
    files, loop = (str(tmp_path / "train.py"), "a.py"), Place(file="a.py", line=84)
    row = ("data", 0, 2, "draw", "numpy._wrapfunc", 90.0)
    wait = ("data", 1, 84, "main", "threading.Condition.wait", 10.0)
    worker = WorkerSamples(dataset="Rows", looks=80, files=("b.py",), lines=(("data", 0, 7, "Rows.get", "", 80.0),))

    def found(*rows: Any) -> Finding:
        said = Samples(steps=3, looks=100, files=files, lines=rows)
        return with_samples(verdict("input", "input"), said, loop, worker=worker).findings[0]

    first = found(row, wait)
    assert first.where == Place(file=files[0], line=2, function="draw") and "searchsorted" in first.instead
    assert "sampler" in found((*row[:2], 1, *row[3:]), wait).why, "of a line that shows no cause"
    other = found((*row[:5], 9.0), wait)
    assert other.where is not None and other.where.file == "b.py", "most of it is a wait"


def test_of_a_loader_with_workers_the_worker_s_line_is_told(tmp_path: Path) -> None:
    """Six workers, and a collate function that makes tensors of lists of arrays: told was `__getitem__`."""
    (tmp_path / "train.py").write_text("def collate(batch):\n    return torch.tensor([wave for wave, _ in batch])\n")
    main = samples(("data", 0, 84, "main", "threading.Condition.wait", 900.0), ("forward", 1, 3, "f", "", 50.0))
    worker = WorkerSamples(
        dataset="Clips", looks=80, files=(str(tmp_path / "train.py"),),
        lines=(("data", 0, 2, "collate", "", 80.0), ("data", -1, 0, "", "torch.new_shared", 20.0)),
    )  # fmt: skip
    first, rest = with_samples(verdict("input", "input"), main, worker=worker).findings
    assert first.id == "input" and first.named and first.title == "a tensor is made from a list"
    assert first.where == Place(file=str(tmp_path / "train.py"), line=2, function="collate")
    assert first.evidence == "x; 80% of a worker's time at this line" and first.share == pytest.approx(0.4)
    assert rest.share == pytest.approx(0.1)
    few = msgspec.structs.replace(worker, looks=3)
    loop = Place(file="a.py", line=84)
    assert with_samples(verdict("input", "input"), main, loop, worker=few).findings[0].where == LOOP
    assert "a worker's" not in with_samples(verdict("input", "input"), main, worker=few).findings[0].evidence


def test_what_is_left_beside_a_cause_has_its_own_time(tmp_path: Path) -> None:
    """Both were told the whole phase's."""
    (tmp_path / "loop.py").write_text("import json\n\ndef main(line):\n    return json.loads(line)\n")
    rows = (("other", 0, 4, "main", "json.loads", 60.0), ("other", 0, 9, "main", "", 40.0))
    said = msgspec.structs.replace(samples(*rows), files=(str(tmp_path / "loop.py"),))
    cause, rest = with_samples(verdict("host-code", "unknown"), said).findings
    assert (
        cause.named
        and rest.share > 0
        and rest.evidence == f"{ms(rest.share)} a step beside the cause listed separately"
    )


def test_what_long_steps_do_is_told_once(tmp_path: Path) -> None:
    """gc.collect() in one step of five was told three times, twice as a share of the steps without it."""
    (tmp_path / "loop.py").write_text("import gc\n\ndef main():\n    gc.collect()\n")
    said = msgspec.structs.replace(samples(("other", 0, 4, "main", "", 60.0)), files=(str(tmp_path / "loop.py"),))
    where = Place(file=said.files[0], line=4, function="main")
    collector = Finding(id="garbage-collection", bound="unknown", share=0.4, title="Python's garbage collector")
    title = "one step in 5 takes 31 times as long: Python's garbage collector is called"
    long = Finding(id="long-steps", bound="unknown", share=0.5, title=title, where=where, named=True)
    for findings, left in (((collector,), {"collect", "garbage-collection"}), ((long, collector), {"long-steps"})):
        before = msgspec.structs.replace(verdict("input", "input"), findings=findings)
        assert {one.id for one in with_samples(before, said).findings} == left


REPLAY = """import random
import numpy as np
def probabilities(memory):
    return np.array(memory.priorities)
def sample(memory, k):
    probs = probabilities(memory)
    picks = random.choices(memory.rows, k=k, weights=probs)
    return picks
def shown(losses):
    return np.array(losses)
def main(memory):
    batch = sample(memory, 32)
    print(shown(losses))
"""


@pytest.mark.parametrize(("drawn", "share"), [(30.0, 0.4), (10.0, 0.25)])
def test_other_causes_in_what_the_same_call_makes_come_with_their_lines(
    drawn: float, share: float, tmp_path: Path
) -> None:
    """A prioritized replay: told was one of three lines that take about the same."""
    (tmp_path / "replay.py").write_text(REPLAY)
    sampled, shown, probabilities = (0, 12, "main"), (0, 13, "main"), (0, 4, "probabilities")
    paths = (
        ("other", (sampled, (0, 6, "sample"), probabilities), "", 50.0),
        ("other", (sampled, (0, 7, "sample")), "random.Random.choices", drawn),
        ("other", (shown, (0, 10, "shown")), "json.dumps", 50.0 - drawn),  # another call
        ("backward", ((0, 11, "main"),), "torch._engine_run_backward", 50.0),
    )
    lines = tuple((phase, *path[-1], inside, took) for phase, path, inside, took in paths)
    said = Samples(steps=3, looks=100, files=(str(tmp_path / "replay.py"),), lines=lines, paths=paths)
    first, *_ = with_samples(verdict("host-code", "unknown"), said).findings
    assert first.where == Place(file=str(tmp_path / "replay.py"), line=4, function="probabilities")
    assert first.share == pytest.approx(share) and "json" not in first.instead
    told = ("sum tree" in first.instead, "rows are drawn by weights" in first.title, "line 7" in first.evidence)
    assert told == (drawn == 30.0,) * 3
    assert "50% of it at this line" in first.evidence and "np.array(memory.priorities)" in first.instead


def test_of_a_worker_other_causes_are_those_of_the_line_s_function(tmp_path: Path) -> None:
    """Of it no way to a line is known."""
    (tmp_path / "train.py").write_text(
        "import json\ndef get(path):\n    text = open(path).read()\n    return json.loads(text)\n"
        "def other(path):\n    time.sleep(1)\n"
    )
    main = samples(("data", 0, 84, "main", "threading.Condition.wait", 900.0), ("forward", 1, 3, "f", "", 50.0))
    rows = (
        ("data", 0, 4, "get", "json.loads", 40.0),
        ("data", 0, 3, "get", "", 30.0),
        ("data", 0, 6, "other", "", 30.0),
    )
    worker = WorkerSamples(dataset="Clips", looks=80, files=(str(tmp_path / "train.py"),), lines=rows)
    first, *_ = with_samples(verdict("input", "input"), main, worker=worker).findings
    assert "30% at line 3" in first.evidence and "line 6" not in first.evidence
    assert first.title == "files or texts are decoded; a file is opened and read"
