"""inference-mode: the same numbers, ordinary tensors outside, and nothing where gradients are on."""

import msgspec
import pytest
import torch
from contexts import context
from torch import nn

from hotlap.levers.inference_mode import LEVER, in_inference_mode


def wrapped(model: nn.Module, seen: list[bool]) -> object:
    def forward(*args: torch.Tensor) -> object:
        seen.append(torch.is_inference_mode_enabled())
        output = model(*args)
        return {"logits": output, "both": (output, args[0])}

    return in_inference_mode(model, forward)


def test_outputs_are_equal_and_ordinary() -> None:
    model, x, seen = nn.Linear(4, 4), torch.randn(2, 4), []
    forward = wrapped(model, seen)
    with torch.no_grad():
        output, expected = forward(x), model(x)  # type: ignore[operator]
    assert seen == [True] and torch.equal(output["logits"], expected)
    assert not output["logits"].is_inference() and not output["both"][0].is_inference()
    assert output["both"][1] is x, "what was not made in it is not copied"
    output["logits"].add_(1).requires_grad_()
    output["logits"].sum().backward()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_it_stays_out_of_the_way(mode: type) -> None:
    model, x, seen = nn.Linear(4, 4), torch.randn(2, 4), []
    with mode():
        output = wrapped(model, seen)(x)  # type: ignore[operator]
    assert seen == [mode is torch.inference_mode]
    assert output["logits"].requires_grad == (mode is torch.enable_grad)


def test_it_is_for_inference_only() -> None:
    assert "trains" in LEVER.applies(context(False)).why
    roots = tuple(msgspec.structs.replace(root, training=False) for root in context(False).facts.roots)
    assert LEVER.applies(context(False, mode="inference", roots=roots)).yes
