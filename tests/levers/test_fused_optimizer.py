"""fused-optimizer: whatever gradients come when, an optimizer that was fused goes on as it would have."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.agent.seams import NothingToDo
from hotlap.levers._fused import fuse
from hotlap.levers.host.fused_optimizer import _fused

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "SGD": (torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.01}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD, nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "SGD, dampening": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
LATE = 4
SKIPPED = 3


def train(kind: str, fused: bool, scaled: bool = False, closure: bool = False) -> tuple[Any, list[torch.Tensor]]:
    """Ten steps. The second layer gets no gradient before the step LATE, and a layer is added there; where the loss is
    scaled, the first SKIPPED updates are skipped."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(3)]
    build, options = KINDS[kind]
    optimizer = build([p for layer in layers[:2] for p in layer.parameters()], **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=scaled)
    x = torch.randn(8, 4)

    def backward(at: int) -> None:
        optimizer.zero_grad()
        y = layers[0](x)
        if at >= LATE:
            y = y + layers[1](x) * layers[2](x)
        scaler.scale(y.tanh().square().mean()).backward()
        if scaled and at < SKIPPED:
            layers[0].weight.grad[0, 0] = float("inf")  # type: ignore[index]

    for at in range(10):
        if at == 0 and fused:
            backward(at)
            fuse(optimizer)
        if at == LATE:
            optimizer.add_param_group({"params": list(layers[2].parameters())})
        if closure:
            optimizer.step(lambda at=at: backward(at))
            continue
        backward(at)
        scaler.step(optimizer)
        scaler.update()
    return optimizer, [p.detach() for layer in layers for p in layer.parameters()]


@each_kind
@pytest.mark.parametrize("how", ["", "scaled", "closure"])
def test_gradients_that_come_late(kind: str, how: str) -> None:
    plain, weights = train(kind, False, how == "scaled", how == "closure")
    optimizer, found = train(kind, True, how == "scaled", how == "closure")
    torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(optimizer.state_dict()["state"], plain.state_dict()["state"], rtol=1e-5, atol=1e-7)
    assert [bool(group["fused"]) for group in optimizer.param_groups] == [kind != "SGD, dampening"] * 2


def test_torch_alone_still_needs_it() -> None:
    """If not, `begin_at_zero` can go."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9, fused=True)
    first(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    second(torch.ones(1, 2)).sum().backward()
    with pytest.raises(TypeError):
        optimizer.step()


def test_copies_are_ordinary_and_it_is_freed_at_once() -> None:
    optimizer, _ = train("SGD, momentum", True)
    assert "_init_group" in vars(optimizer)
    assert not any("_init_group" in vars(c) for c in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))))
    gone = weakref.ref(optimizer)
    gc.collect()
    gc.disable()
    try:
        del optimizer
        assert gone() is None
    finally:
        gc.enable()


@each_kind
@pytest.mark.parametrize("own", [None, False])
def test_checkpoints_hold_what_the_script_asked_for(kind: str, own: bool | None) -> None:
    """A bare run that goes on from one is as it would have been."""
    layer = nn.Linear(2, 2)
    build, options = KINDS[kind]
    bare, optimizer = (build(layer.parameters(), foreach=own, **options) for _ in range(2))
    for one in (bare, optimizer):
        layer(torch.ones(1, 2)).sum().backward()
        one.step()
    fuse(optimizer)
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    first, second = bare.state_dict()["param_groups"][0], optimizer.state_dict()["param_groups"]
    assert all((group["fused"], group["foreach"]) == (first["fused"], own) for group in second)
    assert all(
        state["step"].device.type == "cpu" for state in optimizer.state_dict()["state"].values() if "step" in state
    )
    dampens = kind == "SGD, dampening"
    assert [bool(group["fused"]) for group in optimizer.param_groups] == [not dampens] * 2, "it goes on as it was"


def test_one_that_loads_a_checkpoint_is_fused_again() -> None:
    """Rolled back to the best state, which the bare command had saved."""
    layer = nn.Linear(2, 2)
    bare, optimizer = (torch.optim.AdamW(layer.parameters(), foreach=False) for _ in range(2))
    fuse(optimizer)
    optimizer.load_state_dict(bare.state_dict())
    assert optimizer.param_groups[0]["fused"] and optimizer.state_dict()["param_groups"][0]["foreach"] is False


@pytest.mark.parametrize("kind", ["SGD", "SGD, momentum", "Adagrad"])
def test_sparse_gradients_that_come_late_end_it(kind: str) -> None:
    def trained(fused: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, table = nn.Linear(4, 4), nn.Embedding(6, 4, sparse=True)
        build, options = KINDS[kind]
        options = {name: value for name, value in options.items() if name != "weight_decay"}
        optimizer = build([*layer.parameters(), *table.parameters()], **options)
        for at in range(6):
            optimizer.zero_grad()
            given = table(torch.tensor([1, 3])) if at >= 3 else table.weight.detach()[:2]
            layer(given).square().mean().backward()
            if fused and not at:
                fuse(optimizer)
            optimizer.step()
        assert not optimizer.param_groups[0]["fused"]
        return [p.detach() for p in (*layer.parameters(), *table.parameters())]

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-5, atol=1e-7)


def test_what_has_no_fused_form_or_is_fused_is_told() -> None:
    layer = nn.Linear(2, 2)
    assert fuse(torch.optim.LBFGS(layer.parameters())) == "LBFGS has no fused implementation"
    assert fuse(torch.optim.SGD(layer.parameters(), momentum=0.9, dampening=0.5)) is not None
    with pytest.raises(NothingToDo, match="AdamW is fused already"):
        _fused(torch.optim.AdamW(layer.parameters(), fused=True))
    with pytest.raises(NothingToDo, match="RMSprop has no fused implementation"):
        _fused(torch.optim.RMSprop(layer.parameters()))
    _fused(torch.optim.AdamW(layer.parameters()))
