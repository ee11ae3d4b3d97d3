"""Logits that are kept, of which a script gets rows: what it does with them is what it does with an ordinary tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotlap.levers import _prefix_work

BATCH, LENGTH, ROOM, CLASSES = 2, 5, 8, 6
Use = Callable[[Any], Any]


def written(rows: Any, value: float = 7.0) -> Any:
    return rows.fill_(value)


def after(*results: Any) -> Any:
    """The last of what was done one after another."""
    return results[-1] + 0


USES: dict[str, Use] = {
    "transposed": lambda x: x.transpose(1, 2).reshape(BATCH * CLASSES, -1),
    "permuted": lambda x: x.permute(0, 2, 1) * 1,
    "written by an index of no dimensions": lambda x: after(written(x[torch.tensor(0)]), x),
    "rows by each number of a tensor": lambda x: after(*(written(x[i][:, :2]) for i in torch.arange(BATCH)), x),
    "detached after a write": lambda x: after(written(x[:, -1]), x.detach()[:, -1]),
    "viewed after a write": lambda x: after(written(x[0, -1]), x.view(-1, CLASSES)[4]),
    "flattened after a write": lambda x: after(written(x[0, -1]), x.flatten(0, 1)[4]),
    "cloned after a write": lambda x: after(written(x[:, -1]), x.clone()[:, -1]),
    "widened after a write": lambda x: after(written(x[:, -1]), x.float()[:, -1]),
    "a clone from before a write": lambda x: after(c := x.clone(), written(x[:, -1]), c),
    "a clone's row from before a write": lambda x: after(c := x.clone(), r := x[:, -1], written(r), c[:, -1]),
    "a view of a row after the whole": lambda x: after(r := x[:, -1], v := r[0], x.sum(), written(v), r),
    "the whole after a view of a row": lambda x: after(r := x[:, -1], v := r[0], x.sum(), written(v), x),
    "the same row twice": lambda x: after(a := x[:, -1], b := x[:, -1], x.sum(), written(b), a),
    "the whole written, in a view": lambda x: after(r := x[:, -1], v := r[:, :2], written(x), v),
    "the whole written, in a row": lambda x: after(r := x[:, -1], written(x), r),
    "one item set": lambda x: after(r := x[:, -1], x.__setitem__((slice(None), -1, 2), 4.0) or r),
    "rows set": lambda x: after(r := x[:, -1], x.__setitem__(torch.tensor([0]), 1.0) or r),
    "through data": lambda x: after(r := x[:, -1], written(r.data), x),
    "through data, in a row": lambda x: after(r := x[:, -1], written(r.data), x[:, -1]),
    "through detach": lambda x: after(written(x[:, -1].detach()), x),
    "a row of a row": lambda x: after(written(x[0][-1]), x[:, -1]),
    "chosen by numbers after a write": lambda x: after(written(x[:, -1]), x[torch.tensor([0])]),
    "chosen by flags": lambda x: after(written(x[torch.tensor([True, False])]), x),
    "a slice, then a number": lambda x: after(written(x[:, 1:3]), x[:, 2]),
    "unbound": lambda x: after(p := x[:, -1].unbind(0), x.add_(1), written(p[0]), x),
    "selected": lambda x: after(written(x.select(1, -1)), x[:, -1]),
    "chunked": lambda x: after(r := x[:, -1], written(x.chunk(2)[0]), r),
    "a row of a view": lambda x: after(written(x.view(-1, CLASSES)[4]), x[0, 4]),
    "a row, and one of a view": lambda x: after(r := x[0, 4], written(x.view(-1, CLASSES)[4]), r),
    "a row of a view, and one": lambda x: after(a := x.view(-1, CLASSES)[4], r := x[0, 4], written(r), a),
    "a row of what is detached": lambda x: after(d := x.detach(), r := x[:, -1], a := d[:, -1], written(r), a),
    "what is detached": lambda x: after(d := x.detach(), written(x[:, -1]), d),
    "masked": lambda x: after(r := x[:, -1, :], r.__setitem__(r < 0, -torch.inf) or x[:, -1].softmax(-1)),
}


@pytest.fixture(autouse=True)
def kept_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_work, "LEAST", (1, 1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_rows_are_parts_of_the_whole(use: Use, mode: Callable[[], Any]) -> None:
    torch.manual_seed(0)  # a row of which nothing is left by a mask is NaN, which equals nothing
    kept = torch.randn(BATCH, ROOM, CLASSES)
    before = kept.clone()
    with mode():
        logits, whole = _prefix_work.copy(kept[:, :LENGTH], 1), kept[:, :LENGTH].clone()
        assert type(logits).__name__ == "LazyLogits"
        got, expected = use(logits), use(whole)
    assert got.shape == expected.shape and torch.equal(got, expected)
    assert torch.equal(kept, before), "what is kept is for the calls that come"


def test_a_loss_of_a_row_goes_back_after_the_whole_was_read() -> None:
    with torch.no_grad():
        logits = _prefix_work.copy(torch.randn(BATCH, ROOM, CLASSES)[:, :LENGTH], 1)
    weight = torch.ones(CLASSES, requires_grad=True)
    loss = (logits[:, -1] * weight).sum()
    logits.mean()
    loss.backward()
    assert torch.allclose(weight.grad, logits[:, -1].sum(0))


def test_rows_of_longer_sequences_lie_in_memory_of_one_size() -> None:
    kept = torch.randn(BATCH, ROOM, CLASSES)
    with torch.no_grad():
        rows = [_prefix_work.copy(kept[:, :length], 1)[:, -1] for length in range(2, ROOM)]
    assert {row.untyped_storage().nbytes() for row in rows} == {kept.nbytes}, "which the allocator has already"
