"""batch-fetch and sample-cache on real loaders: the same batches, bit for bit, or a reason and the script's own."""

import os
import random
from typing import Any

import msgspec
import pytest
import torch
from contexts import CPU_ENVIRONMENT, LOADER, context
from input_levers import Augmented, Counted, Curriculum, DataSeams, Growing, Private, Windows, bare, loader, same
from torch.utils.data import DataLoader, Subset, TensorDataset

from hotlap.levers import all_levers, batch_fetch, sample_cache
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


def caching(mib: int = 64) -> DataSeams:
    seams = DataSeams()
    sample_cache.LEVER.install(seams, {"mib": mib})  # type: ignore[arg-type]
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


def test_a_tensor_that_is_changed_in_place_is_read_anew() -> None:
    seams, source = fetching(), loader(Windows(), shuffle=False)
    seams.epoch(source)
    source.dataset.tokens += 1
    assert same([seams.epoch(source)], bare(source, 1)) and seams.refused == []


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


# sample-cache


@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_come_from_memory(workers: int) -> None:
    seams, source = caching(), loader(Counted(), num_workers=workers)
    found = [seams.epoch(source) for _ in range(2)]
    type(source.dataset).__getitem__, own = (lambda self, index: pytest.fail("made again")), Counted.__getitem__
    try:
        seams.looks = []  # without the audit, which asks the dataset
        found.append(seams.epoch(source))
    finally:
        type(source.dataset).__getitem__ = own  # type: ignore[method-assign]
    assert same(found, bare(loader(Counted()), 3))
    assert seams.refused == [] and seams.filling == 5
    assert source.num_workers == 0


def test_persistent_workers_end_when_every_sample_is_kept() -> None:
    seams, source = caching(), loader(Counted(), num_workers=1, persistent_workers=True)
    first = seams.epoch(source)
    workers = source._iterator._workers
    assert same([first, seams.epoch(source)], bare(loader(Counted()), 2))
    assert source._iterator is None and not any(worker.is_alive() for worker in workers)


def test_kept_samples_are_copies() -> None:
    seams, source = caching(), loader(Counted())
    for _ in range(3):
        for x, y in seams.epoch(source):
            x.zero_()
            y.zero_()
    source.generator.manual_seed(3)
    assert same([seams.epoch(source)], bare(loader(Counted()), 1))


def test_an_epoch_that_ends_early_keeps_what_it_saw() -> None:
    seams, source = caching(), loader(Counted(), shuffle=False)
    seams.look(source)
    iterator = iter(source)
    for _ in range(2):
        seams.fetches[0](iterator, lambda: next(iterator))
    assert same([seams.epoch(source)], bare(loader(Counted(), shuffle=False), 1)) and seams.filling == 5


@pytest.mark.parametrize("data", [Augmented, Private])
def test_random_transforms_are_refused_and_draw_nothing_more(data: Any) -> None:
    made, before = data(), state()
    seams, source = caching(), loader(made)
    seams.look(source)
    assert len(seams.refused) == 1
    assert seams.refused[0] in {"a sample made twice differs", "making a sample draws random numbers"}
    assert state() == before
    random.seed(1)
    found = seams.epoch(source)
    random.seed(1)
    assert same([found], bare(loader(data()), 1))


def test_a_dataset_that_changes_ends_the_cache() -> None:
    seams, source = caching(), loader(Curriculum(), shuffle=False)
    seams.epoch(source)
    source.dataset.epoch[0] = 7
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["a sample made anew is not the one that was kept"]


def test_an_attribute_that_changes_ends_the_cache() -> None:
    seams, source = caching(), loader(Counted())
    seams.epoch(source)
    source.dataset.strength = 0.5
    seams.epoch(source)
    assert seams.refused == ["the dataset's attribute 'strength' changes"]


def test_a_cache_that_outgrows_its_bound_is_given_up() -> None:
    class Large(Counted):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(16_384), index

    seams, source = caching(mib=1), loader(Large())
    assert same([seams.epoch(source)], bare(loader(Large()), 1))
    assert seams.refused == ["the samples take 3 MiB"]


@pytest.mark.parametrize("put_in", [fetching, caching])
def test_a_dataset_that_grows_is_the_scripts_own_again(put_in: Any) -> None:
    seams, source = put_in(), loader(Growing(), shuffle=False)
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


@pytest.mark.parametrize("name", ["batch-fetch", "sample-cache"])
def test_what_was_seen_of_the_loader_decides(name: str) -> None:
    lever = all_levers()[name]
    assert lever.applies(told()).yes, lever.applies(told()).why
    for change, why in [
        ({"iterable": True}, "IterableDataset"), ({"default_collate": False}, "collate"), ({"draws": True}, "random"),
        ({"rows": None}, "sampler"), ({"own_workers": True}, "timeout"), ({"on_device": True}, "device"),
    ]:  # fmt: skip
        assert not lever.applies(told(**change)).yes and why in lever.applies(told(**change)).why


def test_a_cache_needs_an_epoch_that_a_trial_gets_through_and_memory() -> None:
    lever = all_levers()["sample-cache"]
    assert "which no trial reaches" in lever.applies(told(epoch_batches=100_000)).why
    assert "GiB" in lever.applies(told(batch_bytes=2**30)).why
    assert lever.variants(told(batch_bytes=32 * 2**20))[0]["mib"] in range(2048, 2 * 2048)
    small = msgspec.structs.replace(told().environment, memory_gib=1.0)
    assert lever.fits(small, {"mib": 1024}) and not lever.fits(small, {"mib": 128})


def test_views_need_a_tensor_to_be_views_of() -> None:
    assert "no tensor" in all_levers()["batch-fetch"].applies(told(holds_tensors=False)).why


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
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "MALLOC_ARENA_MAX" in allocator.applies(hosted(faults=9000.0, system_ms=4.0)).why
