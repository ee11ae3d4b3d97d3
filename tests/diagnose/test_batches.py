"""Code of the loop that asks for its next batch."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.diagnose.long_samples import with_long_steps
from hotlap.diagnose.sampled import with_samples
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.profile import LongSamples, SampledPath, Samples
from hotlap.records.run import Phases

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
    found, spread = Finding(id=id_, bound="unknown", share=0.5), Spread(p10=1, p50=1, p90=1)
    return Diagnosis(mode="train", bound="unknown", step_ms=1.0, spread=spread, phases=Phases(), findings=(found,))


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
        ((FIRST, MAKES), "", {"first": "x, y = self.sample()"}, "unknown"),
        ((FIRST, MAKES), "", {"first": "x = next(one for one in rows if one.id == wanted)"}, "unknown"),
        ((HEAD, MAKES), "", {"iterator": "enumerate(range(draw()))"}, "unknown"),
        ((HEAD, MAKES), "", {"iterator": "enumerate(zip(range(9), batches(rows)))"}, "input"),
        ((HEAD, STEPS), "gymnasium.Env.step", {}, "unknown"),  # an environment's time
        ((HEAD, (0, 18, "logged")), "", {}, "unknown"),  # a generator that logs
        ((HEAD, (0, 19, "logged")), "", {}, "unknown"),
        ((FIRST, SLEEPS), "", {}, "input"),
        ((FIRST, RECEIVES), "multiprocessing.Connection._recv", {}, "input"),
        ((FIRST,), "threading.Condition.wait", {"first": "x, y = self.queue.get()"}, "input"),
        ((FIRST,), "threading.Condition.wait", {"first": "self.queue.put(x)"}, "unknown"),
        ((FIRST,), "", {"first": "x = table.get(key)"}, "unknown"),
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
