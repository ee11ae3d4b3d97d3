"""The loader starts its worker processes anew each epoch."""

from collections.abc import Sequence
from statistics import fmean

from hotlap.levers import answering
from hotlap.records.diagnosis import MUCH, Finding
from hotlap.records.durations import ms
from hotlap.records.run import LoaderFacts, Step

from ._base import Measured, counted

LEAST = 0.05


def find(measured: Measured) -> Finding | None:
    """Share: over the run at the pace of its steady steps, as an epoch's first step may not be among these."""
    loader, share = measured.loader, restarting(measured.loader, measured.run_ms)
    if loader is None or share < LEAST:
        return None
    again = loader.starts - 1
    took = f"{ms(loader.restarting_ms / again)} to start, {ms(loader.refilling_ms / again)} until their first batch"
    return Finding(
        id="workers-restart",
        bound="input",
        share=share,
        title="workers restart each epoch",
        where=measured.place_at(loader.loop) or measured.place_of(loader),
        evidence=f"{counted(again, 'restart')} of {counted(loader.workers, 'worker')}, each {took}: {share:.0%} of the "
        "loop's time after warm-up; phases leave these steps out",
        why="a DataLoader ends its workers after each epoch unless persistent_workers is set, and the loop waits "
        "for new ones" + ("; spawned ones import everything again" if loader.context == "spawn" else ""),
        instead="DataLoader(persistent_workers=True), made once, if nothing changes the dataset between epochs "
        "(workers would not see that); longer epochs",
        levers=answering("input"),
        named=share >= MUCH,
    )


def restarting(loader: LoaderFacts | None, run_ms: float) -> float:
    """Share of the run that restarts cost: less what the first batch takes workers that live, which is at most their
    number of other steps. run_ms: 0 where it is not known."""
    if loader is None or loader.starts < 2 or not run_ms:
        return 0.0
    lost = loader.restarting_ms + loader.refilling_ms
    other = max(0.0, run_ms - lost) / max(1, loader.batches)
    made = min(loader.refilling_ms, (loader.starts - 1) * loader.workers * other)
    return min(1.0, (lost - made) / run_ms)


def without_restarts(steps: Sequence[Step], loader: LoaderFacts | None, in_all: int) -> tuple[tuple[Step, ...], float]:
    """The steady steps of a run that restarts take a notable part of, without those that hold one: as many as there
    were, if they waited that long (of those that were not looked at: took that long). And ms of the run, as if all
    steps were steady. in_all: its steps."""
    lost = 0.0 if loader is None else loader.restarting_ms + loader.refilling_ms
    if loader is None or loader.starts < 2 or not steps:
        return tuple(steps), in_all * fmean(step.wall_ms for step in steps) if steps else 0.0
    again = loader.starts - 1
    waited = {step.step: step.wall_ms if step.phases is None else step.phases.data or 0.0 for step in steps}
    paying = [at for at, took in waited.items() if took >= lost / again / 2]
    paying = sorted(paying, key=lambda at: -waited[at])[:again]
    rest = tuple(step for step in steps if step.step not in paying) or tuple(steps)
    run_ms = lost + in_all * fmean(step.wall_ms for step in rest)
    return (tuple(steps) if restarting(loader, run_ms) < LEAST else rest), run_ms
