"""Loader workers and the model's threads share the cores."""

from typing import Any

import msgspec
import pytest
from contexts import CPU_ENVIRONMENT, GPU_ENVIRONMENT, LOADER, context

from hotlap.levers import all_levers
from hotlap.levers._base import Context
from hotlap.levers.host.cpu_threads import LEVER
from hotlap.records.run import HostFacts


def crowded(workers: int, cores: int, threads: int) -> Context:
    active = {"loader-workers": {"workers": workers, "prefetch": 4, "pin_memory": False, "persistent": True}}
    found = context(False, active, threads=threads)
    return Context(found.diagnosis, found.facts, msgspec.structs.replace(CPU_ENVIRONMENT, cores=cores), active)


def test_threads_are_worth_more_where_workers_crowd_the_cores() -> None:
    alone, beside = context(False, threads=8), crowded(workers=8, cores=8, threads=8)
    assert LEVER.share(beside) > 2 * LEVER.share(alone)
    assert LEVER.share(beside) > LEVER.share(crowded(workers=2, cores=8, threads=8)) > LEVER.share(alone)
    assert LEVER.share(crowded(workers=2, cores=8, threads=2)) < 0.8


def test_what_the_workers_leave_is_tried_first() -> None:
    assert LEVER.variants(crowded(workers=6, cores=8, threads=8))[0] == {"threads": 2}
    assert LEVER.variants(crowded(workers=2, cores=2, threads=2)) == [{"threads": 1}]
    assert LEVER.variants(crowded(workers=8, cores=8, threads=8))[0] == {"threads": 1}


# a quota of processor time


def limited(quota: float | None, cores: int = 16, **facts: Any) -> Context:
    found = context(False, **{"threads": 16, **facts})
    machine = msgspec.structs.replace(CPU_ENVIRONMENT, cores=cores, cpu_quota=quota)
    return Context(found.diagnosis, found.facts, machine, {})


@pytest.mark.parametrize(("quota", "cores"), [(None, 16), (4.0, 4), (3.2, 4), (0.25, 1), (64.0, 16)])
def test_usable_cores(quota: float | None, cores: int) -> None:
    assert limited(quota).environment.usable_cores == cores


def test_levers_of_the_processor_count_the_quota_and_not_the_cores() -> None:
    threads, workers = limited(4.0), limited(4.0, loaders=(LOADER,))
    assert [one["threads"] for one in LEVER.variants(threads)] == [4, 2, 1]
    assert "16 threads on 4 cores" in LEVER.applies(threads).why
    assert LEVER.fits(threads.environment, {"threads": 5}) and LEVER.fits(threads.environment, {"threads": 4}) is None
    assert LEVER.share(threads) > LEVER.share(limited(None))
    loader = all_levers()["loader-workers"]
    assert max(one["workers"] for one in loader.variants(limited(None, loaders=(LOADER,)))) == 16
    assert max(one["workers"] for one in loader.variants(workers)) == 4
    settings = loader.variants(workers)[0]
    assert loader.fits(workers.environment, settings | {"workers": 17}) == "17 workers on 4 cores"


# batches for a device


def on_device(active: dict[str, dict[str, Any]] | None = None, cores: int = 16, **facts: Any) -> Context:
    found = context(True, active, **{"threads": 16, **facts})
    machine = msgspec.structs.replace(GPU_ENVIRONMENT, cores=cores)
    return Context(found.diagnosis, found.facts, machine, found.active)


def test_few_threads_for_batches_that_the_process_makes_itself() -> None:
    assert LEVER.applies(on_device()).yes and "30% of the step" in LEVER.applies(on_device()).why
    assert [one["threads"] for one in LEVER.variants(on_device())] == [4, 1, 2]
    assert [one["threads"] for one in LEVER.variants(on_device(threads=4))] == [1, 2]
    assert [one["threads"] for one in LEVER.variants(on_device(cores=2))] == [1, 2]


def test_threads_do_nothing_for_a_device_that_workers_feed() -> None:
    settings = {"workers": 4, "prefetch": 4, "pin_memory": True, "persistent": True}
    refused = {
        "4 workers make its batches": on_device({"loader-workers": settings}),
        "8 workers make its batches": on_device(loaders=(msgspec.structs.replace(LOADER, workers=8),)),
        "so do its batches": on_device(loaders=(msgspec.structs.replace(LOADER, on_device=True),)),
        "no DataLoader": on_device(loaders=()),
        "one thread": on_device(threads=1),
        "launcher": on_device(world=2),
    }
    for why, where in refused.items():
        assert not LEVER.applies(where).yes and why in LEVER.applies(where).why
    quick = on_device()
    diagnosis = msgspec.structs.replace(
        quick.diagnosis, gpu_phases=msgspec.structs.replace(quick.diagnosis.phases, data=0.1)
    )
    assert "takes only" in LEVER.applies(Context(diagnosis, quick.facts, quick.environment, {})).why


def test_threads_that_wait_for_cores_may_be_all_of_the_data_phase() -> None:
    usual, waiting = on_device(), on_device(host=HostFacts(steps=9, threads_waited_ms=900.0))
    assert LEVER.share(waiting) == pytest.approx(0.3) and LEVER.share(usual) < LEVER.share(waiting)
    assert LEVER.share(on_device(cores=8)) == pytest.approx(0.3)  # more threads than cores


def test_where_threads_wait_for_cores_the_gain_has_no_bound() -> None:
    """A public script beside another process: "at most 1.15x" stood beside a proof of 11x."""
    assert LEVER.share(context(False, threads=8, host=HostFacts(steps=9, threads_waited_ms=900.0))) == 1.0
    assert LEVER.share(context(False, threads=8, host=HostFacts(steps=9, threads_waited_ms=0.5))) < 0.5
