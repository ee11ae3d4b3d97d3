"""What a step computes several times: which ops on which numbers are the same, seen below autograd."""

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.agent.lines import Lines
from hotlap.agent.repeats import Repeats
from hotlap.diagnose.repeated import of_lines
from hotlap.records.profile import Lines as Record

Rows = list[tuple[str, int, float, str]]


def rows_of(step: Callable[[], Any]) -> Rows:
    """Of a step: function that computes again, how often, the part of its line, and function of the outermost call."""
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    return [
        (row[2].rpartition(".")[2], row[3], row[4], row[7].rpartition(".")[2]) for row in lines.document()["repeats"]
    ]


torch.manual_seed(0)
LAYER, OTHER = nn.Linear(8, 8), nn.Linear(8, 8)
X = torch.randn(4, 8)
BUFFER = torch.zeros(4, 8)
SHARED = BUFFER.numpy()
STILL = np.ones((4, 8), np.float32)


def encode(x: torch.Tensor) -> torch.Tensor:
    return LAYER(x).relu_() * 2


def attend(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return encode(x) + state


# the same


def of_copies() -> None:
    for _ in range(3):
        encode(X.t().contiguous().t()[:2])


def of_memory() -> None:
    memory, state = X + 1, torch.rand(4, 8)
    for _ in range(3):
        state = attend(memory, state)


def without_gradients() -> None:
    with torch.no_grad():
        encode(X)
    encode(X)


def in_inference_mode() -> None:
    with torch.inference_mode():
        for _ in range(2):
            encode(X * 1)


NORMED = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
GRU = nn.GRU(8, 8)


def with_norms_in_training() -> None:
    for _ in range(2):
        NORMED(X)


def by_a_recurrent_layer() -> None:
    for _ in range(2):
        GRU(X)


def with_fused_attention() -> None:
    q = X.view(1, 1, 4, 8)
    for _ in range(2):
        nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize(
    ("step", "times", "where"),
    [
        (of_copies, 3, "of_copies"),
        (without_gradients, 2, "without_gradients"),
        (in_inference_mode, 2, "in_inference_mode"),
        (with_norms_in_training, 2, "with_norms_in_training"),
        (by_a_recurrent_layer, 2, "by_a_recurrent_layer"),
        (with_fused_attention, 2, "with_fused_attention"),
    ],
)
def test_the_same_is_seen_with_its_outermost_call(step: Callable[[], None], times: int, where: str) -> None:
    found = rows_of(step)
    assert {row[1] for row in found} == {times} and {row[3] for row in found} == {where}
    assert all(row[2] == pytest.approx(1 - 1 / times, abs=0.01) for row in found)


def test_where_part_of_a_call_is_the_same_it_is_told_of_that_part() -> None:
    ((function, times, part, outer),) = rows_of(of_memory)
    assert (function, times, outer) == ("encode", 3, "encode") and part == pytest.approx(2 / 3)


# what only looks like it


def other_numbers() -> None:
    for k in range(3):
        encode(X + k)
        encode(torch.randn(4, 8))


def other_layers() -> None:
    for layer in (LAYER, OTHER):
        layer(X)


def weights_move() -> None:
    for _ in range(2):
        encode(X)
        with torch.no_grad():
            LAYER.weight.add_(0.1)


def weights_move_unsaid() -> None:
    for _ in range(2):
        encode(X)
        torch._foreach_mul_([LAYER.weight.data], 0.9)


def numbers_move_through_numpy() -> None:
    for k in range(2):
        SHARED[:] = k
        STILL[:] = k
        encode(BUFFER)
        encode(torch.from_numpy(STILL))


def filled_by_others() -> None:
    """As by a kernel of the script's own, which no op tells of."""
    for k in range(2):
        made = torch.zeros(4, 8)
        made.numpy()[:] = k
        encode(made)


def with_dropout() -> None:
    for _ in range(2):
        nn.functional.dropout(X).matmul(LAYER.weight)


def with_attention_that_drops() -> None:
    q = torch.rand(1, 1, 4, 8)
    for _ in range(2):
        nn.functional.scaled_dot_product_attention(q + torch.rand(1), q, q, dropout_p=0.5)


CELL = nn.GRUCell(8, 8)


def a_cell_with_the_same_input() -> None:
    state = X
    for _ in range(4):
        state = CELL(X, state)


def recomputed() -> None:
    x = X.clone().requires_grad_()
    for block in (encode, OTHER):
        x = checkpoint(block, x, use_reentrant=False)
    x.sum().backward()


def averages_of_norms() -> None:
    """Which a batch norm writes to, though nothing says so."""
    norm = nn.BatchNorm1d(8, affine=False)
    for mode in (False, True, False):
        norm.train(mode)(X)


@pytest.mark.parametrize(
    "step",
    [
        other_numbers,
        other_layers,
        weights_move,
        weights_move_unsaid,
        numbers_move_through_numpy,
        filled_by_others,
        with_dropout,
        with_attention_that_drops,
        a_cell_with_the_same_input,
        recomputed,
        averages_of_norms,
    ],
)
def test_what_is_not_the_same_is_not_told(step: Callable[[], None]) -> None:
    assert rows_of(step) == []


def test_what_a_cuda_graph_makes_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        of_copies()
        torch.cuda.CUDAGraph.replay(object())  # type: ignore[arg-type]
    assert list(of_lines(msgspec.convert(lines.document(), Record, strict=False))) == []


def test_addresses_that_come_again_are_not_the_same() -> None:
    """Of tensors whose making no op tells of, and that are gone by the next one."""
    repeats = Repeats()
    assert len({repeats._of(torch.rand(4, 8))[0] for _ in range(100)}) == 100


def test_no_text_is_made_of_a_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.load hands one over: it would hold all that is in it, and says not whose it is."""
    monkeypatch.setattr(torch.UntypedStorage, "__repr__", None)
    storage = torch.ones(32).untyped_storage()

    def loaded() -> None:
        for _ in range(2):
            encode(torch.empty(0).set_(storage).view(4, 8))  # type: ignore[call-overload]

    assert rows_of(loaded) == []


# rows that are multiplied by zero

EXPERTS = [nn.Linear(8, 8) for _ in range(4)]


def expert_at(at: int, x: torch.Tensor) -> torch.Tensor:
    return EXPERTS[at](x).relu()


def gated(gates: torch.Tensor) -> Rows:
    """Of two layers of experts, whose rows all are computed."""

    def step() -> None:
        x = X
        for _ in range(2):
            x = sum(gates[:, at, None] * expert_at(at, x) for at in range(4))

    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    return [(row[2], row[3], row[4], row[7].rpartition(".")[2]) for row in lines.document()["gated"]]


def test_experts_that_compute_all_rows() -> None:
    found = {row[0]: row[1:] for row in gated(torch.eye(4))}
    assert found["expert_at"] == (4, 0.75, "<genexpr>")


def test_experts_whose_rows_are_used_or_hidden_by_one_mask() -> None:
    assert gated(torch.eye(4).softmax(1)) == []

    def attention() -> None:
        q, k, v = (layer(X) for layer in EXPERTS[:3])
        (q @ k.T @ v) * torch.tensor([[1.0], [0.0], [0.0], [0.0]])

    lines = Lines(operator.call)
    with lines.watching(ops=True):
        attention()
    assert lines.document()["gated"] == []


def test_the_record_is_read_as_it_is_written() -> None:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        of_copies()
    found, *_ = of_lines(msgspec.convert(lines.document(), Record, strict=False))
    assert found.times == 3 and found.call.file == __file__
