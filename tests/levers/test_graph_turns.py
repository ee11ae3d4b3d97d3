"""When the memory of the compiler's CUDA graphs is used again, and what of the script's is not in it then."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.levers.compiler import _graph_turns
from hotlap.levers.compiler._graph_turns import REFRESHED, Memory, Turns


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_graph_turns, "DEVICES", ("cpu",))
    yield


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).square().sum().backward()


def test_they_are_the_same_tensors_in_other_memory(here: None) -> None:
    model, held = nn.Linear(3, 2), None
    gradients = Turns(model)
    gradients.move_gradients()
    backward(model)
    held = model.weight.grad
    assert held is not None and model.bias.grad is not None
    held[0] = torch.tensor([-0.0, math.nan, math.inf])
    before, at = held.clone(), held.data_ptr()
    memory = held.untyped_storage()
    gradients.move_gradients()
    memory.fill_(7)
    assert model.weight.grad is held and held.data_ptr() != at
    assert torch.equal(held.view(torch.int32), before.view(torch.int32)), "bit for bit"


def test_they_are_moved_once_until_they_are_others(here: None) -> None:
    model = nn.Linear(3, 2)
    gradients = Turns(model)
    backward(model)
    gradients.move_gradients()
    at = model.weight.grad.data_ptr()  # type: ignore[union-attr]
    backward(model)
    gradients.move_gradients()
    assert model.weight.grad.data_ptr() == at, "added up in place"  # type: ignore[union-attr]
    model.zero_grad()
    backward(model)
    new = model.weight.grad.data_ptr()  # type: ignore[union-attr]
    gradients.move_gradients()
    assert model.weight.grad.data_ptr() != new  # type: ignore[union-attr]


def test_a_part_that_came_later_is_found_and_what_is_not_cuda_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    gradients = Turns(model)
    backward(model)
    at = model[0].weight.grad.data_ptr()
    gradients.move_gradients()
    assert model[0].weight.grad.data_ptr() == at
    monkeypatch.setattr(_graph_turns, "DEVICES", ("cpu",))
    model[0] = nn.Linear(3, 2)
    backward(model)
    at = model[0].weight.grad.data_ptr()
    for _ in range(REFRESHED):
        gradients.move_gradients()
    assert model[0].weight.grad.data_ptr() != at
    del model
    gradients._calls = 0
    gradients.move_gradients()
    assert not gradients._parameters


def test_sparse_gradients_stay(here: None) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    held = model.weight.grad
    Turns(model).move_gradients()
    assert model.weight.grad is held and held.is_sparse


class Graphs:
    """A compiled model whose outputs lie in one place, which the next turn uses again."""

    def __init__(self, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.turns, self.marks, self.plain = model, Turns(model, Memory()), 0, 0
        monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", self._mark)

    def _mark(self) -> None:
        self.marks += 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.turns.call(self.model, self._plain, args, kwargs)

    def _plain(self, *args: Any) -> Any:
        self.plain += 1
        return self.model(*args)


def test_a_turn_ends_with_each_forward_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, x = Graphs(nn.Linear(3, 2), monkeypatch), torch.ones(2, 3)
    kept = []
    for _ in range(3):
        loss = graphs(x).square().mean()
        loss.backward()
        kept.append(loss)
    assert graphs.marks == 3
    with torch.no_grad():
        graphs(x)
        graphs(x)
    assert graphs.marks == 5


def test_none_ends_while_a_backward_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the same graph come twice before it."""
    graphs, x = Graphs(nn.Linear(3, 2), monkeypatch), torch.ones(2, 3)
    for step in range(3):
        one, two = graphs(x), graphs(x * 2)
        assert graphs.marks == graphs.plain == step + 1
        (one + two).sum().backward()
    one, two = graphs(x).mean(), graphs(x * 2).mean()
    assert graphs.marks == graphs.plain == 4, "outputs are gone, what was made of them is not"
    two.backward()
    graphs(x)
    assert graphs.plain == 5, "that was the backward of the other one"
    one.backward()
    gone = graphs(x)
    del gone
    graphs(x).sum().backward()
    assert (graphs.marks, graphs.plain) == (6, 5), "what nobody holds waits for none"


def test_a_forward_with_many_outputs_is_waited_for_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x * at for at in range(30)]

    graphs, x = Graphs(Many(), monkeypatch), torch.ones(2, requires_grad=True)
    one, two = graphs(x * 1), graphs(x * 2)
    assert graphs.marks == graphs.plain == 1
    torch.stack([*one, *two]).sum().backward()
    graphs(x)
    assert (graphs.marks, graphs.plain) == (2, 1)


def test_models_share_their_turns(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator and what takes its output, which is called before the generator's backward."""
    generator, discriminator = Graphs(nn.Linear(3, 3), monkeypatch), Graphs(nn.Linear(3, 1), monkeypatch)
    discriminator.turns = Turns(discriminator.model, generator.turns._memory)
    for step in range(3):
        discriminator.model.zero_grad()
        discriminator(torch.ones(2, 3)).sum().backward()
        held = discriminator.model.weight.grad
        assert held is not None
        at = held.data_ptr()
        fake = generator(torch.ones(2, 3))
        assert held.data_ptr() != at, "gradients of both are moved"
        score = discriminator(fake)
        assert generator.marks + discriminator.marks == 2 * step + 2
        assert (generator.plain, discriminator.plain) == (0, step + 1)
        score.sum().backward()


def test_gradients_of_inputs_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            given.append(gradient * 3)
            return given[-1]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, *, more: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": Keeps.apply(x) + Keeps.apply(more)}

    graphs = Graphs(Model(), monkeypatch)
    x, more = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    graphs(x, more=more * 1)["out"].sum().backward()
    assert x.grad is not None and more.grad is not None and x.grad.tolist() == more.grad.tolist() == [3, 3]
    assert not {x.grad.data_ptr(), more.grad.data_ptr()} & {one.data_ptr() for one in given}
    (second,) = torch.autograd.grad(graphs(x, more=more)["out"].square().sum(), x, create_graph=True)
    assert second.requires_grad


def test_transforms_see_no_function_without_rules_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs(nn.Linear(3, 2), monkeypatch)
    found = torch.func.vmap(torch.func.grad(lambda x: graphs(x).sum()))(torch.ones(4, 3))
    assert found.shape == (4, 3)
