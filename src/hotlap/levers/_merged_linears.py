"""Puts one product in the place of linear layers that read the same input.

Their outputs are parts of one larger tensor then, with other strides. What looks at an output in another way is run
without values first; where torch does not allow that of a part, or where an output is written in place, leaves the
graph, or is given to what is not torch's own, the layer stays as it is.
"""

import math
import operator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from ._attention_check import ALLOWED
from ._linear_groups import Groups, Layer, Unfit, changes, example, foreign, name_of

SMALL: Final = 1 << 20
"""Elements of weights. With these, launching kernels takes longer than to put them together."""
ROWS: Final = 4
"""Of each dimension of the input that it is compared on: rows do not know of each other."""
LAYOUT: Final = {"as_strided", "stride", "storage_offset", "data_ptr", "untyped_storage", "storage"}
"""What asks how a tensor lies in memory. (The answers to `stride()` and `is_contiguous()` are constants in a graph.)"""
ANY_LAYOUT: Final = {"flex_attention"}
HALF: Final = {torch.bfloat16, torch.float16}
WRONG: Final = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)
"""What torch raises for a view that is not allowed."""


@dataclass
class Report:
    """What became of the linear layers of one graph that share an input. groups: products that were made, layers: of
    so many; left: why others were left alone; unchecked: why a new form could not be compared with the old."""

    groups: int = 0
    layers: int = 0
    left: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


class Merge:
    """One graph. inputs: those of its first call, where they are known."""

    def __init__(self, graph_module: Any, inputs: list[Any]) -> None:
        self.graph_module, self.graph = graph_module, graph_module.graph
        self.groups = Groups(self.graph, inputs)
        self.learning = _learning(self.graph)
        self.report = Report()
        self.checked: set[str] = set()

    def run(self) -> Report:
        """Merge what can be; the graph is left as it was where nothing can."""
        try:
            for group in list(self.groups):
                self._try(group)
        finally:
            if self.report.groups:
                self.graph.lint()
                self.graph_module.recompile()
        self.report.left += self.groups.left
        return self.report

    def _try(self, group: list[Layer]) -> None:
        try:
            layers = self._loose(group)
            if len(layers) > 1:
                worth(layers)
                self._merge(layers)
        except Unfit as why:
            self.report.left.append(str(why))

    def _loose(self, group: list[Layer]) -> list[Layer]:
        """The layers whose outputs may be parts of a larger tensor."""
        loose = []
        for layer in group:
            try:
                self._may_be_part(layer, sum(other.outputs for other in group))
                loose.append(layer)
            except Unfit as why:
                self.report.left.append(str(why))
        return loose

    def _may_be_part(self, layer: Layer, width: int) -> None:
        """Raises Unfit."""
        if written(example(layer.node)):
            raise Unfit("an output is written in place")
        if example(layer.node).requires_grad and layer.node not in self.learning:
            raise Unfit("no gradient reaches a layer, and merged it would be zero")
        views = self._views(layer.node)
        for user in {user for node in (layer.node, *views) for user in node.users}:
            if user.op == "output":
                raise Unfit("an output leaves the graph")
            if name_of(user) in ANY_LAYOUT:
                continue
            if foreign(user) or name_of(user) in LAYOUT:
                raise Unfit(f"{name_of(user)} may look at how an output lies in memory")
            if changes(user):
                raise Unfit("an output is written in place")
        allowed(layer, views, width)

    def _views(self, output: Any) -> list[Any]:
        """What looks at an output in another way, in the graph's order."""
        storage, todo = _storages(example(output)), [output]
        found: set[Any] = set()
        while todo:
            for user in set(todo.pop().users) - found:
                # What `attention` put in has no example. It takes outputs however they lie.
                if _storages(user.meta.get("example_value")) & storage and not changes(user):
                    found.add(user)
                    todo.append(user)
        order = {node: at for at, node in enumerate(self.graph.nodes)}
        return sorted(found, key=order.__getitem__)

    def _merge(self, layers: list[Layer]) -> None:
        first, made, kept = layers[0].node, Made(self.graph), False
        try:
            with self.graph.inserting_before(first):
                parts = made.product(layers)
            self._check(layers, made.nodes, parts)
            kept = True
        finally:
            if not kept:
                made.undo()
        for node in made.nodes:
            node.meta |= {name: first.meta[name] for name in ("stack_trace",) if name in first.meta}
        for layer, part in zip(layers, parts, strict=True):
            part.meta = dict(layer.node.meta)
            layer.node.replace_all_uses_with(part)
            self.graph.erase_node(layer.node)
        self.report.groups += 1
        self.report.layers += len(layers)

    def _check(self, layers: list[Layer], made: list[Any], parts: list[Any]) -> None:
        """Compare with the original on random tensors, once for layers that are alike. Raises Unfit."""
        dtype = example(layers[0].node).dtype
        source = example(layers[0].source)
        alike = str((dtype, source.dtype, source.dim(), [(example(one.weight).shape, one.kind) for one in layers]))
        if alike in self.checked:
            return
        try:
            with unset_fake_temporarily(), torch.no_grad():
                apart = differs(layers, made, parts)
        except RuntimeError as why:  # out of memory, most likely
            self.report.unchecked.append(str(why)[:200])
            return
        if not apart <= ALLOWED[dtype]:
            raise Unfit(f"merged, they differ by {apart:.1%} from what is written, more than {ALLOWED[dtype]:.1%}")
        self.checked.add(alike)


class Made:
    """Nodes that were put in."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes: list[Any] = []

    def product(self, layers: list[Layer]) -> list[Any]:
        """One product for all layers; the outputs of each."""
        weight = self._call(torch.cat, [layer.weight for layer in layers], 0)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        bias = self._call(torch.cat, biases, 0) if biases else None
        whole = self._call(torch.nn.functional.linear, layers[0].source, weight, bias)
        parts = self._call(torch.split, whole, [layer.outputs for layer in layers], -1)
        return [self._call(operator.getitem, parts, at) for at in range(len(layers))]

    def undo(self) -> None:
        """Take them out again."""
        for node in reversed(self.nodes):
            self.graph.erase_node(node)

    def _call(self, function: Any, *args: Any) -> Any:
        node = self.graph.call_function(function, args)
        self.nodes.append(node)
        return node


def worth(layers: list[Layer]) -> None:
    """Raises Unfit where it can't win.

    Putting the weights together reads and writes them, in each forward; in the backward their gradients are parted.
    What is saved in return, beside kernels, is all but one of the readings of the input, and in the backward sums as
    large. So weights may have as many elements as that; small ones are put together in the time of a launch.
    """
    source = example(layers[0].source)
    weights = sum(example(layer.weight).numel() for layer in layers)
    known = all(type(size) is int for size in source.shape)
    saved = (len(layers) - 1) * math.prod(source.shape) if known else 0
    if weights > max(SMALL, saved):
        raise Unfit("the weights are larger than what is saved of the input")
    if example(layers[0].node).dtype not in ALLOWED:
        raise Unfit("numbers of a type for which no tolerance is known")


def written(tensor: Any) -> bool:
    """Whether the graph writes to a tensor that it made, or to a view of it: Dynamo did so with the example."""
    try:
        return bool(tensor._version)
    except RuntimeError:  # of inference_mode, which does not count
        return False


def allowed(layer: Layer, views: list[Any], width: int) -> None:
    """Run the views of an output, without values, as those of a part of something wider. Raises Unfit."""
    seen = example(layer.node)
    with unset_fake_temporarily(), FakeTensorMode(), torch.no_grad():
        whole = torch.empty((*_sizes(seen.shape[:-1]), width), dtype=seen.dtype, device=seen.device)
        values = {layer.node: whole[..., : layer.outputs]}
        for node in views:
            try:
                values[node] = _run(node, lambda one: values[one] if one in values else _stand_in(one))
            except WRONG as why:
                raise Unfit(f"{name_of(node)} needs an output that lies in one piece") from why


def differs(layers: list[Layer], made: list[Any], parts: list[Any]) -> float:
    """How far outputs of layers and of what stands for them are apart on random tensors, relative to the former."""
    seen = example(layers[0].node)
    generator = torch.Generator(seen.device).manual_seed(5)
    leaves = {node for layer in layers for node in layer[1:] if node is not None}
    values = {node: _random(example(node), node is layers[0].source, generator) for node in leaves}
    with torch.autocast(seen.device.type, dtype=seen.dtype, enabled=seen.dtype in HALF):
        for node in (*(layer.node for layer in layers), *made):
            values[node] = _run(node, values.__getitem__)
    both = ((values[layer.node], values[part]) for layer, part in zip(layers, parts, strict=True))
    return max(_apart(one, two) for one, two in both)


def _random(seen: Any, few: bool, generator: Any) -> Any:
    shape = (*(ROWS for _ in seen.shape[:-1]), seen.shape[-1]) if few else seen.shape
    return torch.randn(_sizes(shape), generator=generator, dtype=seen.dtype, device=seen.device)


def _apart(one: Any, two: Any) -> float:
    if one.shape != two.shape or one.dtype != two.dtype:
        return math.inf
    return float((two.double() - one.double()).norm() / one.double().norm())


def _run(node: Any, value: Any) -> Any:
    args = torch.fx.node.map_arg(node.args, value)
    kwargs = torch.fx.node.map_arg(dict(node.kwargs), value)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _stand_in(node: Any) -> Any:
    """What stands for another argument of a view, mostly a size."""
    seen = node.meta.get("example_value")
    if isinstance(seen, torch.Tensor):
        return torch.empty_strided(_sizes(seen.shape), _sizes(seen.stride()), dtype=seen.dtype, device=seen.device)
    return _sizes([seen])[0] if isinstance(seen, torch.SymInt) else seen


def _sizes(sizes: Any) -> list[int]:
    """Numbers for sizes, without asking for those that are not fixed, which would be recorded as a condition."""
    known = [size if type(size) is int else size.node.hint for size in sizes]
    if any(type(size) is not int for size in known):
        raise Unfit("of a size that is not known")
    return known


def _learning(graph: Any) -> set[Any]:
    """Nodes to which gradients flow from what the graph gives back."""
    found: set[Any] = set()
    todo = [node for node in graph.nodes if node.op == "output"]
    while todo:
        for node in set(todo.pop().all_input_nodes) - found:
            if _may_learn(node.meta.get("example_value")):
                found.add(node)
                todo.append(node)
    return found


def _may_learn(seen: Any) -> bool:
    if isinstance(seen, (tuple, list)):
        return any(map(_may_learn, seen))
    return seen is None or bool(getattr(seen, "requires_grad", False))


def _storages(seen: Any) -> set[int]:
    if isinstance(seen, (tuple, list)):
        return {one for part in seen for one in _storages(part)}
    plain = isinstance(seen, torch.Tensor) and seen.layout == torch.strided
    return {seen.untyped_storage()._cdata} if plain else set()


def rewrite(graph_module: Any, inputs: list[Any]) -> Report:
    """Merge linear layers in a graph and in those inside it, as checkpoints have."""
    report = Merge(graph_module, inputs).run()
    for name, inner in graph_module.named_modules():
        if name and isinstance(inner, torch.fx.GraphModule):
            more = Merge(inner, []).run()
            report.groups += more.groups
            report.layers += more.layers
            report.left += more.left
            report.unchecked += more.unchecked
    return report
