"""Whether workers would be made of the same: what counts as a change of a dataset, and where there is no telling."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from hotlap.levers.input import _dataset_state
from hotlap.levers.input._dataset_state import LARGE, state_of

SIDE = int(LARGE**0.5) // 2 + 100


SCALE = [1.0]


SHIFT, HELPS = [1.0], [1.0]
args = SimpleNamespace(noise=0.5, deep=SimpleNamespace(level=1))


def helper() -> float:
    return HELPS[0] * args.deep.level


class Rows:
    """What datasets hold."""

    scale = 1.0

    def __getitem__(self, at: int) -> Any:
        return self.scale * SCALE[0] * self.shifted * self.plainly() * sum(args.noise for _ in range(1))

    @property
    def shifted(self) -> float:
        return SHIFT[0]

    @staticmethod
    def plainly() -> float:
        return helper() * _dataset_state.MOST_S

    def __init__(self) -> None:
        self.plain, self.rows = 1, [[0, {"a": {1}}] for _ in range(100)]
        self.array, self.large = numpy.zeros((4, 4)), numpy.zeros((SIDE, SIDE), numpy.float32)
        self.tensor, self.below = torch.zeros(4, 4), Subset(TensorDataset(torch.zeros(8, 2)), range(4))
        self.half, self.strided = torch.zeros(3, dtype=torch.bfloat16), torch.zeros(4, 6).t()
        self.images = numpy.zeros((2, 5, 5, 3), numpy.float32)
        self.turned = torch.from_numpy(self.images).permute(0, 3, 1, 2)
        self.weight, self.drawn = torch.nn.Parameter(torch.zeros(3)), torch.Generator().manual_seed(0)
        held = [0]
        self.held, self.closure = held, lambda row: row + held[0]
        self.kind, self.module = SimpleNamespace, torch


def write(index: Any, value: Any) -> Callable[[Any], None]:
    return lambda of: of.__setitem__(index, value)


CHANGES: dict[str, Callable[[Rows], object]] = {
    "an attribute": lambda rows: setattr(rows, "plain", 2),
    "a new attribute": lambda rows: setattr(rows, "other", None),
    "deep in a list": lambda rows: rows.rows[7][1]["a"].add(2),
    "a small array in place": lambda rows: write((1, 2), 1)(rows.array),
    "a large array, all of it": lambda rows: rows.large.fill(1.0),
    "a large array for another": lambda rows: setattr(rows, "large", rows.large.copy()),
    "a tensor in place": lambda rows: rows.tensor[0, 0].add_(1),
    "a tensor as an array": lambda rows: write((0, 0), 1)(rows.tensor.numpy()),
    "a tensor for another": lambda rows: setattr(rows, "tensor", torch.ones(4, 4)),
    "in a dataset below": lambda rows: rows.below.dataset.tensors[0][3].fill_(1),  # type: ignore[attr-defined]
    "half precision": lambda rows: rows.half.numel() and rows.half.fill_(1),
    "one that lies otherwise": lambda rows: rows.strided.add_(1),
    "one that lies otherwise, as an array": lambda rows: rows.images.fill(1.0),
    "a part of a large array": lambda rows: rows.large[3:5].fill(1.0),
    "a parameter's data": lambda rows: rows.weight.data.fill_(1),
    "a generator": lambda rows: torch.rand(1, generator=rows.drawn),
    "an attribute of the class": lambda rows: setattr(Rows, "scale", Rows.scale + 1),
    "a global variable that a method names": lambda rows: write(0, SCALE[0] + 1)(SCALE),
    "one that a property names": lambda rows: write(0, SHIFT[0] + 1)(SHIFT),
    "one that a function names which a static method calls": lambda rows: write(0, HELPS[0] + 1)(HELPS),
    "an attribute of one, read in a comprehension": lambda rows: setattr(args, "noise", args.noise + 1),
    "an attribute of an attribute": lambda rows: setattr(args.deep, "level", args.deep.level + 1),
    "one of a module": lambda rows: setattr(_dataset_state, "MOST_S", _dataset_state.MOST_S + 1),
    "what a closure holds": lambda rows: write(0, 3)(rows.held),
    "which function": lambda rows: setattr(rows, "closure", lambda row: row),
    "which class": lambda rows: setattr(rows, "kind", dict),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dataset_state, "MOST_S", 60.0)  # a machine that stands still for a moment is no change
    rows = Rows()
    before = state_of(rows, default_collate)
    assert before is not None and state_of(rows, default_collate) == before
    CHANGES[what](rows)
    assert state_of(rows, default_collate) not in {before, None}


def test_what_can_not_be_told_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(SimpleNamespace(lock=threading.Lock())) is None

    class Broken:
        def __init__(self, error: type[Exception]) -> None:
            self.error = error

        def __reduce__(self) -> Any:
            raise self.error("as a script's own may")

    assert all(state_of(Broken(error)) is None for error in (KeyError, AssertionError, EOFError, NotImplementedError))
    with pytest.raises(Exception, match="own may"):
        state_of(Broken(Exception))
    assert state_of(numpy.zeros((2 * SIDE, 2 * SIDE), numpy.float32)[:, ::2]) is None, "it would be copied"
    assert state_of([[n] for n in range(3)]) is not None
    monkeypatch.setattr(_dataset_state, "MOST_BYTES", 1000)
    assert state_of(list(range(100_000))) is None
    monkeypatch.setattr(_dataset_state, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(_dataset_state, "MOST_S", -1.0)
    assert state_of([1]) is None, "there is no time"
