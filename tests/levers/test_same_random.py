"""The run that judges parity draws what the bare command draws, whatever a lever does to layout and dtype."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotlap.levers import _same_random, all_levers
from hotlap.levers._same_random import draw_as_without

IMAGES = torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(3))
NHWC = IMAGES.contiguous(memory_format=torch.channels_last)
DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, 0.4),
    "torch.dropout": lambda x: torch.dropout(x, 0.4, True),
    "nn.Dropout": nn.Dropout(0.4),
    "nn.Dropout in place": lambda x: nn.Dropout(0.4, inplace=True)(x.clone()),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x),
}
ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rrelu": lambda x: F.rrelu(x, training=True),
}
"""Which draw the same in either layout by themselves."""


@pytest.fixture
def put_back() -> Iterator[None]:
    """The functions that a process of its own would keep replaced."""
    modules = (torch, F)
    names = (*_same_random.DRAWING, "scaled_dot_product_attention")
    kept = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    yield
    for module, name, function in kept:
        setattr(module, name, function)


def drawn(draw: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    return draw(images)


@pytest.mark.parametrize("name", DRAWS)
def test_a_mask_does_not_depend_on_the_layout(name: str, put_back: None) -> None:
    draw = DRAWS[name]
    plain = drawn(draw, IMAGES)
    assert not torch.equal(drawn(draw, NHWC), plain), "torch draws in the order of memory; else this is not needed"
    draw_as_without("channels-last")
    result = drawn(draw, NHWC)
    assert torch.equal(result, plain)
    assert result.is_contiguous(memory_format=torch.channels_last), "the layout that the lever is about stays"
    assert torch.equal(drawn(draw, IMAGES), plain)


@pytest.mark.parametrize("name", ALIKE)
def test_functions_that_need_no_help(name: str) -> None:
    assert torch.equal(drawn(ALIKE[name], NHWC), drawn(ALIKE[name], IMAGES))


def test_what_works_in_place_still_does(put_back: None) -> None:
    draw_as_without("channels-last")
    images = NHWC.clone(memory_format=torch.preserve_format)
    assert F.dropout(images, 0.5, True, True) is images
    assert (images == 0).any()


def test_gradients_pass_through_the_same_mask(put_back: None) -> None:
    def gradient(images: torch.Tensor) -> torch.Tensor:
        images = images.detach().requires_grad_()
        drawn(DRAWS["F.dropout"], images).sum().backward()
        assert images.grad is not None
        return images.grad

    plain = gradient(IMAGES)
    draw_as_without("channels-last")
    assert torch.equal(gradient(NHWC), plain)


def test_tensors_that_lie_otherwise_by_themselves_are_left_alone(put_back: None) -> None:
    """A transposed one lies so in the bare command, too."""
    rows = torch.randn(6, 4).T
    plain = drawn(DRAWS["F.dropout"], rows)
    draw_as_without("channels-last")
    assert torch.equal(drawn(DRAWS["F.dropout"], rows), plain)


def test_halves_draw_what_float32_draws(put_back: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels draw by dtype, as on CUDA: here one that draws twice for a half precision."""
    own = F.dropout

    def by_dtype(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if input.dtype != torch.float32:
            own(input)
        return own(input, *args, **kwargs)

    monkeypatch.setattr(F, "dropout", by_dtype)
    plain, half = drawn(DRAWS["F.dropout"], IMAGES), IMAGES.bfloat16()
    assert not torch.equal(drawn(DRAWS["F.dropout"], half) == 0, plain == 0)
    draw_as_without("bf16-autocast")
    result = drawn(DRAWS["F.dropout"], half)
    assert result.dtype == torch.bfloat16 and torch.equal(result == 0, plain == 0)
    draw_as_without("channels-last")  # and with the other one
    assert torch.equal(drawn(DRAWS["F.dropout"], half.contiguous(memory_format=torch.channels_last)), result)
    assert torch.rand_like(half, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_with_dropout_runs_in_float32_under_autocast(
    dropout: float, put_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.dtype, bool]] = []
    own = F.scaled_dot_product_attention

    def watched(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((query.dtype, torch.is_autocast_enabled("cpu")))
        return own(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    draw_as_without("bf16-autocast")
    q = torch.randn(2, 2, 8, 4)
    mask = torch.zeros(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = F.scaled_dot_product_attention(q, q, q, mask, dropout)
    assert result.dtype == torch.bfloat16
    assert seen == [(torch.float32, not dropout)], "without dropout nothing is drawn, and nothing is changed"
    torch.manual_seed(1)
    plain = own(q, q, q, None, dropout)
    torch.manual_seed(1)
    assert torch.equal(F.scaled_dot_product_attention(q, q, q, None, dropout), plain)


@pytest.mark.parametrize("name", ["channels-last", "bf16-autocast"])
def test_levers_take_the_setting(name: str) -> None:
    lever = all_levers()[name]
    same = lever.for_parity({})
    assert same == {"same_random": True}
    assert lever.check(same) is None and lever.check({}) is None
    for wrong in (False, None, 1, "yes", []):
        assert "same_random" in (lever.check({"same_random": wrong}) or "")
    assert lever.check({**same, "other": 1})


def test_by_its_name_it_stands_for_levers_that_are_written_into_the_source(put_back: None) -> None:
    plain = drawn(DRAWS["F.dropout"], IMAGES)
    _same_random.LEVER.install(None, {"levers": ["channels-last"]})  # type: ignore[arg-type]
    assert torch.equal(drawn(DRAWS["F.dropout"], NHWC), plain)
