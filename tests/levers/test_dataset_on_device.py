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
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from hotlap.levers import dataset_on_device as module
from hotlap.levers._base import Context
from hotlap.levers._coming import Coming, coming
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


# batches that are made ahead


def ahead(rows: int = 640, **options: Any) -> Any:
    """A loader of batches that are some at a time."""
    x = torch.arange(rows * 4.0).view(rows, 4)
    return loader(TensorDataset(x, torch.arange(rows), x[:, 0] > 50), batch_size=32, **options)


class Asked:
    """How often something is gathered on the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        gathered = module.Resident._gathered

        def counted(*args: Any) -> Any:
            self.times += 1
            return gathered(*args)

        monkeypatch.setattr(module.Resident, "_gathered", counted)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True}, {"generator": None}])
@pytest.mark.parametrize("rows", [640, 625])
def test_batches_are_made_some_at_a_time(options: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIGNED", 64)
    seams, asked = Residence(), Asked(monkeypatch)
    torch.manual_seed(3)
    source = ahead(rows, **options)
    found = [seams.epoch(source) for _ in range(3)]
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert same(found, bare(ahead(rows, **options), 3)) and torch.equal(drawn, torch.rand(1)) and not seams.refused
    batches = sum(map(len, found))
    assert seams.table.gathered >= batches - 2 and asked.times <= 3 * (2 + len(found[0]) // module.MOST_AHEAD) + 2


def test_a_batch_that_was_made_ahead_is_a_tensor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIGNED", 64)
    seams, source = Residence(), ahead(shuffle=False)
    seams.epoch(source)
    batches = seams.epoch(source)
    assert len({batch[0].untyped_storage().data_ptr() for batch in batches}) < len(batches)
    batches[4][0].zero_()
    expected = bare(ahead(shuffle=False), 1)[0]
    assert not batches[4][0].any() and batches[5][0]._version == 0 and batches[5][0]._base is None
    assert all(torch.equal(a[0], b[0]) for at, (a, b) in enumerate(zip(batches, expected, strict=True)) if at != 4)
    assert all(leaf.data_ptr() % 64 == batches[0][0].data_ptr() % 64 for batch in batches for leaf in batch[:1])


def test_a_write_is_seen_by_batches_that_were_made_ahead() -> None:
    seams, source = Residence(), ahead(shuffle=False)
    seams.epoch(source)
    seams.look(source)
    iterator = iter(source)
    for _ in range(3):
        batch = seams.residing.fetch(iterator, iterator.__next__)
    source.dataset.tensors[0].add_(1)
    batch = seams.residing.fetch(iterator, iterator.__next__)
    assert torch.equal(batch[0], source.dataset.tensors[0][96:128]) and seams.table.copies == 2


def test_a_loop_that_ends_early_draws_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a generator of the script's own."""
    seams, source, plain = Residence(), ahead(128), ahead(128)
    for rounds in (2, 3, 4, 1):
        seams.look(source)
        one, other = iter(source), iter(plain)
        for _ in range(rounds):
            batch, expected = seams.residing.fetch(one, one.__next__), next(other)
            assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
        assert torch.equal(source.generator.get_state(), plain.generator.get_state())


def test_batches_are_made_one_by_one_where_memory_between_them_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seams, asked = Residence(), Asked(monkeypatch)
    source = loader(TensorDataset(torch.arange(64, dtype=torch.uint8)), batch_size=8)
    for _ in range(2):
        seams.epoch(source)
    assert asked.times == 16


def test_an_order_with_several_draws_is_not_asked_ahead() -> None:
    data = tensors()
    for order in (RandomSampler(data, replacement=True), RandomSampler(data, num_samples=90)):
        iterator = iter(DataLoader(data, batch_size=8, sampler=order))
        assert coming(iterator) is None and type(iterator._sampler_iter) is not Coming
