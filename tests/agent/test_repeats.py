"""What a step computes several times: which ops on which numbers are the same, seen below autograd."""

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.agent import done_again
from hotlap.agent.done_again import slower, slower_in_half
from hotlap.agent.lines import Lines
from hotlap.agent.recurrent import KINDS
from hotlap.agent.repeats import Repeats
from hotlap.agent.same_rows import MOST_HASHES, SameRows
from hotlap.diagnose.repeated import (
    AGAIN,
    COLUMNS,
    DENORMALS,
    DOUBLE,
    HALF,
    NOT_CARRIED,
    ORDER,
    REPEATED,
    SAME_ROWS,
    SPARSE,
    SPARSE_MADE,
    TAP_BY_TAP,
    Repeated,
    of_lines,
)
from hotlap.diagnose.repeated import (
    ROWS as FEW_ROWS,
)
from hotlap.diagnose.source import place_at
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


def test_a_mask_that_is_converted_again_is_little_beside_the_attention() -> None:
    """Its numbers are many, but each of attention's takes a row of keys."""
    mask, q = torch.ones(64, 64, dtype=torch.bool).tril(), torch.randn(1, 1, 64, 8)

    def step() -> None:
        y = q
        for _ in range(4):
            y = torch.nn.functional.scaled_dot_product_attention(y + 1, y, y, attn_mask=mask)

    assert sum(part for _, _, part, _ in rows_of(step)) < 0.5


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


def test_hashes_of_rows_take_little_of_a_device() -> None:
    rows = SameRows()
    hashes = torch.zeros(MOST_HASHES // 2, dtype=torch.bool)
    for _ in range(2):
        assert rows.looking
        rows.called(((0, 1, "f"),), hashes, 1)
    assert not rows.looking


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


def test_a_product_that_is_written_to_what_there_is() -> None:
    lines, made = Lines(operator.call), torch.empty(4, 8)
    with lines.watching(ops=True):
        torch.mul(X, torch.zeros(4, 1), out=made)
    assert lines.document()["gated"] == []


# what something else does for less

WIDE = torch.randn(4, 300, dtype=torch.complex128)
GRAPH = torch.eye(300)
TABLE = torch.randn(300, 8, requires_grad=True)


def for_less(step: Callable[[], Any]) -> list[Repeated]:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    return list(of_lines(msgspec.convert(lines.document(), Record, strict=False)))


def test_what_an_operand_of_double_precision_makes_wide() -> None:
    def step() -> None:
        narrow = torch.randn(4, 300)
        (torch.fft.fft(narrow) * WIDE).abs().float().relu()

    assert {(one.cause, one.part > 0.1) for one in for_less(step)} == {(DOUBLE, True)}
    assert for_less(lambda: torch.randn(4, 300).relu()) == []


def several_products() -> None:
    given = torch.randn(2, 300, 8)
    (GRAPH @ given).relu()
    GRAPH.t().matmul(TABLE)
    torch.addmm(TABLE, GRAPH, TABLE)
    torch.randn(300, 300).mm(GRAPH)


def test_products_with_a_constant_matrix_of_zeros() -> None:
    found = for_less(several_products)
    assert {one.cause for one in found} == {SPARSE} and {one.times for one in found} == {99}
    assert len({one.line for one in found}) == 4 and all(0.9 < one.part <= 1 for one in found)


def dropped() -> None:
    x = nn.functional.dropout(GRAPH, 0.5)
    x @ TABLE


def scaled() -> None:
    x = GRAPH / GRAPH.sum(1, keepdim=True)
    x @ TABLE


@pytest.mark.parametrize(("step", "lines"), [(dropped, 2), (scaled, 2)])
def test_what_leaves_a_matrix_its_zeros_is_told_with_the_products(step: Callable[[], None], lines: int) -> None:
    found = for_less(step)
    assert {one.cause for one in found} == {SPARSE} and len({one.line for one in found}) == lines
    assert all(one.part > 0.9 for one in found)


def made_in_the_step() -> None:
    torch.eye(300) @ TABLE
    torch.stack(list(GRAPH)) @ TABLE


def written_in_the_step() -> None:
    GRAPH.clone().fill_diagonal_(2) @ TABLE


FEATURES = torch.randn(300, 32, requires_grad=True)


def neighbours() -> None:
    mask = torch.zeros(300, 300)
    mask[torch.arange(300), torch.randperm(300)] = 1
    mask = mask / mask.sum(1, keepdim=True)
    eye, part = torch.eye(300), torch.eye(400)[:300, :300]
    mask.mm(FEATURES)
    FEATURES.t() @ eye
    torch.addmm(FEATURES, part, FEATURES)


def test_products_with_matrices_of_zeros_that_the_step_makes() -> None:
    """sage: a mask of neighbours, 99.5% zeros, was made in each step; with a sparse one it is 4.1 times as fast."""
    found = for_less(neighbours)
    assert {one.cause for one in found} == {SPARSE_MADE} and {one.times for one in found} == {99}
    assert len({one.line for one in found}) == 3 and all(0.9 < one.part <= 1 for one in found)
    assert [one.call.line for one in found] == [one.line[1] for one in found]


def others_that_it_makes() -> None:
    full, hidden = torch.randn(300, 300), torch.randn(300, 300).relu()
    padded, trained = torch.zeros(300, 300), torch.eye(300) * FEATURES.sum()
    padded[:3] = 1
    for matrix in (full, hidden, padded, trained, torch.eye(200), torch.eye(300).bfloat16().float().bfloat16()):
        matrix @ FEATURES[: len(matrix)].to(matrix.dtype)
    torch.eye(300)[None].bmm(FEATURES[None])


def test_other_matrices_that_the_step_makes_are_not_told() -> None:
    assert {one.cause for one in for_less(others_that_it_makes)} <= {HALF}


def multiplied(x: torch.Tensor) -> torch.Tensor:
    return x @ FEATURES


def test_of_a_line_that_all_share_the_call_with_the_zeros_is_told() -> None:
    """vamp: the identity came to a layer whose line is that of all its layers."""

    def step() -> None:
        multiplied(torch.randn(40, 300))
        multiplied(GRAPH)

    (found,) = for_less(step)
    assert found.cause is SPARSE and 0.5 < found.part < 0.95
    assert found.call.function is not None and found.call.function.endswith("step"), "not the line of `multiplied`"
    assert found.call.line == step.__code__.co_firstlineno + 2
    (alone,) = for_less(lambda: multiplied(GRAPH))
    assert alone.call.function == "multiplied"


TRAINED = nn.Parameter(torch.eye(300))
MASK = torch.ones(300, 300).tril()
PADDED = torch.zeros(300, 300)
PADDED[:3] = 1
LOW = GRAPH.bfloat16()


def with_other_matrices() -> None:
    for matrix in (MASK, PADDED, PADDED.t(), GRAPH[:200], TRAINED, TRAINED.view(300, 300)):
        matrix @ TABLE[: matrix.size(1)]
    with torch.no_grad():
        TRAINED.t() @ TABLE
    LOW @ TABLE.bfloat16()


def elementwise() -> None:
    GRAPH * GRAPH + GRAPH
    nn.functional.dropout(GRAPH) + TABLE.mean()


def no_longer_of_zeros() -> None:
    x = nn.functional.dropout(GRAPH) + 1
    x @ TABLE
    (torch.empty_like(GRAPH).normal_() * GRAPH.sum()) @ TABLE


@pytest.mark.parametrize(
    "step", [made_in_the_step, written_in_the_step, with_other_matrices, elementwise, no_longer_of_zeros]
)
def test_other_matrices_are_not_told(step: Callable[[], None]) -> None:
    assert {one.cause for one in for_less(step)} <= {HALF}  # as some CPUs take longer for it


def test_one_hot_matrices_are_told_by_their_statement_alone() -> None:
    hot = nn.functional.one_hot(torch.arange(300), 300).float()
    assert for_less(lambda: hot @ TABLE) == []
    assert [one.cause for one in for_less(lambda: GRAPH @ TABLE)] == [SPARSE]


@pytest.mark.parametrize(
    ("shape", "kernel", "settings", "told"),
    [
        ((8, 1, 8000), (1, 1, 1024), {}, True),
        ((8, 24, 799), (24, 1, 400), {"groups": 24}, True),
        ((8, 24, 400), (24, 1, 400), {"groups": 24, "padding": 399}, True),
        ((2, 1, 20, 4000), (1, 1, 1, 512), {}, True),
        ((8, 1, 4096), (64, 1, 256), {"stride": 256}, False),
        ((8, 1, 16000), (64, 1, 400), {"stride": 160}, False),
        ((8, 24, 8192), (24, 1, 512), {"stride": 512, "groups": 24}, False),
        ((8, 1, 86, 86), (1, 1, 31, 31), {}, False),
        ((8, 1, 3450), (80, 1, 251), {}, False),
        ((8, 16, 4255), (1, 16, 256), {}, True),
        ((8, 8, 1000), (8, 8, 3), {"dilation": 128}, False),
        ((8, 32, 1000), (32, 32, 31), {}, False),
        ((8, 24, 130), (24, 1, 128), {"groups": 24}, False),
    ],
)
def test_a_convolution_whose_taps_cost_more_than_fft(
    shape: tuple[int, ...], kernel: tuple[int, ...], settings: dict[str, Any], told: bool
) -> None:
    conv = nn.functional.conv2d if len(shape) == 4 else nn.functional.conv1d
    found = for_less(lambda: conv(torch.ones(shape), torch.ones(kernel), **settings))
    assert [(one.cause, one.times) for one in found] == [(TAP_BY_TAP, max(kernel[2:]))] * told
    assert all(0.6 < one.part < 1 for one in found)


def test_a_transposed_convolution_is_not_told() -> None:
    assert for_less(lambda: nn.functional.conv_transpose1d(torch.ones(8, 1, 8000), torch.ones(1, 1, 1024))) == []


def test_an_op_that_denormal_numbers_make_longer_is_done_again_on_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((10_000,), 1e-40)
    now, longer = [0], [5]
    monkeypatch.setattr(done_again, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))

    def op(given: torch.Tensor) -> None:
        now[0] += 1000 * (longer[0] if bool((given[:9] > 0).any()) else 1)
        given.fill_(0)

    assert slower(op, [x], {}, [x]) == 5 and bool((x > 0).all())
    assert slower(op, [x * 1e30], {}, [x * 1e30]) == 1
    longer[0] = 1
    assert slower(op, [x], {}, [x]) == 1
    part = torch.full((20_000,), 1e-40)[10_000:]
    assert slower(torch.ops.aten.as_strided.default, [part, [10_000], [1], 10_000], {}, [part]) == 1


def test_where_denormal_numbers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((10_000,), 1e-40)
    drawn: list[str] = []

    def counted(func: Any, *_: Any) -> float:
        drawn.append(str(func))
        return 11.0 if func is torch.ops.aten.sqrt.default else 1.0

    monkeypatch.setattr("hotlap.agent.for_less.slower", counted)
    (found,) = for_less(lambda: x.sqrt() + torch.rand(10_000))
    assert (found.cause, found.times) == (DENORMALS, 11) and found.part == pytest.approx(10 / 13, abs=0.01)
    assert drawn == ["aten.sqrt.default", "aten.add.Tensor"]
    assert for_less(lambda: x + 1) == []
    drawn.clear()
    for_less(lambda: torch.stack([x[at] for at in range(3)]).t().sqrt())
    assert drawn == ["aten.stack.default", "aten.sqrt.default"], "views compute nothing, and the data set is large"


def test_weights_that_lie_transposed_are_looked_at_too() -> None:
    x = torch.full((200, 100), 1e-40)
    x[:, ::2] = 1.0
    assert done_again.denormal_share([x]) == done_again.denormal_share([x.t()]) == pytest.approx(0.5, abs=0.02)
    assert done_again.denormal_share([x[:, :50]]) == 0.0, "parts of a matrix are not"


def test_a_product_of_halves_that_takes_longer_is_done_again_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    now, longer, given = [0], [7], list[torch.dtype]()
    monkeypatch.setattr(done_again, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))

    def op(bias: torch.Tensor, *of: torch.Tensor) -> None:
        given.append(bias.dtype)
        now[0] += 1000 * (longer[0] if bias.dtype in done_again.HALVES else 1)

    for dtype in done_again.HALVES:
        x = torch.ones(4, 4, dtype=dtype)
        assert slower_in_half(op, [x, x], {}, [x, x]) == 7 and {*given} == {dtype, torch.float32}
        given.clear()
    longer[0] = 1
    assert slower_in_half(op, [x, x], {}, [x, x]) == 1 and given
    given.clear()
    for others in ([x, x.float()], [x.float()], [x.long()], [x, x.to("meta")], [x.expand(1 << 20, 4, 4)], []):
        assert slower_in_half(op, others, {}, others) == 1
    assert not given


def test_where_halves_cost_and_what_turns_autocast_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def counted(func: Any, *_: Any) -> float:
        seen.append(str(func))
        return 9.0

    monkeypatch.setattr("hotlap.agent.for_less.slower_in_half", counted)

    def step() -> None:
        with torch.autocast("cpu", torch.float16):
            LAYER(X).relu()
            nn.functional.conv1d(X[:, None], X[:1, None, :3])

    first = step.__code__.co_firstlineno
    found = for_less(step)
    assert {(one.cause, one.times, one.line[1]) for one in found} == {(HALF, 9, first + 2), (HALF, 9, first + 3)}
    assert {one.call.line for one in found} == {first + 1}
    assert seen == ["aten.addmm.default", "aten.convolution.default"]
    low = X.half()
    (found_by_hand,) = for_less(lambda: low @ low.t())
    assert found_by_hand.call.line == found_by_hand.line[1], "no autocast was turned on"


WIDER = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
ROWS, IMAGES = torch.randn(12, 8), torch.randn(9, 2, 5, 5)


def repeated_rows() -> None:
    rows = ROWS.repeat(4, 1)
    WIDER(rows * 2)


def expanded_rows() -> None:
    rows = ROWS[:, None].expand(12, 4, 8)
    WIDER(rows.reshape(48, 8))


def joined_rows() -> None:
    rows = torch.cat([ROWS] * 4)
    WIDER(rows)


def interleaved_images() -> None:
    images = IMAGES.repeat_interleave(4, 0)
    nn.functional.conv2d(images, torch.ones(3, 2, 3, 3))


@pytest.mark.parametrize("step", [repeated_rows, expanded_rows, joined_rows, interleaved_images])
def test_rows_that_were_repeated_before_a_product(step: Callable[[], None]) -> None:
    (found,) = (one for one in for_less(step) if one.cause is SAME_ROWS)
    assert found.times == 4 and 0.3 < found.part <= 0.75
    assert found.call == place_at(__file__, step.__code__.co_firstlineno + (2 if step is joined_rows else 1))


def test_rows_that_are_the_same_by_chance_or_no_more_after_a_draw_are_not_told() -> None:
    dropout = nn.Dropout(0.5)

    def step() -> None:
        table = torch.randn(40, 8)
        ids = torch.arange(48) % 13  # nine of them come four times, the others three times
        for rows in (torch.randn(48, 8), table[ids], torch.zeros(48, 8), torch.eye(6, 8).repeat(8, 1)):
            WIDER(rows)
        WIDER(dropout(ROWS.repeat(4, 1)))
        ROWS.repeat(4, 1)[None] @ torch.randn(1, 8, 8)

    table = torch.randn(40, 8)
    assert {one.cause for one in for_less(step)} <= {AGAIN}
    assert [one for one in for_less(lambda: LAYER(table[:15])) if one.cause is SAME_ROWS] == []


SERIES, STATE = torch.randn(3, 9, 8), torch.zeros(1, 3, 5)


def growing(net: nn.RNNBase, steps: int = 4, **given: Any) -> None:
    x = SERIES[:, :5]
    for at in range(steps):
        out, _ = net(x, **given)
        x = torch.cat([x, SERIES[:, 5 + at, None] + out.mean()], 1)


def of_one_time_more() -> None:
    growing(nn.GRU(8, 5, batch_first=True))


def of_input_by_name() -> None:
    net = nn.LSTM(8, 5, 2)
    for at in range(5, 9):
        net(input=SERIES.transpose(0, 1)[:at], hx=None)


@pytest.mark.parametrize("step", [of_one_time_more, of_input_by_name])
def test_a_recurrent_net_that_goes_over_its_sequence_again(step: Callable[[], None]) -> None:
    (found,) = (one for one in for_less(step) if one.cause is NOT_CARRIED)
    assert found.times == 4 and found.part == pytest.approx((5 + 6 + 7) / (5 + 6 + 7 + 8))
    assert {vars(kind)["forward"].__code__.co_filename for kind in KINDS} == {nn.modules.rnn.__file__}, "as it was"


def sliding() -> None:
    net = nn.GRU(8, 5, batch_first=True)
    for at in range(4):
        net(SERIES[:, at : at + 5])


def of_other_sequences() -> None:
    net = nn.GRU(8, 5, batch_first=True)
    for at in range(5, 9):
        net(SERIES[:, :at].flip(1))
    for _ in range(4):
        net(SERIES)


def carried() -> None:
    net, state = nn.GRU(8, 5, batch_first=True), None
    for at in range(4):
        _, state = net(SERIES[:, : at + 1], state)


@pytest.mark.parametrize(
    "step",
    [
        sliding,
        of_other_sequences,
        carried,
        lambda: growing(nn.RNN(8, 5, batch_first=True, bidirectional=True)),
        lambda: growing(nn.RNN(8, 5, batch_first=True), hx=STATE),
        lambda: growing(nn.RNN(8, 5, batch_first=True), steps=2),
    ],
)
def test_a_recurrent_net_that_needs_its_sequences_is_not_told(step: Callable[[], None]) -> None:
    assert NOT_CARRIED not in {one.cause for one in for_less(step)}


CELLS = nn.GRU(8, 8, batch_first=True)


def time_by_time() -> None:
    state, outs = None, []
    for at in range(9):
        out, state = CELLS(LAYER(SERIES[:, at, None]), state)
        outs.append(OTHER(out))
    torch.cat(outs).sum().item()


def on_its_own_output() -> None:
    state, out = None, SERIES[:, 0, None]
    for _ in range(9):
        out, state = CELLS(LAYER(out), state)


def on_what_the_host_read() -> None:
    state, x = None, SERIES[:, 0, None]
    for _ in range(9):
        out, state = CELLS(x, state)
        x = SERIES[:, int(out.argmax()) % 9, None]


def a_few_times() -> None:
    state = None
    for at in range(4):
        _, state = CELLS(SERIES[:, at, None], state)


def acting() -> None:
    with torch.no_grad():
        time_by_time()


@pytest.mark.parametrize(
    ("step", "times"),
    [(time_by_time, [9]), (on_its_own_output, []), (on_what_the_host_read, []), (a_few_times, []), (acting, [])],
)
def test_a_recurrent_net_that_is_called_for_one_time_after_another(step: Callable[[], None], times: list[int]) -> None:
    """Where an input hangs on the output before, or may, it has to be."""
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    found = lines.document()["stepwise"]
    assert [row[3] for row in found] == times and all(row[2].endswith("time_by_time") for row in found)


A, B, C = torch.randn(2, 300, 8), torch.randn(2, 8, 300), torch.randn(2, 300, 8)


def left_first() -> None:
    ((A @ B) / 8) @ C


def right_first() -> None:
    torch.addmm(torch.ones(8, 8), B[0], A[0] @ B[0] @ A[0])


def on_two_lines() -> None:
    scores = A @ B
    scores *= 0.1
    (scores @ C).relu()


NEIGHBOURS = torch.zeros(300, 300).fill_diagonal_(1).roll(1, 0).add_(torch.eye(300)).to_sparse_csr()
OF_NODES, NARROWS = torch.randn(300, 64), torch.randn(64, 4)


def neighbours_first() -> None:
    torch.sparse.mm(NEIGHBOURS, OF_NODES) @ NARROWS


def neighbours_last() -> None:
    torch.sparse.mm(NEIGHBOURS, OF_NODES @ NARROWS)


@pytest.mark.parametrize(
    ("step", "lines", "now", "other"),
    [
        (neighbours_first, 1, 300 * 64 * (2 + 4), 4 * (300 * 64 + 600)),
        (left_first, 1, 2 * 300 * 300 * 16, 2 * 64 * 600),
        (right_first, 1, 300 * 300 * 16, 64 * 600),
        (on_two_lines, 2, 2 * 300 * 300 * 16, 2 * 64 * 600),
    ],
)
def test_products_in_the_dear_order(step: Callable[[], None], lines: int, now: int, other: int) -> None:
    found = for_less(step)
    assert [one.cause for one in found] == [ORDER] * lines and all(0.4 < one.part < 1 for one in found)
    said = f"{now / 1e6:,.1f} million multiplications a step forward, in the other order {other / 1e6:,.1f}"
    assert {one.times for one in found} == {said}


def test_neighbours_of_what_is_narrow_already_are_in_the_cheap_order() -> None:
    assert for_less(neighbours_last) == []


ATTENDS, QUERY, KEYS = nn.Linear(64, 32), torch.randn(4, 1, 16), torch.randn(4, 50, 48)


def additive() -> None:
    ATTENDS(torch.cat([QUERY.repeat(1, 50, 1), KEYS], -1)).tanh().sum().backward()


def expanded() -> None:
    joined = torch.cat([QUERY.expand(-1, 50, -1), KEYS], 2)
    ATTENDS(joined.view(-1, 64)).sum().backward()


def own_columns() -> None:
    ATTENDS(torch.cat([KEYS[..., :16].clone(), KEYS], -1)).sum().backward()


def one_below_another() -> None:
    ATTENDS(torch.cat([QUERY.repeat(1, 50, 4), KEYS.repeat(1, 2, 2)[..., :64]], 1)).sum().backward()


def not_multiplied() -> None:
    torch.cat([QUERY.repeat(1, 50, 1), KEYS], -1).tanh()


def changed_since() -> None:
    ATTENDS(torch.cat([QUERY.repeat(1, 50, 1), KEYS], -1).mul_(torch.randn(4, 50, 64))).sum().backward()


@pytest.mark.parametrize(
    ("step", "lines"),
    [(additive, 1), (expanded, 2), (own_columns, 0), (one_below_another, 0), (not_multiplied, 0), (changed_since, 0)],
)
def test_columns_that_repeat_are_multiplied_row_by_row(step: Callable[[], None], lines: int) -> None:
    found = [one for one in for_less(step) if one.cause is REPEATED]
    assert len(found) == lines and all(one.times == 50 and 0.15 < one.part < 1 for one in found)


def used_twice() -> None:
    scores = A @ B
    scores.sum() + (scores @ C).sum()


def through_a_softmax() -> None:
    (A @ B).softmax(-1) @ C


def through_a_mask() -> None:
    ((A @ B) * MASK) @ C


def written_in_between() -> None:
    scores = A @ B
    scores[:, 0] = 0
    scores @ C


def of_low_rank() -> None:
    torch.randn(200, 300) @ A[0] @ B[0]


def turned() -> None:
    (A @ B).mT @ C


def reshaped() -> None:
    (A @ B).view(300, 600) @ torch.randn(600, 8)


@pytest.mark.parametrize(
    "step", [used_twice, through_a_softmax, through_a_mask, written_in_between, of_low_rank, turned, reshaped]
)
def test_where_no_other_order_computes_the_same_for_less(step: Callable[[], None]) -> None:
    assert for_less(step) == []


def test_what_helps_computes_the_same() -> None:
    csr, x, k = GRAPH.to_sparse_csr(), torch.randn(1, 1, 500), torch.randn(1, 1, 200)
    assert torch.equal(csr @ TABLE, GRAPH @ TABLE)
    n = x.size(-1) + k.size(-1) - 1
    y = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(k.flip(-1), n), n)
    direct = nn.functional.conv1d(nn.functional.pad(x, (199, 0)), k)
    assert torch.allclose(y[..., :500], direct, atol=1e-3)


def test_the_record_is_read_as_it_is_written() -> None:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        of_copies()
    found, *_ = of_lines(msgspec.convert(lines.document(), Record, strict=False))
    assert found.times == 3 and found.call.file == __file__


def test_lines_that_make_large_tensors() -> None:
    """Of the host's: in-place operations, views and small ones make none."""
    lines, x = Lines(operator.call), torch.randn(512, 128)
    with lines.watching(ops=True):
        y = (x + 1).mul_(2).view(-1)
        torch.stack([y, y])
        torch.ones(16)
    rows = lines.document()["large"]
    assert [(made, part) for _, _, _, made, part in rows] == [(2**19, 2 / 3), (2**18, 1 / 3)]
    assert rows[0][1] == rows[1][1] + 1


HEAD, MANY, AT = nn.Linear(8, 1000), torch.randn(4, 10, 8), torch.arange(40).view(4, 10, 1)


def of_targets_alone() -> None:
    (HEAD(MANY) / 0.7).gather(2, AT).sum()


def of_candidates() -> None:
    scores = HEAD(MANY).flatten(0, 1)
    scores[torch.arange(40)[:, None], AT.view(40, 1)].exp()


def of_first_columns() -> None:
    (HEAD(MANY)[..., :100] * 2).sum()


def of_masked_rows() -> None:
    rows = MANY.flatten(0, 1)
    nn.functional.cross_entropy(HEAD(rows)[torch.arange(40) % 8 == 0], AT.flatten()[:5])


def of_chosen_rows() -> None:
    HEAD(MANY).relu().index_select(1, torch.tensor([3])).sum()


SKIPS = [nn.Conv2d(8, 32, 1) for _ in range(4)]


def of_last_times() -> None:
    """As Graph-WaveNet adds up its skips: of the first all but the last time is cut off by and by."""
    x, skip = torch.randn(2, 8, 30, 40), None
    for conv in SKIPS:
        x = x[..., 12:] * 2 if skip is not None else x
        skip = conv(x) if skip is None else conv(x) + skip[..., -x.size(3) :]
    skip.relu().sum()


def of_all_in_sums() -> None:
    one, two = HEAD(MANY), HEAD(MANY + 1)
    (one + two).sum()
    one[:, :1].sum()


@pytest.mark.parametrize(
    ("step", "cause", "used"),
    [
        (of_last_times, FEW_ROWS, 10),
        (of_targets_alone, COLUMNS, "less than 1"), (of_candidates, COLUMNS, "less than 1"),
        (of_first_columns, COLUMNS, 10), (of_masked_rows, FEW_ROWS, 12), (of_chosen_rows, FEW_ROWS, 10),
    ],
)  # fmt: skip
def test_a_product_of_which_little_is_used(step: Callable[[], None], cause: Any, used: int) -> None:
    every = [one for one in for_less(step) if one.cause in (COLUMNS, FEW_ROWS)]
    assert (every[0].cause, every[0].times, every[0].call.function) == (cause, used, step.__name__)
    assert 0.4 < sum(one.part for one in every) <= 1, "of its line, which does more"


def of_all_and_few() -> None:
    scores = HEAD(MANY)
    scores.gather(2, AT) - scores.logsumexp(2, keepdim=True)


def of_fixed_numbers() -> None:
    (MANY @ torch.randn(8, 1000))[..., :3].sum()


def of_actions() -> None:
    nn.Linear(8, 8)(torch.randn(4000, 8)).gather(1, torch.zeros(4000, 1, dtype=torch.long)).sum()


def of_half() -> None:
    HEAD(MANY)[:, :5].sum()


@pytest.mark.parametrize(
    "step", [of_all_and_few, of_all_in_sums, of_fixed_numbers, of_actions, of_half, lambda: HEAD(MANY)]
)
def test_a_product_that_is_used_otherwise_or_not_the_models_is_not_told(step: Callable[[], None]) -> None:
    assert not {COLUMNS, FEW_ROWS} & {one.cause for one in for_less(step)}
