"""quantize-linear: the error that it tells is the error there is, and what it refuses is left as it was."""

import gc
import importlib.metadata
import importlib.util
import weakref
from typing import Any

import msgspec
import pytest
import torch
from contexts import GPU_ENVIRONMENT, ROOT, context
from fake_graphs import BEFORE, Run
from torch import nn

from hotlap.agent.seams import Refused
from hotlap.levers import _quantize, all_levers
from hotlap.levers._forward_graph import relative_error
from hotlap.levers._quantize import MEASURED, Quantized, large_layers, output_error, ready

pytest.importorskip("torchao")
LEVER = all_levers()["quantize-linear"]
HOWS = ["int8-weight", "int8-dynamic"]


class Net(nn.Module):
    """odd: what a forward does that it must not be quantized for."""

    def __init__(self, odd: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(256, 320), nn.Linear(320, 256, bias=False), nn.Linear(256, 3)
        self.odd, self.dropout = odd, nn.Dropout(0.5)
        self.register_buffer("cache", torch.zeros(2, 320))
        if odd == "tied":
            self.second = self.first = nn.Linear(256, 256)
            self.again = nn.Linear(256, 256)
            self.again.weight = self.first.weight
        if odd == "norm":
            for layer in (self.first, self.second):
                nn.utils.parametrizations.weight_norm(layer)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x).relu()
        if self.odd == "cache":
            self.cache.copy_(y[:2])
        if self.odd == "dropout":
            y = self.dropout(y)
        y = y @ self.second.weight.t() if self.odd == "weight" else self.second(y)
        y = self.last(y)
        return {"object": [Net], "words": y.argmax(1), "nest": (y, {"more": y * 2})}.get(self.odd, y)


class Put:
    """A model with the lever in it."""

    def __init__(self, model: nn.Module, how: str = "int8-dynamic") -> None:
        self.model, self.whys, self.errors, self.slow = model, [], [], 0
        wrap = Quantized(how, unsteady=self._unsteady, measured=self.errors.append, gave_up=self.whys.append)
        self.graph: Run | None = None
        self.forward = wrap.outside(model, wrap.inside(model, model._call_impl))

    def _unsteady(self) -> None:
        self.slow += 1

    def __call__(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.forward(x)


def batch(seed: int) -> torch.Tensor:
    return torch.randn(4, 256, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("how", HOWS)
def test_the_error_that_is_told_is_there(how: str) -> None:
    """Of the first forwards; then the weights as they were are let go."""
    exact, put = Net().eval(), Put(Net().eval(), how)
    old = [weakref.ref(put.model.first.weight), weakref.ref(put.model.last.weight)]
    found = []
    for seed in range(MEASURED + 3):
        with torch.no_grad():
            found.append(relative_error(put(batch(seed)), exact(batch(seed))))
    assert 0 < max(found) < 0.05 and put.slow == MEASURED and not put.whys
    (told,) = put.errors
    assert told["largest"] == pytest.approx(max(found[:MEASURED])) and told["forwards"] == MEASURED
    assert told["relative"] == pytest.approx(sum(found[:MEASURED]) / MEASURED) and told["layers"] == 2
    gc.collect()
    assert old[0]() is None and old[1]() is put.model.last.weight, "the last layer is small"
    assert type(put.model.first.weight).__name__ == "Int8Tensor"


def test_rounding_the_input_too_costs_more() -> None:
    told = []
    for how in HOWS:
        put = Put(Net().eval(), how)
        for seed in range(MEASURED):
            put(batch(seed))
        told.append(put.errors[0]["relative"])
    assert told[0] < told[1]


def test_nests_have_the_error_of_their_worst_tensor() -> None:
    put = Put(Net("nest").eval())
    for seed in range(MEASURED):
        put(batch(seed))
    assert len(put.errors) == 1
    x = torch.ones(4)
    assert output_error((x, {"a": x * 1.5}, 3), (x, {"a": x}, 3)) == pytest.approx(0.5)
    assert output_error([torch.ones(2), x], [x, x]) != 0, "other shapes are no small error"
    assert output_error(torch.ones(2).long(), torch.ones(2).long()) is None


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ("tied", "share their weights"), ("norm", "classes, dtypes or sizes"), ("cache", "changes the model"),
        ("dropout", "draws random numbers"), ("weight", "can't use quantized weights"),
        ("object", "class type"), ("words", "no numbers whose error"),
    ],
)  # fmt: skip
def test_what_it_refuses_stays_as_it_was(odd: str, why: str) -> None:
    model = Net(odd)
    model.dropout.train(odd == "dropout")
    weights = {name: (id(p), p.clone()) for name, p in model.named_parameters()}
    model.train(odd == "dropout")
    put = Put(model)
    for seed in range(3):
        torch.manual_seed(seed)
        got = put(batch(seed))
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = model(batch(seed))
        assert got == expected if odd == "object" else torch.equal(got, expected)
    assert len(put.whys) == 1 and why in put.whys[0] and not put.errors
    for name, parameter in model.named_parameters():
        assert id(parameter) == weights[name][0] and torch.equal(parameter, weights[name][1])


def test_an_error_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_quantize, "MOST_ERROR", 1e-4)
    put = Put(Net().eval())
    with torch.no_grad():
        assert torch.equal(put(batch(0)), put.model(batch(0)))
    assert "the output is off by" in put.whys[0] and type(put.model.first.weight) is nn.Parameter


def test_small_layers_and_odd_ones() -> None:
    assert "256 inputs" in large_layers(nn.Linear(255, 4096), "int8-weight")[1]
    assert large_layers(nn.Linear(264, 264), "int8-weight")[0]
    assert not large_layers(nn.Linear(264, 264), "float8-dynamic")[0], "no multiple of 16"
    assert not large_layers(nn.MultiheadAttention(256, 4).out_proj, "int8-weight")[0], "its weight is used elsewhere"


def test_with_gradients_it_waits() -> None:
    put = Put(Net().eval())
    assert put.forward(batch(0)).requires_grad and not put.slow
    put(batch(0))
    assert put.slow == 1


@pytest.mark.parametrize("forwards", [1, MEASURED + 1], ids=["kept", "freed"])
def test_a_command_that_trains_after_all_trains_its_own_weights(forwards: int) -> None:
    put = Put(Net())
    optimizer = torch.optim.SGD(put.model.parameters(), lr=0.1)
    own, x = [put.model.first.weight, put.model.second.weight], torch.randn(4, 256)
    for _ in range(forwards):
        put(x)
    assert put.model.first.weight is not own[0]
    put.forward(x).sum().backward()
    assert [put.model.first.weight, put.model.second.weight] == own and all(w.grad is not None for w in own)
    optimizer.step()
    with torch.no_grad():
        assert torch.equal(put(x), put.model(x))
    assert put.whys == ["a forward ran with gradients, for which the weights are as they were again"]


def test_weights_that_nobody_has_stay_quantized_and_that_is_told() -> None:
    put = Put(Net())
    for _ in range(MEASURED):
        put(torch.randn(4, 256))
    gc.collect()
    put.forward(torch.randn(4, 256))
    put.forward(torch.randn(4, 256))
    (why,) = put.whys
    assert why.endswith("but for 2 layers whose own are gone")


def test_inside_of_a_graph() -> None:
    """The graph is one of quantized weights; what is measured stays out of it."""
    model = Net().eval()
    wrap = Quantized("int8-weight", unsteady=lambda: None, measured=lambda error: None, gave_up=pytest.fail)
    run = Run(model, wrap.inside(model, model._call_impl))
    forward = wrap.outside(model, run.graphed)
    with torch.no_grad():
        for seed in range(MEASURED + 3):
            got = forward(batch(seed))
            assert torch.equal(got, model(batch(seed))), "the model's own weights are quantized by now"
    assert not run.whys and run.graphed.replays == MEASURED + 3 - BEFORE


def test_torchao_that_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    ready()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "0.16.1")
        with pytest.raises(Refused, match=r"older than 0\.17"):
            ready()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.10.1+cu130")
        with pytest.raises(Refused, match=r"torch 2\.10"):
            ready()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refused, match="pip install torchao"):
        ready()


def test_where_it_applies() -> None:
    root = msgspec.structs.replace(ROOT, training=False)
    facts: dict[str, Any] = {"mode": "inference", "roots": (root,)}
    assert "trains" in LEVER.applies(context(False)).why
    assert "nothing is compiled" in LEVER.applies(context(False, **facts)).why
    for cuda, capability, hows in [
        (False, None, 2), (True, (8, 0), 2), (True, (8, 9), 3), (True, (9, 0), 3), (True, (7, 5), 0),
    ]:  # fmt: skip
        where = context(cuda, {"compile-blocks": {}}, **facts, capability=capability)
        assert LEVER.applies(where).yes == (hows > 0)
        assert not hows or len(LEVER.variants(where)) == hows
    assert len(LEVER.variants(context(True, **facts))) == 1
    compiled = context(True, {"compile": {"mode": "default"}}, **facts)
    assert LEVER.share(compiled) > LEVER.share(context(True, **facts)) > 0
    assert LEVER.fits(GPU_ENVIRONMENT, {"how": "float8-dynamic"}) is None
