"""The layout of weights."""

import torch
from torch import nn

from hotlap.levers.channels_last import _weights

NHWC = torch.channels_last


def test_a_layer_that_makes_an_image_of_a_vector_keeps_its_order() -> None:
    """Compiled, it failed in its backward (the DCGAN of the zoo, torch 2.11 on an H200)."""
    model = nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 1, 0), nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.Conv2d(4, 3, 3))
    _weights(model)
    assert model[0].weight.is_contiguous()
    assert all(layer.weight.is_contiguous(memory_format=NHWC) for layer in (model[1], model[2]))
    assert model(torch.randn(2, 8, 1, 1)).shape == (2, 3, 6, 6)
