"""Not a lever: the product of a head with an odd number of classes, in a captured graph, on rows for tensor cores.

In half precision the rows of 50257 logits do not begin on 16 bytes, and neither do those of their gradient, with which
the backward multiplies twice. Inductor pads such products where they are in one graph with the loss
(`shape_padding`). Where the loss is a graph of its own, the gradient comes from outside, and it finds a copy dearer
than the slow kernel: on an H100 4.3 ms of a step of 25 for GPT-2's head, where the fast one takes 0.8. So the weight
gets rows of zeros, and the logits are the first columns of the result, with rows as long as Inductor makes those of the
gradient too (`comprehensive_padding`): nothing is copied between the two graphs.

Only where the graph returns the logits and they are widened outside of it (`_widening`), so that the script never gets
rows with gaps.
"""

import weakref
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from . import _widening
from ._large_head import LEAST_CLASSES
from .pad_vocabulary import ALIGNED

if TYPE_CHECKING:
    from ._graph import Pass

MULTIPLE: Final = 64
"""A cache line of 128 bytes, to which Inductor pads rows of halves (`config.padding_alignment_bytes`)."""


def has_odd_head(root: Any) -> bool:
    """Whether a model has a head that may be one of these."""
    from hotlap.agent.heads import heads

    return any(head.out_features % ALIGNED for head in heads(root, LEAST_CLASSES))


def aligning(root: Any) -> "Pass":
    """The pass over a model's graphs as Dynamo captured them; nothing where its output is not widened outside."""
    model = weakref.ref(root)

    def align(graph_module: Any, inputs: list[Any]) -> None:
        if model() in _widening.WIDENED:
            align_heads(graph_module)

    return align


def align_heads(graph_module: Any) -> None:
    """Change one graph."""
    import torch
    from torch.nn.functional import pad

    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch._C._nn.linear or not _odd(node):
            continue
        hidden, weight, bias = (*node.args, None)[:3]
        classes = node.meta["example_value"].shape[-1]
        extra = -classes % MULTIPLE
        with graph.inserting_before(node):
            wide = graph.call_function(pad, (weight, (0, 0, 0, extra)))
            shift = bias if bias is None else graph.call_function(pad, (bias, (0, extra)))
            whole = graph.call_function(node.target, (hidden, wide, shift))
            logits = graph.call_function(getitem, (whole, (..., slice(None, classes))))
        logits.meta = dict(node.meta)
        node.replace_all_uses_with(logits)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.lint()
        graph_module.recompile()


def _odd(node: Any) -> bool:
    """Whether a linear layer is one whose logits the graph returns, and whose rows want to be longer."""
    import torch

    logits = node.meta.get("example_value")
    if logits is None or node.kwargs or any(user.op != "output" for user in node.users):
        return False
    if logits.dtype not in {torch.bfloat16, torch.float16} or not logits.requires_grad:
        return False
    if not all(type(size) is int for size in logits.shape):
        return False
    classes = logits.shape[-1]
    return classes >= LEAST_CLASSES and classes % ALIGNED > 0 and _widening.large(logits)
