"""`chunked-cumsum` computes what the library does, takes what it wins and leaves the rest alone."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from contexts import ROOT, context
from msgspec.structs import replace

from hotlap.agent.model_code import ModelCode
from hotlap.levers import _scan, chunked_cumsum

WINS = {"last": (8, 64), "other": (64, 64)}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class In:
    """The lever on the CPU."""

    def __init__(self) -> None:
        self.given_up = 0
        self.scans = _scan.Scans(WINS, self.give_up, "CPU")

    def give_up(self) -> None:
        self.given_up += 1

    def took(self, call: Callable[[], Any]) -> Any:
        """What a call returns that must go in chunks."""
        before = self.scans.used
        out = call()
        assert self.scans.used == before + 1
        return out

    @staticmethod
    def library(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """By `out=`, which nothing stands before; of a gradient's own."""
        dtype = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
        with torch.no_grad():
            return torch.cumsum(x, dim, dtype=dtype, out=torch.empty(x.shape, dtype=dtype))


@pytest.fixture
def lever(monkeypatch: pytest.MonkeyPatch) -> Iterator[In]:
    """With chunks of 8 to 16, so that short inputs have many."""
    monkeypatch.setattr(_scan, "TILES", (8, 16))
    monkeypatch.setattr(_scan, "LONG", 32)
    found = In()
    yield found
    found.scans.placed._destroy()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "dim"),
    [
        (lambda: torch.randn(4, 3001), 1),
        (lambda: torch.randn(4, 3000)[:, ::2], -1),
        (lambda: torch.randn(3000, 4), 0),
        (lambda: torch.randn(3000, 40), -2),
        (lambda: torch.randn(4, 3000).t(), 0),
        (lambda: torch.randn(2, 2048, 2), 1),
        (lambda: torch.randn(4, 512, 1), 1),
    ],
)
def test_sums_and_gradients(lever: In, make: Callable[[], torch.Tensor], dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = make().to(dtype).requires_grad_()
    exact = lever.library(x.double(), dim)
    for got in (lever.took(lambda: torch.cumsum(x, dim)), lever.took(lambda: x.cumsum(dim=dim))):
        assert (got.dtype, got.is_contiguous()) == (dtype, True)
        allowed = 16 * torch.finfo(dtype).eps * float(exact.abs().max())
        torch.testing.assert_close(got.detach().double(), exact, rtol=0, atol=allowed)
    weights = torch.randn(exact.shape).to(dtype)
    (grad,) = torch.autograd.grad(got, x, weights)
    right = lever.library(weights.double().flip(dim), dim).flip(dim)
    torch.testing.assert_close(
        grad.double(), right, rtol=0, atol=16 * torch.finfo(dtype).eps * float(right.abs().max())
    )


def test_gradients_of_gradients(lever: In) -> None:
    x = torch.randn(70, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: a.cumsum(0), x)
    assert torch.autograd.gradgradcheck(lambda a: a.cumsum(0).square(), x)
    assert lever.scans.used


@pytest.mark.parametrize("shape", [(3001, 3), (3000, 40), (999, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS])
def test_integers_are_equal_also_where_they_wrap_around(lever: In, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ends = (0, 2) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = torch.randint(*ends, shape).to(dtype)
    got = lever.took(lambda: x.cumsum(dim=0))
    assert got.dtype == torch.int64 and torch.equal(got, lever.library(x, 0))
    for other in (torch.int8, torch.int32, torch.float32, torch.bfloat16):
        got, right = lever.took(partial(torch.cumsum, x, 0, dtype=other)), lever.library(x, 0, other)
        assert got.dtype == other
        if not other.is_floating_point:
            assert torch.equal(got, right)


def test_positions_of_tokens_in_their_experts(lever: In) -> None:
    """As switch-style routers count them, in the three types that they have masks in."""
    mask = torch.nn.functional.one_hot(torch.randint(0, 8, (4096,)), 8)
    for one in (mask, mask.bool(), mask.float()):
        assert torch.equal(lever.took(partial(torch.cumsum, one, dim=0)), lever.library(one, 0))


def test_floats_to_integers_and_half_under_autocast(lever: In) -> None:
    x = torch.randn(500, 4) * 3
    assert torch.equal(lever.took(lambda: x.cumsum(0, dtype=torch.int64)), lever.library(x, 0, torch.int64))
    with torch.autocast("cpu", torch.bfloat16):
        half = x.bfloat16()
        assert lever.took(lambda: half.cumsum(0)).dtype == torch.bfloat16


def test_what_is_not_finite_stays_where_it_was(lever: In) -> None:
    x = torch.randn(4, 6000)
    x[0, 4000], x[1, 100], x[1, 5000], x[2, 3000] = torch.nan, torch.inf, -torch.inf, -torch.inf
    torch.testing.assert_close(x.cumsum(1), lever.library(x, 1), equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "dim"),
    [
        (torch.randn(9, 200), 1),
        (torch.randn(4, 60), 1),
        (torch.randn(200), 0),
        (torch.randn(200, 70), 0),
        (torch.randn(200, 4, dtype=torch.complex64), 0),
        (torch.empty(200, 0), 0),
        (torch.randn(()), -1),
    ],
)
def test_what_is_left_to_the_library(lever: In, x: torch.Tensor, dim: int) -> None:
    assert torch.equal(torch.cumsum(x, dim), lever.library(x, dim))
    assert torch.equal(x.cumsum(axis=dim), lever.library(x, dim))
    assert not lever.scans.used


def test_errors_are_the_librarys(lever: In) -> None:
    x = torch.randn(200, 4)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.cumsum(2)
    with pytest.raises(TypeError):
        x.cumsum()
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        x.cumsum(0, dtype=torch.bool)
    assert not lever.scans.used


class Counting(torch.Tensor):  # type: ignore[misc]
    """A script's own."""


def test_subclasses_and_transforms_of_functions(lever: In) -> None:
    x = torch.randn(200, 4)
    right = lever.library(x, 0)
    own = lever.took(lambda: x.as_subclass(Counting).cumsum(0))
    assert type(own) is Counting
    rows = torch.func.vmap(lambda column: column.cumsum(0), 1, 1)(x)
    _, tangent = torch.func.jvp(lambda a: torch.cumsum(a, 0), (x,), (x,))
    for got in (own, rows, tangent):
        torch.testing.assert_close(torch.as_tensor(got), right)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_no_break_and_the_op_itself(lever: In, backend: str) -> None:
    x = torch.randn(200, 4, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: torch.cumsum(a, 0) + a.cumsum(dim=0), fullgraph=True, backend=backend)
    out = compiled(x)
    torch.testing.assert_close(out.detach(), 2 * lever.library(x, 0))
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.arange(200.0, 0, -1)[:, None].expand(200, 4))
    torch._dynamo.reset()


def test_a_trace_holds_no_length(lever: In) -> None:
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda a: a.cumsum(0))(torch.randn(200, 4))
    x = torch.randn(90, 4)
    torch.testing.assert_close(traced(x), lever.library(x, 0))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [torch.ops.aten.cumsum.default]


def test_it_leaves_itself_out_where_nothing_is_long_enough(lever: In) -> None:
    forward = lever.scans.watch(None, lambda x: x.cumsum(0))
    for _ in range(_scan.PATIENCE + 3):
        forward(torch.randn(20, 4))
    assert lever.given_up == 1
    forward(torch.randn(200, 4))
    assert not lever.scans.used, "what is left out stays out"


def test_it_stays_where_a_scan_was_taken(lever: In) -> None:
    forward = lever.scans.watch(None, lambda x: x.cumsum(0))
    for _ in range(_scan.PATIENCE + 3):
        forward(torch.randn(200, 4))
    assert lever.given_up == 0 and lever.scans.used == _scan.PATIENCE + 3


def test_it_applies_where_the_model_calls_cumsum() -> None:
    assert chunked_cumsum.LEVER.applies(context(True, roots=(replace(ROOT, cumsum=True),))).yes
    assert not chunked_cumsum.LEVER.applies(context(False, roots=(replace(ROOT, cumsum=True),))).yes
    assert not chunked_cumsum.LEVER.applies(context(True)).yes


class Router(torch.nn.Module):
    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.cumsum(dim=0) - 1


def test_the_code_of_the_model_is_read() -> None:
    assert ModelCode(torch.nn.Sequential(Router()).modules()).cumsum
    assert not ModelCode(torch.nn.Sequential(torch.nn.Linear(2, 2)).modules()).cumsum


def test_the_switch_of_the_benchmark_learns_the_same(lever: In, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from scan_loop import Switch

    torch.manual_seed(0)
    switch, x = Switch(8, 16, 4, 0.8), torch.randn(256, 8)
    grads = []
    for off in (False, True):
        lever.scans.off = off
        out, balance = switch(x)
        grads.append(torch.autograd.grad(out.square().sum() + balance, list(switch.parameters())))
        assert (out == 0).all(1).any(), "tokens over capacity pass by"
    assert lever.scans.used == 1
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_source_that_it_shows_computes_the_same() -> None:
    x = torch.randint(0, 9, (2048, 3))
    names: dict[str, Any] = {"x": x}
    exec(chunked_cumsum.LEVER.source({}), names)
    assert torch.equal(names["y"], x.cumsum(0))
