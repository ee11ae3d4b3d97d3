"""batch-fetch and sample-cache on real loaders: the same batches, bit for bit, or a reason and the script's own."""

import dataclasses
import errno
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import CPU_ENVIRONMENT, LOADER, context
from input_levers import Augmented, Counted, Curriculum, DataSeams, Growing, Private, Windows, bare, loader, same
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from agent.harness import Runner, check_same
from hotlap.levers import _rows, all_levers, batch_fetch, sample_cache
from hotlap.levers._base import Context
from hotlap.records.run import HostFacts, LoaderFacts
from hotlap.records.session import LeverUse

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="the proof forks a process")


def tensors() -> Any:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(40, 3, generator=draw), torch.randint(5, (40,), generator=draw))


def fetching() -> DataSeams:
    seams = DataSeams()
    batch_fetch.LEVER.install(seams, {})  # type: ignore[arg-type]
    return seams


def caching(mib: int = 64, **where: str) -> DataSeams:
    seams = DataSeams()
    sample_cache.LEVER.install(seams, {"mib": mib, **where})  # type: ignore[arg-type]
    return seams


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where samples on disk are kept."""
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


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
@pytest.mark.parametrize("put_in", [fetching, caching], ids=["batch-fetch", "sample-cache"])
def test_other_loaders_over_the_same_dataset_make_their_batches_themselves(put_in: Any, how: str) -> None:
    """Of a second stage, or of an evaluation, which no lever is asked about."""
    data, seams = tensors(), put_in()
    for _ in range(2):
        seams.epoch(loader(data))
    other, alike = (loader(data, **OTHERS[how]) for _ in range(2))
    assert same([seams.epoch(other) for _ in range(2)], bare(alike, 2))
    assert other.num_workers == alike.num_workers and not seams.refused


def test_a_loader_that_collates_otherwise_from_now_on_is_not_gathered() -> None:
    seams, source = caching(), loader(tensors(), shuffle=False)
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


# sample-cache


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_come_from_what_is_kept(workers: int, where: str, disk: Path) -> None:
    seams, source = caching(where=where), loader(Counted(), num_workers=workers)
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
    assert (disk / "samples").is_dir() == (where == "disk") and files(disk) == [], "a killed process would leave it"


def test_persistent_workers_end_when_every_sample_is_kept() -> None:
    seams, source = caching(), loader(Counted(), num_workers=1, persistent_workers=True)
    first = seams.epoch(source)
    workers = source._iterator._workers
    assert same([first, seams.epoch(source)], bare(loader(Counted()), 2))
    assert source._iterator is None and not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_kept_samples_are_copies(where: str, disk: Path) -> None:
    seams, source = caching(where=where), loader(Counted())
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


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_dataset_that_changes_ends_the_cache(where: str, disk: Path) -> None:
    seams, source = caching(where=where), loader(Curriculum(), shuffle=False)
    seams.epoch(source)
    source.dataset.epoch[0] = 7
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["a sample made anew is not the one that was kept"]


def test_one_label_of_many_that_changes_ends_the_cache() -> None:
    """Pseudo labels: two of a thousand changed in an epoch, and an audit makes sixteen samples anew."""

    class Labels(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.labels = [0] * 256

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, at: int) -> Any:
            return torch.full((2,), float(at)), self.labels[at] + torch.zeros(1)

    seams, source = caching(), loader(Labels(), shuffle=False)
    seams.epoch(source)
    source.dataset.labels[200] = 1
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["what the dataset holds changes"]


def test_an_attribute_that_changes_ends_the_cache() -> None:
    seams, source = caching(), loader(Counted())
    seams.epoch(source)
    source.dataset.strength = 0.5
    seams.epoch(source)
    assert seams.refused == ["the dataset's attribute 'strength' changes"]


class Large(Counted):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(16_384), index


def full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


NO_SPACE = "the samples can't be kept on disk: No space left on device"


@pytest.mark.parametrize(
    ("call", "fails", "why"),
    [
        ("dup", full, NO_SPACE),
        ("pwritev", full, NO_SPACE),
        ("pwritev", lambda *_: 7, NO_SPACE),
        ("preadv", lambda *_: 0, "the samples can't be kept on disk: Input/output error"),
    ],
)
def test_a_disk_that_is_full_or_fails_ends_the_cache_only(
    call: str, fails: Any, why: str, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seams, source = caching(where="disk"), loader(Counted())
    monkeypatch.setattr(os, call, fails)
    found = [seams.epoch(source)]
    seams.looks = []  # without the audit, which would see it first
    assert same([*found, *(seams.epoch(source) for _ in range(2))], bare(loader(Counted()), 3))
    assert seams.refused == [why]


def test_never_more_than_half_of_the_free_space(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others fill the disk meanwhile. What the file holds would be free without it."""

    def left(mib: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(mib * 2**20)))

    seams, source = caching(where="disk"), loader(Large())
    epochs = []
    for mib in (6.0, 3.0, 2.0):
        left(mib)
        assert seams.refused == []
        epochs.append(seams.epoch(source))
    assert same(epochs, bare(loader(Large()), 3))
    assert len(seams.refused) == 1 and "3 MiB are more than half of the 5 MiB free" in seams.refused[0]
    left(5.0)
    seams = caching(where="disk")
    assert same([seams.epoch(loader(Large()))], epochs[:1])
    assert seams.refused == ["3 MiB are more than half of the 5 MiB free on disk"]


def test_a_folder_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "file"))
    seams, source = caching(where="disk"), loader(Counted())
    assert same([seams.epoch(source)], bare(loader(Counted()), 1))
    assert seams.refused == [f"{tmp_path / 'file' / 'samples'} can't be written"]


def test_a_handle_that_the_script_closed_is_not_written_to(disk: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    store = _rows.Disk(4, [torch.ones(2, 3)])
    os.close(store.handle)
    with own.open("wb") as file:
        os.dup2(file.fileno(), store.handle)
    with pytest.raises(ValueError, match="Bad file descriptor"):
        store.write([0], [torch.ones(1, 3)])
    assert own.read_bytes() == b""


@pytest.mark.parametrize("keep", [_rows.Memory, _rows.Disk])
def test_rows_of_any_kind_come_back_as_they_were(keep: Any, disk: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    image = torch.randint(256, (6, 4, 3), dtype=torch.uint8, generator=draw).transpose(1, 2)
    half, some = torch.rand(6, generator=draw).bfloat16(), torch.rand(6, 2, dtype=torch.complex64, generator=draw)
    leaves = [image, half, some, torch.zeros(6, 0), half > 0.5]
    kept = keep(9, leaves)
    kept.write([8, 0, 3, 1, 2, 5], leaves)
    back = kept.read([3, 8, 8, 5])
    at = [2, 0, 0, 5]
    assert [leaf.dtype for leaf in back] == [leaf.dtype for leaf in leaves]
    assert all(torch.equal(leaf, own[at]) for leaf, own in zip(back, leaves, strict=True))


def test_a_cache_that_outgrows_its_bound_is_given_up() -> None:
    for where in ("memory", "disk"):
        seams, source = caching(mib=1, where=where), loader(Large())
        assert same([seams.epoch(source)], bare(loader(Large()), 1))
        assert seams.refused == ["the samples take 3 MiB"]


@pytest.mark.parametrize("put_in", [fetching, caching])
def test_a_dataset_that_grows_is_the_scripts_own_again(put_in: Any) -> None:
    seams, source = put_in(), loader(Growing(), shuffle=False)
    seams.epoch(source)
    source.dataset.found.windows = 40
    assert same([seams.epoch(source)], bare(source, 1))
    assert seams.refused == ["the dataset has grown" if put_in is fetching else "what the dataset holds changes"]


# in a process

ON_DISK = (LeverUse("sample-cache", {"mib": 4, "where": "disk"}),)
FULL = "import os\ndef full(*_):\n    raise OSError(28, 'No space left on device')\nos.pwritev = full\n"


@pytest.mark.parametrize("argv", [("--killed",), ("--workers", "2")], ids=["killed", "workers"])
def test_a_training_from_disk_is_the_scripts_own(argv: tuple[str, ...], runner: Runner, tmp_path: Path) -> None:
    before = f"import os; os.environ['HOTLAP_CACHE'] = {str(tmp_path)!r}"
    bare_, ran = runner.bare("epochs.py", *argv), runner.forked("epochs.py", *argv, before=before, levers=ON_DISK)
    check_same(ran, bare_)
    assert ran.code == (-9 if argv == ("--killed",) else 0)
    assert [problem.what for problem in ran.problems] == []
    assert (ran.ranks[0] / "levers.jsonl").read_text() == '{"lever": "sample-cache"}\n'
    assert (tmp_path / "samples").is_dir() and files(tmp_path) == []


def test_a_full_disk_is_said_once_and_the_training_goes_on(runner: Runner, tmp_path: Path) -> None:
    before = f"{FULL}os.environ['HOTLAP_CACHE'] = {str(tmp_path)!r}"
    bare_, ran = runner.bare("epochs.py"), runner.forked("epochs.py", before=before, levers=ON_DISK)
    check_same(ran, bare_)
    assert [(problem.lever, problem.what) for problem in ran.problems] == [("sample-cache", f"Refused: {NO_SPACE}")]
    assert len(ran.steps) == 12


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
    few = told(epoch_batches=300)
    phases = msgspec.structs.replace(few.diagnosis.phases, data=0.06 * few.diagnosis.step_ms)
    few = dataclasses.replace(few, diagnosis=msgspec.structs.replace(few.diagnosis, phases=phases))
    assert lever.applies(told(epoch_batches=300)).yes and "of the step" in lever.applies(few).why
    assert "GiB" in lever.applies(told(batch_bytes=2**40)).why
    assert lever.variants(told(batch_bytes=32 * 2**20))[0]["mib"] in range(2048, 2 * 2048)
    small = msgspec.structs.replace(told().environment, memory_gib=1.0)
    assert lever.fits(small, {"mib": 1024}) and not lever.fits(small, {"mib": 128})


def test_samples_that_memory_has_no_room_for_go_to_a_disk_that_has(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lever, few, many = all_levers()["sample-cache"], told(), told(batch_bytes=2**30)
    assert lever.variants(few) == [{"mib": lever.variants(few)[0]["mib"]}], "recipes of memory are as they were"
    for free, yes in ((2**40, True), (2**36, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        settings = lever.variants(many)[0]
        assert settings["where"] == "disk" and lever.check(settings) is None
        assert lever.applies(many).yes == yes and ("on disk" in lever.applies(many).why)
        assert (lever.fits(many.environment, settings) is None) == yes
    assert lever.check({"mib": 5}) is None and all(
        "where" in str(lever.check({"mib": 5, "where": where})) for where in ("tape", 1, [])
    )
    assert "memmap" in lever.source(settings)


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
