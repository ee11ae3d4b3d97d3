"""Gradient accumulation: batches in parts, one after another, with one update after the last."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, integer, unknown
from .._batches import resize, standard
from .._internals import internals
from .._update import Update, parameters_of

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

PARTS: Final = (2, 4, 8)


class Accumulate(Lever):
    name = "accumulate"
    meaning = "each batch in several parts, whose mean gradient makes one update; batch statistics are those of parts"
    risk = "semantic"
    saves_memory = True
    resizes_step = True
    excludes = ("batch-size",)

    def applies(self, context: Context) -> Applies:
        facts, loader = context.facts, context.training_loader
        why = standard(loader)
        if why is not None:
            return Applies(False, why)
        if not any(root.training for root in facts.roots):
            return Applies(False, "no module's forward was seen in training")
        if len(facts.optimizers) > 1:
            return Applies(False, f"{len(facts.optimizers)} optimizers take turns, and one cycle can't be told for all")
        if any(optimizer.sparse for optimizer in facts.optimizers):
            return Applies(False, "sparse gradients are not accumulated in place")
        if not self.variants(context):
            return Applies(False, f"a batch of {getattr(loader, 'batch_size', 0)} can't be split into equal parts")
        return Applies(True, f"a batch of {getattr(loader, 'batch_size', 0)} samples goes through the model at once")

    def variants(self, context: Context) -> list[Settings]:
        size = getattr(context.training_loader, "batch_size", None) or 0
        return [{"parts": parts} for parts in PARTS if size >= parts and size % parts == 0]

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return unknown(settings, ("parts",)) or integer(settings, "parts", 2, 1024)

    def install(self, seams: "Seams", settings: Settings) -> None:
        cycle = Cycle(seams, self.name, settings["parts"])
        cycle.install()
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


class Cycle(Update):
    """Counts the parts. An update is made with the last, and nothing is cleared before it."""

    def __init__(self, seams: "Seams", lever: str, parts: int) -> None:
        super().__init__(seams, lever)
        self.parts = parts
        self.done = 0
        self.split_any = False
        self._version: int | None = None

    def split(self, loader: Any) -> None:
        """Make a loader's batches parts. Raises Refused."""
        self.split_any |= resize(loader, parts=self.parts)

    def factor(self) -> float:
        return 1 / self.parts if self.split_any else 1.0

    def may_clear(self) -> bool:
        return self.done == 0

    def may_clip(self, parameters: Any) -> bool:
        return not self.split_any or self.done == self.parts - 1

    def restore(self, parameters: Any) -> bool:
        for parameter in parameters:
            if parameter.grad is not None and self.split_any:
                parameter.grad.mul_(self.parts)
        return True

    def may_step(self, optimizer: Any) -> bool:
        if not self.split_any:  # batches that were not split are updated with as they come
            return True
        self._look_at_gradients(optimizer)
        if not self.on:
            return self.restore(parameters_of(optimizer))
        self.done = (self.done + 1) % self.parts
        return self.done == 0

    def _look_at_gradients(self, optimizer: Any) -> None:
        """A gradient that was not added to, but begun again, was cleared behind our back."""
        gradient = next((p.grad for p in parameters_of(optimizer) if p.grad is not None), None)
        version = None if gradient is None else internals().version_of(gradient)
        if self.done and self._version is not None and (version is None or version <= self._version):
            self.stand_aside("the script clears its gradients otherwise than by zero_grad")
        self._version = version


LEVER = Accumulate()
