"""Not a lever: attention by hand in the last token's work, as one kernel (`_prefix_compiled`).

softmax(q K^T) V of one token reads all keys and values and computes little. As sums of products Inductor makes three
kernels of it, cuDNN's is one. An H100 took for a layer (16 sequences, 12 heads of 64, room for 256 tokens, bfloat16)
14 µs by the three, 20 by the kernel that is torch's choice where cuDNN's is not, and 8.5 by cuDNN's. That one does not
give the same to the bit each time.
"""

import math
from typing import Any, Final, NamedTuple

CAPABILITIES: Final = frozenset({9, 10})
"""Majors of GPUs for which torch prefers cuDNN's kernel itself (`check_prefer_cudnn_attention`)."""
CUDNN: Final = 9_15_00
"""Its version, at least, for the same reason."""
LARGEST_HEAD: Final = 128
NEVER: Final = -1e4
"""Filled in for a score, at most: it weighs nothing beside any other one."""
ALIGNED: Final = 8
ALIGNED_COLUMNS: Final = 16
"""Numbers of a head, and of a mask's row; others the kernel for masks does not take."""
LARGEST: Final = 1 << 24
"""Numbers of a mask that is compared with others like it."""


def fuse(work: Any, graph: Any, device: Any) -> int:
    """How many were found, and are one call each now. work: with the constants of the graph, whose nodes know their
    shapes (`tensor_meta`)."""
    import torch

    if not suits(device):
        return 0
    _alike_constants(work, graph)
    softmaxes = graph.find_nodes(op="call_function", target=torch.ops.aten._softmax.default)
    return sum(_fused(work, graph, node, device) for node in softmaxes)


def suits(device: Any) -> bool:
    """Whether this is the fastest there."""
    import torch

    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in CAPABILITIES:
        return False
    return (torch.backends.cudnn.version() or 0) >= CUDNN


def _alike_constants(work: Any, graph: Any) -> None:
    """Each layer makes a mask of its own, all of them alike: one of them is enough."""
    import torch

    first: dict[Any, list[Any]] = {}
    for node in graph.find_nodes(op="get_attr"):
        value = getattr(work, node.target)
        if node.target.startswith("cache") or value.is_floating_point() or value.numel() > LARGEST:
            continue
        key = value.shape, value.dtype, value.device
        for other in first.setdefault(key, []):
            if other is not node and torch.equal(getattr(work, other.target), value):
                node.replace_all_uses_with(other)
                break
        else:
            first[key].append(node)


def _fused(work: Any, graph: Any, softmax: Any, device: Any) -> bool:
    """Whether a softmax and the products around it are one call now."""
    import torch

    ops, half = torch.ops.aten, {torch.bfloat16, torch.float16}
    ending = _ahead(softmax)
    found = None if ending is None else _behind(work, softmax)
    if ending is None or found is None:
        return False
    product, steps = found
    (queries, keys), values = product.args, ending.args[1]
    heads, rows, size = _shape(queries)
    columns = _shape(keys)[2]
    dtypes = {one.meta["tensor_meta"].dtype for one in (queries, keys, values)}
    sizes = size, _shape(values)[2]
    aligned = not (any(one % ALIGNED for one in sizes) or columns % ALIGNED_COLUMNS) and max(sizes) <= LARGEST_HEAD
    if rows != 1 or len(dtypes) != 1 or not aligned or not dtypes <= half:
        return False
    with graph.inserting_before(ending):
        options = {"dtype": torch.float32, "device": device}
        scale, mask = 1.0, graph.call_function(ops.zeros.default, ([columns],), options)
        for step in steps:
            scale *= step.scale
            mask = step.onto(graph, mask, columns)
        mask = graph.call_function(ops._to_copy.default, (mask,), {"dtype": dtypes.pop()})
        mask = graph.call_function(ops.expand.default, (mask, [heads, 1, 1, columns]))
        keys = graph.call_function(ops.transpose.int, (keys, 1, 2))
        q, k, v = (graph.call_function(ops.unsqueeze.default, (one, 1)) for one in (queries, keys, values))
        options = {"attn_mask": mask, "scale": scale}
        out = graph.call_function(torch.nn.functional.scaled_dot_product_attention, (q, k, v), options)
        out = graph.call_function(ops.squeeze.dim, (out, 1))
    out.meta = ending.meta
    ending.replace_all_uses_with(out)
    graph.eliminate_dead_code()
    return True


class _Step(NamedTuple):
    """What is done to scores: they are multiplied by `scale`; `other` is added; or they are `value` where `other` is
    true (false if `unless`)."""

    scale: float = 1.0
    other: Any = None
    value: float | None = None
    unless: bool = False

    def onto(self, graph: Any, mask: Any, columns: int) -> Any:
        """The same done to a mask, (columns,)."""
        import torch

        ops = torch.ops.aten
        if self.other is None:
            return mask if self.scale == 1.0 else graph.call_function(ops.mul.Tensor, (mask, self.scale))
        size = [columns if math.prod(_shape(self.other)) == columns else 1]
        other = graph.call_function(ops.reshape.default, (self.other, size))
        if self.value is None:
            return graph.call_function(ops.add.Tensor, (mask, other))
        if self.unless:
            return graph.call_function(torch.where, (other, mask, self.value))
        return graph.call_function(ops.masked_fill.Scalar, (mask, other, self.value))


def _ahead(softmax: Any) -> Any:
    """The product of the weights and the values; None where something else is done to the weights."""
    import torch

    ops = torch.ops.aten
    dims = len(_shape(softmax))
    if softmax.args[1] % dims != dims - 1:
        return None
    node = softmax
    while len(node.users) == 1:
        before, node = node, next(iter(node.users))
        if node.target is ops.bmm.default:
            return node if node.args[0] is before and node.args[1] is not before else None
        there = node.target is torch.where and node.args[1:] == (before, 0.0) and node.args[0].target is ops.le.Tensor
        if not (there or _same_numbers(node)):
            return None
    return None


def _behind(work: Any, softmax: Any) -> tuple[Any, list[_Step]] | None:
    """The product of queries and keys, and what is done to it before the softmax; None where that is something else."""
    import torch

    steps: list[_Step] = []
    node = softmax.args[0]
    while node.target is not torch.ops.aten.bmm.default:
        found = None if node.op != "call_function" or len(node.users) != 1 else _step(work, node)
        if found is None:
            return None
        node, step = found
        steps.append(step)
    return (node, steps[::-1]) if len(node.users) == 1 else None


def _step(work: Any, node: Any) -> tuple[Any, _Step] | None:
    """The scores that a step is made on, and the step."""
    import torch

    ops = torch.ops.aten
    if _same_numbers(node):
        return node.args[0], _Step()
    columns, args = _shape(node)[-1], node.args
    if node.kwargs:
        return None
    if node.target in {ops.mul.Tensor, ops.div.Tensor}:
        factor = _number(work, args[1])
        return (args[0], _Step(scale=factor if node.target is ops.mul.Tensor else 1 / factor)) if factor > 0 else None
    if node.target is ops.add.Tensor:
        bias = _of_columns(args[1], columns) and _shape(args[0]) == _shape(node) and _only_masks(work, args[1])
        return (args[0], _Step(other=args[1])) if bias else None
    if node.target in {ops.masked_fill.Scalar, ops.masked_fill.Tensor}:
        scores, mask, value = args
    elif node.target in {torch.where, ops.where.self}:
        mask, scores, value = args
    else:
        return None
    fills = _of_columns(mask, columns) and _number(work, value) <= NEVER
    unless = node.target in {torch.where, ops.where.self}
    return (scores, _Step(other=mask, value=_number(work, value), unless=unless)) if fills else None


def _number(work: Any, value: Any) -> float:
    """Of an argument, also where it is a tensor with one; NaN where it is something else."""
    if isinstance(value, (int, float)):
        return float(value)
    kept = getattr(work, value.target) if getattr(value, "op", "") == "get_attr" else None
    return float(kept) if kept is not None and kept.numel() == 1 else math.nan


def _only_masks(work: Any, value: Any) -> bool:
    """Whether what is added to scores is zero or weighs nothing: a bias of other numbers, which is added in float32,
    would be rounded to half precision."""
    import torch

    table = value.args[0] if value.target is torch.ops.aten.index_select.default else value
    numbers = getattr(work, table.target) if table.op == "get_attr" else None
    return numbers is not None and bool(((numbers == 0) | (numbers <= NEVER)).all())


def _same_numbers(node: Any) -> bool:
    """Whether a node is its first argument, in another type or with other dimensions before the last."""
    import torch

    ops = torch.ops.aten
    kinds = {ops.reshape.default, ops.expand.default, ops.clone.default, ops._to_copy.default}
    if node.target not in kinds or node.op != "call_function":
        return False
    before, after = _shape(node.args[0]), _shape(node)
    return before[-1] == after[-1] and math.prod(before) == math.prod(after)


def _of_columns(value: Any, columns: int) -> bool:
    """Whether it has a number for each column, the same for all heads and sequences, or one for all."""
    import torch

    if not isinstance(value, torch.fx.Node) or "tensor_meta" not in value.meta:
        return False
    shape = _shape(value)
    return math.prod(shape) == 1 or (shape[-1:] == (columns,) and math.prod(shape) == columns)


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)
