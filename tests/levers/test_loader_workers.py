"""Where the search for a number of workers begins, and what it may go to."""

from typing import Any

import msgspec
from contexts import CPU_ENVIRONMENT, LOADER, context

from hotlap.levers._base import Context, Settings
from hotlap.levers.loader_workers import LEVER
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
    assert counts(on(cores=2, workers=2)) == []


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
    assert LEVER.searched(beside_a_device(cores=16, bound="input")), "then the number is what counts"
    assert LEVER.searched(beside_a_device(cores=16, draws="random.random"))
    assert LEVER.searched(beside_a_device(cores=16, active={"batch-fetch": {}}))


def test_a_number_that_turns_out_too_small_is_told_by_the_steps_that_still_wait() -> None:
    with_four = beside_a_device(cores=16, active={"loader-workers": {"workers": 4}})
    assert LEVER.short(with_four) and min(counts(with_four)) > 4
    diagnosis = msgspec.structs.replace(with_four.diagnosis, phases=Phases(forward=99.0, data=1.0), gpu_phases=None)
    assert not LEVER.short(Context(diagnosis, with_four.facts, with_four.environment, with_four.active))


def test_batches_that_wait_may_have_more_workers_than_cores() -> None:
    assert max(counts(on(cores=2, making_cpu=0.02))) == 8
    assert max(counts(on(cores=2, workers=1, making_cpu=0.35))) == 6
    assert max(counts(on(cores=2, making_cpu=0.9))) == 2
    assert (
        LEVER.fits(msgspec.structs.replace(CPU_ENVIRONMENT, cores=2), LEVER.variants(on(2, making_cpu=0.02))[0]) is None
    )
