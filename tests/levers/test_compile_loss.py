"""Functions of the script's own that make the loss, compiled, and those that stay as they are."""

import json
import re
from typing import Any

import pytest
from contexts import context

from agent.harness import NO_KERNELS, Ran, Runner, check_same
from hotlap.levers.compile_loss import LEVER
from hotlap.records.run import Lever, LossFacts

USE = (Lever(name=LEVER.name),)
NUMBER = re.compile(r"-?\d+\.\d+(e-?\d+)?|[0-9a-f]{64}")


def left_out(ran: Ran) -> str:
    """Why it left itself out, "" if it did not."""
    path = ran.ranks[0] / "levers.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return next((str(line["left_out"]) for line in lines if "left_out" in line), "")


def graphs(ran: Ran) -> dict[str, int]:
    return {one.function: one.graphs for one in ran.facts.compiled}


def check_alike(ran: Ran, bare: Ran) -> None:
    """Losses up to rounding, and all else that was printed."""
    assert ran.code == bare.code == 0 and len(ran.losses) == len(bare.losses) >= 13
    assert ran.losses == pytest.approx(bare.losses, rel=1e-4)
    assert NUMBER.sub("", ran.output) == NUMBER.sub("", bare.output)


@pytest.mark.parametrize("how", ["plain", "anneals", "rows", "fails"])
def test_the_loss_is_compiled_and_what_is_learnt_stays(runner: Runner, how: str) -> None:
    """Also with another number in each step, other numbers of rows, and one for which it raises."""
    ran = runner.forked("own_loss.py", how, before="" if how == "plain" else NO_KERNELS, levers=USE)
    check_alike(ran, runner.bare("own_loss.py", how))
    name = "failing" if how == "fails" else "elbo"
    assert left_out(ran) == "" and graphs(ran)[name] >= 1
    said = ["Refused: failing stays as it is: it can't be compiled: Observed exception"] if how == "fails" else []
    assert [problem.what for problem in ran.problems] == said
    seen = next(one for one in ran.facts.losses if one.function == name)
    assert seen.operations >= 4 and seen.file.endswith("own_loss.py")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("draws", "noisy stays as it is: it draws random numbers"),
        ("reads", "reading stays as it is: it can't be compiled"),
        ("writes", "writing stays as it is: it writes into what it is given"),
        ("collects", "collecting stays as it is: it writes into what it is given"),
        ("prints", "printing stays as it is: it can't be compiled"),
        ("model", "of_model stays as it is: it is given something else than tensors"),
        ("two results", "with_rest stays as it is: it returns something else than one tensor"),
        ("module draws", "Noisy.forward stays as it is: it draws random numbers"),
        ("inline", "nothing of the script's own"),
    ],
)
def test_others_stay_as_they_are(runner: Runner, how: str, why: str) -> None:
    ran = runner.forked("own_loss.py", how, levers=USE)
    check_same(ran, runner.bare("own_loss.py", how))
    assert left_out(ran).startswith(why) or how == "inline"
    assert [problem.lever for problem in ran.problems] == ([] if how == "inline" else [LEVER.name])


def test_of_two_the_one_that_can_be_is(runner: Runner) -> None:
    ran = runner.forked("own_loss.py", "two", before=NO_KERNELS, levers=USE)
    check_alike(ran, runner.bare("own_loss.py", "two"))
    assert left_out(ran) == "" and graphs(ran) == {"elbo": 1, "noisy": 0}
    assert [problem.what for problem in ran.problems] == ["Refused: noisy stays as it is: it draws random numbers"]


@pytest.mark.parametrize("other", ["compile", "bf16-autocast"])
def test_beside_others_that_change_the_forward(runner: Runner, other: str) -> None:
    settings: dict[str, Any] = {"mode": "default"} if other == "compile" else {}
    levers = (Lever(name=other, settings=settings), *USE)
    ran, bare = runner.forked("own_loss.py", "plain", levers=levers), runner.bare("own_loss.py", "plain")
    assert ran.code == 0 and graphs(ran)["elbo"] >= 1 and not ran.problems
    assert ran.losses == pytest.approx(bare.losses, rel=0.02 if other == "bf16-autocast" else 1e-4)


@pytest.mark.parametrize("how", ["module", "module hooked", "module changes"])
def test_modules_of_the_scripts_own(runner: Runner, how: str) -> None:
    """Also one that gets a hook, and one with another number every five steps; copies and pickles are ordinary ones."""
    ran = runner.forked("own_loss.py", how, before="" if how == "module" else NO_KERNELS, levers=USE)
    check_alike(ran, runner.bare("own_loss.py", how))
    assert left_out(ran) == "" and graphs(ran)["forward"] >= 1 and not ran.problems
    assert [one.function for one in ran.facts.losses] == ["Elbo.forward"]


@pytest.mark.parametrize(
    "how", ["plain", "keeps the graph", "penalty", "twice", "writes into it", "under a mode", "a list"]
)
def test_whatever_a_script_does_with_its_loss(runner: Runner, how: str) -> None:
    """It is kept for another backward, differentiated twice, written into; nothing is kept alive by it, and the
    function is the same object under its other names."""
    ran, bare = runner.forked("own_loss_uses.py", how, levers=USE), runner.bare("own_loss_uses.py", how)
    check_alike(ran, bare)
    assert "alive 0 same True True" in ran.output
    assert left_out(ran) == "" and not ran.problems
    assert graphs(ran) == ({} if how == "under a mode" else {"loss_of": 1})


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("many lengths", "it was compiled anew 4 times"),
        ("counts", "it was compiled anew 4 times"),
        ("draws later", "it draws random numbers"),
        ("reads a parameter", "it reads tensors that need a gradient, beside what it is given"),
    ],
)
def test_what_turns_out_later(runner: Runner, how: str, why: str) -> None:
    """From then on it is as it was; what it was compiled to before gave the same."""
    ran = runner.forked("own_loss_uses.py", how, before=NO_KERNELS, levers=USE)
    check_alike(ran, runner.bare("own_loss_uses.py", how))
    assert [problem.what for problem in ran.problems] == [f"Refused: loss_of stays as it is: {why}"]


def loss(operations: int) -> LossFacts:
    return LossFacts(file="train.py", line=3, function="dice", operations=operations)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"losses": (loss(9), loss(2))}, None),
        ({"losses": ()}, "nothing of the script's own"),
        ({"losses": (loss(3),)}, "dice makes the loss with 3 operations"),
        ({"losses": (loss(9),), "backwards": 0}, "no backward was seen"),
    ],
)
@pytest.mark.parametrize("cuda", [False, True])
def test_where_it_applies(facts: dict[str, Any], why: str | None, cuda: bool) -> None:
    applies = LEVER.applies(context(cuda, **facts))
    assert applies.yes is (why is None) and (why or "dice makes the loss with 9 operations") in applies.why
