"""`sdpa-backend`: what it applies to, what it turns off, and how `attention` does the same where lengths vary."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from contexts import ROOT, context
from torch import nn

from hotlap.agent.model_code import ModelCode
from hotlap.levers.attention._build import _kernel, by_math, without_cudnn
from hotlap.levers.attention._find import Site
from hotlap.levers.attention.sdpa_backend import LEVER

SDPA = msgspec.structs.replace(ROOT, sdpa=True, devices=("cuda:0",))


@pytest.mark.parametrize(
    ("changes", "active", "yes", "word"),
    [
        ({}, {"bf16-autocast": {}}, True, "prefers"),
        ({"autocast": "bfloat16"}, {}, True, "prefers"),
        ({"dtypes": ("float16",)}, {}, True, "prefers"),
        ({}, {}, True, "the efficient kernel first"),
        ({"shapes": 9}, {}, True, "many shapes"),
        ({"sdpa": False, "shapes": 9}, {}, False, "no scaled_dot_product_attention"),
    ],
)
def test_it_is_for_fused_attention(
    changes: dict[str, Any], active: dict[str, dict[str, Any]], yes: bool, word: str
) -> None:
    said = LEVER.applies(context(True, active, roots=(msgspec.structs.replace(SDPA, **changes),)))
    assert said.yes is yes and word in said.why


@pytest.mark.parametrize(
    ("capability", "half", "tried"),
    [
        ((9, 0), True, [{}, {"kernel": "efficient"}]),
        ((10, 3), True, [{}, {"kernel": "efficient"}]),
        ((12, 0), True, [{"kernel": "efficient"}, {"kernel": "math"}]),
        ((8, 0), True, [{"kernel": "efficient"}, {"kernel": "math"}]),
        ((7, 5), True, [{"kernel": "math"}]),
        ((9, 0), False, [{"kernel": "math"}]),
    ],
)
def test_kernels_after_the_one_that_torch_takes_are_tried(
    capability: tuple[int, int], half: bool, tried: list[dict[str, str]]
) -> None:
    """Not among other levers, where the kernel that is left out is mostly the fastest."""
    root = msgspec.structs.replace(SDPA, autocast="bfloat16" if half else None)
    where = context(True, roots=(root,), capability=capability)
    assert LEVER.variants(where) == tried
    assert LEVER.searched(where) is ({} not in tried)
    assert all(LEVER.check(settings) is None for settings in tried)


def test_it_is_for_devices_whose_kernels_are_known() -> None:
    roots = (msgspec.structs.replace(SDPA, shapes=9),)
    assert not LEVER.applies(context(True, roots=roots, capability=None)).yes
    assert not LEVER.applies(context(False, roots=roots)).yes
    ampere = context(True, roots=roots, capability=(8, 0))
    assert LEVER.applies(ampere).yes and LEVER.share(ampere) < 0.05, "lengths that vary need no plan there"


def test_a_recipe_names_a_kernel_or_none() -> None:
    """None is what recipes of an older hotlap have."""
    assert LEVER.check({}) is None and LEVER.check({"kernel": "flash"}) is None
    for kernel in ("cudnn", None, ["math"], "math; import os"):
        assert LEVER.check({"kernel": kernel})
    assert LEVER.check({"kernels": "math"})


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, {"flash", "mem_efficient", "math"}),
        ({"kernel": "flash"}, {"flash", "mem_efficient", "math"}),
        ({"kernel": "efficient"}, {"mem_efficient", "math"}),
        ({"kernel": "math"}, {"math"}),
    ],
)
def test_kernels_before_the_chosen_one_are_left_out(settings: dict[str, Any], left: set[str]) -> None:
    switches = torch.backends.cuda
    names = ("cudnn", "flash", "mem_efficient", "math")
    before = {name: getattr(switches, f"{name}_sdp_enabled")() for name in names}
    try:
        LEVER.install(cast(Any, SimpleNamespace(switch=lambda on, off: on())), settings)
        assert {name for name in names if getattr(switches, f"{name}_sdp_enabled")()} == left
        for name in names:
            getattr(switches, f"enable_{name}_sdp")(True)
        exec(LEVER.source(settings), {"torch": torch})
        assert {name for name in names if getattr(switches, f"{name}_sdp_enabled")()} == left
    finally:
        for name, on in before.items():
            getattr(switches, f"enable_{name}_sdp")(on)


def test_lengths_that_vary_make_it_worth_more() -> None:
    varied, fixed = (
        LEVER.share(context(True, roots=(msgspec.structs.replace(SDPA, shapes=shapes),))) for shapes in (9, 1)
    )
    assert varied > 10 * fixed > 0


def test_cudnns_attention_is_off_during_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    seen = []

    def attend(*args: Any, **kwargs: Any) -> Any:
        seen.append(enabled())
        raise KeyError

    before = enabled()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    for set_by_script in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(set_by_script)
        with pytest.raises(KeyError):
            without_cudnn()
        assert enabled() is set_by_script
    torch.backends.cuda.enable_cudnn_sdp(before)
    assert seen == [False, False]


@pytest.mark.parametrize(
    ("size", "dtype", "cuda", "chosen"),
    [
        ("s0", torch.bfloat16, True, without_cudnn),
        (64, torch.bfloat16, True, torch.nn.functional.scaled_dot_product_attention),
        ("s0", torch.float32, True, torch.nn.functional.scaled_dot_product_attention),
        ("s0", torch.bfloat16, False, torch.nn.functional.scaled_dot_product_attention),
    ],
)
def test_attention_of_lengths_that_vary_goes_to_another_kernel(
    size: object, dtype: torch.dtype, cuda: bool, chosen: object
) -> None:
    final = SimpleNamespace(meta={"example_value": SimpleNamespace(is_cuda=cuda)})
    site = cast(Site, SimpleNamespace(shape=(4, 8, size, size), dropout=0.1, final=final))
    assert _kernel(site, dtype, same_random=False) is chosen
    assert _kernel(site, dtype, same_random=True) is by_math


class Fused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class FromATable(nn.Module):
    config = SimpleNamespace(_attn_implementation="sdpa")


def test_fused_attention_is_seen_by_name_class_or_configuration() -> None:
    assert ModelCode(nn.Sequential(Fused()).modules()).sdpa
    assert ModelCode(nn.TransformerEncoderLayer(8, 2).modules()).sdpa
    assert ModelCode([FromATable()]).sdpa
    assert not ModelCode(nn.Sequential(nn.Linear(2, 2)).modules()).sdpa
