"""Datasets that are kept on a device: the same batches, bit for bit, or a reason and the script's own. The device is
the CPU here; what differs on a GPU is where tensors lie."""

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from contexts import GPU_ENVIRONMENT, LOADER, context
from input_levers import Counted, DataSeams, Windows, bare, loader, same
from torch.utils.data import Subset, TensorDataset

from hotlap.levers import dataset_on_device as module
from hotlap.levers._base import Context
from hotlap.levers.dataset_on_device import COMPARE_EVERY, LEVER, MOST_COPIES, Residing

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="the proof forks a process")
PLACE = torch.device("cpu")


def tensors(rows: int = 40) -> Any:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(rows, 3, generator=draw)
    x[1, 1] = float("nan")
    return TensorDataset(x, torch.randint(5, (rows,), generator=draw), torch.rand(rows, generator=draw) > 0.5)


class Residence(DataSeams):
    """The lever's in-process half, and its one table."""

    def __init__(self, chosen: frozenset[int] | None = None, inference: bool = False) -> None:
        super().__init__()
        self.residing = Residing(self, LEVER.name, chosen, PLACE)  # type: ignore[arg-type]
        self.residing.install(inference)

    @property
    def table(self) -> Any:
        return next(iter(self.residing.tables.values()))


@pytest.mark.parametrize("data", [tensors, lambda: Subset(tensors(), [5, 3, 8, 1, 30, 31, 2, 9, 7]), Windows])
@pytest.mark.parametrize("chosen", [None, frozenset({0}), frozenset({1})])
def test_batches_are_those_of_the_loader(data: Callable[[], Any], chosen: frozenset[int] | None) -> None:
    seams, source = Residence(chosen), loader(data())
    found = [seams.epoch(source) for _ in range(8)]
    assert seams.refused == [] and seams.table.copies == 1
    expected = bare(loader(data()), 8)
    assert same([[_bits(batch) for batch in epoch] for epoch in found], [[_bits(b) for b in e] for e in expected])
    assert [type(batch) for batch in found[0]] == [type(batch) for batch in expected[0]]
    assert seams.table.gathered >= sum(map(len, found)) - 2
    assert seams.table.numbers == [n for n in range(len(seams.table.windows)) if chosen is None or n in chosen]


def _bits(batch: Any) -> list[Any]:
    """NaN is like itself."""
    leaves = batch.values() if isinstance(batch, dict) else batch
    return [leaf.contiguous().view(torch.uint8) for leaf in leaves]


def test_tensors_of_one_storage_are_copied_once() -> None:
    seams = Residence()
    seams.look(loader(Windows()))
    x, y = seams.table.there
    assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_a_batch_is_the_scripts_to_change() -> None:
    seams, data = Residence(), Windows()
    before = data.tokens.clone()
    for batch in seams.epoch(loader(data)):
        batch["x"].zero_()
    assert torch.equal(data.tokens, before)
    assert torch.equal(seams.table.there[0][: len(before) - 8, 0], before[: len(before) - 8])


def test_a_write_by_torch_is_seen_before_the_next_batch() -> None:
    seams, source = Residence(), loader(Windows(), shuffle=False)
    for copies in range(1, MOST_COPIES + 1):
        assert same([seams.epoch(source)], bare(source, 1)) and seams.refused == []
        assert seams.table.copies == copies
        source.dataset.tokens += 1
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == [f"the dataset's tensors were written to {MOST_COPIES} times"]


def test_a_write_past_torch_is_found_by_comparing() -> None:
    seams, source = Residence(), loader(tensors(COMPARE_EVERY * 16))
    seams.epoch(source)
    assert seams.refused == []
    source.dataset.tensors[1].numpy()[:] += 1
    seams.epoch(source)
    assert seams.refused == ["a sample is no longer what it was: something has written to it past torch"]
    expected = loader(source.dataset)
    expected.generator.set_state(source.generator.get_state())
    pairs = zip(seams.epoch(source), expected, strict=True)
    assert all(torch.equal(a, b) for one, other in pairs for a, b in zip(one[1:], other[1:], strict=True))


def test_a_tensor_that_is_replaced_ends_it() -> None:
    seams, source = Residence(), loader(Windows())
    seams.epoch(source)
    source.dataset.tokens = source.dataset.tokens + 1
    expected = loader(source.dataset)
    expected.generator.set_state(source.generator.get_state())
    assert same([seams.epoch(source)], bare(expected, 1))
    assert seams.refused == ["the samples are not views of one tensor"]


def test_evaluations_get_batches_of_the_host() -> None:
    seams, source = Residence(), loader(Windows())
    seams.epoch(source)
    before = seams.table.gathered
    with torch.no_grad():
        found = seams.epoch(source)
    assert seams.table.gathered == before and sorted(int(x) for b in found for x in b["x"][:, 0]) == list(
        range(0, 360, 9)
    )
    inferring = Residence(inference=True)
    with torch.no_grad():
        inferring.epoch(loader(Windows()))
    assert inferring.table.gathered > 0


def test_what_is_on_the_device_is_not_pinned() -> None:
    seams, source = Residence(), loader(tensors())
    seams.look(source)
    iterator = iter(source)
    iterator._pin_memory = True  # as with pin_memory=True beside a GPU
    seams.residing.fetch(iterator, lambda: None)
    assert iterator._pin_memory is False


def test_what_does_not_fit_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory", lambda place: 1000.0)
    seams, source = Residence(), loader(Windows())
    seams.look(source)
    assert len(seams.refused) == 1 and "MiB are free on the device" in seams.refused[0]
    assert same([seams.epoch(source)], bare(loader(Windows()), 1))


def test_samples_that_are_made_are_left_as_they_are() -> None:
    seams = Residence()
    seams.look(loader(Counted()))
    assert seams.refused == ["a sample holds a int, not only tensors"]


def told(active: dict[str, dict[str, Any]] | None = None, cuda: bool = True, **changes: Any) -> Context:
    """A loader as the agent saw it."""
    known = {"rows": 2000, "epoch_batches": 63, "default_collate": True, "holds_tensors": True}
    found = context(cuda, active, loaders=(msgspec.structs.replace(LOADER, **{**known, **changes}),))
    machine = msgspec.structs.replace(GPU_ENVIRONMENT, os="Linux-6-x86_64-with-glibc2.36")
    return Context(found.diagnosis, found.facts, machine, found.active)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"cuda": False}, "no device to keep it on"),
        ({"moved": ()}, "not seen to move"),
        ({"custom_batch": True}, "not seen to move"),
        ({"holds_tensors": False}, "no tensor"),
        ({"views": False}, "not views"),
        ({"on_device": True}, "on the device"),
        ({"draws": True}, "random"),
    ],
)
def test_where_it_applies(changes: dict[str, Any], why: str | None) -> None:
    applies = LEVER.applies(told(**changes))
    assert applies.yes is (why is None) and (why or "of the step waits for batches") in applies.why
    assert LEVER.variants(told(moved=(1,))) == [{"leaves": [1]}] and LEVER.variants(told()) == [{"leaves": "all"}]
