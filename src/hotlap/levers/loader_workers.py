"""Worker processes for the DataLoader, with prefetching, persistence and pinned memory."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, integer, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

LEAST_SHARE: Final = 0.02
BATCHES_IN_FLIGHT_GIB: Final = 8.0


class LoaderWorkers(Lever):
    name = "loader-workers"
    meaning = "batches are made by worker processes while the model computes"
    risk = "exact"
    redraws = True
    compare_variants = True

    def applies(self, context: Context) -> Applies:
        loader = context.training_loader
        if loader is None:
            return Applies(False, "no DataLoader feeds the training loop")
        if loader.on_device:
            return Applies(False, "the dataset returns tensors on the device, which worker processes can't make")
        if loader.iterable and loader.workers == 0:
            return Applies(False, "an IterableDataset in several workers repeats its data unless it shards itself")
        share = context.share_of("data", "h2d")
        if share < LEAST_SHARE:
            return Applies(False, f"data and h2d take only {share:.1%} of the step")
        if not self.variants(context):
            return Applies(False, f"{loader.workers} workers already, on {context.environment.cores} cores")
        return Applies(True, f"{share:.0%} of the step waits for data with {loader.workers} workers")

    def variants(self, context: Context) -> list[Settings]:
        loader = context.training_loader
        if loader is None:
            return []
        cores = max(1, context.environment.cores // context.facts.world)
        phases = context.diagnosis.phases
        data, rest = phases.data or 0.0, max(1e-3, context.diagnosis.step_ms - (phases.data or 0.0))
        made_by = max(1, loader.workers)
        enough = math.ceil(1.3 * made_by * data / rest) + 1
        wanted = [min(enough, cores), min(2 * enough, cores), max(1, cores - 2)]
        return [
            {
                "workers": count,
                "prefetch": _prefetch(count, loader.batch_bytes),
                "pin_memory": context.cuda,
                "persistent": True,
            }
            for count in dict.fromkeys(wanted)
            if count > loader.workers
        ]

    def share(self, context: Context) -> float:
        return context.share_of("data") + 0.5 * context.share_of("h2d")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        flags = [name for name in ("pin_memory", "persistent") if not isinstance(settings.get(name), bool)]
        return (
            unknown(settings, ("workers", "prefetch", "pin_memory", "persistent"))
            or integer(settings, "workers", 1, 1024)
            or integer(settings, "prefetch", 1, 64)
            or (f"{flags[0]} must be true or false" if flags else None)
        )

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings["workers"] > environment.cores:
            return f"{settings['workers']} workers on {environment.cores} cores"
        return None

    def install(self, seams: "Seams", settings: Settings) -> None:
        def change(loader: Any) -> None:
            import torch

            if isinstance(loader.dataset, torch.utils.data.IterableDataset) and loader.num_workers == 0:
                return
            loader.num_workers = max(settings["workers"], loader.num_workers)
            loader.prefetch_factor = settings["prefetch"]
            loader.pin_memory = loader.pin_memory or (settings["pin_memory"] and torch.cuda.is_available())
            if getattr(loader, "_hotlap_persistent", False) and loader._iterator is not None:
                # A new epoch of persistent workers draws no base seed, so shuffling and dropout would draw others.
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            elif settings["persistent"] and not loader.persistent_workers:
                # DataLoader.__setattr__ forbids this one after construction, for no reason that holds before iteration.
                object.__setattr__(loader, "persistent_workers", True)
                loader._hotlap_persistent = True

        seams.on_loader(change)

    def source(self, settings: Settings) -> str:
        return (
            f"DataLoader(..., num_workers={settings['workers']}, prefetch_factor={settings['prefetch']}, "
            f"pin_memory={settings['pin_memory']}, persistent_workers={settings['persistent']})"
        )


def _prefetch(workers: int, batch_bytes: int) -> int:
    """Batches in flight for each worker: 4, fewer where they would take more than BATCHES_IN_FLIGHT_GIB in all."""
    if not batch_bytes:
        return 2
    return max(1, min(4, int(BATCHES_IN_FLIGHT_GIB * 2**30 / (batch_bytes * workers))))


LEVER = LoaderWorkers()
