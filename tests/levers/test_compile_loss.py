"""Functions of the script's own that make the loss, compiled, and those that stay as they are."""

import json
import re
from typing import Any

import pytest
from contexts import context

from agent.harness import Ran, Runner, check_same
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
    ran = runner.forked("own_loss.py", how, levers=USE)
    check_alike(ran, runner.bare("own_loss.py", how))
    name = "failing" if how == "fails" else "elbo"
    assert left_out(ran) == "" and graphs(ran)[name] >= 1
    said = ["Refused: failing can't be compiled: Observed exception"] if how == "fails" else []
    assert [problem.what for problem in ran.problems] == said
    seen = next(one for one in ran.facts.losses if one.function == name)
    assert seen.operations >= 4 and seen.file.endswith("own_loss.py")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("draws", "noisy draws random numbers"),
        ("reads", "reading reads values"),
        ("writes", "writing writes into what it is given"),
        ("collects", "collecting writes into what it is given"),
        ("prints", "printing can't be compiled"),
        ("inline", "nothing of the script's own"),
    ],
)
def test_others_stay_as_they_are(runner: Runner, how: str, why: str) -> None:
    ran = runner.forked("own_loss.py", how, levers=USE)
    check_same(ran, runner.bare("own_loss.py", how))
    assert left_out(ran).startswith(why) or how == "inline"
    assert [problem.lever for problem in ran.problems] == ([] if how == "inline" else [LEVER.name])


def test_one_that_is_given_the_model_is_not_touched(runner: Runner) -> None:
    ran = runner.forked("own_loss.py", "model", levers=USE)
    check_same(ran, runner.bare("own_loss.py", "model"))
    assert graphs(ran) == {} and not ran.problems


def test_of_two_the_one_that_can_be_is(runner: Runner) -> None:
    ran = runner.forked("own_loss.py", "two", levers=USE)
    check_alike(ran, runner.bare("own_loss.py", "two"))
    assert left_out(ran) == "" and graphs(ran) == {"elbo": 1}
    assert [problem.what for problem in ran.problems] == ["Refused: noisy draws random numbers"]


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
    ran = runner.forked("own_loss.py", how, levers=USE)
    check_alike(ran, runner.bare("own_loss.py", how))
    assert left_out(ran) == "" and graphs(ran)["forward"] >= 1 and not ran.problems
    assert [one.function for one in ran.facts.losses] == ["Elbo.forward"]


def test_a_module_that_draws_stays_as_it_is(runner: Runner) -> None:
    ran = runner.forked("own_loss.py", "module draws", levers=USE)
    check_same(ran, runner.bare("own_loss.py", "module draws"))
    assert left_out(ran) == "Noisy.forward draws random numbers"


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
