"""Intra-op threads: of a model that runs on the CPU, or of batches made beside one that runs on a device.

Threads that share an operation meet at its end. Where one of them has no core, because others use it or a quota ran
out, all wait for it. On 16 cores that another job kept busy too, `torch.stack` of 128 small images took a team of 16
threads 1048 ms, a team of 4 0.9 ms (H100 machine, torch 2.11): it copies image by image, and they met 128 times.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from .._base import Applies, Context, Lever, Settings, integer
from .._process_settings import hold
from ..input.loader_workers import workers_in_use

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment, Facts


NO_LOADER: Final = "the model runs on the device, and no DataLoader feeds the loop"
LEAST_DATA: Final = 0.02
FOR_BATCHES: Final = (4, 1, 2)
"""Threads for batches, most promising first: copies of a few hundred KiB gain nothing from more."""
CROWDED: Final = 0.10
"""Of the step: waits of threads for a core, from which all of the data phase may be such waits."""
USUAL: Final = 0.3
"""Of the data phase elsewhere: what more threads cost than a few."""


class CpuThreads(Lever):
    """`torch.set_num_threads`, with OMP_NUM_THREADS."""

    name = "cpu-threads"
    meaning = "number of threads that share one operation on the CPU"
    causes = {"threads": 0, "on-cpu": 2}
    risk = "numeric"
    settings = {"threads": integer(1, 4096)}
    tolerance = 0.005
    switchable = True

    def applies(self, context: Context) -> Applies:
        if context.facts.world > 1:
            return Applies(False, "the launcher of a distributed run sets the threads of each rank")
        if context.cuda:
            return self._for_batches(context)
        if not self.variants(context):
            return Applies(False, "there is only one core")
        return Applies(True, f"{context.facts.threads} threads on {context.environment.usable_cores} cores by default")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        feeding = facts.feeding
        makes_batches = feeding is not None and not feeding.workers and facts.threads > 1
        return facts.world > 1 or (facts.device == "cuda" and not makes_batches)

    def _for_batches(self, context: Context) -> Applies:
        """On a device threads matter where the process that trains makes its batches, or copies them, itself."""
        loader, share = context.facts.feeding, context.share_of("data")
        if loader is None or loader.on_device:
            return Applies(False, "the model runs on the device, and so do its batches" if loader else NO_LOADER)
        if workers := workers_in_use(context):
            return Applies(False, f"the model runs on the device, and {workers} workers make its batches")
        if share < LEAST_DATA:
            return Applies(
                False, f"the model runs on the device, and making batches takes only {share:.1%} of the step"
            )
        if not self.variants(context):
            return Applies(False, "batches are already made by one thread")
        return Applies(True, f"{context.facts.threads} threads make batches, {share:.0%} of the step")

    def variants(self, context: Context) -> list[Settings]:
        cores, now = context.environment.usable_cores, context.facts.threads
        if context.cuda:
            return [{"threads": n} for n in FOR_BATCHES if n <= cores and n < now]
        wanted = [max(1, cores - workers_in_use(context)), cores, cores // 2, 1]
        return [{"threads": n} for n in dict.fromkeys(wanted) if n >= 1 and n != now]

    def searched(self, context: Context) -> bool:
        return not context.cuda  # a few threads are right for batches, and which few makes little difference

    def share(self, context: Context) -> float:
        cores, now = context.environment.usable_cores, max(1, context.facts.threads)
        host = context.facts.host
        waits = host is not None and (host.threads_waited_ms or 0.0) >= CROWDED * context.diagnosis.step_ms
        if context.cuda:
            return context.share_of("data") * (1.0 if now > cores or waits else USUAL)
        if waits:  # a thread without a core holds up all others at each barrier: what that costs has no bound
            return 1.0
        idle = max(0.0, 1 - now / cores)
        wanted = now + workers_in_use(context)
        crowded = max(0.0, 1 - cores / wanted)  # workers and model then wait for a core in turn
        return max(context.model_share * max(idle, 0.15), crowded * (context.model_share + context.share_of("data")))

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings["threads"] > environment.usable_cores:
            return f"{settings['threads']} threads on {environment.usable_cores} cores"
        return None

    def environment(self, settings: Settings) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(settings["threads"])}

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        hold(seams, torch.get_num_threads, torch.set_num_threads, settings["threads"])

    def source(self, settings: Settings) -> str:
        return f"torch.set_num_threads({settings['threads']})  # and OMP_NUM_THREADS={settings['threads']}"


LEVER = CpuThreads()
