"""Not a lever: what each op does for the last token of a sequence alone (`_prefix_build`).

A rule gives, of an op, what it does to the last row, and what its outputs' dimensions are. What has no rule is refused.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ._call_inputs import Unfit
from ._prefix_build import COLUMN, Builder, Kind, Last, Looks, Row
from ._prefix_tape import Growing, Made, Outside, Size, Sizes, at_length, each, put

END: Final = 2**31
LENGTHS: Final = (1009, 1013)
"""Primes, so that a product shows whether a length is in it."""

Found = list[tuple[Any, tuple[Kind, ...]]]
Rule = Callable[[Builder, Growing, int], Found]
RULES: dict[str, Rule] = {}
LIKE_POINTWISE: Final = frozenset(
    [
        "masked_fill",
        "_to_copy",
        "zeros_like",
        "ones_like",
        "full_like",
        "detach",
        "alias",
        "lift_fresh",
        "fill",
        "polar",
    ]
)
"""Ops that go over elements, of which torch does not say so."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def put_in(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return put_in


def rule_of(op: Growing) -> Rule:
    """Raises Unfit."""
    import torch

    if torch.Tag.pointwise in op.func.tags or op.name in LIKE_POINTWISE:
        return _pointwise
    if op.name not in RULES:
        raise Unfit(f"it calls {op.name}, of which is not known what it does to one token")
    return RULES[op.name]


def _number(value: Any) -> int:
    """A number that does not grow."""
    if isinstance(value, Size) or not isinstance(value, int):
        raise Unfit("it takes apart what grows with the sequence")
    return value


def _dim(value: Any, kinds: Sequence[Kind]) -> int:
    return _number(value) % max(1, len(kinds))


def _argument(op: Growing, name: str) -> Any:
    """By its name in the op's schema."""
    for at, argument in enumerate(op.func._schema.arguments):
        if argument.name == name:
            if at < len(op.args) and not argument.kwarg_only:
                return op.args[at]
            return op.kwargs.get(name, argument.default_value)
    raise Unfit(f"{op.name} has no argument {name}")


def _main(b: Builder, op: Growing, place: int = 0) -> Last:
    """The argument that hangs on the tokens, at its place."""
    one = b.of(op.args[place])
    if one is None:
        raise Unfit(f"{op.name} is given tokens where weights are expected")
    return one


def _plain(value: Any) -> Any:
    if isinstance(value, Size):
        raise Unfit("it reckons with the length of the sequence")
    return value


def _pointwise(b: Builder, op: Growing, at: int) -> Found:
    shape = op.shapes[0]
    assert shape is not None, "it has an output"
    leaves = [leaf for leaf in each([op.args, op.kwargs]) if isinstance(leaf, (Made, Outside))]
    kinds = _merged(b, [one for one in map(b.of, leaves) if one is not None], len(shape))

    def leaf(value: Any) -> Any:
        return b.aligned(value, kinds) if isinstance(value, (Made, Outside)) else _plain(value)

    return [(b.graph.call_function(op.func, tuple(put(op.args, leaf)), put(op.kwargs, leaf)), kinds)]


def _merged(b: Builder, ones: Sequence[Last], dims: int) -> tuple[Kind, ...]:
    kinds: list[Kind] = [None] * dims
    for one in ones:
        for dim, kind in enumerate(one.kinds, dims - len(one.kinds)):
            if kind is not None and kinds[dim] not in {None, kind}:
                raise Unfit("tokens meet each other in a way that is not known")
            kinds[dim] = kind or kinds[dim]
    return tuple(kinds)


# shapes


@rule("view", "_unsafe_view", "reshape", "_reshape_copy")
def _view(b: Builder, op: Growing, at: int) -> Found:
    import torch

    one, shape = _main(b, op), op.shapes[0]
    assert shape is not None, "it has an output"
    kinds = regrouped(one.shape, one.kinds, shape)
    return [(b.call(torch.ops.aten.reshape.default, one.node, b.sizes(shape, kinds)), kinds)]


def regrouped(old: Sizes, kinds: Sequence[Kind], new: Sizes) -> tuple[Kind, ...]:
    """Kinds of the dimensions after a view. Raises Unfit where it is not clear which of them holds the tokens."""
    found: list[Kind] = [None] * len(new)
    for before, after in _groups(old, new):
        grown = [at for at in before if isinstance(old[at], Size)]
        into = [at for at in after if isinstance(new[at], Size)]
        if not grown and not into:
            continue
        if len(grown) != 1 or len(into) != 1:
            raise Unfit("a view mixes tokens")
        kind = kinds[grown[0]]
        if isinstance(kind, Row):
            outer = kind.outer * math.prod(_number(old[at]) for at in before if at < grown[0])
            inside = math.prod(_number(new[at]) for at in after if at < into[0])
            if outer % inside:
                raise Unfit("a view mixes tokens")
            kind = Row(outer // inside)
        elif len(before) > 1 or len(after) > 1:
            raise Unfit("a view mixes tokens that are looked at")
        found[into[0]] = kind
    return tuple(found)


def _groups(old: Sizes, new: Sizes) -> list[tuple[list[int], list[int]]]:
    """Dimensions that a view makes of others: the fewest whose products are the same, for two lengths at once."""

    def sizes(shape: Sizes) -> list[tuple[int, int]]:
        return list(zip(at_length(shape, LENGTHS[0]), at_length(shape, LENGTHS[1]), strict=True))

    one, other = sizes(old), sizes(new)
    found, i, j = [], 0, 0
    while i < len(one) or j < len(other):
        before: list[int] = []
        after: list[int] = []
        left = right = (1, 1)
        while (not before and not after) or left != right:
            take = i < len(one) and (left[0] <= right[0] or j == len(other))
            if not take and j == len(other):
                raise Unfit("a view mixes tokens")
            size = one[i] if take else other[j]
            if take:
                left = left[0] * size[0], left[1] * size[1]
                before.append(i)
                i += 1
            else:
                right = right[0] * size[0], right[1] * size[1]
                after.append(j)
                j += 1
        found.append((before, after))
    return found


@rule("expand")
def _expand(b: Builder, op: Growing, at: int) -> Found:
    one, shape = _main(b, op), op.shapes[0]
    assert shape is not None, "it has an output"
    kinds = (None,) * (len(shape) - len(one.kinds)) + one.kinds
    return [(b.call(op.func, one.node, b.sizes(shape, kinds)), kinds)]


@rule("transpose", "permute", "t", "unsqueeze", "squeeze", "view_as_complex", "view_as_real")
def _turned(b: Builder, op: Growing, at: int) -> Found:
    one = _main(b, op)
    kinds = list(one.kinds)
    if op.name == "transpose":
        first, second = (_dim(value, kinds) for value in op.args[1:3])
        kinds[first], kinds[second] = kinds[second], kinds[first]
    elif op.name == "permute":
        kinds = [kinds[_dim(value, kinds)] for value in op.args[1]]
    elif op.name == "t":
        kinds = kinds[::-1]
    elif op.name == "unsqueeze":
        kinds.insert(_number(op.args[1]) % (len(kinds) + 1), None)
    elif op.name == "squeeze":
        dims = op.args[1] if len(op.args) > 1 else list(range(len(kinds)))
        gone = {_dim(value, kinds) for value in (dims if isinstance(dims, list) else [dims])}
        gone = {dim for dim in gone if one.shape[dim] == 1}
        out = b.call(_squeeze(), one.node, sorted(gone))  # a row is one long now, and stays
        return [(out, tuple(kind for dim, kind in enumerate(kinds) if dim not in gone))]
    else:
        kinds = kinds[:-1] if op.name == "view_as_complex" else [*kinds, None]
    return [(b.call(op.func, one.node, *put(list(op.args[1:]), _plain)), tuple(kinds))]


def _squeeze() -> Any:
    import torch

    return torch.ops.aten.squeeze.dims


@rule("split", "split_with_sizes", "unbind", "chunk")
def _split(b: Builder, op: Growing, at: int) -> Found:
    import operator

    one = _main(b, op)
    dim = _dim(_argument(op, "dim"), one.kinds)
    if one.kinds[dim] is not None:
        raise Unfit(f"{op.name} takes tokens apart")
    node = b.call(op.func, one.node, *put(list(op.args[1:]), _plain), **put(op.kwargs, _plain))
    kinds = one.kinds[:dim] + one.kinds[dim + 1 :] if op.name == "unbind" else one.kinds
    return [(b.call(operator.getitem, node, number), kinds) for number in range(len(op.shapes))]


@rule("select")
def _select(b: Builder, op: Growing, at: int) -> Found:
    one = _main(b, op)
    dim, index = _dim(op.args[1], one.kinds), op.args[2]
    if one.kinds[dim] is None:
        index = _number(index)
    elif one.kinds[dim] == Row() and index in (-1, Size(1, -1)):
        index = 0
    else:
        raise Unfit("it takes out another token than the last")
    return [(b.call(op.func, one.node, dim, index), one.kinds[:dim] + one.kinds[dim + 1 :])]


@rule("slice")
def _slice(b: Builder, op: Growing, at: int) -> Found:
    one = _main(b, op)
    dim = _dim(_argument(op, "dim"), one.kinds)
    start, end, step = (_argument(op, name) for name in ("start", "end", "step"))
    if one.kinds[dim] is None:
        return [(b.call(op.func, one.node, dim, *put([start, end, step], _plain)), one.kinds)]
    to_the_end = step == 1 and (end is None or end == one.shape[dim] or (type(end) is int and end >= END))
    if to_the_end and start in (None, 0):
        return [(one.node, one.kinds)]
    if to_the_end and one.kinds[dim] == Row() and start in (-1, Size(1, -1)):
        return [(one.node, tuple(None if at == dim else kind for at, kind in enumerate(one.kinds)))]
    raise Unfit("it takes out other tokens than the last")


@rule("index")
def _index(b: Builder, op: Growing, at: int) -> Found:
    """`x[:, [-1]]`, and fixed indices of other dimensions."""
    one = _main(b, op)
    used = [(dim, index) for dim, index in enumerate(op.args[1]) if index is not None]
    if len(used) != 1 or not isinstance(used[0][1], (Made, Outside)) or b.of(used[0][1]) is not None:
        raise Unfit("it is indexed by something that hangs on the tokens")
    dim, index = used[0][0], used[0][1]
    value = b.table(index)
    if any(isinstance(size, Size) for size in b.shape(index)) or value.dim() != 1 or value.dtype.is_floating_point:
        raise Unfit("it is indexed by positions")
    if one.kinds[dim] is None:
        return [(b.call(op.func, one.node, [None] * dim + [b.constant(value)]), one.kinds)]
    if one.kinds[dim] != Row() or value.tolist() != [-1]:
        raise Unfit("it takes out other tokens than the last")
    return [(one.node, tuple(None if at == dim else kind for at, kind in enumerate(one.kinds)))]


@rule("cat", "stack")
def _cat(b: Builder, op: Growing, at: int) -> Found:
    shape = op.shapes[0]
    assert shape is not None, "it has an output"
    parts, dim = op.args[0], _argument(op, "dim")
    dim = _number(dim) % len(shape)
    known = [one for one in map(b.of, parts) if one is not None]
    kinds = _merged(b, known, len(known[0].kinds))
    if op.name == "cat" and kinds[dim] is not None:
        raise Unfit("it puts something before or behind the tokens")
    nodes = [b.aligned(part, kinds) for part in parts]
    for part in parts:
        if b.of(part) is None and len(b.shape(part)) != len(kinds):
            raise Unfit("it puts unlike tensors together")
    kinds = (*kinds[:dim], None, *kinds[dim:]) if op.name == "stack" else kinds
    return [(b.call(op.func, nodes, dim), kinds)]


@rule("repeat")
def _repeat(b: Builder, op: Growing, at: int) -> Found:
    one, repeats = _main(b, op), [_number(value) for value in op.args[1]]
    kinds = (None,) * (len(repeats) - len(one.kinds)) + one.kinds
    if any(kind is not None and times != 1 for kind, times in zip(kinds, repeats, strict=True)):
        raise Unfit("it repeats the tokens")
    return [(b.call(op.func, one.node, repeats), kinds)]


@rule("constant_pad_nd")
def _pad(b: Builder, op: Growing, at: int) -> Found:
    one, pads = _main(b, op), [_number(value) for value in op.args[1]]
    dims = [len(one.kinds) - 1 - number // 2 for number, pad in enumerate(pads) if pad]
    if any(one.kinds[dim] is not None for dim in dims):
        raise Unfit("it pads the tokens")
    return [(b.call(op.func, one.node, pads, *put(list(op.args[2:]), _plain)), one.kinds)]


# sums over what is no token


@rule("native_layer_norm", "_fused_rms_norm")
def _norm(b: Builder, op: Growing, at: int) -> Found:
    import operator

    one, over = _main(b, op), [_number(size) for size in op.args[1]]
    if any(one.kinds[len(one.kinds) - len(over) :]):
        raise Unfit(f"{op.name} goes over tokens")
    node = b.call(op.func, one.node, over, *map(b.fixed, map(_plain, op.args[2:])))
    return [(b.call(operator.getitem, node, number), one.kinds) for number in range(len(op.shapes))]


@rule("mean", "sum", "amax", "amin", "var", "std", "linalg_vector_norm", "logsumexp", "prod")
def _reduced(b: Builder, op: Growing, at: int) -> Found:
    one, shape = _main(b, op), op.shapes[0]
    assert shape is not None, "it has an output"
    dims = _argument(op, "dim")
    dims = dims if isinstance(dims, list) else [dims] if dims is not None else list(range(len(one.kinds)))
    gone = {_dim(dim, one.kinds) for dim in dims or range(len(one.kinds))}
    if any(one.kinds[dim] is not None for dim in gone):
        raise Unfit(f"{op.name} goes over tokens")
    kept = len(shape) == len(one.kinds)
    kinds = one.kinds if kept else tuple(kind for dim, kind in enumerate(one.kinds) if dim not in gone)
    return [(b.call(op.func, one.node, *put(list(op.args[1:]), _plain), **put(op.kwargs, _plain)), kinds)]


@rule("glu")
def _glu(b: Builder, op: Growing, at: int) -> Found:
    one = _main(b, op)
    if one.kinds[_dim(_argument(op, "dim"), one.kinds)] is not None:
        raise Unfit("glu goes over tokens")
    return [(b.call(op.func, one.node, *put(list(op.args[1:]), _plain)), one.kinds)]


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(b: Builder, op: Growing, at: int) -> Found:
    import torch

    one = _main(b, op)
    dim, node = _dim(op.args[1], one.kinds), one.node
    if isinstance(one.kinds[dim], Row):
        raise Unfit("a softmax goes over tokens that are not those looked at")
    if one.kinds[dim] == COLUMN:
        if dim != len(one.kinds) - 1 or one.kinds[dim - 1] != Row() or op.name == "_log_softmax":
            raise Unfit("tokens look at each other in a way that is not known")
        b.looks.append(Looks(at, "output"))
        node = b.call(torch.where, b.there, node, -math.inf)
    return [(b.call(op.func, node, *put(list(op.args[1:]), _plain), **put(op.kwargs, _plain)), one.kinds)]


# products


@rule("embedding")
def _embedding(b: Builder, op: Growing, at: int) -> Found:
    one = _main(b, op, 1)
    node = b.call(op.func, b.fixed(op.args[0]), one.node, *put(list(op.args[2:]), _plain))
    return [(node, (*one.kinds, None))]


@rule("mm", "addmm")
def _mm(b: Builder, op: Growing, at: int) -> Found:
    first = len(op.args) - 2
    one = _main(b, op, first)
    if one.kinds[1] is not None:
        raise Unfit("a product of matrices sums over tokens")
    before = [b.fixed(arg) for arg in op.args[:first]]
    node = b.call(op.func, *before, one.node, b.fixed(op.args[first + 1]), **put(op.kwargs, _plain))
    return [(node, (one.kinds[0], None))]


@rule("bmm")
def _bmm(b: Builder, op: Growing, at: int) -> Found:
    import torch

    one, other = _main(b, op), b.of(op.args[1])
    if other is None:
        if one.kinds[2] is not None:
            raise Unfit("a product of matrices sums over tokens")
        return [(b.call(op.func, one.node, b.fixed(op.args[1])), (*one.kinds[:2], None))]
    if one.kinds[0] is not None or other.kinds[0] is not None:
        raise Unfit("tokens look at each other in a way that is not known")
    first = one.node
    if one.kinds[2] == COLUMN:
        first = b.call(torch.where, b.there, first, 0.0)
        if one.kinds[1] is not None:
            b.looks.append(Looks(at, "first"))
    if one.kinds[2] == COLUMN and other.kinds[1] is not None and other.kinds[2] is None:
        other = b.column(other, 1)
    elif one.kinds[2] is None and other.kinds[1] is None and other.kinds[2] is not None and one.kinds[1] == Row():
        other = b.column(other, 2)
    elif one.kinds[2] is not None or other.kinds[1:] != (None, None):
        raise Unfit("tokens look at each other in a way that is not known")
    return [(b.call(op.func, first, other.node), (None, one.kinds[1], other.kinds[2]))]


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
def _attention(b: Builder, op: Growing, at: int) -> Found:
    import torch

    query = _main(b, op)
    key, value = _main(b, op, 1), _main(b, op, 2)
    if query.kinds != (None, None, Row(), None) or _argument(op, "dropout_p"):
        raise Unfit("tokens look at each other in a way that is not known")
    keys, values = b.column(key, 2), b.column(value, 2)
    names = {argument.name for argument in op.func._schema.arguments}
    bias = _argument(op, "attn_bias") if "attn_bias" in names else None
    bias = _argument(op, "attn_mask") if "attn_mask" in names else bias
    mask = b.call(torch.ops.aten.view.default, b.there, [1, 1, 1, b.most])
    if bias is None and not _argument(op, "is_causal"):
        raise Unfit("a token looks at later ones")
    if bias is not None:
        b.looks.append(Looks(at, "mask"))
        node = b.aligned(bias, (None, None, Row(), COLUMN))
        mask = b.call(torch.where, mask, node, -math.inf)
    grouped = query.shape[1] != key.shape[1]
    out = b.call(
        torch.nn.functional.scaled_dot_product_attention,
        query.node, keys.node, values.node, attn_mask=mask, scale=_argument(op, "scale"), enable_gqa=grouped,
    )  # fmt: skip
    return [(out, (None, None, Row(), None))]
