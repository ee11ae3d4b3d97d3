"""Larger batches from the training DataLoader: fewer, larger steps. It changes training; throughput is what counts."""

import math
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, integer
from .._batches import resize, standard

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

TIMES: Final = (2, 4, 8)
ROOM: Final = 0.9


class BatchSize(Lever):
    """`batch_size` of the training DataLoader, times a factor."""

    name = "batch-size"
    meaning = "batches of several times as many samples: fewer updates an epoch, with the script's own learning rate"
    risk = "semantic"
    settings = {"times": integer(2, 1024)}
    resizes_step = True
    excludes = ("accumulate",)

    def applies(self, context: Context) -> Applies:
        if why := standard(context.facts.feeding):
            return Applies(False, why)
        if not self.variants(context):
            return Applies(False, "device memory has no room for twice the batch")
        return Applies(True, f"batches hold {getattr(context.facts.feeding, 'batch_size', 0)} samples")

    def variants(self, context: Context) -> list[Settings]:
        """Those that fit if all memory in use grew with the batch; more do where most of it is weights."""
        memory = context.facts.memory
        room = math.inf
        if memory is not None and memory.total_bytes:
            room = ROOM * memory.total_bytes / max(1, memory.peak_bytes)
        return [{"times": times} for times in TIMES if times <= room]

    def searched(self, context: Context) -> bool:
        return True

    def share(self, context: Context) -> float:
        """Of the time a sample takes: what each step costs however large it is, which is most where launches bind."""
        return (0.8 if context.diagnosis.bound == "launch" else 0.3) * context.model_share

    def install(self, seams: "Seams", settings: Settings) -> None:
        def change(loader: Any) -> None:
            resize(loader, times=settings["times"])

        seams.on_loader(change)

    def source(self, settings: Settings) -> str:
        return f"DataLoader(..., batch_size={settings['times']} * batch_size)  # and choose the learning rate for it"


LEVER = BatchSize()
