"""A switch of torch.compile's compiler; what it does to kernels is seen on a device (docs/benchmarks.md)."""

from types import SimpleNamespace
from typing import Any

import pytest
from contexts import context
from torch._inductor import config

from hotlap.levers.combo_kernels import LEVER, ORDER, SHARE
from hotlap.levers.compile import ORDER as COMPILES


def forward_of(parameters: list[Any]) -> Any:
    """What the lever makes of the forward of a model."""
    wraps: list[Any] = []
    seams: Any = SimpleNamespace(wrap_forward=lambda wrap, order: wraps.append(wrap), switch=lambda on, off: on())
    LEVER.install(seams, {})
    return wraps[0](SimpleNamespace(parameters=lambda: parameters), len)


def test_it_is_on_before_a_model_on_a_device_is_compiled() -> None:
    assert ORDER < COMPILES
    with config.patch(combo_kernels=False):
        assert forward_of([SimpleNamespace(is_cuda=False)]) is len
        assert not config.combo_kernels
        assert forward_of([SimpleNamespace(is_cuda=True)]) is len
        assert config.combo_kernels


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.agent.seams import Refused

    monkeypatch.setattr("torch._inductor.config", SimpleNamespace())
    with pytest.raises(Refused, match="combo_kernels"):
        forward_of([SimpleNamespace(is_cuda=True)])


@pytest.mark.parametrize(("active", "yes"), [({}, False), ({"compile": {"mode": "default"}}, True)])
def test_it_comes_after_compile(active: dict[str, dict[str, Any]], yes: bool) -> None:
    assert LEVER.applies(context(True, active, bound="launch")).yes == yes
    assert not LEVER.applies(context(False, active)).yes


def test_it_wins_where_kernels_are_many_and_short() -> None:
    long = context(True, {"compile": {}})
    assert LEVER.share(long) <= SHARE < LEVER.share(context(True, {"compile": {}}, bound="launch"))
