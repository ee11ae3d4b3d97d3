"""How many rows a forward is given, where no loader says it."""

from typing import Any

import pytest
import torch

from hotlap.agent.hooks.forward import _rows


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
