"""Whether a model is as it was: what is looked at, with what compilers have for it and without, and that it costs few
calls."""

import collections
import itertools
import math
import operator
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from hotlap.agent import torch_internals
from hotlap.levers.cudagraphs import _model_state
from hotlap.levers.cudagraphs._model_state import Model

SCALE = 1.0
CONFIG = {"depth": 2}


class Other(nn.Module):
    number = 3

    def __init__(self) -> None:
        super().__init__()
        self.square, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.square.weight
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.act, self.zero, self.one, self.none = torch.relu, 0.0, 1, None
        self.steps: list[Any] = [1.0, torch.relu]
        self.config, self.pair, self.table = SimpleNamespace(width=2), (1, 2), torch.ones(3)
        self.config.rows, self.config.sizes, self.config.log = [0, 1], {"x": 1}, [torch.ones(1)]
        self.rows, self.by, self.queue = [[0, 1], [2, 3]], {"a": [0, 1], "b": {"c": 1}}, collections.deque([0, 1])
        self.within, self.seen = ([0, 1],), {1, 2}
        self.register_buffer("mask", torch.ones(4, 4))

    def forward(self, x: Any) -> Any:
        return len(x) * SCALE * CONFIG["depth"] * self.square(x)


def reordered(model: Any) -> None:
    parts = model.second._modules
    parts["0"] = parts.pop("0")


def exchanged(model: Any) -> None:
    """The same tensors, in the same order, by other names."""
    weight, bias = model.first._parameters.values()
    model.first._parameters.clear()
    model.first._parameters.update(bias=weight, weight=bias)


def shadowed(model: Any) -> None:
    globals()["len"] = lambda x: 3


def rescaled(model: Any) -> None:
    globals()["SCALE"] = 2.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a list in a list": lambda m: operator.setitem(m.rows[0], 0, 5),
    "a list in a dictionary": lambda m: operator.setitem(m.by["a"], 0, 5),
    "a dictionary in one": lambda m: operator.setitem(m.by["b"], "c", 5),
    "a list in an object": lambda m: operator.setitem(m.config.rows, 0, 5),
    "a dictionary in an object": lambda m: operator.setitem(m.config.sizes, "x", 5),
    "a list in a tuple": lambda m: m.within[0].append(1),
    "a queue": lambda m: m.queue.append(3),
    "a set": lambda m: m.seen.add(9),
    "a set with one for another": lambda m: m.seen.symmetric_difference_update({1, 9}),
    "data": lambda m: setattr(m.first.weight, "data", m.first.weight.data.clone()),
    "transposed": lambda m: setattr(m.square.weight, "data", m.square.weight.data.t()),
    "transposed in place": lambda m: m.mask.t_(),
    "smaller": lambda m: setattr(m.first.bias, "data", m.first.bias.data[:3]),
    "resized": lambda m: m.mask.resize_(2, 4),
    "bits": lambda m: setattr(m.mask, "data", m.mask.data.view(torch.int32)),
    "parameter": lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach().clone())),
    "no bias": lambda m: setattr(m.first, "bias", None),
    "a bias": lambda m: setattr(m.second[1], "bias", nn.Parameter(torch.ones(4))),
    "untied": lambda m: setattr(m.tied, "weight", nn.Parameter(m.tied.weight.detach().clone())),
    "exchanged": exchanged,
    "deleted": lambda m: delattr(m, "mask"),
    "new parameter": lambda m: m.second[0].register_parameter("more", nn.Parameter(torch.ones(1))),
    "new buffer": lambda m: m.first.register_buffer("more", torch.ones(1)),
    "tensor": lambda m: setattr(m, "table", torch.ones(3)),
    "no tensor": lambda m: setattr(m, "table", 3.0),
    "a tensor": lambda m: setattr(m, "one", torch.tensor(1)),
    "part": lambda m: setattr(m, "first", nn.Linear(4, 4)),
    "new part": lambda m: m.second[0].add_module("more", nn.ReLU()),
    "parts exchanged": lambda m: m.second._modules.update({"0": m.second[1], "1": m.second[0]}),
    "reordered": reordered,
    "training": lambda m: m.second[0].eval(),
    "number": lambda m: setattr(m, "one", 2),
    "of another class": lambda m: setattr(m, "one", 1.0),
    "truth": lambda m: setattr(m, "one", True),
    "minus zero": lambda m: setattr(m, "zero", -0.0),
    "not none": lambda m: setattr(m, "none", 0),
    "function": lambda m: setattr(m, "act", torch.sigmoid),
    "tuple": lambda m: setattr(m, "pair", (2, 1)),
    "attribute": lambda m: setattr(m.first, "more", 1),
    "list": lambda m: m.steps.__setitem__(0, 2.0),
    "function in a list": lambda m: m.steps.__setitem__(1, torch.sigmoid),
    "longer list": lambda m: m.steps.append(1),
    "config": lambda m: setattr(m.config, "width", 3),
    "another config": lambda m: setattr(m, "config", SimpleNamespace(width=2)),
    "class": lambda m: setattr(Other, "number", 4),
    "class, deleted": lambda m: delattr(Other, "number"),
    "outside": rescaled,
    "outside, in a dictionary": lambda m: CONFIG.update(depth=3),
    "outside, deleted": lambda m: CONFIG.clear(),
    "in place of Python's own": shadowed,
    "hook": lambda m: m.first.register_forward_hook(lambda *args: None),
    "hook of all": lambda m: HANDLES.append(nn.modules.module.register_module_forward_hook(lambda *args: None)),
}  # fmt: skip
HANDLES: list[Any] = []


@pytest.fixture(params=["guarded", "without a guard"])
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param != "guarded":
        monkeypatch.setattr(torch_internals, "tensor_guard", lambda tensors: None)
    return bool(request.param == "guarded")


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    Other.number = 3
    globals().update(SCALE=1.0)
    globals().pop("len", None)
    CONFIG.update(depth=2)
    while HANDLES:
        HANDLES.pop().remove()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_is_seen(change: Callable[[Any], Any], guarded: bool) -> None:
    model = Other()
    with torch.no_grad():
        state = Model(model)
        assert state.same() and state.same()
        change(model)
        assert not state.same() and not state.same()


def test_what_is_no_change(guarded: bool) -> None:
    """Values of tensors, equal numbers, who needs a gradient, other parameters in the same memory."""
    model = Other()
    model.nan = math.nan
    state = Model(model)

    assert state.same() and len(state._guards) == guarded
    with torch.no_grad():
        model.first.weight.mul_(2)
    model.zero, model.nan = float("0.0"), float("nan")
    model.steps[0] = float("1.0")
    with torch.no_grad():
        assert state.same()
    assert state.same()
    for needed in (False, True, False):
        model.first.requires_grad_(needed)
        assert state.same()
    with torch.autocast("cpu"):
        assert state.same()
    model.first.weight = nn.Parameter(model.first.weight.detach())
    assert state.same()


def test_a_thread_in_many_states_is_looked_at_in_each() -> None:
    model = Other()
    state = Model(model)
    for turn in range(40):
        for at, part in enumerate(model.modules()):
            part.requires_grad_(bool((turn >> at) & 1))
        assert state.same()
    assert len(state._guards) <= _model_state.MOST_GUARDS


def test_tensors_that_are_gone_stay_different() -> None:
    """What was one's address may be another's."""
    model = Other()
    state = Model(model)
    for _ in range(50):
        model.act = lambda x: x
        model.table = torch.ones(3)
        assert not state.same()


@pytest.mark.parametrize("layers", [2, 200])
def test_looking_takes_few_calls(layers: int) -> None:
    state = Model(nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(layers)]))
    assert state.same()
    calls = [0]

    def count(frame: Any, event: str, arg: Any) -> None:
        calls[0] += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        state.same()
    finally:
        sys.setprofile(None)
    assert calls[0] <= 50, "of Python's, and by Python's: what is looked at for each layer is within one of them"


def test_what_an_object_holds_beside_numbers_may_change() -> None:
    """A trainer holds all sorts of things."""
    model = Other()
    looked = Model(model)
    model.config.log.append(torch.ones(1))
    assert looked.same()


def test_iterators_can_not_be_looked_at() -> None:
    for own in (itertools.count(), itertools.cycle([1]), (i for i in range(3))):
        model = Other()
        model.own = own
        assert Model(model).draws
    assert not Model(Other()).draws


def test_tensors_of_other_classes_can_not_be_looked_at() -> None:
    """A tensor that wraps others has no address of its own, and changes with these."""
    model = Other()
    model.table = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(TypeError, match="it contains a tensor of class TwoTensor"):
        Model(model)


def test_of_very_many_containers_some_are_looked_at() -> None:
    model = Other()
    model.rows = [[i, i] for i in range(_model_state.MOST_INSIDE)]
    assert Model(model).same()


def test_other_tensors_are_not_forgotten_when_they_belong_to_a_graph(guarded: bool) -> None:
    """They are not kept, and the ones before are not taken for them."""
    model = Other()
    state = Model(model)
    assert state.same() and state.same()
    leaf = model.mask
    model.mask = (leaf.detach() * torch.ones(1, requires_grad=True)).view_as(leaf)
    held = model.mask
    now = Model(model)
    assert now.same() and now.same() and now.same()
    with torch.no_grad():
        held.set_(torch.ones(5, 5))
    assert not now.same() and not state.same()
