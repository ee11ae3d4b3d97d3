"""What a step computes with gradients and nothing uses, seen op by op."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.agent import dead
from hotlap.agent.lines import Lines
from hotlap.records.profile import Lines as Record

from .harness import SCRIPTS, Runner

A, B, C = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
X = torch.randn(4, 8)
MEMORY = torch.zeros(4, 8)
Backward = Callable[[torch.Tensor], None]


def side(hidden: torch.Tensor) -> torch.Tensor:
    return B(hidden).tanh()


def unused_of(step: Callable[[Backward], Any]) -> list[Any]:
    """Functions of the calls, how many of their operations are for nothing, and the part of their line."""
    return [(row[7].rpartition(".")[2], row[3], round(row[4], 2)) for row in seen(step)["unused"]]


def seen(step: Callable[[Backward], Any]) -> dict[str, Any]:
    lines = Lines(operator.call)

    def backward(loss: torch.Tensor) -> None:
        lines.backward([loss])
        loss.backward()

    with lines.watching(ops=True):
        step(backward)
    MEMORY.zero_().detach_()
    return lines.document()


def thrown_away(backward: Backward) -> None:
    hidden = A(X)
    side(hidden)
    backward(C(hidden).sum())


def of_a_line_that_is_used_too(backward: Backward) -> None:
    hidden = A(X)
    made = [side(hidden) for _ in range(2)]
    backward(C(made[0]).sum())


def without_a_graph_within(backward: Backward) -> None:
    hidden = A(X)
    (side(hidden) * (X > 0).float()).sum()
    backward(C(hidden).sum())


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (thrown_away, [("thrown_away", 2, 1.0)]),
        (of_a_line_that_is_used_too, [("side", 2, 0.5)]),
    ],
)
def test_what_is_thrown_away(step: Callable[[Backward], Any], found: list[Any]) -> None:
    assert unused_of(step) == found


def test_ops_without_a_gradient_below_it_are_of_it() -> None:
    assert {row[0] for row in unused_of(without_a_graph_within)} == {"without_a_graph_within"}


# what is used


def learned(backward: Backward) -> None:
    hidden = A(X)
    backward(C(hidden).sum() + side(hidden).sum() * 2)


def as_a_target(backward: Backward) -> None:
    wanted = side(A(X)).detach()
    backward((C(X) - wanted).square().mean())


def logged(backward: Backward) -> None:
    hidden = A(X)
    side(hidden).mean().item()
    backward(C(hidden).sum())


def chosen_by(backward: Backward) -> None:
    hidden = A(X)
    if (side(hidden) > 0).all():
        hidden = hidden * 2
    backward(C(hidden).sum())


def written_to_memory(backward: Backward) -> None:
    hidden = A(X)
    with torch.no_grad():
        MEMORY[:2].copy_(side(hidden)[:2])
        MEMORY[2:].copy_(side(hidden)[2:])
    backward(C(hidden).sum())


def in_place(backward: Backward) -> None:
    hidden = A(X)
    made = side(hidden).clone()
    made[1:] *= 2
    made.view(-1)[3:] += 1
    backward(C(made).sum())


def without_gradients(backward: Backward) -> None:
    with torch.no_grad():
        side(A(X))
    backward(C(A(X)).sum())


def recomputed(backward: Backward) -> None:
    backward(C(checkpoint(side, A(X), use_reentrant=False)).sum())


def recomputed_by_a_function(backward: Backward) -> None:
    backward(C(checkpoint(side, A(X), use_reentrant=True)).sum())


def accumulated(backward: Backward) -> None:
    for _ in range(2):
        backward(C(side(A(X))).sum())


def averages_of_norms(backward: Backward) -> None:
    hidden = A(X)
    NORM(side(hidden))
    backward(C(hidden).sum())


NORM = nn.BatchNorm1d(8)


def by_no_backward(backward: Backward) -> None:
    side(A(X))


@pytest.mark.parametrize(
    "step",
    [
        learned,
        as_a_target,
        logged,
        chosen_by,
        written_to_memory,
        in_place,
        without_gradients,
        recomputed,
        recomputed_by_a_function,
        accumulated,
        averages_of_norms,
        by_no_backward,
    ],
)
def test_what_is_used_is_not_told(step: Callable[[Backward], Any]) -> None:
    assert unused_of(step) == []


def test_what_a_second_derivative_goes_through_is_used() -> None:
    lines = Lines(operator.call)

    def step() -> None:
        x = X.clone().requires_grad_()
        loss = C(side(x)).square().sum()
        lines.backward([loss])
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        lines.backward([last := gradient.square().sum()])
        last.backward()

    with lines.watching(ops=True):
        step()
    assert lines.document()["unused"] == []


def test_what_lives_on_may_be_used_and_is_where_a_later_backward_reaches_it() -> None:
    lines = Lines(operator.call)

    def step() -> torch.Tensor:
        hidden = A(X)
        made = side(hidden)
        lines.backward([loss := C(hidden).sum()])
        loss.backward()
        return made

    for later in (True, False):
        lines = Lines(operator.call)
        with lines.watching(ops=True):
            made = step()
        assert lines.document()["unused"] == []
        if later:
            lines.backward([made.sum()])
        del made
        assert bool(lines.document()["unused"]) is not later


def test_of_a_graph_that_is_too_large_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_NODES", 2)
    assert unused_of(thrown_away) == []


@pytest.mark.parametrize("kind", ["aside", "used"])
def test_a_loss_that_is_thrown_away(kind: str, runner: Runner) -> None:
    """The script's own name holds it to the next step."""
    ran = runner.untouched("dead.py", kind, profile_steps=2)
    found = ran.ranks[0].document(Record)
    assert found is not None and bool(found.unused) is (kind == "aside")
    text = (SCRIPTS / "dead.py").read_text().splitlines()
    assert {text[row[1] - 1].rpartition("# ")[2] for row in found.unused} <= {"thrown away"}


# what only a product with zero uses

ZERO, TRAINED, ONE = torch.zeros(()), nn.Parameter(torch.zeros(())), torch.ones(())


def weighed(weight: Any, backward: Backward, read: bool = False) -> None:
    hidden = A(X)
    with torch.no_grad():
        wanted = side(X)
    term = (side(hidden) - wanted).square().mean()
    if read:
        term.item()
    backward(C(hidden).sum() + weight * term)


@pytest.mark.parametrize("zero", [0, 0.0, False, ZERO])
@pytest.mark.parametrize(("read", "part"), [(False, 1.0), (True, 2 / 4)])
def test_a_term_that_is_multiplied_by_zero(zero: Any, read: bool, part: float) -> None:
    """What has no gradient is told with it; what is read, of its backward alone: two of four forwards' work of `side`
    without gradients, and with them, and its backward."""
    rows = seen(lambda backward: weighed(zero, backward, read))["zeroed"]
    assert {row[7].rpartition(".")[2] for row in rows} == {"weighed"} and len({row[6] for row in rows}) == 1
    (of_it,) = (row for row in rows if row[2].endswith("side"))
    assert of_it[4] == pytest.approx(part) and of_it[3] == (2 if read else 4)


def learned_weight(backward: Backward) -> None:
    backward(C(X).sum() + (TRAINED * side(A(X))).sum())


def of_this_batch(backward: Backward) -> None:
    backward(C(X).sum() + (X > 9).sum() * side(A(X)).sum())


def used_elsewhere(backward: Backward) -> None:
    term = side(A(X)).sum()
    backward(term + 0.0 * term)


def by_one(backward: Backward) -> None:
    backward(C(X).sum() + ONE * side(A(X)).sum())


def never_trained(backward: Backward) -> None:
    backward(C(X).sum())
    0.0 * side(A(X)).sum()


@pytest.mark.parametrize("step", [learned_weight, of_this_batch, used_elsewhere, by_one, never_trained])
def test_what_is_not_multiplied_by_zero_for_good(step: Callable[[Backward], Any]) -> None:
    assert seen(step)["zeroed"] == []


def test_a_backward_that_goes_on_into_steps_before_is_told_at_the_line_that_leads_there() -> None:
    center = torch.zeros(1)

    def step(backward: Backward, keeps: bool = True) -> None:
        nonlocal center
        made = C(A(X)).mean()
        center = 0.9 * (center if keeps else center.detach()) + made
        backward((center - made).square())

    for _ in range(3):
        step(lambda loss: loss.backward(retain_graph=True))
    ((*place, nodes, part, _, line, _),) = seen(step)["older"]
    assert place[1] == line == step.__code__.co_firstlineno + 3
    assert nodes == pytest.approx(3 * (nodes / part - nodes), rel=0.3) and part > 2 / 3
    assert seen(lambda backward: step(backward, keeps=False))["older"] == []
    assert seen(thrown_away)["older"] == []
