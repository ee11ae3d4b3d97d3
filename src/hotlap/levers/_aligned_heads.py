"""Not a lever: the product of a head with an odd number of classes, in a captured graph, on rows for tensor cores.

In half precision the rows of 50257 logits do not begin on 16 bytes, and neither do those of their gradient, with which
the backward multiplies twice. Inductor pads such products where they are in one graph with the loss
(`shape_padding`). Where the loss is a graph of its own, the gradient comes from outside, and it finds a copy dearer
than the slow kernel: on an H100 4.3 ms of a step of 25 for GPT-2's head, where the fast one takes 0.8. So the weight
gets rows of zeros, and the logits are the first columns of the result, with rows as long as Inductor makes those of the
gradient too (`comprehensive_padding`): nothing is copied between the two graphs.

Only where the graph returns the logits: the script never gets rows with gaps. Outside of all that changes the forward a
loss takes them as they lie, and what else needs them gets a copy (`Rows`), where they are not widened there anyway
(`_widening`).
"""

from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from . import _widening
from ._large_head import LEAST_CLASSES
from ._nested import each_tensor
from .pad_vocabulary import ALIGNED

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

ORDER: Final = _widening.ORDER + 1
"""Outside of what widens outputs, which leaves none with gaps."""
MULTIPLE: Final = 64
"""A cache line of 128 bytes, to which Inductor pads rows of halves (`config.padding_alignment_bytes`)."""


def odd_classes(root: Any) -> frozenset[int]:
    """Of the heads of a model that may be one of these."""
    from hotlap.agent.heads import heads

    return frozenset(head.out_features for head in heads(root, LEAST_CLASSES) if head.out_features % ALIGNED)


def align_heads(classes: frozenset[int], graph_module: Any, inputs: list[Any]) -> None:
    """A pass over a graph as Dynamo captured it. What it returns goes through `Rows`."""
    import torch
    from torch.nn.functional import pad

    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch._C._nn.linear or not _returned(node, classes):
            continue
        hidden, weight, bias = (*node.args, None)[:3]
        columns = node.meta["example_value"].shape[-1]
        extra = -columns % MULTIPLE
        with graph.inserting_before(node):
            wide = graph.call_function(pad, (weight, (0, 0, 0, extra)))
            shift = bias if bias is None else graph.call_function(pad, (bias, (0, extra)))
            whole = graph.call_function(node.target, (hidden, wide, shift))
            logits = graph.call_function(getitem, (whole, (..., slice(None, columns))))
        logits.meta = dict(node.meta)
        node.replace_all_uses_with(logits)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.lint()
        graph_module.recompile()


def _returned(node: Any, classes: frozenset[int]) -> bool:
    """Whether a linear layer is one whose logits the graph returns, and whose rows want to be longer."""
    import torch

    logits = node.meta.get("example_value")
    if logits is None or node.kwargs or any(user.op != "output" for user in node.users):
        return False
    if logits.dtype not in {torch.bfloat16, torch.float16} or not logits.requires_grad:
        return False
    if not all(type(size) is int for size in logits.shape):
        return False
    return logits.shape[-1] in classes and _widening.large(logits)


class Rows:
    """The outputs of one process' models whose rows are longer than the script expects."""

    def __init__(self) -> None:
        self.later = _widening.Later()

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around all that may compile, capture or widen the forward."""
        classes = odd_classes(module)
        if not classes:
            return forward

        def without_gaps(tensor: Any) -> Any:
            return self.later(tensor, tensor.dtype) if _longer(tensor, classes) else tensor

        def forward_in_rows(*args: Any, **kwargs: Any) -> Any:
            return each_tensor(forward(*args, **kwargs), without_gaps)

        return forward_in_rows


def _longer(tensor: Any, classes: frozenset[int]) -> bool:
    """Whether it is what `align_heads` makes of logits."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.dim() < 2 or tensor.layout != torch.strided:
        return False
    columns, strides = tensor.shape[-1], tensor.stride()[-2:]
    return columns in classes and strides == (columns + -columns % MULTIPLE, 1)
