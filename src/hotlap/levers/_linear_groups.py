"""Finds linear layers that read the same input, in a graph that Dynamo captured.

Those of a group can be computed where the first of them is: between them nothing is written in place, no region of
autocast or of no_grad begins or ends, and nothing is called of which that is not known. This is asked of all that lies
between, whatever it works on: few models write there at all.
"""

import inspect
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from ._attention_graph import argument, writes

MOST: Final = 8
"""Layers of a group."""
OWN: Final = {"torch", "_operator", "operator", "builtins", "math", "hotlap"}
"""Packages whose functions change nothing, but for those that their names tell."""
ALIKE: Final = {"and_", "or_", "not_", "is_"}
"""Operators whose name ends as that of a method in place."""
PLAIN: Final = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch._subclasses.fake_tensor.FakeTensor")
NAMESPACES: Final = {"aten", "prims"}


class Unfit(Exception):
    """Layers that can't be merged; the message says why."""


class Layer(NamedTuple):
    """One linear layer: its node, and those of its input and parameters."""

    node: Any
    source: Any
    weight: Any
    bias: Any

    @property
    def outputs(self) -> int:
        return int(example(self.weight).shape[0])

    @property
    def kind(self) -> tuple[Any, ...]:
        """What layers of a group have in common. Of frozen weights no gradient is computed, and merged it would be."""
        mine = [example(node) for node in (self.weight, self.bias) if node is not None]
        return tuple((one.dtype, one.device, one.requires_grad, one.dim()) for one in mine)


class Groups:
    """Of one graph. left: why layers that share their input are in none."""

    def __init__(self, graph: Any, inputs: list[Any]) -> None:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.real = dict(zip(placeholders, inputs, strict=True)) if inputs else {}
        self.order = {node: at for at, node in enumerate(graph.nodes)}
        self.left: list[str] = []

    def __iter__(self) -> Iterator[list[Layer]]:
        for calls in _by_source(self.order).values():
            if len(calls) < 2:
                continue
            found = [group for group in self._alike(calls) if len(group) > 1]
            if not found:
                self.left.append(_why(calls))
            for group in found:
                yield from (group[at : at + MOST] for at in range(0, len(group) - 1, MOST))

    def _alike(self, calls: list[tuple[Any, int]]) -> list[list[Layer]]:
        """Layers of one input, by what they have to have in common."""
        found: dict[Any, list[Layer]] = {}
        for node, part in calls:
            try:
                layer = self._layer(node)
            except Unfit as why:
                self.left.append(str(why))
                continue
            group = found.setdefault((part, layer.kind), [])
            first = group[0].node if group else node
            if any(layer.weight is other.weight for other in group):
                self.left.append("a layer is called twice on one input")
            elif any(self.order[one] > self.order[first] for one in layer[2:] if one is not None):
                self.left.append("a weight is defined between them")
            else:
                group.append(layer)
        return list(found.values())

    def _layer(self, node: Any) -> Layer:
        layer = Layer(node, argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 2, "bias"))
        for one in layer[2:]:
            if one is not None:
                self._parameter(one)
        if len(example(layer.weight).shape) != 2 or not all(map(_strided, (node, layer.source))):
            raise Unfit("tensors of another kind")
        return layer

    def _parameter(self, node: Any) -> None:
        if node.op not in {"placeholder", "get_attr"}:
            raise Unfit("a weight is computed")
        held = self.real.get(node)
        if not _strided(node) or not (held is None or _plain(held)):
            raise Unfit("a weight is a tensor of another class")
        if any(type(size) is not int for size in example(node).shape):
            raise Unfit("a weight of a size that is not known")


def example(node: Any) -> Any:
    """What Dynamo saw of a node. Raises Unfit where that is no tensor."""
    seen = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    if not isinstance(seen, torch.Tensor):
        raise Unfit("a value that is no tensor")
    return seen


def name_of(node: Any) -> str:
    """The name of a node's function or method, without the overload."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name).split(".", maxsplit=1)[0]


def foreign(node: Any) -> bool:
    """Whether a node calls what is not torch's own: what it does, and how its arguments have to lie in memory, is not
    known."""
    if node.op == "call_module" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return getattr(node.target, "namespace", node.target.__module__.rpartition(".")[2]) not in NAMESPACES
    module = getattr(node.target, "__module__", None) or "torch"
    return node.op == "call_function" and module.partition(".")[0] not in OWN


def changes(node: Any) -> bool:
    """Whether a node writes to a tensor, begins or ends a region, or may do so."""
    if node.op not in {"call_function", "call_method", "call_module"}:
        return False
    name = name_of(node)
    if foreign(node) or writes(node) or (name.endswith("_") and not name.endswith("__") and name not in ALIKE):
        return True
    if name.startswith("_") and not name.startswith("__"):  # torch's own, as _enter_autocast and _set_grad_enabled are
        return True
    return name.startswith(("set_", "manual_seed")) or _assigns(name) or _in_place_by_argument(node)


def _assigns(name: str) -> bool:
    """Whether it is an operator in place, or its method."""
    bare = name.strip("_")
    plain = bare[1:] in {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"}
    return bare in {"setitem", "delitem", "ilshift", "irshift"} or (bare.startswith("i") and plain)


def _in_place_by_argument(node: Any) -> bool:
    """`F.relu(x, True)`, and an embedding that scales its rows."""
    if node.op != "call_function" or not inspect.isfunction(node.target):
        return False
    try:
        asked = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return True
    return bool(asked.get("inplace")) or asked.get("max_norm") is not None


def _by_source(order: dict[Any, int]) -> dict[Any, list[tuple[Any, int]]]:
    """Linear layers whose result is used, by their input; each with the number of changes before it."""
    found: dict[Any, list[tuple[Any, int]]] = {}
    part = 0
    for node in order:
        if node.op == "call_function" and node.target is torch.nn.functional.linear and node.users:
            found.setdefault(argument(node, 0, "input"), []).append((node, part))
        part += changes(node)
    return found


def _why(calls: list[tuple[Any, int]]) -> str:
    if len({part for _, part in calls}) == len(calls):
        return "something is written, or a region begins or ends, between them"
    return "their weights differ in kind, or some have a bias and some none"


def _strided(node: Any) -> bool:
    seen = example(node)
    return _plain(seen) and seen.layout == torch.strided


def _plain(tensor: Any) -> bool:
    kind = type(tensor)
    return f"{kind.__module__}.{kind.__qualname__}" in PLAIN
