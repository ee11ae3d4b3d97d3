"""batch-fetch on real loaders: the same batches, bit for bit, or a reason and the script's own."""

import os
import random
from typing import Any

import msgspec
import pytest
import torch
from contexts import CPU_ENVIRONMENT, LOADER, context
from input_levers import Augmented, Counted, DataSeams, Growing, Windows, bare, loader, same
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from hotlap.levers import all_levers, batch_fetch
from hotlap.levers._base import Context
from hotlap.records.run import HostFacts, LoaderFacts

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="the proof forks a process")


def tensors() -> Any:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(40, 3, generator=draw), torch.randint(5, (40,), generator=draw))


def fetching() -> DataSeams:
    seams = DataSeams()
    batch_fetch.LEVER.install(seams, {})  # type: ignore[arg-type]
    return seams


def state() -> tuple[Any, Any]:
    return bytes(torch.get_rng_state().tolist()), random.getstate()


# batch-fetch


@pytest.mark.parametrize("data", [tensors, lambda: Subset(tensors(), [5, 3, 8, 1, 30, 31, 2, 9, 7]), Windows])
def test_gathered_batches_are_those_of_the_loader(data: Any) -> None:
    seams, source = fetching(), loader(data())
    found = [seams.epoch(source) for _ in range(2)]
    assert seams.refused == []
    assert same(found, bare(loader(data()), 2))
    assert [type(batch) for batch in found[0]] == [type(batch) for batch in bare(loader(data()), 1)[0]]


@pytest.mark.parametrize(("shape", "length"), [((), 7), ((3,), 7), ((2, 3), 5), ((2, 3), 1), ((20,), 6)])
@pytest.mark.parametrize("small", [0, 10**6])
def test_rows_are_gathered_in_grains(
    shape: tuple[int, ...], length: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_fetch, "GRAIN", 8)
    monkeypatch.setattr(batch_fetch, "SMALL", small)
    data, rows = torch.randn(9, *shape), torch.randint(0, 9, (length,))
    window = batch_fetch.windows(data[0])
    assert torch.equal(batch_fetch._taken(window, rows * data[0].numel(), False), data[rows])


def test_gathering_asks_for_one_sample_a_batch_only() -> None:
    data, asked = tensors(), []
    own = type(data).__getitem__

    class Asked(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return own(self, index)

    seams, source = fetching(), loader(Asked(*data.tensors))
    seams.epoch(source)
    asked.clear()
    assert len(seams.epoch(source)) == len(asked) == 5


def test_gathered_batches_are_the_scripts_to_change() -> None:
    data = tensors()
    before = data.tensors[0].clone()
    for x, _ in fetching().epoch(loader(data)):
        x.zero_()
    assert torch.equal(data.tensors[0], before)


def test_workers_have_nothing_to_do_where_batches_are_gathered() -> None:
    source = loader(tensors(), num_workers=2)
    assert same([fetching().epoch(source)], bare(loader(tensors()), 1))
    assert source.num_workers == 0


def test_a_tensor_that_is_replaced_ends_the_gathering() -> None:
    seams, source = fetching(), loader(Windows())
    seams.epoch(source)
    source.dataset.tokens = source.dataset.tokens + 1
    expected = loader(source.dataset)
    expected.generator.set_state(source.generator.get_state())
    assert same([seams.epoch(source)], bare(expected, 1))
    assert seams.refused == ["the samples are not views of one tensor"]


def test_one_index_of_many_that_is_moved_ends_the_gathering() -> None:
    """Hard negatives: ten of a thousand entries of a list of indices, and a batch asks for one sample."""
    places = list(range(36))
    seams, source = fetching(), loader(Subset(tensors(), places), shuffle=False)
    seams.epoch(source)
    places[33] = 39
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["a sample lies elsewhere than it did"]


def test_a_tensor_that_is_changed_in_place_is_read_anew() -> None:
    seams, source = fetching(), loader(Windows(), shuffle=False)
    seams.epoch(source)
    source.dataset.tokens += 1
    assert same([seams.epoch(source)], bare(source, 1)) and seams.refused == []


def doubled(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return 2 * x, y


OTHERS: dict[str, dict[str, Any]] = {
    "collated otherwise": {"collate_fn": doubled},
    "one by one": {"batch_size": None, "shuffle": False},
    "from the end": {"sampler": range(-8, 8), "shuffle": False},
    "collated otherwise by workers": {"collate_fn": doubled, "num_workers": 2},
}


@pytest.mark.parametrize("how", OTHERS)
def test_other_loaders_over_the_same_dataset_make_their_batches_themselves(how: str) -> None:
    """Of a second stage, or of an evaluation, which no lever is asked about."""
    data, seams = tensors(), fetching()
    for _ in range(2):
        seams.epoch(loader(data))
    other, alike = (loader(data, **OTHERS[how]) for _ in range(2))
    assert same([seams.epoch(other) for _ in range(2)], bare(alike, 2))
    assert other.num_workers == alike.num_workers and not seams.refused


def test_a_loader_that_collates_otherwise_from_now_on_is_not_gathered() -> None:
    seams, source = fetching(), loader(tensors(), shuffle=False)
    first = seams.epoch(source)
    source.collate_fn = doubled
    assert all(torch.equal(2 * a, b) for (a, _), (b, _) in zip(first, seams.epoch(source), strict=True))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda: loader(Counted()), "a sample holds a int, not only tensors"),
        (lambda: loader(Augmented()), "a sample holds a int, not only tensors"),
        (lambda: loader(tensors(), collate_fn=list), "collate"),
        (lambda: loader(tensors(), worker_init_fn=print, num_workers=1), "workers"),
        (lambda: DataLoader(tensors(), batch_size=None), "sampler"),
    ],
)
def test_what_can_not_be_gathered_is_left_as_it_is(source: Any, why: str) -> None:
    taken, before = source(), state()
    seams = fetching()
    seams.look(taken)
    assert len(seams.refused) == 1 and why in seams.refused[0]
    assert state() == before, "the proof drew random numbers of the script's"


def test_a_dataset_that_grows_is_the_scripts_own_again() -> None:
    seams, source = fetching(), loader(Growing(), shuffle=False)
    seams.epoch(source)
    source.dataset.found.windows = 40
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["the dataset has grown"]


# when they apply


def told(loader: LoaderFacts = LOADER, **changes: Any) -> Context:
    found = context(False)
    known = {"rows": 2048, "epoch_batches": 64, "sampler": "RandomSampler", "default_collate": True}
    facts = msgspec.structs.replace(
        found.facts, loaders=(msgspec.structs.replace(loader, **{**known, "holds_tensors": True, **changes}),)
    )
    machine = msgspec.structs.replace(CPU_ENVIRONMENT, os="Linux-6-x86_64-with-glibc2.36")
    return Context(found.diagnosis, facts, machine, {})


def test_what_was_seen_of_the_loader_decides() -> None:
    lever = all_levers()["batch-fetch"]
    assert lever.applies(told()).yes, lever.applies(told()).why
    for change, why in [
        ({"iterable": True}, "IterableDataset"), ({"default_collate": False}, "collate"), ({"draws": True}, "random"),
        ({"rows": None}, "sampler"), ({"own_workers": True}, "timeout"), ({"on_device": True}, "device"),
    ]:  # fmt: skip
        assert not lever.applies(told(**change)).yes and why in lever.applies(told(**change)).why


def test_views_need_a_tensor_to_be_views_of() -> None:
    assert "no tensor" in all_levers()["batch-fetch"].applies(told(holds_tensors=False)).why
    assert "not views" in all_levers()["batch-fetch"].applies(told(views=False)).why
    assert all(all_levers()["batch-fetch"].applies(told(views=views)).yes for views in (True, None))


# gc-pauses and host-allocator


def hosted(**host: Any) -> Context:
    found = told()
    facts = msgspec.structs.replace(found.facts, host=HostFacts(steps=50, **host))
    return Context(found.diagnosis, facts, found.environment, {})


def test_levers_of_the_host_follow_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, allocator = all_levers()["gc-pauses"], all_levers()["host-allocator"]
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    assert "not measured" in pauses.applies(told()).why and "not counted" in allocator.applies(told()).why
    assert pauses.applies(hosted(gc_ms=2.0, collections=9)).yes
    assert pauses.share(hosted(gc_ms=2.0, collections=9)) == pytest.approx(0.2)
    assert not pauses.applies(hosted(gc_ms=0.1, collections=9)).yes
    assert allocator.applies(hosted(faults=9000.0, system_ms=4.0)).yes
    assert allocator.share(hosted(faults=9000.0, system_ms=4.0)) == pytest.approx(0.4)
    assert "page faults" in allocator.applies(hosted(faults=12.0, system_ms=4.0)).why
    on_device = context(True, host=HostFacts(steps=50, faults=9000.0, system_ms=8.0))
    assert allocator.share(on_device) == pytest.approx(0.45)  # data, h2d and other: the rest the device hides
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "MALLOC_ARENA_MAX" in allocator.applies(hosted(faults=9000.0, system_ms=4.0)).why
