"""How many rows a forward is given, where no loader says it."""

from typing import Any

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

from hotlap.agent.hooks.forward import _rows
from hotlap.agent.hooks.loader import _rows as loader_rows
from hotlap.agent.probe import mapped


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
