"""The backward in the thread that calls it. On the CPU it is there as it is, so that what is tested is the switch."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from contexts import context

from hotlap.levers.single_thread_backward import LEVER


@pytest.fixture
def switched() -> Iterator[list[bool]]:
    """Whether autograd may use threads of its own, as each node of a graph runs."""
    before, seen = torch.autograd._engine_run_backward, []

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 2

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            seen.append(torch._C._is_multithreading_enabled())
            return gradient * 2

    LEVER.install(SimpleNamespace(switch=lambda on, off: on()), {})  # type: ignore[arg-type]
    x = torch.ones(3, requires_grad=True)
    try:
        Node.apply(x).sum().backward()
        torch.autograd.grad(Node.apply(x).sum(), x)
        yield seen
    finally:
        torch.autograd._engine_run_backward = before


def test_it_is_off_in_the_backward_and_on_again_after(switched: list[bool]) -> None:
    assert switched == [False, False]
    assert torch._C._is_multithreading_enabled()


def test_it_is_on_again_after_a_backward_that_fails(switched: list[bool]) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert torch._C._is_multithreading_enabled()


def test_the_scripts_own_choice_stays(switched: list[bool]) -> None:
    with torch.autograd.set_multithreading_enabled(False):
        torch.ones(1, requires_grad=True).sum().backward()
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


def test_a_backward_inside_a_backward(switched: list[bool]) -> None:
    """As that of a reentrant checkpoint."""
    x = torch.ones(3, requires_grad=True)
    seen = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: seen.append(torch._C._is_multithreading_enabled()))
        return x * 3

    torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=True).sum().backward()
    assert set(seen) == {False} and x.grad is not None and x.grad.tolist() == [3.0] * 3
    assert torch._C._is_multithreading_enabled()


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"world": 2}, "several processes"), ({"backwards": 0}, "no backward"), ({}, "")],
)
def test_where_it_applies(facts: dict[str, int], why: str) -> None:
    applies = LEVER.applies(context(True, bound="launch", **facts))
    assert applies.yes == (not why) and why in applies.why
    assert not LEVER.applies(context(False)).yes


def test_several_devices_have_threads_that_run_side_by_side() -> None:
    import msgspec

    here = context(True)
    root = msgspec.structs.replace(here.facts.roots[0], devices=("cuda:0", "cuda:1"))
    assert "more than one device" in LEVER.applies(context(True, roots=(root,))).why
