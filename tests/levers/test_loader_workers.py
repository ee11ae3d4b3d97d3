"""Where the search for a number of workers begins, and what it may go to."""

import msgspec
from contexts import CPU_ENVIRONMENT, LOADER, context

from hotlap.levers._base import Context
from hotlap.levers.loader_workers import LEVER


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


def test_batches_that_wait_may_have_more_workers_than_cores() -> None:
    assert max(counts(on(cores=2, making_cpu=0.02))) == 8
    assert max(counts(on(cores=2, workers=1, making_cpu=0.35))) == 6
    assert max(counts(on(cores=2, making_cpu=0.9))) == 2
    assert (
        LEVER.fits(msgspec.structs.replace(CPU_ENVIRONMENT, cores=2), LEVER.variants(on(2, making_cpu=0.02))[0]) is None
    )
