"""Levers between the backward and the update: gradient accumulation, larger batches."""

import re

import pytest

from hotlap.levers import _smaller_batch
from hotlap.records.run import Lever

from .harness import Ran, Runner, check_clean
from .test_faults import OFF

HALVES = (Lever(name="accumulate", settings={"parts": 2}),)


def weights(ran: Ran) -> list[float]:
    found = re.search(r"^weights (.*)$", ran.output, re.MULTILINE)
    assert found, ran.output
    return [float(word) for word in found[1].split()]


def rate(ran: Ran) -> str:
    found = re.search(r"^rate (.*)$", ran.output, re.MULTILINE)
    assert found, ran.output
    return found[1]


def pairs(losses: list[float]) -> list[float]:
    return [(one + two) / 2 for one, two in zip(losses[::2], losses[1::2], strict=True)]


@pytest.mark.parametrize(
    "options",
    ["--clear module --clip 0.01 --schedule batch", "--schedule epoch"],
)
def test_halves_of_batches_learn_what_whole_batches_do(runner: Runner, options: str) -> None:
    bare = runner.bare("updates.py", *options.split())
    ran = runner.forked("updates.py", *options.split(), levers=HALVES)
    check_clean(ran)
    assert weights(ran) == pytest.approx(weights(bare), rel=1e-4, abs=1e-6)
    assert rate(ran) == rate(bare)
    assert pairs(ran.losses) == pytest.approx(bare.losses, rel=1e-4)
    assert [step.samples for step in ran.steps] == [6] * 24
    assert ran.facts.optimizer_steps == 24


def test_loaders_made_after_hotlap_went_off_are_split_too(runner: Runner) -> None:
    """Updates wait for all parts of a batch then as well; each epoch here makes a loader."""
    bare = runner.bare("updates.py", "--schedule", "epoch")
    ran = runner.forked("updates.py", "--schedule", "epoch", before=OFF.replace("STEP", "3"), levers=HALVES)
    assert [problem.lever for problem in ran.problems] == [None]
    assert weights(ran) == pytest.approx(weights(bare), rel=1e-4, abs=1e-6)
    assert pairs(ran.losses) == pytest.approx(bare.losses, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--clear hand", "clears gradients without zero_grad"),
        ("--optimizers 2", "several optimizers"),
        ("--closure", "closure"),
        ("--rows 3", "can't be split"),
    ],
)
def test_accumulation_stands_aside(runner: Runner, options: str, why: str) -> None:
    ran = runner.forked("updates.py", *options.split(), levers=HALVES)
    assert ran.code == 0
    assert {problem.lever for problem in ran.problems} == {"accumulate"}
    assert why in ran.problems[0].what
    assert ran.facts.optimizer_steps >= ran.facts.backwards - 2, "it steps as it did before"


def test_larger_batches(runner: Runner) -> None:
    ran = runner.forked("updates.py", levers=(Lever(name="batch-size", settings={"times": 4}),))
    check_clean(ran)
    assert [step.samples for step in ran.steps] == [24] * 6


def test_a_part_of_each_batch(runner: Runner) -> None:
    """For commands that run out of memory with the whole."""
    half = (Lever(name=_smaller_batch.NAME, settings={"parts": 2}),)
    ran = runner.forked("updates.py", levers=half)
    check_clean(ran)
    assert [step.samples for step in ran.steps] == [3] * 48 and ran.facts.optimizer_steps == 48
    refused = runner.forked("updates.py", "--rows", "3", levers=half)
    assert [problem.lever for problem in refused.problems] == [_smaller_batch.NAME]
    assert "a batch of 3 samples can't be split into 2 equal parts" in refused.problems[0].what
