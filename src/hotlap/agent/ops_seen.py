"""What ran in a forward with gradients, by the autograd graph behind what it returned: nothing is hooked for it."""

from collections.abc import Iterable
from typing import Any, Final

from .probe import leaves
from .torch_internals import PythonNode

MOST: Final = 20_000
"""Nodes of a graph that are looked at: a tenth of a second."""
NOT_BY_HAND: Final = ("LogSoftmax", "SafeSoftmax")
"""A loss, and what torch's fused attention is made of where it runs by its formula."""

LEAF: Final = "torch::autograd::AccumulateGrad"


def softmax_seen(output: Any, parameters: Iterable[Any]) -> bool | None:
    """Whether the script's code ran a softmax. None where it may have out of sight: in an autograd function of Python's
    (a checkpoint, compiled code), or in a part without gradients, whose parameters the graph does not reach."""
    unseen = {id(parameter) for parameter in parameters}
    opaque = False
    try:
        waiting = [leaf.grad_fn for leaf in leaves(output) if leaf.grad_fn is not None]
    except RuntimeError:  # a view that was written to where it has no gradient
        return None
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        name = node.name()
        if "Softmax" in name and not name.startswith(NOT_BY_HAND):
            return True
        opaque = opaque or isinstance(node, PythonNode)
        if name == LEAF:
            unseen.discard(id(node.variable))
        new = {before for before, _ in node.next_functions} - seen - {None}
        if len(seen) + len(new) > MOST:
            return None
        seen |= new
        waiting += new
    return None if opaque or unseen else False
