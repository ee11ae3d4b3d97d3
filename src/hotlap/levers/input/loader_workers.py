"""Worker processes for the DataLoader, with prefetching, persistence and pinned memory.

How many batches each of them makes ahead, and whether memory is pinned, goes by a rule at first. Once their number is
settled and 5% of the step or more still waits for batches, one of the two is tried the other way: pinning where a batch
is small, so that to hand it through a thread of its own may cost more than it wins, else twice as many batches ahead.
Where a script has as many workers of its own as there are cores, both are.

Workers live on from epoch to epoch as long as nothing of the dataset has changed in the process that trains, nor a
global variable that its methods or functions of the script's that they call read: else that starts them anew, as they
would not see it (`_dataset_state`). What changes within an epoch they see in the next one.
"""

import math
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from .._base import FLAG, MARK, Applies, Context, Lever, Settings, integer
from .._internals import internals
from ._dataset_state import state_of

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment, Facts, LoaderFacts

LEAST_SHARE: Final = 0.02
BATCHES_IN_FLIGHT_GIB: Final = 8.0
LADDER: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
WAITS: Final = 0.4
"""Share of the time spent making batches in which the processor is used, below which that mostly waits for files or the
network. (On a machine that others use too the share is lower than it would be alone: 0.5 was seen.)"""
WAITING_WORKERS: Final = 4
"""Workers for each core at most, where they wait."""
ROOMY: Final = 8
"""Cores beside a CUDA device from which on a few workers too many cost nothing that counts. Their number then needs no
search before other levers are tried, which shorten the step and so ask for more of them: it is twice what the step
needs as it is, at least LEAST_ROOMY. Where it needs more than a quarter of the cores, workers are tried alone: their
number is what counts, and what they win is proved bit for bit, with none of the runs that rounding asks for."""
LEAST_ROOMY: Final = 4
SHORT: Final = 0.05
"""Share of the step that still waits for batches, from which on a number that was not searched was too small, or what
goes by a rule may be wrong."""
SMALL: Final = 2**20
"""Bytes of a batch that are copied in about the time in which a thread hands it on."""
MOST_PREFETCH: Final = 64
DRAWN: Final = "_hotlap_drawn"
"""In a loader: the state of its sampler's own generator before the last epoch."""
NOT_IN_USE: Final = 3
"""References to an iterator that nobody holds but those who count them."""


class LoaderWorkers(Lever):
    """`num_workers`, `prefetch_factor`, `persistent_workers` and `pin_memory` of the DataLoader."""

    name = "loader-workers"
    meaning = "batches are made by worker processes while the model computes"
    causes = {"input": 0, "h2d": 0}
    risk = "exact"
    settings = {
        "workers": integer(1, 1024), "prefetch": integer(1, MOST_PREFETCH), "pin_memory": FLAG, "persistent": FLAG,
        "inference": MARK,
    }  # fmt: skip
    redraws = True
    signs = (
        "DataLoader worker", "ConnectionResetError", "BrokenPipeError", "Too many open files",
        "shared memory object", "shared memory(shm)",
    )  # fmt: skip

    def applies(self, context: Context) -> Applies:
        loader = context.facts.feeding
        if loader is None:
            return Applies(False, "no DataLoader feeds the loop")
        if loader.on_device:
            return Applies(False, "the dataset returns tensors on the device, which worker processes can't make")
        if loader.iterable and loader.workers == 0:
            return Applies(False, "each worker would deliver all data of an IterableDataset unless it shards itself")
        share = context.share_of("data", "h2d")
        if share < LEAST_SHARE:
            return Applies(False, f"data and h2d take only {share:.1%} of the step")
        now = workers_in_use(context)
        if not self.variants(context):
            return Applies(False, f"{now} workers already, on {context.environment.usable_cores} cores")
        return Applies(True, f"{share:.0%} of the step waits for data with {now} workers")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return not facts.loaders

    def variants(self, context: Context) -> list[Settings]:
        """Where this lever is in, and the number of workers was surely searched, its other settings come first; more
        workers have more batches ahead as well."""
        loader = context.facts.feeding
        if loader is None:
            return []
        settled = self.name in context.active and _scarce(context, loader)
        more, otherwise = self._more(context, loader), _otherwise(context, loader)
        return (otherwise or more) if settled else (more or otherwise)

    def _more(self, context: Context, loader: "LoaderFacts") -> list[Settings]:
        """More workers than there are."""
        most = _most(context, loader.making_cpu)
        first = min(most, _needed(context))
        if not self.searched(context):
            first = min(most, max(LEAST_ROOMY, 2 * first))
        near = sorted({*LADDER, most}, key=lambda count: (abs(math.log(count / first)), count))
        wanted = [count for count in [first, *near] if count <= most]
        return [
            {
                "workers": count,
                "prefetch": _prefetch(count, loader.batch_bytes),
                "pin_memory": context.cuda,
                "persistent": True,
                **context.for_inference,
            }
            for count in dict.fromkeys(wanted)
            if count > workers_in_use(context)
        ]  # where to begin is an estimate; the tuner measures its neighbours as long as they win

    def searched(self, context: Context) -> bool:
        loader = context.facts.feeding
        if loader is None or _scarce(context, loader):
            return True
        return 4 * _needed(context) > _cores(context)

    def share(self, context: Context) -> float:
        return context.share_of("data") + 0.5 * context.share_of("h2d")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings["workers"] > WAITING_WORKERS * environment.usable_cores:
            return f"{settings['workers']} workers on {environment.usable_cores} cores"
        return None

    def install(self, seams: "Seams", settings: Settings) -> None:
        def change(loader: Any) -> None:
            import torch

            from hotlap.agent.seams import NothingToDo

            if isinstance(loader.dataset, torch.utils.data.IterableDataset) and loader.num_workers == 0:
                raise NothingToDo("each worker would deliver all data of an IterableDataset unless it shards itself")
            if _has_it_already(loader, settings):
                raise NothingToDo(f"the loader has {loader.num_workers} workers already, and the other settings too")
            _draw_in_time(loader)
            loader.num_workers = max(settings["workers"], loader.num_workers)
            loader.check_worker_number_rationality = _nothing  # its warning is for those who guess
            loader.prefetch_factor = settings["prefetch"]
            if torch.cuda.is_available():
                loader.pin_memory = settings["pin_memory"]
            if getattr(loader, "_hotlap_persistent", False):
                _go_on_or_anew(loader)
            elif settings["persistent"] and not loader.persistent_workers:
                loader._hotlap_state = _made_of(loader)
                # DataLoader.__setattr__ forbids this one after construction, for no reason that holds before iteration.
                object.__setattr__(loader, "persistent_workers", True)
                loader._hotlap_persistent = True

        seams.on_loader(change, inference="inference" in settings)

    def source(self, settings: Settings) -> str:
        return (
            f"DataLoader(..., num_workers={settings['workers']}, prefetch_factor={settings['prefetch']}, "
            f"pin_memory={settings['pin_memory']}, persistent_workers={settings['persistent']})"
        )


def _draw_in_time(loader: Any) -> None:
    """Before an epoch. At its end a RandomSampler draws one more permutation. Workers are given numbers ahead, so
    where a script breaks an epoch off, a generator of its own may have been drawn from that would not have been."""
    import torch

    before, iterator = loader.__dict__.pop(DRAWN, None), getattr(loader, internals().ITERATOR, None)
    sampler, generator = loader.sampler, getattr(loader.sampler, "generator", None)
    if type(sampler) is not torch.utils.data.RandomSampler or generator is None:
        return
    rows = len(sampler.data_source)
    if sampler.replacement or sampler.num_samples != rows:
        return
    if before is not None and iterator is not None and internals().batches_given(iterator) < len(loader):
        again = torch.Generator(generator.device).set_state(before)
        if loader.generator is generator:
            _draw_seed(again)
        torch.randperm(rows, generator=again, device=again.device)
        in_time = again.get_state()
        torch.randperm(rows, generator=again, device=again.device)
        if torch.equal(generator.get_state(), again.get_state()):
            generator.set_state(in_time)
    if not loader.num_workers or before is not None:  # else the script has workers that are ahead as well
        setattr(loader, DRAWN, generator.get_state())


def _go_on_or_anew(loader: Any) -> None:
    """Before a later epoch: workers go on where they would be made of the same. They are made anew in this epoch and
    all later ones, should the script's own objects raise here."""
    inner = internals()
    iterator = getattr(loader, inner.ITERATOR)
    setattr(loader, inner.ITERATOR, None)
    before, loader._hotlap_state = loader._hotlap_state, None
    object.__setattr__(loader, "persistent_workers", False)
    loader._hotlap_state = _made_of(loader)
    object.__setattr__(loader, "persistent_workers", True)
    if iterator is None or _in_use(iterator):
        return
    if loader._hotlap_state is None or loader._hotlap_state != before:
        inner.end_workers(iterator)
        return
    # A new epoch of persistent workers draws no base seed, so shuffling and dropout would draw others.
    _draw_seed(loader.generator)
    setattr(loader, inner.ITERATOR, iterator)


def _draw_seed(generator: Any) -> None:
    """Draw the workers' base seed as torch's loader does: without a generator, from that of the default device."""
    import torch

    device = None if generator is None else generator.device
    torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)


def _in_use(iterator: Any) -> bool:
    """Whether the script is within an epoch of it, which is to go on. Its caller has one reference."""
    return sys.getrefcount(iterator) > NOT_IN_USE and not internals().all_came(iterator)


def _made_of(loader: Any) -> bytes | None:
    """What its workers would be made of; None where they are to be made anew: that can't be told, or the script has a
    function that each of them runs as it begins."""
    return None if loader.worker_init_fn is not None else state_of(loader.dataset, loader.collate_fn)


def _has_it_already(loader: Any, settings: Settings) -> bool:
    """Whether nothing would change, also in later epochs."""
    import torch

    return bool(
        loader.num_workers >= settings["workers"]
        and loader.prefetch_factor == settings["prefetch"]
        and (loader.pin_memory == settings["pin_memory"] or not torch.cuda.is_available())
        and (loader.persistent_workers or not settings["persistent"])
        and not getattr(loader, "_hotlap_persistent", False)
    )


def _most(context: Context, making_cpu: float | None) -> int:
    """Worker processes that the cores, or the quota of them, can keep busy: more where making a batch mostly waits."""
    cores = max(1, _cores(context))
    if making_cpu is None or making_cpu > WAITS:
        return cores
    return math.ceil(cores / max(making_cpu, 1 / WAITING_WORKERS))


def _cores(context: Context) -> int:
    """Of each rank."""
    return context.environment.usable_cores // context.facts.world


def _scarce(context: Context, loader: "LoaderFacts") -> bool:
    """Whether workers may take cores, or draw numbers, that count elsewhere."""
    return not context.cuda or bool(loader.draws) or _cores(context) < ROOMY


def workers_in_use(context: Context) -> int:
    """Loader workers beside the model: as this lever sets them, or as the script does."""
    if LEVER.name in context.active:
        return int(context.active[LEVER.name].get("workers", 0))
    loader = context.facts.feeding
    return loader.workers if loader is not None else 0


def _needed(context: Context) -> int:
    """Workers that make batches as fast as the rest of the step takes them, and one more."""
    data = context.diagnosis.phases.data or 0.0
    rest = max(1e-3, context.diagnosis.step_ms - data)
    return math.ceil(1.3 * max(1, workers_in_use(context)) * data / rest) + 1


def _otherwise(context: Context, loader: "LoaderFacts") -> list[Settings]:
    """As many workers as there are, with another number of batches ahead, and pinned the other way."""
    now: Settings = {
        "workers": workers_in_use(context),
        "prefetch": min(MOST_PREFETCH, loader.prefetch or 2),
        "pin_memory": loader.pin_memory,
        "persistent": True,
        **context.for_inference,
        **context.active.get(LEVER.name, {}),
    }
    if not now["workers"] or context.share_of("data") < SHORT:
        return []
    prefetch = 2 * now["prefetch"]
    if prefetch > min(MOST_PREFETCH, _fitting(now["workers"], loader.batch_bytes)):
        prefetch = now["prefetch"] // 2
    ahead = [{**now, "prefetch": prefetch}] if prefetch else []
    pinned = [{**now, "pin_memory": not now["pin_memory"]}] if context.cuda else []
    return pinned + ahead if loader.batch_bytes < SMALL or not now["pin_memory"] else ahead + pinned


def _nothing() -> None:
    """In place of a check."""


def _prefetch(workers: int, batch_bytes: int) -> int:
    """Batches in flight for each worker: 4, fewer where they would take more than BATCHES_IN_FLIGHT_GIB in all."""
    return max(1, min(4, _fitting(workers, batch_bytes))) if batch_bytes else 2


def _fitting(workers: int, batch_bytes: int) -> int:
    """Batches for each worker that take BATCHES_IN_FLIGHT_GIB in all."""
    return int(BATCHES_IN_FLIGHT_GIB * 2**30 / max(1, batch_bytes * workers))


LEVER = LoaderWorkers()
