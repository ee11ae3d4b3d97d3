"""The kernel that `attention` asks for, and where fused attention is seen."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from hotlap.agent.facts.code import ModelCode
from hotlap.levers.attention._build import _kernel, by_math, without_cudnn
from hotlap.levers.attention._find import Site


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
