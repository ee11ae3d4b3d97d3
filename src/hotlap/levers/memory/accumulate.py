"""Gradient accumulation: batches in parts, one after another, with one update after the last."""

from typing import TYPE_CHECKING, Final

from .._base import Applies, Context, Lever, Settings, Unwritten, integer
from .._batches import standard
from ._cycle import Cycle

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

PARTS: Final = (2, 4, 8)


class Accumulate(Lever):
    """As many backwards for each `optimizer.step()` as the setting `parts` says."""

    name = "accumulate"
    meaning = "each batch in several parts, with one update by their mean gradient; batch statistics are of the parts"
    risk = "semantic"
    settings = {"parts": integer(2, 1024)}
    saves_memory = True
    frees = {"activations": 0.5, "temporaries": 0.5, "inputs": 0.5, "request": 0.5}
    takes = "smaller kernels, so somewhat longer steps; batch statistics are of the parts"
    resizes_step = True
    excludes = ("batch-size",)
    unwritten = Unwritten(
        "the source does not show which work belongs to each batch and which to each update (clipping, "
        "schedules, logs), and a patch would have to separate them",
        "batches",
    )

    def applies(self, context: Context) -> Applies:
        facts, loader = context.facts, context.facts.feeding
        if why := standard(loader):
            return Applies(False, why)
        if not any(root.training for root in facts.roots):
            return Applies(False, "no module's forward was seen in training")
        if len(facts.optimizers) > 1:
            return Applies(False, f"{len(facts.optimizers)} optimizers take turns, without one cycle for all")
        if any(optimizer.sparse for optimizer in facts.optimizers):
            return Applies(False, "sparse gradients are not accumulated in place")
        if not self.variants(context):
            return Applies(False, f"a batch of {getattr(loader, 'batch_size', 0)} can't be split into equal parts")
        return Applies(True, f"a batch of {getattr(loader, 'batch_size', 0)} samples goes through the model at once")

    def variants(self, context: Context) -> list[Settings]:
        size = getattr(context.facts.feeding, "batch_size", None) or 0
        return [{"parts": parts} for parts in PARTS if size >= parts and size % parts == 0]

    def install(self, seams: "Seams", settings: Settings) -> None:
        cycle = Cycle(seams, self.name, settings["parts"])
        seams.switch(cycle.install, cycle.leave)
        seams.on_loader(cycle.split)

    def source(self, settings: Settings) -> str:
        parts = settings["parts"]
        return (
            f"# DataLoader(..., batch_size=batch_size // {parts})\n"
            f"(loss / {parts}).backward()\n"
            f"if (index + 1) % {parts} == 0:\n"
            "    optimizer.step()\n"
            "    optimizer.zero_grad()"
        )


LEVER = Accumulate()
