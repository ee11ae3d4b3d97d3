"""Masks that attention does not need, tensors that are copied in each step, and lines that turn autocast on."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention

from hotlap.agent.lines import Lines


def document(*steps: Callable[[], Any]) -> dict[str, Any]:
    """Of a step, and of another one after it."""
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        steps[0]()
    for step in steps[1:]:
        with lines.watching_again():
            step()
    return lines.document()


# copies, to a device that every build has


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queue = torch.zeros(64, 8)
        self.head = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.queue.to("meta").T

    def enqueue(self, rows: torch.Tensor) -> None:
        self.queue[self.head : self.head + len(rows)] = rows
        self.head += len(rows)


MODEL = Model()
TABLE = torch.randn(64, 8)
PLACE = torch.empty(64, 8, device="meta")
STAGED = torch.empty(16, 8)
SHARED = torch.from_numpy(np.zeros((16, 8), np.float32))
BATCHES = iter(range(100))


def queue() -> None:
    MODEL(torch.empty(4, 8, device="meta"))
    MODEL.enqueue(torch.randn(4, 8))


def table() -> None:
    TABLE.to("meta", torch.bfloat16)


def into_memory_of_the_device() -> None:
    PLACE.copy_(TABLE, non_blocking=True)


def filled_by_an_index() -> None:
    with torch.inference_mode():
        TABLE[torch.tensor([3, 5])] = 1.0
        TABLE.to("meta")


@pytest.mark.parametrize(
    ("step", "function"),
    [
        (queue, "Model.forward"),
        (table, "table"),
        (into_memory_of_the_device, "into_memory_of_the_device"),
        (filled_by_an_index, "filled_by_an_index"),
    ],
)
def test_what_lives_and_is_copied_in_each_step(step: Callable[[], None], function: str) -> None:
    ((_, _, where, size),) = document(step, step)["copied"]
    assert (where, size) == (function, 64 * 8 * 4)


def new_batches() -> None:
    torch.randn(16, 8).to("meta")


def parts_of_a_dataset() -> None:
    at = 4 * next(BATCHES)
    TABLE[at % 60 : at % 60 + 4].to("meta")


def shuffled_rows() -> None:
    TABLE[torch.randperm(64)[:4]].to("meta")


def staged() -> None:
    STAGED.copy_(torch.randn(16, 8))
    STAGED.to("meta")


def stacked_into_a_part() -> None:
    torch.stack([torch.randn(8)] * 4, out=STAGED[:4])
    STAGED[:4].to("meta")


def staged_together() -> None:
    torch._foreach_copy_([STAGED], [torch.randn(16, 8)])
    STAGED.to("meta")


def written_by_numpy() -> None:
    SHARED.to("meta")


def already_there() -> None:
    PLACE.to("meta")
    TABLE.to(torch.bfloat16)


@pytest.mark.parametrize(
    "step",
    [
        new_batches,
        parts_of_a_dataset,
        shuffled_rows,
        staged,
        stacked_into_a_part,
        staged_together,
        written_by_numpy,
        already_there,
    ],
)
def test_batches_are_not_told(step: Callable[[], None]) -> None:
    assert document(step, step)["copied"] == []


def test_what_one_step_copies_alone_is_not_told() -> None:
    assert document(table)["copied"] == [] and document(table, new_batches)["copied"] == []


def test_what_another_thread_fills_between_is_not_told() -> None:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        STAGED.to("meta")
    STAGED.fill_(3)
    with lines.watching_again():
        STAGED.to("meta")
    assert lines.document()["copied"] == []


# masks

Q = torch.randn(2, 2, 96, 8)
TRIL = torch.ones(96, 96, dtype=torch.bool).tril()
HIDDEN = torch.zeros(96, 96).masked_fill_(~TRIL, torch.finfo(torch.float32).min)
FULL = torch.ones(96, 96, dtype=torch.bool)
WINDOW = TRIL.triu(-16)
DOCUMENTS = TRIL & (torch.arange(96) < 40).eq((torch.arange(96) < 40)[:, None])
ONE_PADDED = TRIL.expand(2, 1, 96, 96).clone()
ONE_PADDED[1, :, :, 90:] = False
LEFT_PADDED = TRIL.expand(2, 1, 96, 96).clone()
LEFT_PADDED[1, :, :, :6] = False
FULL_AT_THE_END = FULL.clone()
FULL_AT_THE_END[:, 90:] = False
LEARNED = nn.Parameter(torch.zeros(96, 96))


def masked(mask: torch.Tensor | None, **more: Any) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            for _ in range(2):
                attention(Q, Q, Q, attn_mask=mask, **more)

    return step


def told(step: Callable[[], None], other: Callable[[], None] | None = None) -> list[tuple[str, int]]:
    return [(kind, times) for *_, kind, times, _, _ in document(step, other or step)["masks"]]


def test_a_mask_that_is_causal() -> None:
    assert told(masked(TRIL)) == told(masked(HIDDEN)) == told(masked(TRIL.expand(2, 2, 96, 96))) == [("causal", 2)]
    assert [row[3] for row in document(masked(TRIL))["masks"]] == ["causal"]


def test_a_causal_mask_with_padding_at_the_end_of_rows() -> None:
    as_numbers = torch.zeros(2, 1, 96, 96).masked_fill_(~ONE_PADDED, -torch.inf)
    assert told(masked(ONE_PADDED)) == told(masked(as_numbers)) == [("padded", 2)]
    assert told(masked(TRIL), masked(ONE_PADDED)) == [("padded", 2)], "one batch had none"


def test_a_mask_that_leaves_nothing_out() -> None:
    assert told(masked(FULL)) == told(masked(torch.zeros(96, 96))) == [("nothing", 2)]
    assert [row[3] for row in document(masked(FULL))["masks"]] == ["partly"], "once may be a batch without padding"


@pytest.mark.parametrize(
    "mask",
    [WINDOW, DOCUMENTS, LEFT_PADDED, FULL_AT_THE_END, TRIL.roll(1, 0), TRIL.T, torch.randn(96, 96)],
)
def test_other_masks_are_of_another_kind(mask: torch.Tensor) -> None:
    assert told(masked(mask)) == [("partly", 2)]


@pytest.mark.parametrize("mask", [FULL[:1].expand(2, 1, 1, 96), LEARNED])
def test_of_keys_alone_or_without_a_kernel_for_it_no_mask_is_told(mask: torch.Tensor) -> None:
    assert told(masked(mask)) == []


def test_how_much_a_mask_hides_in_whole_blocks() -> None:
    left, every_other = torch.zeros(2, 128, 128, dtype=torch.bool)
    left[:, 64:], every_other[:, ::2] = True, True
    q, shares = torch.randn(1, 1, 128, 8), []
    for mask in (left, every_other, torch.ones(128, 128, dtype=torch.bool).tril()):
        ((*_, hidden, _),) = document(lambda mask=mask: attention(q, q, q, attn_mask=mask))["masks"]
        shares.append(hidden)
    assert shares == [0.5, 0.0, 0.25], "a block on the diagonal is not"


def test_masks_that_differ_are_of_another_kind() -> None:
    def step() -> None:
        for mask in (TRIL, WINDOW):
            attention(Q, Q, Q, attn_mask=mask)

    assert told(step) == [("partly", 2)] and told(masked(TRIL), masked(WINDOW)) == [("partly", 2)]
    assert told(masked(None)) == [] and told(masked(None, is_causal=True)) == []


def test_a_mask_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.agent.masks.MOST_ELEMENTS", 500)
    assert told(masked(TRIL)) == [("causal", 2)] and told(masked(WINDOW)) == [("partly", 2)]
    assert told(masked(ONE_PADDED)) == [("padded", 2)]


def mask_of(ids: torch.Tensor) -> torch.Tensor:
    return TRIL & (ids != 0)[:, None, None]


def test_the_line_that_makes_it_is_known() -> None:
    def step() -> None:
        mask = mask_of(torch.ones(2, 96))
        attention(Q, Q, Q, attn_mask=mask)

    ((*_, made),) = document(step)["masks"]
    assert made[1:] == (mask_of.__code__.co_firstlineno + 1, "mask_of")
    ((*_, unknown),) = document(masked(TRIL))["masks"]
    assert unknown is None, "it is older than the step"


# autocast


def entered(step: Callable[[], None]) -> list[str]:
    return [function for *_, function in document(step)["autocasts"]]


class Casts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ x.T


def of_the_loss() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        (TABLE @ TABLE.T).sum()


@torch.autocast("cpu")
def decorated() -> None:
    TABLE.sum()


def of_a_module() -> None:
    Casts()(TABLE)


def off() -> None:
    with torch.autocast("cpu", enabled=False):
        TABLE.sum()


def test_autocast_is_seen_where_no_module_turns_it_on() -> None:
    assert entered(of_the_loss) == ["of_the_loss"] and len(entered(decorated)) == 1
    assert entered(of_a_module) == entered(off) == []
    assert torch.autocast.__enter__.__module__ == "torch.amp.autocast_mode"
