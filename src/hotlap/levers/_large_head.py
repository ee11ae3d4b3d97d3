"""Not a lever: the linear layer over a large vocabulary, as what the agent saw tells of it."""

from typing import Final

from ._base import Applies, Context

LEAST_CLASSES: Final = 4096
LEAST_LOGITS: Final = 1 << 22
"""Fewer cost less to make, or to widen, than it costs to look after them."""


def large_head(context: Context) -> int | Applies:
    """Outputs of the largest head of a model that trains, or why there is none to take hold of."""
    roots = [root for root in context.facts.roots if root.training]
    if not roots:
        return Applies(False, "no module's forward was seen in training")
    classes = max(root.classes for root in roots)
    if classes < LEAST_CLASSES:
        return Applies(False, f"no linear layer outside of repeated blocks has {LEAST_CLASSES} outputs or more")
    if all(root.compiled for root in roots):
        return Applies(False, "the script compiles the model itself")
    return classes
