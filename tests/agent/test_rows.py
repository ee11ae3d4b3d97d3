"""How many rows a forward is given, where no loader says it."""

from typing import Any

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

from hotlap.agent.hooks.forward import _rows
from hotlap.agent.hooks.loader import _rows as loader_rows
from hotlap.agent.probe import leaves, mapped


@pytest.mark.parametrize(("args", "kwargs", "rows"), [
    ((torch.zeros(8, 3),), {}, 8),
    ((torch.zeros(5, dtype=torch.long),), {}, 5),
    ((torch.zeros(4),), {}, 1),
    ((torch.zeros(8), torch.zeros(8, 3)), {}, 8),
    ((torch.zeros(()),), {}, None),
    ((3,), {}, None),
    ((), {"x": torch.zeros(2, 3)}, 2),
], ids=["batch", "tokens", "a state", "times first", "a number", "no tensor", "by name"])  # fmt: skip
def test_rows_of_what_a_module_is_given(args: Any, kwargs: Any, rows: int | None) -> None:
    assert _rows(args, kwargs) == rows


@pytest.mark.parametrize(("shape", "own", "rows"), [
    ((10, 64), True, 64), ((64, 10), True, 64), ((5, 64), False, 5), ((10, 5), True, 10), ((200, 5), True, 64),
], ids=["length first", "batch first", "a last batch", "both at the end of an epoch", "many"])  # fmt: skip
def test_rows_of_a_batch_that_the_script_collates(shape: tuple[int, ...], own: bool, rows: int) -> None:
    facts = {"batch_size": 64, "default_collate": not own}
    assert loader_rows([torch.zeros(shape)], facts) == rows


def test_rows_of_samples_that_the_script_hands_over_in_a_list() -> None:
    facts = {"batch_size": 64, "default_collate": False}
    samples = [{"accel": torch.zeros(3, 128)} for _ in range(64)]
    assert loader_rows(samples, facts) == 64 and loader_rows(samples[:3], facts) == 3
    assert loader_rows([torch.zeros(2, 5), torch.zeros(2)], {"batch_size": 2, "default_collate": True}) == 2


def test_what_vmap_hands_over_is_one_of_several() -> None:
    found: list[tuple[int | None, bool]] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        found.append((_rows((x,), {}), mapped(x)))
        return x * 2

    x = torch.zeros(8, 3)
    vmap(model)(x), vmap(jacrev(model))(x), vmap(vmap(model))(x)
    assert found == [(None, True)] * 3
    jacrev(model)(x), jacfwd(model)(x)
    assert found[3:] == [(8, False)] * 2


def test_all_tensors_of_a_list_of_samples_are_counted() -> None:
    samples = [{"accel": torch.zeros(3, 8), "words": [1] * 5000, "label": torch.zeros(())} for _ in range(96)]
    assert len(list(leaves(samples, most=4096))) == 2 * 96 and len(list(leaves(samples))) == 2 * 64
