"""The wrapper around `Tensor.to`, in a build of torch without a device: what classes of tensors see of it."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.agent.guard import Guard
from hotlap.agent.hooks import transfer
from hotlap.agent.steps import Steps
from hotlap.agent.timeline import Timeline


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    steps = Steps(Timeline(lambda: 0, None), lambda segment, kind: None)
    agent: Any = SimpleNamespace(begun=False, steps=steps, script=None, guard=Guard())
    move = transfer._wrap(agent, torch.Tensor.to, always=False)
    monkeypatch.setattr(torch.Tensor, "to", move)
    yield move


def test_lazy_modules_move(wrapped: Callable[..., Any]) -> None:
    """Seen on an H100: an uninitialized parameter allows the functions of a list made as torch was imported."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyConv2d(3, 3)).to(torch.float64)
    assert model[0](torch.ones(2, 4, dtype=torch.float64)).dtype == torch.float64


def test_classes_of_the_users_are_told_of_the_name_that_they_know(wrapped: Callable[..., Any]) -> None:
    seen: list[Any] = []

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    moved = torch.ones(2).as_subclass(Own).to(torch.float64)
    assert type(moved) is Own
    assert moved.dtype == torch.float64
    assert torch.Tensor.to in seen


def test_plain_tensors_and_parameters(wrapped: Callable[..., Any]) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert parameter.to(torch.float64).dtype == torch.float64
    assert parameter.to(torch.ones(1, dtype=torch.float16)).dtype == torch.float16
    assert torch.nn.Buffer(torch.ones(2)).to(torch.int64).dtype == torch.int64
