"""Not a lever: bags of embeddings as rows and their sum, which the compiler fuses.

`torch.embedding_bag` is a kernel of its own to Inductor, and its gradient sorts the indices of each table with some ten
kernels. Of rows and a sum it makes part of what stands beside them, forward and backward. Taken are sums and means of
bags of one size (indices in two dimensions) with dense gradients.
"""

from inspect import signature
from typing import Any, Final

AWAY: Final = ("cuda",)
"""Types of devices where it is worth it."""
MOST_PER_ROW: Final = 4096
"""Indices for each row of a table: their gradients are added one after the other where they meet."""


def bags_as_sums(graph_module: Any, inputs: list[Any]) -> None:
    """A pass over a graph as Dynamo captured it."""
    import torch
    from torch.nn import functional

    if torch.are_deterministic_algorithms_enabled():  # what adds the gradients is in no fixed order
        return
    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not functional.embedding_bag:
            continue
        named = signature(functional.embedding_bag).bind(*node.args, **node.kwargs).arguments
        if not _plain(named):
            continue
        with graph.inserting_before(node):
            rows = graph.call_function(functional.embedding, (named["input"], named["weight"]))
            dtype = named["weight"].meta["example_value"].dtype  # autocast adds in single precision
            result = graph.call_method(named.get("mode", "mean"), (rows, 1), {"dtype": dtype})
        result.meta = dict(node.meta)
        if "stack_trace" in node.meta:
            rows.meta["stack_trace"] = node.meta["stack_trace"]
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.lint()
        graph_module.recompile()


def _plain(named: dict[str, Any]) -> bool:
    """Whether a call is one of those that are taken."""
    asked = ("offsets", "max_norm", "scale_grad_by_freq", "sparse", "per_sample_weights", "padding_idx")
    if not all(named.get(name) is None or named[name] is False for name in (*asked, "include_last_offset")):
        return False
    if named.get("mode", "mean") not in {"sum", "mean"}:
        return False
    indices, table = (getattr(named[name], "meta", {}).get("example_value") for name in ("input", "weight"))
    if indices is None or table is None or indices.dim() != 2 or indices.device.type not in AWAY:
        return False
    if indices.is_floating_point():  # torch still takes the two the other way round
        return False
    fixed = all(type(size) is int for size in (*indices.shape, *table.shape))
    return fixed and 0 < indices.numel() <= MOST_PER_ROW * table.shape[0]
