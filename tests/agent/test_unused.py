"""Forwards with gradients that no backward uses."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.agent.unused import ALL, EVERY, FIRST, PENDING, SHARE, Unused

from .harness import SCRIPTS, Runner, check_same

NET = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
X = torch.ones(4, 3)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have had something compiled."""
    monkeypatch.setattr("hotlap.agent.unused.compiled_frames", lambda: 0)


SHORT = "import hotlap.agent.unused as f; f.SHARE = 1"
"""So that so short a run is looked at."""


def looking(clock: Callable[[], int] | None = None) -> Unused:
    unused = Unused(clock or itertools.count(0, 10**6).__next__, lambda: True)
    unused._since = -(10**15)  # a long run
    unused.step_done(FIRST)
    assert unused.looking
    return unused


def called(unused: Unused, output: Any) -> None:
    unused.begin()
    unused.end(NET, 4, output)


def unused_of(use: Callable[[torch.Tensor], Any]) -> tuple[int, int]:
    """Calls, and those that no backward used, once what `use` returns is gone."""
    unused = looking()

    def step() -> Any:
        output = NET(X)
        called(unused, output)
        return use(output)

    held = step()
    unused.step_done(FIRST + 1)
    assert unused.facts() == [] or held is None
    del held
    (row,) = unused.facts()
    return row["calls"], row.get("unused_calls", 0)


@pytest.mark.parametrize("use", [lambda _: None, lambda output: output, lambda output: output.detach().sum() and None])
def test_what_nobody_uses(use: Callable[[torch.Tensor], Any]) -> None:
    assert unused_of(use) == (1, 1)


def by_gradients(output: torch.Tensor) -> None:
    torch.autograd.grad(output.sum(), NET[0].weight)


def twice(output: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad(output.square().sum(), NET[0].weight, create_graph=True)
    gradient.sum().backward()


def with_retained(output: torch.Tensor) -> None:
    output.sum().backward(retain_graph=True)
    output.square().sum().backward()


def in_place(output: torch.Tensor) -> None:
    output.view(-1).mul_(2).sum().backward()


@pytest.mark.parametrize("use", [by_gradients, twice, with_retained, in_place])
def test_what_a_backward_uses(use: Callable[[torch.Tensor], Any]) -> None:
    assert unused_of(use) == (1, 0)


def test_one_of_several_outputs_is_enough() -> None:
    unused, hidden = looking(), NET[0](X)
    outputs = {"first": NET[1:](hidden), "second": [hidden.square()]}
    called(unused, outputs)
    outputs["second"][0].sum().backward()
    del outputs, hidden
    assert [row.get("unused_calls", 0) for row in unused.facts()] == []  # of a step that goes on
    unused.step_done(FIRST + 1)
    assert [(row["calls"], row.get("unused_calls", 0)) for row in unused.facts()] == [(1, 0)]


def no_graph() -> Any:
    with torch.no_grad():
        return NET(X)


@pytest.mark.parametrize(
    "output", [no_graph, lambda: None, lambda: [NET(X) for _ in range(20)], lambda: NET(X).to_sparse(), lambda: 3]
)
def test_what_may_not_be_known_is_not_told(output: Callable[[], Any]) -> None:
    unused = looking()
    called(unused, output())
    unused.step_done(FIRST + 1)
    assert unused.facts() == []


def test_of_many_calls_some_stand_for_all() -> None:
    unused = looking()
    for _ in range(ALL + 3 * EVERY):
        called(unused, NET(X))
    unused.step_done(FIRST + 1)
    (row,) = unused.facts()
    assert row["unused_calls"] == row["calls"] == ALL + 3 * EVERY and row["rows"] == 4 * row["calls"]


def test_looks_take_a_small_part_of_the_time_and_few_are_remembered() -> None:
    times = iter(itertools.count(0, 1))
    unused = looking(lambda: next(times))
    outputs = []
    for step in range(EVERY):
        for _ in range(2 * PENDING):
            outputs.append(NET(X[:1]))
            called(unused, outputs[-1])
        unused.step_done(FIRST + 1 + step)
    assert len(unused._pending) == PENDING
    unused._since = next(times) - SHARE
    unused.step_done(FIRST + 5)
    assert not unused.looking
    unused.give_up()
    assert unused.facts() == []


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        *((kind, True) for kind in ("acting", "hidden", "checkpointed")),
        *((kind, False) for kind in ("without", "accumulated", "noted", "kept", "retained")),
    ],
)
def test_a_policy_that_acts_with_gradients(kind: str, told: bool, runner: Runner) -> None:
    ran = runner.untouched("acting.py", kind, before=SHORT)
    found = [one for one in ran.facts.unused if one.unused_calls]
    assert bool(found) is told
    trained = sum(one.calls - one.unused_calls for one in ran.facts.unused)
    assert trained > 10
    for one in found:
        line = next(
            at for at, text in enumerate((SCRIPTS / "acting.py").read_text().splitlines(), 1) if "# acts" in text
        )
        assert one.place is not None and one.place[1] == line and one.name == "Policy"
        assert one.unused_calls == one.unused_rows == one.calls > 3 * trained and one.unused_took_ms == one.took_ms > 0


def test_an_error_ends_the_looks_alone(runner: Runner) -> None:
    ran = runner.forked("acting.py", "acting", fail_in="unused_forwards")
    check_same(ran, runner.bare("acting.py", "acting"))
    assert [problem.where for problem in ran.problems] == ["unused_forwards"] and ran.facts.unused == ()
