"""Large outputs under bf16-autocast: float32 for whoever looks, halves for a loss that is compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_linear_cross_entropy import FUSED, NEEDED, Change, Model, X, Y, check_equal, loss_of, step
from torch.nn import functional

from hotlap.levers import _losses, _widening
from hotlap.levers._autocast import autocasting
from hotlap.levers._lazy_logits import LazyLogits
from hotlap.levers._widening import Widening, large


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """All outputs are large, and losses are compiled, by what only notes the dtypes that they get."""
    got: list[torch.dtype] = []

    def compile_(function: Any) -> Any:
        def noting(logits: Any, *args: Any, **kwargs: Any) -> Any:
            got.append(logits.dtype)
            return function(logits, *args, **kwargs)

        return noting

    monkeypatch.setattr(_widening, "LEAST_LOGITS", 1)
    monkeypatch.setattr(_widening, "DEVICES", ("cpu",))
    monkeypatch.setattr(functional, "cross_entropy", functional.cross_entropy)
    monkeypatch.setattr(torch, "compile", compile_)
    _losses.compile_losses()
    yield got


def forwards(half: torch.dtype = torch.bfloat16) -> tuple[Model, Callable[..., Any], Model, Callable[..., Any]]:
    """A model with float32 outputs, one with outputs that are widened when they are needed."""
    bare, model = Model(), Model()
    inside = autocasting(half, left=large)(model, model)
    return bare, autocasting(half)(bare, bare), model, Widening(half).wrap(model, inside)


@pytest.mark.parametrize("change", FUSED.values(), ids=FUSED)
def test_a_compiled_loss_reads_the_halves(change: Change, compiled: list[torch.dtype]) -> None:
    bare, plain, model, wide = forwards()
    wanted = step(bare, plain, change)
    compiled.clear()
    found = step(model, wide, change)
    check_equal(found, wanted, 2e-2 if change is FUSED["and used otherwise"] else 1e-5)  # two gradients meet in halves
    assert compiled == [torch.bfloat16]


@pytest.mark.parametrize("change", NEEDED.values(), ids=NEEDED)
def test_whoever_looks_finds_float32(change: Change) -> None:
    bare, plain, model, wide = forwards()
    seen: list[torch.dtype] = []

    def changed(logits: Any) -> Any:
        seen.append(logits.dtype)
        return change(logits)

    check_equal(step(model, wide, changed), step(bare, plain, changed))
    assert seen == [torch.float32] * 2


SLOPES: dict[str, Change] = {
    "plain": lambda logits: torch.autograd.grad(loss_of(logits), logits),
    "of several": lambda logits: torch.autograd.grad(loss_of(logits) + logits.square().mean(), [logits]),
    "transposed": lambda logits: torch.autograd.grad(
        functional.cross_entropy(t := logits.transpose(1, 2), Y), [t, logits]
    ),
    "without a loss": lambda logits: torch.autograd.grad(logits.square().mean(), logits),
}


@pytest.mark.parametrize("slopes", SLOPES.values(), ids=SLOPES)
def test_gradients_of_logits_whose_halves_a_loss_read(slopes: Change) -> None:
    _, plain, _, wide = forwards()
    check_equal(list(slopes(wide(X))), list(slopes(plain(X))), 1e-4)


def test_what_is_not_a_loss_is_widened_at_once_after_some_forwards() -> None:
    wide = forwards()[-1]
    kinds = []
    for _ in range(_widening.PATIENCE + 2):
        logits = wide(X)
        kinds.append(type(logits) is LazyLogits)
        logits.softmax(-1).square().sum().backward()
    assert kinds == [True] * _widening.PATIENCE + [False] * 2
    with torch.no_grad():
        assert type(wide(X)) is torch.Tensor and wide(X).dtype is torch.float32


def test_where_it_keeps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = forwards()[-1]
    with torch.autocast("cpu", torch.bfloat16):  # the script's own
        assert type(wide(X)) is torch.Tensor and wide(X).dtype is torch.bfloat16
    inside = torch.utils.checkpoint.checkpoint(lambda x: type(wide(x)), X, use_reentrant=False)
    assert inside is torch.Tensor
    monkeypatch.setattr(_widening, "LEAST_LOGITS", 1 << 22)
    assert type(wide(X)) is torch.Tensor and wide(X).dtype is torch.float32
    monkeypatch.undo()
    assert not hasattr(functional.cross_entropy, "of_half"), "nothing is compiled"
    assert type(wide(X)) is torch.Tensor and wide(X).dtype is torch.float32


def test_the_loss_inside_of_the_forward_and_logits_nobody_reads() -> None:
    bare, model = Model(inside=True), Model(inside=True)
    inside = autocasting(torch.bfloat16, left=large)(model, model)
    wide = Widening(torch.bfloat16).wrap(model, inside)
    plain = autocasting(torch.bfloat16)(bare, bare)
    check_equal(step(model, wide, lambda both: both[1]), step(bare, plain, lambda both: both[1]))
    assert type(wide(X)[0]) is LazyLogits and type(wide(X)[1]) is torch.Tensor
    assert torch.equal(wide(X)[0].argmax(-1), plain(X)[0].argmax(-1)) and Y.shape == X.shape
    assert float(loss_of(wide(X)[0]).detach()) == pytest.approx(float(loss_of(plain(X)[0]).detach()))


def scripted(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, classes)


def test_torchscript_takes_the_loss_as_it_was() -> None:
    logits, classes = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    assert torch.equal(torch.jit.script(scripted)(logits, classes), scripted(logits, classes))
