"""Code of the loop that asks for its next batch."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.diagnose.long_samples import with_long_steps
from hotlap.diagnose.sampled import with_samples
from hotlap.records.diagnosis import Bound, Diagnosis, Finding, Place
from hotlap.records.profile import LongSamples, SampledPath, Samples
from made_runs import diagnosis_of

SCRIPT = """
def batches(rows):
    for row in rows:
        yield clean(row)
def main():
    for step, (x, y) in {iterator}:
        {first}
        loss = train(x, y)
def collect(conn):
    while not conn.poll():
        time.sleep(0.05)
    return conn.recv()
def rollout(env):
    yield env.step(action)
def logged(rows):
    for row in rows:
        yield row
        print(row)
        writer.add_scalar("loss", loss)
"""
HEAD, FIRST, MAKES, TRAINS = (0, 6, "main"), (0, 7, "main"), (0, 4, "batches"), (0, 8, "main")
SLEEPS, RECEIVES, STEPS = (0, 11, "collect"), (0, 12, "collect"), (0, 14, "rollout")
TRAINED: SampledPath = ("backward", (TRAINS, (0, 90, "train")), "torch._engine_run_backward", 90.0)


def verdict(id_: str) -> Diagnosis:
    found = Finding(id=id_, bound="unknown", share=0.5)
    return diagnosis_of(bound="unknown", step_ms=1.0, findings=(found,))


def said(file: Path, rows: tuple[SampledPath, ...]) -> dict[str, Any]:
    lines = tuple((phase, *(path[-1] if path else (-1, 0, "")), inside, ms) for phase, path, inside, ms in rows)
    return {"looks": 100, "files": (str(file),), "lines": lines, "paths": rows}


@pytest.mark.parametrize(
    ("path", "inside", "script", "bound"),
    [
        ((HEAD, MAKES), "", {}, "input"),
        ((HEAD,), "datasets.Dataset.__iter__", {}, "input"),
        ((HEAD,), "tqdm.tqdm.refresh", {}, "unknown"),  # a bar that is drawn
        ((FIRST, MAKES), "", {"first": "x, y = next(self.batches)"}, "input"),
        ((FIRST, MAKES), "", {"first": "x, y = self.sample()"}, "input"),
        ((FIRST, MAKES), "", {"first": "accuracy = self.sample()"}, "unknown"),
        ((FIRST, MAKES), "", {"first": "one = next(one for one in rows if one.id == wanted)"}, "unknown"),
        ((HEAD, MAKES), "", {"iterator": "enumerate(range(draw()))"}, "unknown"),
        ((HEAD, MAKES), "", {"iterator": "enumerate(zip(range(9), batches(rows)))"}, "input"),
        ((HEAD, STEPS), "gymnasium.Env.step", {}, "unknown"),  # an environment's time
        ((HEAD, (0, 18, "logged")), "", {}, "unknown"),  # a generator that logs
        ((HEAD, (0, 19, "logged")), "", {}, "unknown"),
        ((FIRST, SLEEPS), "", {}, "input"),
        ((FIRST, RECEIVES), "multiprocessing.Connection._recv", {}, "input"),
        ((FIRST,), "threading.Condition.wait", {"first": "x, y = self.queue.get()"}, "input"),
        ((FIRST,), "threading.Condition.wait", {"first": "self.queue.put(x)"}, "unknown"),
        ((FIRST,), "", {"first": "row = table.get(key)"}, "unknown"),
        ((FIRST,), "", {"first": "time.sleep(0.1)"}, "unknown"),
    ],
)
def test_the_loop_s_own_code_that_asks_for_batches_is_input(
    path: Any, inside: str, script: dict[str, str], bound: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(**{"iterator": "enumerate(batches(rows))", "first": "pass", **script}))
    rows = (("other", path, inside, 80.0), ("other", (TRAINS,), "", 20.0), TRAINED)
    found = with_samples(verdict("host-code"), Samples(**said(file, rows)))
    assert found.bound == bound and ("next batch" in found.findings[0].evidence) is (bound == "input")


@pytest.mark.parametrize(
    "more",
    [
        ("other", (TRAINS,), "", 80.0),  # most of it is elsewhere
        ("forward", (HEAD, MAKES), "", 30.0),  # an agent that acts
        ("backward", (HEAD, MAKES), "", 30.0),  # the loop is over what a generator has trained
        None,
    ],
)
def test_a_loop_s_head_is_no_input_where_more_than_batches_is_under_it(
    more: SampledPath | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(iterator="batches(rows)", first="pass"))
    rows = (
        ("other", (HEAD, MAKES), "", 80.0),
        *(() if more is None else (more, TRAINED)),
    )  # or none trains in its body
    found = with_samples(verdict("host-code"), Samples(**said(file, rows)))
    assert found.bound == "unknown"


def test_of_several_ranks_what_is_received_may_be_gradients(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(iterator="batches(rows)", first="pass"))
    rows = (("other", (HEAD, MAKES), "", 80.0), TRAINED)
    before = msgspec.structs.replace(verdict("host-code"), ranks=2)
    assert with_samples(before, Samples(**said(file, rows))).bound == "unknown"


@pytest.mark.parametrize(("head", "bound"), [(HEAD, "input"), (FIRST, "unknown")])
def test_long_steps_that_wait_for_batches_are_input(head: Any, bound: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(iterator="enumerate(loader)", first="evaluate()"))
    long = LongSamples(looks=40, files=(str(file),), lines=(("other", (head, MAKES), "", 900.0),), usual=(TRAINS,))
    others = Samples(**said(file, (TRAINED,)))
    assert with_long_steps(verdict("long-steps"), long, others).bound == bound


LOOP = """
import numpy as np
import torch
def main(rows, model, agent):
    for step in range(9):
        {0}
        {1}
        loss = {2}
        loss.backward()
        {3}
def make(rows):
    return rows[rng.choice(9)]
class Agent:
    def act(self):
        return self.model(1)
"""
FORWARD: SampledPath = ("forward", ((0, 8, "main"),), "torch.Linear.forward", 30.0)
BACKWARD: SampledPath = ("backward", ((0, 9, "main"),), "torch._engine_run_backward", 30.0)
MODEL = "model(x).mean()"


def bound_of(folder: Path, lines: tuple[str, ...], path: Any, *more: SampledPath, inside: str = "") -> Bound:
    file = folder / f"{abs(hash(lines))}.py"  # what was read of a file is kept
    file.write_text(LOOP.format(*(lines + ("pass",) * (4 - len(lines)))))
    rows = (("other", path, inside, 80.0), BACKWARD, *(more or (FORWARD,)))
    return with_samples(verdict("host-code"), Samples(**said(file, rows))).bound


MAKE = (0, 12, "make")


@pytest.mark.parametrize(
    ("lines", "at", "bound"),
    [
        (("x = make(rows)", "pass", MODEL), 6, "input"),
        (("rows = make(rows)", "x = torch.tensor(rows).float()", MODEL), 6, "input"),
        (("x.append(make(rows))", "pass", "model(torch.stack(x)).mean()"), 6, "input"),
        (("batch = {'x': make(rows)}", "pass", "model(batch['x'])"), 6, "input"),
        (("self.x = make(rows)", "pass", "self.train_step(self.x)"), 6, "input"),
        (("pass", "pass", MODEL, "x = make(rows)"), 10, "input"),  # for the next step
        (("pass", "pass", "train(model, make(rows))"), 8, "input"),
        (("pass", "pass", "train(model, batch=make(rows))"), 8, "input"),
        (("x = make(rows)", "x = rows[step]", MODEL), 6, "unknown"),  # what is handed over is another one
        (("accuracy = make(rows)", "pass", MODEL), 6, "unknown"),
        (("make(rows)", "pass", MODEL), 6, "unknown"),
        (("pass", "pass", "out = model(x)", "accuracy = make(out)"), 10, "unknown"),
        (("pass", "log = make(rows)", MODEL, "print(log, loss)"), 7, "unknown"),
        (("pass", "pass", "model(x)", "torch.save(make(rows), 'x.pt')"), 10, "unknown"),
        (("pass", "pass", MODEL, "x = make(loss)"), 10, "unknown"),  # of what the model gave
        (("action = agent.act(x)", "x = make(action)", "agent.train(x)"), 7, "unknown"),  # an environment
        (("x = make(model)", "pass", MODEL), 6, "unknown"),
        (("x = make(env.step(0))", "pass", MODEL), 6, "unknown"),
        (("model = make(rows)", "pass", MODEL), 6, "unknown"),
        (("pass", "pass", "model(score(make(rows), 1) + agent.log(x))"), 10, "unknown"),  # not there
    ],
)  # fmt: skip
def test_host_code_that_makes_what_the_model_is_given_is_input(
    lines: tuple[str, ...], at: int, bound: str, tmp_path: Path
) -> None:
    """Without a DataLoader a replay's `sample()` and rows drawn by hand were of unknown bound."""
    assert bound_of(tmp_path, lines, ((0, at, "main"), MAKE)) == bound


def test_a_memory_of_past_steps_is_no_output_of_the_model(tmp_path: Path) -> None:
    lines = ("rows.append(agent.act())", "x = make(rows)", "agent.train(x)")
    assert bound_of(tmp_path, lines, ((0, 7, "main"), MAKE)) == "input"
    lines = ("rows = [agent.act()]", "x = make(rows)", "agent.train(x)")
    assert bound_of(tmp_path, lines, ((0, 7, "main"), MAKE)) == "unknown", "made in each step"


def test_a_model_that_runs_in_it_makes_no_batch_alone(tmp_path: Path) -> None:
    """A frozen encoder, or an agent that acts."""
    lines, path = ("x = make(rows)", "pass", MODEL), ((0, 6, "main"), MAKE)
    assert bound_of(tmp_path, lines, path, inside="torch.Linear.forward") == "unknown"
    assert bound_of(tmp_path, lines, path, inside="torchvision.Resize.forward") == "input"
    acts: SampledPath = ("other", ((0, 6, "main"), (0, 15, "Agent.act")), "torch.Linear.forward", 5.0)
    lines = ("action = me.act()", "x = make(action)", MODEL)  # may be an environment
    assert bound_of(tmp_path, lines, ((0, 7, "main"), MAKE), acts, FORWARD) == "unknown"
    assert bound_of(tmp_path, lines, ((0, 7, "main"), MAKE)) == "input", "not seen to run one"


@pytest.mark.parametrize(("line", "bound"), [(8, "input"), (12, "unknown"), (None, "unknown")])
def test_a_forward_that_no_look_fell_in_is_where_the_run_has_it(line: int | None, bound: str, tmp_path: Path) -> None:
    """Of a step that is mostly host code. Not where that is another function, as one that evaluates."""
    file = tmp_path / "train.py"
    file.write_text(LOOP.format("x = make(rows)", "pass", MODEL, "pass"))
    rows: tuple[SampledPath, ...] = (("other", ((0, 6, "main"), MAKE), "", 80.0), BACKWARD)
    called = [Place(file=str(file), line=line)] if line else []
    assert with_samples(verdict("host-code"), Samples(**said(file, rows)), called=called).bound == bound


def test_what_a_module_s_forward_makes_is_no_batch(tmp_path: Path) -> None:
    """Of a target network, whose forward is the same as that of the one that is trained."""
    file = tmp_path / "net.py"
    script = "class Net:\n    def forward(self, x):\n        mask = make(x)\n        return self.layer(x, mask)\n"
    file.write_text(script + LOOP.format("goal = target(step)", "pass", "model(step)", "pass"))
    main, mask, layer = (0, 9, "main"), (0, 3, "Net.forward"), (0, 4, "Net.forward")
    rows: tuple[SampledPath, ...] = (
        ("other", (main, mask, (0, 16, "make")), "", 80.0),
        ("forward", ((0, 12, "main"), layer), "torch.Linear.forward", 30.0),
        ("backward", ((0, 13, "main"),), "torch._engine_run_backward", 30.0),
    )
    assert with_samples(verdict("host-code"), Samples(**said(file, rows))).bound == "unknown"
