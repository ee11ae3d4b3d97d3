"""inference-mode: the same numbers, ordinary tensors outside, and nothing where gradients are on."""

from typing import Any

import msgspec
import pytest
import torch
from contexts import context
from torch import nn

from hotlap.levers.inference_mode import LEVER, WATCHED, in_inference_mode


def wrapped(model: nn.Module, seen: list[bool]) -> Any:
    """Watched already."""

    def forward(*args: torch.Tensor) -> object:
        seen.append(torch.is_inference_mode_enabled())
        output = model(*args)
        return {"logits": output, "both": (output, args[0])}

    call = in_inference_mode(pytest.fail)(model, forward)
    with torch.no_grad():
        for _ in range(WATCHED):
            call(torch.ones(2, 4))
    assert seen == [False] * WATCHED
    seen.clear()
    return call


def test_outputs_are_equal_and_ordinary() -> None:
    model, x, seen = nn.Linear(4, 4), torch.randn(2, 4), []
    forward = wrapped(model, seen)
    with torch.no_grad():
        output, expected = forward(x), model(x)
    assert seen == [True] and torch.equal(output["logits"], expected)
    assert not output["logits"].is_inference() and not output["both"][0].is_inference()
    assert output["both"][1] is x, "what was not made in it is not copied"
    output["logits"].add_(1).requires_grad_()
    output["logits"].sum().backward()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_it_stays_out_of_the_way(mode: type) -> None:
    model, x, seen = nn.Linear(4, 4), torch.randn(2, 4), []
    call = wrapped(model, seen)
    with mode():
        output = call(x)
    assert seen == [mode is torch.inference_mode]
    assert output["logits"].requires_grad == (mode is torch.enable_grad)


class Cached(nn.Module):
    """Keeps what it made where the script finds it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer, self.where = nn.Linear(4, 4), where
        self.register_buffer("count", torch.zeros(()))
        self.cache: dict[str, list[torch.Tensor]] = {"keys": []}

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        self.count += 1
        y = self.layer(x)
        if self.where == "model":
            self.cache["keys"].append(y)
        if self.where == "argument":
            state.keys = y
        return Kept(y) if self.where == "object" else y


class Kept:
    def __init__(self, keys: Any = None) -> None:
        self.keys = keys


@pytest.mark.parametrize("where", ["model", "argument", "object", "hook"])
def test_a_forward_that_leaves_tensors_elsewhere_is_left_alone(where: str) -> None:
    model, whys, state, kept = Cached(where), [], Kept(), []
    if where == "hook":
        model.layer.register_forward_hook(lambda module, args, output: kept.append(output))
    call = in_inference_mode(whys.append)(model, model._call_impl)
    with torch.no_grad():
        made = [call(torch.ones(1, 4), state) for _ in range(WATCHED + 2)]
    left = [*model.cache["keys"], *kept, state.keys, *(getattr(one, "keys", one) for one in made)]
    assert not any(one.is_inference() for one in left if isinstance(one, torch.Tensor))
    assert len(whys) == 1


def test_state_that_is_changed_in_place_is_no_hindrance() -> None:
    model = Cached("nowhere")
    call = in_inference_mode(pytest.fail)(model, model._call_impl)
    with torch.no_grad():
        for _ in range(WATCHED + 2):
            call(torch.ones(1, 4))
        model.count.zero_()


def test_it_is_for_inference_only() -> None:
    assert "trains" in LEVER.applies(context(False)).why
    roots = tuple(msgspec.structs.replace(root, training=False) for root in context(False).facts.roots)
    assert LEVER.applies(context(False, mode="inference", roots=roots)).yes
