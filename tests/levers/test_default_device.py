"""Scripts that set another default device or dtype: levers make what they need where they need it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hotlap.levers.cudagraphs._training_call import waves
from hotlap.levers.input._dataset_state import state_of
from hotlap.levers.input.loader_workers import _draw_seed

ON_HOST: Any = {"device": "cpu", "dtype": torch.float32}


@pytest.fixture(autouse=True)
def _other_defaults() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def test_a_dataset_is_known_by_its_values() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 2, **ON_HOST))
    before = state_of(rows, None)
    assert before is not None and before == state_of(rows, None)
    rows.tensors[0][0] = 1
    assert state_of(rows, None) != before


def test_a_gradient_that_tells_places_apart_is_as_fine_as_ever() -> None:
    torch.set_default_dtype(torch.bfloat16)
    assert len(set(waves(torch.zeros(1000, **ON_HOST)).tolist())) == 1000


def test_a_seed_is_drawn_where_the_loader_draws_it() -> None:
    """Without a generator that is the default one of the default device; here a device that has none."""
    before, own, loaders = torch.get_rng_state(), torch.Generator("cpu"), torch.Generator("cpu")
    _draw_seed(None)
    assert torch.equal(torch.get_rng_state(), before)
    _draw_seed(own)
    torch.empty((), dtype=torch.int64, device="cpu").random_(generator=loaders)
    assert torch.equal(own.get_state(), loaders.get_state())
