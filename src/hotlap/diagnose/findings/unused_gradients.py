"""Gradients are computed of parameters that no optimizer updates."""

from hotlap.records.diagnosis import Finding
from hotlap.records.run import RootFacts

from ._base import Measured

MANY = 0.5
"""Of the numbers, or of the tensors, that gradients were computed of, from which those that no optimizer holds are
told."""
SOME = 0.1
"""Of the numbers, where it is most of the tensors: convolutions have few, and take long."""


def find(measured: Measured) -> Finding | None:
    """Share 0, the cost is not known: of the backward what these gradients take, and of a whole model's graph more."""
    facts = measured.facts
    if facts is None or facts.mode != "train" or not facts.optimizers or measured.share("backward") == 0.0:
        return None
    roots = [root for root in facts.roots if root.optimized is not None and root.part_of is None]
    most = max(roots, key=_unused, default=None)
    if most is None or _unused(most) <= (SOME if most.unused > MANY else MANY) * sum(r.with_gradients for r in roots):
        return None
    return Finding(
        id="unused-gradients",
        bound="compute",
        share=0.0,
        title=f"gradients of {most.name} are computed, and no optimizer uses them",
        where=measured.place_at(most.called) or measured.place_of(most),
        evidence=f"{most.with_gradients:,} of its {most.parameters:,} numbers have gradients, an optimizer holds "
        f"{most.optimized or 0:,}",
        why="the backward goes through its graph, and the gradients add up unused",
        instead="`model.requires_grad_(False)` for what is not trained; if nothing before it is trained either, as for "
        "a teacher, call it under `torch.no_grad()`",
        named=True,
    )


def _unused(root: RootFacts) -> int:
    return root.with_gradients - (root.optimized or 0)
