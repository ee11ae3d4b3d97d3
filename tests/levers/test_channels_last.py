"""The layout of weights."""

import pytest
import torch
from torch import nn

from hotlap.agent.seams import NothingToDo
from hotlap.levers.memory.channels_last import Laid, _inputs, _weights

NHWC = torch.channels_last


def test_a_layer_that_makes_an_image_of_a_vector_keeps_its_order() -> None:
    """Compiled, it failed in its backward (the DCGAN of the zoo, torch 2.11 on an H200)."""
    model = nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 1, 0), nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.Conv2d(4, 3, 3))
    _weights(model)
    assert model[0].weight.is_contiguous()
    assert all(layer.weight.is_contiguous(memory_format=NHWC) for layer in (model[1], model[2]))
    assert model(torch.randn(2, 8, 1, 1)).shape == (2, 3, 6, 6)


def test_without_weights_that_are_images_it_says_so_and_wraps_nothing() -> None:
    for change in (_weights, lambda module: _inputs(module, module.forward)):
        with pytest.raises(NothingToDo, match="Sequential has no 2-d convolutions"):
            change(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.LazyLinear(2)))
        change(nn.Sequential(nn.Conv2d(2, 2, 1)))
    _weights(nn.ParameterList([torch.zeros(2, 2, 3, 3)]))
    _inputs(lazy := nn.LazyConv2d(2, 1), lazy.forward)


def test_where_it_fails_half_way_weights_lie_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory ends in the midst of it."""

    def full(**_: object) -> None:
        raise RuntimeError("out of memory")

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    monkeypatch.setattr(model[1], "to", full)
    strides = [weight.stride() for weight in model.parameters()]
    laid = Laid(lambda: [])
    with pytest.raises(RuntimeError):
        laid.change(model)
    assert [weight.stride() for weight in model.parameters()] != strides
    laid.undo(model)
    assert [weight.stride() for weight in model.parameters()] == strides
