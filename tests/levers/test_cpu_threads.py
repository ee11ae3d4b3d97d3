"""Loader workers and the model's threads share the cores."""

import msgspec
from contexts import CPU_ENVIRONMENT, context

from hotlap.levers._base import Context
from hotlap.levers.cpu_threads import LEVER


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
