"""Intra-op threads of a model that runs on the CPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._base import Applies, Context, Lever, Settings, integer, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment


class CpuThreads(Lever):
    name = "cpu-threads"
    meaning = "number of threads that share one operation on the CPU"
    risk = "numeric"
    tolerance = 0.005
    compare_variants = True

    def applies(self, context: Context) -> Applies:
        if context.cuda:
            return Applies(False, "the model runs on the device")
        if context.facts.world > 1:
            return Applies(False, "the launcher of a distributed run sets the threads of each rank")
        if not self.variants(context):
            return Applies(False, "there is only one core, which is in use")
        return Applies(True, f"{context.facts.threads} threads on {context.environment.cores} cores by default")

    def variants(self, context: Context) -> list[Settings]:
        cores = context.environment.cores
        wanted = [max(1, cores - _workers(context)), cores, cores // 2, 1]
        return [{"threads": n} for n in dict.fromkeys(wanted) if n >= 1 and n != context.facts.threads]

    def share(self, context: Context) -> float:
        cores, now = context.environment.cores, max(1, context.facts.threads)
        idle = max(0.0, 1 - now / cores)
        wanted = now + _workers(context)
        crowded = max(0.0, 1 - cores / wanted)  # workers and model then wait for a core in turn
        return max(context.model_share * max(idle, 0.15), crowded * (context.model_share + context.share_of("data")))

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return unknown(settings, ("threads",)) or integer(settings, "threads", 1, 4096)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings["threads"] > environment.cores:
            return f"{settings['threads']} threads on {environment.cores} cores"
        return None

    def environment(self, settings: Settings) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(settings["threads"])}

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        torch.set_num_threads(settings["threads"])

    def source(self, settings: Settings) -> str:
        return f"torch.set_num_threads({settings['threads']})  # and OMP_NUM_THREADS={settings['threads']}"


def _workers(context: Context) -> int:
    """Loader workers beside the model: as the lever sets them, or as the script does."""
    if "loader-workers" in context.active:
        return int(context.active["loader-workers"].get("workers", 0))
    loader = context.training_loader
    return loader.workers if loader is not None else 0


LEVER = CpuThreads()
