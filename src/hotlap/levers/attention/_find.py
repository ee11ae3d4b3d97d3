"""Finds hand-written attention in a graph that Dynamo captured.

The form: scores = q k^T (matmul, @, bmm, baddbmm, einsum), any of scaling, biases, masks, casts and reshapes of the
batch dimensions, softmax over the last dimension, casts, dropout, and a product with v. Nothing in between may be used
by anything else (then the weights are wanted, and the attention is left alone).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from hotlap.agent.torch_internals import REGIONS

from .._base import Unfit

PRODUCTS: Final = {"matmul", "bmm", "einsum", "baddbmm"}
CASTS: Final = {"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone"}
VIEWS: Final = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"}
ALIASES: Final = {
    "imul": "mul", "mul_": "mul", "multiply": "mul", "iadd": "add", "add_": "add", "isub": "sub", "sub_": "sub",
    "subtract": "sub", "truediv": "div", "itruediv": "div", "div_": "div", "true_divide": "div", "divide": "div",
    "masked_fill_": "masked_fill", "inv": "invert", "__and__": "and_", "__or__": "or_", "special_softmax": "softmax",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge", "__neg__": "neg",
    "__invert__": "invert", "__getitem__": "getitem", "__mul__": "mul", "__rmul__": "mul", "__add__": "add",
    "__radd__": "add", "__sub__": "sub", "__truediv__": "div", "__matmul__": "matmul",
}  # fmt: skip
"""torch 2.11 captures `mask == 0` as the method `__eq__`, 2.13 as the operator."""
WRITING: Final = {"imul", "iadd", "isub", "itruediv", "imatmul", "ipow", "iand", "ior", "setitem", "copy_"}
PURE: Final = {
    "softmax", "dropout", "mean", "sum", "size", "getitem", "view", "reshape", "div", "mul", "add", "float", "to",
    "detach", "transpose", "permute", "squeeze", "unsqueeze", "eq", "ne", "type", "type_as", "max", "argmax",
    "contiguous", "expand", "tril", "triu", "ones", "zeros", "full", "bool", "masked_fill", "matmul", "invert", "neg",
    "logical_not", "arange", "lt", "le", "gt", "ge", "and_", "where",
}  # fmt: skip


class Step(NamedTuple):
    """What is done to the scores: "scale" (by value), "add" (a node), "fill" (value where the node is true, or where
    it is false if `unless`), "view" (to another batch shape). before, after: the scores' shapes."""

    kind: str
    node: Any = None
    value: float = 0.0
    unless: bool = False
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()


class Operand(NamedTuple):
    """A node, the order of its dimensions to take (None: as they are), and whether to swap the last two then."""

    node: Any
    order: tuple[int, ...] | None = None
    swap: bool = False

    @property
    def shape(self) -> tuple[Any, ...]:
        """As taken."""
        shape = shape_of(self.node)
        if self.order is not None:
            shape = tuple(shape[i] for i in self.order)
        return (*shape[:-2], shape[-1], shape[-2]) if self.swap else shape


@dataclass
class Site:
    """One attention. q: (..., L, E), k: (..., S, E), v: (..., S, Ev); out_order: of the result's dimensions."""

    softmax: Any
    product: Any
    final: Any
    q: Operand
    k: Operand
    v: Operand
    steps: list[Step]
    dropout: float = 0.0
    out_order: tuple[int, ...] | None = None
    weights_shape: tuple[Any, ...] = ()
    inside: list[Any] = field(default_factory=list)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Of the scores where softmax takes them: batch dimensions, L, S."""
        return shape_of(self.softmax)


def op(node: Any) -> str:
    """What a node does, by one name for a function, its method, its operator and its in-place form."""
    return ALIASES.get(_raw(node), _raw(node))


def _raw(node: Any) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    module = getattr(node.target, "__module__", None) or "torch"
    known = module.startswith(("torch", "_operator", "operator", "builtins"))
    return str(getattr(node.target, "__name__", "")) if known else ""


def writes(node: Any) -> bool:
    """Whether a node writes to a tensor that it is given."""
    raw = _raw(node)
    return raw in WRITING or (raw.endswith("_") and raw not in {"and_", "or_", "not_", "is_"} and raw[0] != "_") or (
        node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True
    )  # fmt: skip


def shape_of(node: Any) -> tuple[Any, ...]:
    """The shape that Dynamo saw."""
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        raise Unfit("a value that is no tensor")
    return tuple(example.shape)


def same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Whether shapes are equal, without asking sizes that are not known (which would be recorded as a condition)."""
    return len(one) == len(two) and all(str(a) == str(b) for a, b in zip(one, two, strict=True))


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    """An argument by place or name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def computed(node: Any, args: Any, kwargs: Any) -> Any:
    """What a call of a function or a method makes of values."""
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def transposed(node: Any) -> Any:
    """The node whose last two dimensions a node swaps; None where it does something else."""
    dims = len(shape_of(node))
    if op(node) in {"transpose", "swapaxes", "swapdims"} and len(node.args) == 3:
        one, two = (at % dims if isinstance(at, int) else -1 for at in node.args[1:])
        return node.args[0] if {one, two} == {dims - 1, dims - 2} else None
    if op(node) == "getattr" and (node.args[1] == "mT" or (node.args[1] == "T" and dims == 2)):
        return node.args[0]
    if op(node) == "mT" or (op(node) in {"t", "numpy_T"} and dims == 2):  # torch 2.14 captures `x.mT` as a call
        return node.args[0]
    return None


class Finder:
    """Looks at one graph."""

    def __init__(self, graph: Any, number: Any) -> None:
        self.order = {node: index for index, node in enumerate(graph.nodes)}
        self.number = number
        self.weights: set[Any] = set()

    def site(self, softmax: Any) -> Site:
        """The attention around a softmax. Raises Unfit."""
        shape = shape_of(softmax)
        dim = argument(softmax, 1, "dim")
        if dim not in {-1, len(shape) - 1} or len(shape) < 2:
            raise Unfit("softmax is not over the last dimension")
        weights, final, dropout, inside = self._forward(softmax)
        self.weights = set(inside)
        product, steps, before = self._scores(argument(softmax, 0, "input"), softmax)
        inside += before
        q, k, first = _factors(product)
        v, out_order = _values(final, weights)
        site = Site(softmax, product, final, q, k, v, first + steps, dropout, out_order, shape_of(weights), inside)
        self._consistent(site)
        return site

    def _consistent(self, site: Site) -> None:
        if not same(shape_of(site.product)[-2:], site.shape[-2:]):
            raise Unfit("the scores change their last two dimensions")
        if not same(site.weights_shape[-2:], site.shape[-2:]) or not same(site.v.shape[-2:-1], site.shape[-1:]):
            raise Unfit("the weights change their last two dimensions")
        low, high = self.order[site.product], self.order[site.final]
        inside = set(site.inside)
        for node, at in self.order.items():
            if low < at < high and node not in inside and (writes(node) or _raw(node) in REGIONS):
                raise Unfit("a tensor is written, or autocast changes, between the two products")

    # from softmax on to the product with v

    def _forward(self, softmax: Any) -> tuple[Any, Any, float, list[Any]]:
        node, dropout, inside = softmax, 0.0, [softmax]
        while True:
            users = list(node.users)
            if len(users) != 1:
                raise Unfit("the weights are used for something else" if users else "the weights are not used")
            user = users[0]
            name = op(user)
            if name in PRODUCTS:
                return node, user, dropout, inside
            if name == "dropout" and not dropout:
                dropout = _probability(user)
            elif name not in CASTS | VIEWS or (name == "type_as" and user.args[0] is not node):
                raise Unfit(f"{name or user.op} between the softmax and v")
            inside.append(user)
            node = user

    # from softmax back to the product of q and k

    def _scores(self, node: Any, user: Any) -> tuple[Any, list[Step], list[Any]]:
        """The product behind a node, the steps from there to it, and all nodes of these."""
        if not isinstance(node, torch.fx.Node):
            raise Unfit("no product of two tensors leads to the softmax")
        late = self._in_place(node, user)
        if op(node) in PRODUCTS:
            product, steps, inside = node, list[Step](), list[Any]()
        elif node.op == "placeholder" or not op(node):
            raise Unfit("no product of two tensors leads to the softmax")
        else:
            product, steps, inside = self._through(node)
        return product, steps + [step for writer in late for step in self._step(writer)[1]], [node, *late, *inside]

    def _through(self, node: Any) -> tuple[Any, list[Step], list[Any]]:
        """Past one step; of two tensors that are added either may be the scores."""
        whys = []
        for turned in (False, True):
            try:
                scores, steps = self._step(node, turned)
                product, before, inside = self._scores(scores, node)
                return product, before + steps, inside
            except Unfit as error:
                whys.append(error)
        raise whys[0]

    def _in_place(self, node: Any, user: Any) -> list[Any]:
        """In-place steps on a value before `user` takes it. Raises Unfit where it has other users."""
        others = [
            other
            for other in node.users
            if other is not user and not (op(other) == "type_as" and other in self.weights)
        ]
        for other in others:
            ours = writes(other) and other.args and other.args[0] is node and not other.users
            if not ours or self.order[other] > self.order[user]:
                raise Unfit("the scores are used for something else")
        return sorted(others, key=self.order.__getitem__)

    def _step(self, node: Any, turned: bool = False) -> tuple[Any, list[Step]]:
        """The scores that a step is made on, and what it does to them."""
        name = op(node)
        if name in CASTS and not turned and not (name == "type_as" and len(node.args) < 2):
            return node.args[0], []
        if name in VIEWS and not turned:
            return node.args[0], _view(node)
        if name in {"mul", "div"}:
            return self._scaled(node, name, turned)
        if name in {"add", "sub"}:
            return self._added(node, name, turned)
        if name in {"masked_fill", "setitem"} and not turned:
            mask, value = argument(node, 1, "mask"), argument(node, 2, "value")
            return node.args[0], [self._fill(node, mask, self.number(value), False)]
        if name == "where":
            mask, one, two = (argument(node, 0, "condition"), argument(node, 1, "input"), argument(node, 2, "other"))
            scores, other = (two, one) if turned else (one, two)
            return scores, [self._fill(node, mask, self.number(other), not turned)]
        raise Unfit(f"{name} before the softmax")

    @staticmethod
    def _fill(node: Any, mask: Any, value: float | None, unless: bool) -> Step:
        example = mask.meta.get("example_value") if isinstance(mask, torch.fx.Node) else None
        if value is None or example is None or example.dtype != torch.bool:
            raise Unfit("masked with a value, or by a mask, that is not known")
        if _raw(node) == "setitem" and not same(tuple(example.shape), shape_of(node.args[0])):
            raise Unfit("masked by an index")
        return Step("fill", mask, value, unless)

    def _scaled(self, node: Any, name: str, turned: bool) -> tuple[Any, list[Step]]:
        one, two = argument(node, 0, "input"), argument(node, 1, "other")
        scores, factor = (two, one) if turned else (one, two)
        value = self.number(factor)
        if value is None or not math.isfinite(value) or value <= 0 or (turned and name == "div"):
            raise Unfit("scaled by something that is no positive number")
        if node.kwargs.get("rounding_mode") is not None:
            raise Unfit("rounded")
        return scores, [Step("scale", value=1 / value if name == "div" else value)]

    def _added(self, node: Any, name: str, turned: bool) -> tuple[Any, list[Step]]:
        one, two = argument(node, 0, "input"), argument(node, 1, "other")
        scores, term = (two, one) if turned else (one, two)
        if node.kwargs.get("alpha", 1) != 1 or (name == "sub" and turned):
            raise Unfit(f"{name} with a factor")
        if not isinstance(term, torch.fx.Node):
            return scores, []  # a number added to every score changes no weight
        if not same(shape_of(scores), shape_of(node)):
            raise Unfit("the bias has more dimensions than the scores")
        return scores, [Step("add", term, -1.0 if name == "sub" else 1.0)]


def _view(node: Any) -> list[Step]:
    before, after = shape_of(node.args[0]), shape_of(node)
    if not same(before[-2:], after[-2:]) or len(after) < 2:
        raise Unfit("the scores change their last two dimensions")
    return [] if same(before, after) else [Step("view", before=before, after=after)]


def _probability(node: Any) -> float:
    p, training = (
        argument(node, 1, "p", 0.5),
        argument(node, 2, "train" if "train" in node.kwargs else "training", True),
    )
    if not isinstance(p, (int, float)) or not isinstance(training, bool) or argument(node, 3, "inplace") is True:
        raise Unfit("dropout whose probability is not known")
    return float(p) if training else 0.0


def _factors(product: Any) -> tuple[Operand, Operand, list[Step]]:
    """q and k of a product (k as (..., S, E)), and what the product itself adds."""
    name = op(product)
    if name == "einsum":
        return (*_einsum_scores(product), [])
    if name == "baddbmm":
        bias, one, two = (argument(product, i, n) for i, n in enumerate(("input", "batch1", "batch2")))
        alpha, beta = product.kwargs.get("alpha", 1), product.kwargs.get("beta", 1)
        if not all(isinstance(x, (int, float)) for x in (alpha, beta)) or alpha <= 0 or beta not in {0, 1}:
            raise Unfit("baddbmm with factors that are not known")
        steps = [Step("scale", value=float(alpha))] + ([Step("add", bias, 1.0)] if beta else [])
    else:
        one, two = argument(product, 0, "input"), argument(product, 1, "mat2" if name == "bmm" else "other")
        steps = []
    if len(shape_of(one)) < 2 or len(shape_of(two)) < 2:
        raise Unfit("a product with a vector")
    return Operand(one), Operand(two, swap=True), steps


def _values(final: Any, weights: Any) -> tuple[Operand, tuple[int, ...] | None]:
    """v of the last product, and the order of the result's dimensions."""
    name = op(final)
    if name == "einsum":
        return _einsum_values(final, weights)
    if name == "baddbmm":
        raise Unfit("a sum with the product of weights and v")
    one, two = argument(final, 0, "input"), argument(final, 1, "mat2" if name == "bmm" else "other")
    if one is not weights or two is weights or len(shape_of(two)) < 2:
        raise Unfit("the weights are not the first factor of the product with v")
    return Operand(two), None


def _labels(node: Any) -> tuple[list[str], str, list[Any]]:
    equation, operands = node.args[0], list(node.args[1:])
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or "->" not in equation or "." in equation or len(operands) != 2:
        raise Unfit("an einsum of another form")
    left, right = equation.replace(" ", "").split("->")
    terms = left.split(",")
    if any(len(set(term)) != len(term) for term in [*terms, right]):
        raise Unfit("an einsum of a diagonal")
    return terms, right, operands


def _einsum_scores(node: Any) -> tuple[Operand, Operand]:
    terms, out, operands = _labels(node)
    rows, columns, batch = out[-2:-1], out[-1:], out[:-2]
    if rows in terms[1]:
        terms, operands = terms[::-1], operands[::-1]
    inner = set(terms[0]) & set(terms[1]) - set(out)
    if len(inner) != 1 or rows in terms[1] or columns in terms[0]:
        raise Unfit("an einsum of another form")
    e = inner.pop()
    return _ordered(operands[0], terms[0], batch + rows + e), _ordered(operands[1], terms[1], batch + columns + e)


def _ordered(node: Any, term: str, wanted: str) -> Operand:
    if set(term) != set(wanted):
        raise Unfit("an einsum whose factors have other dimensions")
    order = tuple(term.index(label) for label in wanted)
    return Operand(node, None if order == tuple(range(len(order))) else order)


def _einsum_values(node: Any, weights: Any) -> tuple[Operand, tuple[int, ...] | None]:
    terms, out, operands = _labels(node)
    if operands[1] is weights:
        terms, operands = terms[::-1], operands[::-1]
    if operands[0] is not weights or operands[1] is weights:
        raise Unfit("an einsum of another form")
    batch, rows, columns = terms[0][:-2], terms[0][-2], terms[0][-1]
    inner = set(terms[1]) - set(batch) - {columns}
    if len(inner) != 1 or rows in terms[1] or columns in out or set(out) != set(batch) | {rows} | inner:
        raise Unfit("an einsum of another form")
    e = inner.pop()
    order = tuple((batch + rows + e).index(label) for label in out)
    v = _ordered(operands[1], terms[1], batch + columns + e)
    return v, None if order == tuple(range(len(order))) else order


def erase_idle(graph: Any, own: Iterable[Any] = ()) -> None:
    """Take out what nothing uses and what does nothing beside, from the back; `own` nodes also where they do. Dynamo
    leaves in what the script made and dropped."""
    own = set(own)
    for node in reversed(graph.nodes):
        idle = op(node) in PURE - {"dropout"} and not writes(node)
        if not node.users and (idle or node in own):
            graph.erase_node(node)
