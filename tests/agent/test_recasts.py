"""Weights that are cast several times before a backward, and what turned autocast on in between, seen op by op."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.agent.lines import Lines

LAYER, FROZEN, OTHER = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
X = torch.randn(4, 8)
Backward = Callable[[torch.Tensor], None]


def autocast(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, **options)


def seen(step: Callable[[Backward], Any]) -> list[tuple[str, int, list[str]]]:
    """Functions of lines that cast again, how often the same, and of what turned autocast on."""
    lines = Lines(operator.call)

    def backward(loss: torch.Tensor) -> None:
        lines.backward([loss])
        loss.backward()

    with lines.watching(ops=True):
        step(backward)
    rows = lines.document()["recasts"]
    assert all(0 < row[4] < 1 for row in rows), "its input is cast there too"
    return [(row[2].rpartition(".")[2], row[3], [one[2].rpartition(".")[2] for one in row[5]]) for row in rows]


def cell(x: torch.Tensor) -> torch.Tensor:
    with autocast():
        return LAYER(x).float()


def in_each_call(backward: Backward) -> None:
    backward(cell(cell(cell(X))).sum())


def within_another(backward: Backward) -> None:
    with autocast():
        backward(cell(cell(X)).sum())


def by_a_decorator(backward: Backward) -> None:
    @torch.autocast("cpu", torch.bfloat16)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return LAYER(x).float()

    backward(decorated(decorated(X)).sum())


def without_the_cache(backward: Backward) -> None:
    with autocast(cache_enabled=False):
        backward((LAYER(X) + LAYER(X * 2)).float().sum())


def frozen(backward: Backward) -> None:
    with autocast():
        made = [FROZEN(x) for x in (X, X * 2, X * 3)]
        backward(LAYER(sum(made)).float().sum())


def by_the_script(backward: Backward) -> None:
    for at in range(3):
        (X * at).bfloat16() @ LAYER.weight.bfloat16()


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (in_each_call, [("cell", 3, ["cell"])]),
        (by_a_decorator, [("decorated", 2, ["by_a_decorator"])]),
        (without_the_cache, [("without_the_cache", 2, [])]),
        (frozen, [("<listcomp>", 3, [])]),
        (by_the_script, [("by_the_script", 3, [])]),
    ],
)
def test_weights_that_are_cast_again(step: Callable[[Backward], Any], found: list[Any]) -> None:
    assert seen(step) == found


def once(backward: Backward) -> None:
    with autocast():
        backward((LAYER(X) + LAYER(X * 2)).float().sum())


def of_micro_batches(backward: Backward) -> None:
    for _ in range(3):
        backward(cell(X).sum())


def of_weights_that_moved(backward: Backward) -> None:
    for _ in range(2):
        cell(X)
        with torch.no_grad():
            LAYER.weight.mul_(0.99)
            LAYER.bias.mul_(0.99)


def of_others(backward: Backward) -> None:
    for layer in (LAYER, OTHER):
        with autocast():
            layer(X)


def of_activations(backward: Backward) -> None:
    hidden = X * 2
    with autocast():
        backward((LAYER(hidden) + OTHER(hidden)).float().sum())


@pytest.mark.parametrize(
    "step", [once, within_another, of_micro_batches, of_weights_that_moved, of_others, of_activations]
)
def test_what_is_cast_once_is_not_told(step: Callable[[Backward], Any]) -> None:
    assert seen(step) == []


def test_it_is_told_by_itself_alone() -> None:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        by_the_script(lambda loss: None)
        cast = [LAYER.weight.bfloat16() for _ in range(3)]
    assert len(cast) == 3 and lines.document()["repeats"] == []
    assert torch.autocast_increment_nesting() == 1 and torch.autocast_decrement_nesting() == 0
