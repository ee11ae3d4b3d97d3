"""The layout of weights."""

import copy
from collections.abc import Callable

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


class Gain(nn.Module):
    """As in the normalisation of a diffusion U-Net."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=1) * self.gain


def test_a_gain_of_four_dimensions_keeps_its_order() -> None:
    """Its order is ambiguous: compiled, `CompiledFunctionBackward` gave it a gradient of another shape (on an H100;
    not on a CPU, so only what that came of is tested here)."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3), Gain(64), nn.Conv2d(64, 64, 3), Gain(64))
    gains = [model[at].gain for at in (1, 3)]
    before = [(gain.stride(), gain.data_ptr()) for gain in gains]
    laid = Laid(lambda: [])
    laid.change(model)
    assert [(gain.stride(), gain.data_ptr()) for gain in gains] == before
    assert [id(tensor) for tensor, _ in laid.before[model]] == [id(model[at].weight) for at in (0, 2)]
    assert all(model[at].weight.is_contiguous(memory_format=NHWC) for at in (0, 2))


@pytest.mark.parametrize("first", ["compiled", "laid"])
def test_under_a_compiled_backward_weights_may_come_to_lie_otherwise(first: str) -> None:
    """The lever is switched in and out in a process that has compiled a backward with the other order; gradients are
    those of the weights' shape, and lie as they do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Gain(8), nn.ConvTranspose2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    images = torch.randn(2, 3, 6, 6)
    model(images)
    plain = copy.deepcopy(model)
    laid, forward = Laid(lambda: []), _inputs(model, torch.compile(model, backend="aot_eager"))

    def gradients(call: Callable[..., torch.Tensor], of: nn.Module) -> list[torch.Tensor]:
        of.zero_grad()
        call(images).square().mean().backward()
        return [parameter.grad for parameter in of.parameters() if parameter.grad is not None]

    wanted = gradients(plain, plain)
    for change in ([laid.undo, laid.change] if first == "compiled" else [laid.change, laid.undo]) * 2:
        change(model)
        found = gradients(forward, model)
        assert [gradient.shape for gradient in found] == [parameter.shape for parameter in model.parameters()]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6, check_stride=False)
    torch._dynamo.reset()
