"""Gradients that the compiler's CUDA graphs left, moved out of their memory."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from hotlap.levers import _held_gradients
from hotlap.levers._held_gradients import REFRESHED, HeldGradients


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_held_gradients, "DEVICES", ("cpu",))
    yield


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).square().sum().backward()


def test_they_are_the_same_tensors_in_other_memory(here: None) -> None:
    model, held = nn.Linear(3, 2), None
    gradients = HeldGradients(model)
    gradients.move()
    backward(model)
    held = model.weight.grad
    assert held is not None and model.bias.grad is not None
    held[0] = torch.tensor([-0.0, math.nan, math.inf])
    before, at = held.clone(), held.data_ptr()
    memory = held.untyped_storage()
    gradients.move()
    memory.fill_(7)
    assert model.weight.grad is held and held.data_ptr() != at
    assert torch.equal(held.view(torch.int32), before.view(torch.int32)), "bit for bit"


def test_they_are_moved_once_until_they_are_others(here: None) -> None:
    model = nn.Linear(3, 2)
    gradients = HeldGradients(model)
    backward(model)
    gradients.move()
    at = model.weight.grad.data_ptr()  # type: ignore[union-attr]
    backward(model)
    gradients.move()
    assert model.weight.grad.data_ptr() == at, "added up in place"  # type: ignore[union-attr]
    model.zero_grad()
    backward(model)
    new = model.weight.grad.data_ptr()  # type: ignore[union-attr]
    gradients.move()
    assert model.weight.grad.data_ptr() != new  # type: ignore[union-attr]


def test_a_part_that_came_later_is_found_and_what_is_not_cuda_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    gradients = HeldGradients(model)
    backward(model)
    at = model[0].weight.grad.data_ptr()
    gradients.move()
    assert model[0].weight.grad.data_ptr() == at
    monkeypatch.setattr(_held_gradients, "DEVICES", ("cpu",))
    model[0] = nn.Linear(3, 2)
    backward(model)
    at = model[0].weight.grad.data_ptr()
    for _ in range(REFRESHED):
        gradients.move()
    assert model[0].weight.grad.data_ptr() != at
    del model
    gradients._calls = 0
    gradients.move()
    assert not gradients._parameters


def test_sparse_gradients_stay(here: None) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    held = model.weight.grad
    HeldGradients(model).move()
    assert model.weight.grad is held and held.is_sparse
