"""Where the search for a number of workers begins, and what it may go to."""

import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import CPU_ENVIRONMENT, LOADER, context
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotlap.agent.seams import NothingToDo
from hotlap.levers._base import Context, Settings
from hotlap.levers.input.loader_workers import LEVER
from hotlap.records.diagnosis import Phases


def on(cores: int, workers: int = 0, making_cpu: float | None = None) -> Context:
    loader = msgspec.structs.replace(LOADER, workers=workers, making_cpu=making_cpu)
    found = context(False, loaders=(loader,))
    return Context(found.diagnosis, found.facts, msgspec.structs.replace(CPU_ENVIRONMENT, cores=cores), {})


def counts(where: Context) -> list[int]:
    return [settings["workers"] for settings in LEVER.variants(where)]


def test_it_begins_at_the_estimate_and_goes_out_from_there() -> None:
    assert counts(on(cores=8)) == [2, 3, 1, 4, 6, 8]
    assert counts(on(cores=2)) == [2, 1]
    assert counts(on(cores=8, workers=4)) == [6, 8]
    assert counts(on(cores=2, workers=2)) == [2], "with more batches ahead"


def beside_a_device(
    cores: int, active: dict[str, Settings] | None = None, bound: str = "compute", **loader: Any
) -> Context:
    found = context(True, loaders=(msgspec.structs.replace(LOADER, **loader),))
    diagnosis = msgspec.structs.replace(found.diagnosis, bound=bound)
    return Context(diagnosis, found.facts, msgspec.structs.replace(CPU_ENVIRONMENT, cores=cores), active or {})


def test_beside_a_device_with_cores_to_spare_a_few_too_many_go_in_with_the_others() -> None:
    roomy = beside_a_device(cores=16)
    assert not LEVER.searched(roomy) and counts(roomy)[0] == 4
    assert LEVER.searched(on(cores=16)), "the model needs the cores itself"
    assert LEVER.searched(beside_a_device(cores=4))
    assert LEVER.searched(beside_a_device(cores=16, draws="random.random"))


def test_waiting_for_most_of_a_step_leaves_it_among_the_others_while_cores_are_plenty() -> None:
    """Or what else wins a lot goes first."""
    half = waiting(beside_a_device(cores=16, bound="input"), data=6.0)
    assert not LEVER.searched(half) and counts(half)[0] == 6
    nearly_all = waiting(beside_a_device(cores=16, bound="input"), data=9.0)
    assert LEVER.searched(nearly_all) and counts(nearly_all)[0] == 13, "then the number is what counts"


# batches ahead, and pinned memory

FOUR = {"workers": 4, "prefetch": 4, "pin_memory": True, "persistent": True}
LARGE = 2**24


def waiting(found: Context, data: float) -> Context:
    """The same of which so many ms of ten wait for data."""
    phases = Phases(data=data, forward=10 - data)
    diagnosis = msgspec.structs.replace(found.diagnosis, phases=phases, gpu_phases=phases)
    return Context(diagnosis, found.facts, found.environment, found.active)


def test_more_workers_come_first_where_their_number_was_not_searched() -> None:
    roomy = beside_a_device(cores=16, active={"loader-workers": FOUR}, batch_bytes=LARGE)
    assert counts(roomy) == [8, 6, 12, 16]
    full = beside_a_device(cores=16, active={"loader-workers": FOUR | {"workers": 16}}, batch_bytes=LARGE)
    assert LEVER.variants(full)[0] == FOUR | {"workers": 16, "prefetch": 8}


def test_batches_ahead_fit_in_memory() -> None:
    huge = beside_a_device(cores=4, active={"loader-workers": FOUR}, batch_bytes=2**29)
    assert LEVER.variants(huge)[0] == FOUR | {"prefetch": 2}
    none = beside_a_device(cores=4, active={"loader-workers": FOUR | {"prefetch": 1}}, batch_bytes=2**33)
    assert LEVER.variants(none) == [FOUR | {"prefetch": 1, "pin_memory": False}]


def test_a_script_with_as_many_workers_as_cores_gets_its_other_settings_tried() -> None:
    own = beside_a_device(cores=4, workers=4, prefetch=3, batch_bytes=LARGE)
    kept = {"workers": 4, "prefetch": 3, "pin_memory": False, "persistent": True}
    assert LEVER.applies(own).yes
    assert LEVER.variants(own) == [kept | {"pin_memory": True}, kept | {"prefetch": 6}]
    assert not LEVER.applies(waiting(own, 0.3)).yes
    assert all(LEVER.check(settings) is None for settings in LEVER.variants(own))


@pytest.mark.parametrize(("cuda", "own", "wanted", "pinned"), [
    (True, True, False, False), (True, False, True, True), (False, True, False, True), (False, False, True, False),
])  # fmt: skip
def test_memory_is_pinned_as_the_settings_say_beside_a_device(
    cuda: bool, own: bool, wanted: bool, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), pin_memory=own)
    asked: list[Any] = []
    seams: Any = SimpleNamespace(on_loader=lambda change, inference: asked.append(change))
    LEVER.install(seams, FOUR | {"pin_memory": wanted, "prefetch": 8})
    asked[0](loader)
    assert (loader.pin_memory, loader.prefetch_factor, loader.num_workers) == (pinned, 8, 4)


def test_batches_that_wait_may_have_more_workers_than_cores() -> None:
    assert max(counts(on(cores=2, making_cpu=0.02))) == 8
    assert max(counts(on(cores=2, workers=1, making_cpu=0.35))) == 6
    assert max(counts(on(cores=2, making_cpu=0.9))) == 2
    assert (
        LEVER.fits(msgspec.structs.replace(CPU_ENVIRONMENT, cores=2), LEVER.variants(on(2, making_cpu=0.02))[0]) is None
    )


# in the process


def changed(loader: Any, **settings: Any) -> Any:
    """The loader, as it is after it was put in."""
    found: list[Any] = []
    seams = SimpleNamespace(on_loader=lambda change, inference: found.append(change))
    own: Settings = {"workers": 2, "prefetch": 2, "pin_memory": False, "persistent": True}
    LEVER.install(seams, {**own, **settings})  # type: ignore[arg-type]
    found[0](loader)
    return loader


@pytest.mark.parametrize(
    ("kept", "size"), [(6, 4), (9, 4), (30, None)], ids=["broken off", "to the end", "broken off, without batches"]
)
def test_a_generator_of_the_scripts_own_is_drawn_from_as_without_workers(kept: int, size: int | None) -> None:
    """Workers are given numbers ahead, at whose end a sampler draws once more."""

    def epochs(loader: Any, look: Any) -> list[Any]:
        found = []
        for _ in range(3):
            look(loader)
            found.append([batch[0].tolist() for batch in itertools.islice(loader, kept)])
        return found

    def made() -> Any:
        return DataLoader(TensorDataset(torch.arange(32)), size, True, generator=torch.Generator().manual_seed(1))

    assert epochs(made(), changed) == epochs(made(), lambda loader: None)


def test_workers_are_made_anew_from_where_the_dataset_raises_on() -> None:
    """By then hotlap is off, and looks no more."""

    class Own(Exception):
        pass

    class Broken(TensorDataset):
        broken = False

        def __reduce__(self) -> Any:
            if Broken.broken:
                raise Own
            return super().__reduce__()

    loader = changed(DataLoader(Broken(torch.zeros(8))))
    assert loader.persistent_workers
    iterator = loader._iterator = SimpleNamespace(_rcvd_idx=4, _send_idx=4, _shutdown_workers=lambda: None)
    changed(loader)
    assert loader._iterator is iterator and loader.persistent_workers
    Broken.broken = True
    with pytest.raises(Own):
        changed(loader)
    assert loader._iterator is None and not loader.persistent_workers


def test_where_it_changes_nothing_it_says_why() -> None:
    data = TensorDataset(torch.zeros(8))
    own = DataLoader(data, num_workers=2, prefetch_factor=2, persistent_workers=True)
    with pytest.raises(NothingToDo, match="has 2 workers already"):
        changed(own)
    assert changed(own, workers=3).num_workers == 3
    assert changed(own, prefetch=4).prefetch_factor == 4
    again = changed(changed(DataLoader(data)))
    assert again.num_workers == 2 and again.persistent_workers, "each epoch, for the sake of its random numbers"

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    with pytest.raises(NothingToDo, match="each worker would deliver all data"):
        changed(DataLoader(Stream()))
