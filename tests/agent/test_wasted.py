"""Backwards that go on into a model whose gradients of it are thrown away."""

import gc
import weakref
from typing import Any

import pytest
import torch

from hotlap.agent import wasted as wasted_module
from hotlap.agent.wasted import Wasted

from .harness import SCRIPTS, Runner, check_same

HERE = ("train.py", 7, "step")


def models() -> tuple[Any, Any, list[Any]]:
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    return first, second, [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]


def backward(wasted: Wasted, loss: torch.Tensor, backwards: int) -> None:
    wasted.begin(backwards)
    loss.sum().backward()
    wasted.end(backwards + 1)


def test_what_is_reached_after_all_that_steps_is_wasted() -> None:
    first, second, optimizers = models()
    wasted = Wasted(optimizers, lambda: HERE)
    backward(wasted, second(first(torch.ones(2, 3))), 0)
    optimizers[1].step()
    wasted.stepped(id(optimizers[1]))
    optimizers[0].zero_grad()
    wasted.begin(1)
    assert [place for place, _ in wasted.found] == [HERE]
    wasted.end(2)
    facts = wasted.facts
    assert facts is not None and facts["place"] == HERE and facts["share"] == 0.5 and facts["part"] == 0


@pytest.mark.parametrize("case", ["kept", "stepped", "passed through", "unseen between", "one optimizer"])
def test_otherwise_nothing_is(case: str) -> None:
    """Gradients that are kept are of an accumulation; a discriminator is passed through on the way to a generator."""
    first, second, optimizers = models()
    wasted = Wasted(optimizers[: 1 if case == "one optimizer" else 2], lambda: HERE)
    backward(wasted, second(first(torch.ones(2, 3))), 0)
    for at in {"stepped": (0, 1), "passed through": (0,)}.get(case, (1,)):
        optimizers[at].step()
        wasted.stepped(id(optimizers[at]))
    if case != "kept":
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()
    wasted.begin(5 if case == "unseen between" else 1)
    assert wasted.found == [] and wasted.facts is None
    wasted.end(2)


def test_no_hook_stays_and_few_backwards_are_looked_at() -> None:
    first, second, optimizers = models()
    wasted = Wasted(optimizers, lambda: HERE)
    for at in range(wasted_module.MOST + 3):
        backward(wasted, second(first(torch.ones(2, 3))), at)
        assert not any(one._post_accumulate_grad_hooks for one in (*first.parameters(), *second.parameters()))
    wasted.begin(0)
    wasted.give_up()
    assert not any(one._post_accumulate_grad_hooks for one in (*first.parameters(), *second.parameters()))


@pytest.mark.parametrize("zeroed", ["none", "zero"])
@pytest.mark.parametrize(("kind", "told"), [("attached", True), ("detached", False)])
def test_a_detach_that_was_forgotten(kind: str, told: bool, zeroed: str, runner: Runner) -> None:
    ran = runner.untouched("gan.py", kind, zeroed)
    found = ran.facts.wasted
    assert (found is not None) is told
    if found is not None:
        line = next(at for at, text in enumerate((SCRIPTS / "gan.py").read_text().splitlines(), 1) if "learns" in text)
        assert found.place[1] == line and found.share > 0.3 and 0 < found.part < found.share


def test_an_error_ends_the_looks_alone(runner: Runner) -> None:
    ran = runner.forked("gan.py", "attached", "none", fail_in="wasted")
    check_same(ran, runner.bare("gan.py", "attached", "none"))
    assert [problem.where for problem in ran.problems] == ["wasted"]
    assert len(ran.steps) == 30 and ran.facts.wasted is None


def test_what_the_script_lets_go_is_gone() -> None:
    first, second, optimizers = models()
    wasted = Wasted(weakref.WeakSet(optimizers), lambda: HERE)
    backward(wasted, second(first(torch.ones(2, 3))), 0)
    seen = [weakref.ref(one) for one in (first.weight, *optimizers)]
    del first, second, optimizers
    gc.collect()
    assert [one() for one in seen] == [None] * 3
    wasted.begin(1)
    assert wasted.found == []
