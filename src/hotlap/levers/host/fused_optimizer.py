"""The fused implementation of torch's own optimizers: one kernel for all parameters.

Checkpoints hold the kernel that the script asked for, so a run that goes on from one without this lever is as it would
have been; an optimizer that loads one is fused again. Where sparse gradients come later, an ordinary update takes them.
"""

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .._base import Applies, Context, Lever, Settings
from .._fused import FUSED, fuse, unfit, unfuse

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Facts, OptimizerFacts


class FusedOptimizer(Lever):
    """`fused=True` of torch's own optimizers."""

    name = "fused-optimizer"
    meaning = "the optimizer updates all parameters in one kernel"
    causes = {"launches": 3, "update-launches": 0, "arithmetic": 4, "bytes": 1, "optimizer": 0, "on-cpu": 1}
    risk = "numeric"
    tolerance = 0.005
    switchable = True
    signs = (" fused", "`fused", "_fused")

    def applies(self, context: Context) -> Applies:
        optimizers = context.facts.optimizers
        if not optimizers:
            return Applies(False, "no torch optimizer steps in this script")
        whys = [why_not(optimizer) for optimizer in optimizers]
        if all(whys):
            return Applies(False, whys[0] or "")
        names = ", ".join(o.name for o, why in zip(optimizers, whys, strict=True) if not why)
        return Applies(True, f"{names} runs unfused")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return all(one.fused or one.sparse or not one.builtin or one.name not in FUSED for one in facts.optimizers)

    def share(self, context: Context) -> float:
        return 0.7 * context.share_of("optimizer")

    def install(self, seams: "Seams", settings: Settings) -> None:
        own: weakref.WeakSet[Any] = weakref.WeakSet()  # others may be fused by levers that stay

        def change(optimizer: Any) -> None:
            _fused(optimizer)
            own.add(optimizer)

        def undo(optimizer: Any) -> None:
            if optimizer in own:
                own.discard(optimizer)
                unfuse(optimizer)

        seams.on_optimizer(change, undo)

    def source(self, settings: Settings) -> str:
        return (
            "torch.optim.AdamW(..., fused=True)  # likewise Adam, SGD, Adagrad\n"
            "# SGD with momentum only where all parameters get their first gradient in the same step"
        )


def _fused(optimizer: Any) -> None:
    """Raises NothingToDo."""
    from hotlap.agent.seams import NothingToDo

    if all(group.get("fused") for group in optimizer.param_groups):
        raise NothingToDo(f"{type(optimizer).__name__} is fused already")
    if why := fuse(optimizer):
        raise NothingToDo(why)


def why_not(optimizer: "OptimizerFacts") -> str | None:
    """Why an optimizer can't be fused."""
    if not optimizer.builtin or optimizer.name not in FUSED:
        return f"{optimizer.name} has no fused implementation"
    if optimizer.fused:
        return f"{optimizer.name} is fused already"
    return unfit(optimizer)


LEVER = FusedOptimizer()
