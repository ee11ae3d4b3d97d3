"""Logits of an odd number of classes: longer rows inside of what is compiled, and nothing of that for the script."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from test_linear_cross_entropy import CLASSES, FUSED, NEEDED, Change, Model, X, Y, check_equal, loss_of, step
from torch import nn
from torch.nn import functional

from hotlap.levers import _aligned_heads, _widening
from hotlap.levers._aligned_heads import Rows, align_heads, odd_classes
from hotlap.levers._graph import Compiled
from hotlap.levers._lazy_logits import LazyLogits
from hotlap.levers._losses import compile_losses


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU stands for the device, and eight classes are many."""
    monkeypatch.setattr(_aligned_heads, "LEAST_CLASSES", 8)
    monkeypatch.setattr(_widening, "LEAST_LOGITS", 1)
    monkeypatch.setattr(_widening, "DEVICES", ("cpu",))
    monkeypatch.setattr(functional, "cross_entropy", functional.cross_entropy)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.dtype, int]]:
    """Losses are compiled, by what only notes the dtypes and strides of what it gets."""
    got: list[tuple[torch.dtype, int]] = []

    def compile_(function: Any) -> Any:
        def noting(logits: Any, *args: Any, **kwargs: Any) -> Any:
            got.append((logits.dtype, max(logits.stride())))
            return function(logits, *args, **kwargs)

        return noting

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", compile_)
        compile_losses()
    monkeypatch.setattr("hotlap.levers._losses._large", lambda logits: True)
    return got


class Headed(nn.Module):
    """A head with an odd number of classes, under autocast; after: what is made of the logits in the forward."""

    def __init__(
        self, classes: int = 17, bias: bool = True, after: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, classes, bias=bias)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.head(self.body(x).relu())
            return logits if self.after is None else self.after(logits)


def slopes(model: nn.Module, forward: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    """What comes out, and gradients of a loss of it."""
    model.zero_grad()
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8).requires_grad_()
    out = forward(x)
    functional.cross_entropy(out.float().flatten(0, 1), torch.arange(6)).backward()
    return [out.detach().clone(), x.grad, *(p.grad for p in model.parameters())]


class Seen:
    """A compiled model with the pass over its graphs, and these after it."""

    def __init__(self, model: nn.Module, mode: str | None = None) -> None:
        self.graphs: list[torch.fx.Graph] = []
        passes = (partial(align_heads, odd_classes(model)), lambda module, inputs: self.graphs.append(module.graph))
        self.compiled = Compiled(model, mode, passes)

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.compiled(*args)
        return result

    def padded(self) -> int:
        return sum("pad" in str(node.target) for graph in self.graphs for node in graph.nodes)


@pytest.mark.parametrize("mode", [None, "default"])
@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_aligned_and_equal(mode: str | None, bias: bool) -> None:
    model = Headed(bias=bias)
    seen = Seen(model, mode)
    forward = Rows().wrap(model, seen)
    torch.testing.assert_close(slopes(model, forward), slopes(model, model), rtol=2e-2, atol=1e-3)
    logits = seen(torch.ones(2, 3, 8, requires_grad=True))
    assert logits.shape == (2, 3, 17) and logits.stride() == (192, 64, 1) and seen.padded() == 1 + bias
    assert forward(torch.ones(2, 3, 8)).stride() == (51, 17, 1), "the script's have no gaps"


LEFT: dict[str, Headed] = {
    "even": Headed(16),
    "few": Headed(7),
    "flat": Headed(after=lambda logits: logits.view(-1).view(2, 3, 17)),
    "used in the forward": Headed(after=lambda logits: logits * 2),
}


@pytest.mark.parametrize("model", LEFT.values(), ids=LEFT)
def test_other_heads_are_left(model: Headed) -> None:
    assert bool(odd_classes(model)) == (model.head.out_features == 17)
    seen = Seen(model)
    found = slopes(model, seen)
    assert not seen.padded()
    torch.testing.assert_close(found, slopes(model, model), rtol=0, atol=0)
    if not odd_classes(model):
        assert Rows().wrap(model, seen) is seen


def test_forwards_without_gradients_are_left() -> None:
    seen = Seen(Headed())
    with torch.no_grad():
        assert seen(torch.ones(2, 3, 8)).is_contiguous() and not seen.padded()


def test_a_compiled_loss_reads_them() -> None:
    model = Headed()
    rows = Rows()
    forward = rows.wrap(model, Seen(model, "default"))
    compile_losses()
    found = slopes(model, forward)
    assert rows.later.fused == 1
    torch.testing.assert_close(found[1:], slopes(model, model)[1:], rtol=2e-2, atol=1e-3)


def in_rows(model: Model) -> tuple[Rows, Callable[..., Any]]:
    """A model whose logits come in halves with gaps between their rows, as what is compiled returns them."""

    def forward(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.pad(model(x), (0, 64 - CLASSES))[..., :CLASSES]

    rows = Rows()
    return rows, rows.wrap(model, forward)


def halves(model: Model) -> Callable[..., Any]:
    def forward(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    return forward


OF_FLOATS = ("weights", "smoothed, weights", "a module")
"""A loss of halves takes no weights in float32."""
COPIED = ("shifted", "of some", "and used otherwise")
"""Rows that are chosen are copied."""


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("autocast", [True, False])
def test_losses_take_them_as_they_lie(name: str, autocast: bool, taken: list[tuple[torch.dtype, int]]) -> None:
    """Under the script's own autocast the loss is one of float32, without it one of halves."""
    if name in OF_FLOATS and not autocast:
        pytest.skip("torch raises")
    bare, model, change = Model(), Model(), FUSED[name]
    rows, forward = in_rows(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wanted = step(bare, halves(bare), change)
        taken.clear()
        found = step(model, forward, change)
    check_equal(found, wanted, 2e-2)
    assert rows.later.fused == 1 and (name in COPIED or max(stride for _, stride in taken) >= 64)


@pytest.mark.parametrize("change", NEEDED.values(), ids=NEEDED)
def test_whoever_looks_finds_no_gaps(change: Change, taken: list[tuple[torch.dtype, int]]) -> None:
    bare, model = Model(), Model()
    rows, forward = in_rows(model)
    check_equal(step(model, forward, change), step(bare, halves(bare), change), 2e-2)
    logits = forward(X)
    assert type(logits) is LazyLogits and logits.dtype is torch.bfloat16 and rows.later.made == 2
    assert logits.is_contiguous() and logits.view(-1).shape == (4 * 9 * CLASSES,)


def test_without_a_loss_that_takes_them_they_are_copied_at_once(taken: list[tuple[torch.dtype, int]]) -> None:
    _, forward = in_rows(Model())
    kinds = []
    for _ in range(_widening.PATIENCE + 2):
        logits = forward(X)
        kinds.append(type(logits) is LazyLogits)
        logits.softmax(-1).square().sum().backward()
    assert kinds == [True] * _widening.PATIENCE + [False] * 2 and forward(X).is_contiguous()
    with torch.no_grad():
        assert type(forward(X)) is torch.Tensor and forward(X).is_contiguous()


def test_an_accuracy_and_the_loss(taken: list[tuple[torch.dtype, int]]) -> None:
    def change(logits: Any) -> Any:
        loss = loss_of(logits)
        return loss + (logits.argmax(-1) == Y).float().mean() + 0 * logits.detach().float().std()

    bare, model = Model(), Model()
    check_equal(step(model, in_rows(model)[1], change), step(bare, halves(bare), change), 2e-2)
