"""Not a lever: tensors that a compiled forward makes of Python's numbers are kept on the device.

`torch.tensor([0, 2, 5])` on the host as an index of a tensor on the device, `x[:, [0, 2, 5]]`, `torch.tensor(numbers,
device=x.device)` and `.to(x.device)` of such a tensor: the compiler keeps their values on the host and copies them in
each call, which a CUDA graph may not hold. Here the graph holds them as buffers on the device. To code that compiles
nothing the lever `constant-tensors` does the same.
"""

import operator
import weakref
from typing import Any, Final

from ._constants import MOST_BYTES, NUMBERS
from ._graph import hold

AWAY: Final = ("cuda",)
"""Types of devices to which a copy is made."""
MAKERS: Final = ("tensor", "as_tensor", "tril_indices", "triu_indices")
"""Functions of torch that make a tensor of numbers."""
NAME: Final = "hotlap_constant"
KEPT_OF: Final["weakref.WeakSet[Any]"] = weakref.WeakSet()
"""Models whose forward is compiled with this pass."""


def keep_on_device(graph_module: Any, inputs: list[Any]) -> None:
    """A pass over a graph as Dynamo captured it."""
    Folding(graph_module).run()


class Folding:
    """One graph. made: the nodes whose values are known, with them, on the host."""

    def __init__(self, graph_module: Any) -> None:
        self.module, self.graph = graph_module, graph_module.graph
        self.made: dict[Any, Any] = {}
        self.count = 0

    def run(self) -> None:
        """Find what is made of numbers, and put what is kept in its places."""
        for node in list(self.graph.nodes):
            value = self._value(node)
            if value is not None and _read_only(node):
                self.made[node] = value
            elif value is not None:  # what it is later depends on what is written to it
                self._whole(node, value)
            elif node.op == "call_function" and node.target in {operator.getitem, operator.setitem}:
                self._index(node)
            elif node.op == "call_method" and node.target in {"to", "cuda"} and node.args[0] in self.made:
                self._whole(node, self.made[node.args[0]])
        for node, value in reversed(self.made.items()):
            if not node.users:
                self.graph.erase_node(node)
            elif not isinstance(value, tuple):
                self._whole(node, value)
        if self.count:
            self.graph.lint()
            self.module.recompile()

    def _value(self, node: Any) -> Any:
        """What a node makes of numbers alone, or takes of what was made of them; None where that is not known."""
        import torch

        if node.op == "call_method" and node.target == "unbind" and node.args[0] in self.made:
            return self.made[node.args[0]].unbind(*node.args[1:])
        if node.op != "call_function":
            return None
        if node.target is operator.getitem and node.args[0] in self.made and _plain(node.args[1]):
            return self.made[node.args[0]][node.args[1]]
        if node.target not in {getattr(torch, name) for name in MAKERS} or not _plain(node.args):
            return None
        named = {name: value for name, value in node.kwargs.items() if name != "device"}
        if named.keys() - {"dtype"} or "example_value" not in node.meta:
            return None
        value = node.target(*node.args, **named, device="cpu")
        example = node.meta["example_value"]
        fits = value.numel() * value.element_size() <= MOST_BYTES and value.dim() > 0
        return value if fits and (value.shape, value.dtype) == (example.shape, example.dtype) else None

    def _index(self, node: Any) -> None:
        """An index of a tensor on the device."""
        source, index = node.args[:2]
        example = getattr(source, "meta", {}).get("example_value")
        device = getattr(example, "device", None)
        if device is None or device.type not in AWAY:
            return
        items = index if isinstance(index, tuple) else (index,)
        moved = tuple(self._on(node, item, device) for item in items)
        if any(new is not old for new, old in zip(moved, items, strict=True)):
            changed = moved if isinstance(index, tuple) else moved[0]
            node.args = (source, changed, *node.args[2:])

    def _on(self, node: Any, item: Any, device: Any) -> Any:
        """What stands for one item of an index."""
        import torch

        if isinstance(item, list) and item and {type(number) for number in item} == {int}:
            return self._held(node, torch.tensor(list(item), device="cpu"), device)
        value = self.made.get(item) if isinstance(item, torch.fx.Node) else None
        if value is None or value.dtype not in {torch.int64, torch.int32} or not value.dim():  # a number the host reads
            return item
        return self._held(node, value, device)

    def _whole(self, node: Any, value: Any) -> None:
        """A tensor on the device that the script may write to."""
        example = node.meta.get("example_value")
        if example is None or example.device.type not in AWAY or example.shape != value.shape:
            return
        source = self._held(node, value.to(example.dtype), example.device)
        with self.graph.inserting_before(node):
            own = self.graph.call_method("clone", (source,))
        own.meta = dict(node.meta)
        node.replace_all_uses_with(own)
        self.graph.erase_node(node)

    def _held(self, before: Any, value: Any, device: Any) -> Any:
        """A node of a buffer with this value."""
        name = f"{NAME}_{self.count}"
        self.count += 1
        tensor = value.to(device, copy=True)
        hold(self.module, name, tensor)
        with self.graph.inserting_before(before):
            node = self.graph.get_attr(name)
        node.meta["example_value"] = tensor
        return node


def _plain(data: Any) -> bool:
    """Whether it is a number, a slice of them, or a nest of either."""
    if isinstance(data, (list, tuple)):
        return all(map(_plain, data))
    if isinstance(data, slice):
        return all(part is None or type(part) is int for part in (data.start, data.stop, data.step))
    return type(data) in NUMBERS


def _read_only(node: Any) -> bool:
    """Whether what a node makes on the host is only an index, a copy's source, or a part of it is."""
    return all(_reads(user, node) for user in node.users)


def _reads(user: Any, node: Any) -> bool:
    if user.op == "call_method" and user.target == "unbind":
        return not user.kwargs and _plain(user.args[1:]) and _read_only(user)
    if user.op == "call_method":
        return user.target in {"to", "cuda"} and user.args[0] is node and _moves(user, node)
    if user.op != "call_function" or user.target not in {operator.getitem, operator.setitem}:
        return False
    if user.args[0] is node:
        return user.target is operator.getitem and _plain(user.args[1]) and _read_only(user)
    return user.target is operator.getitem or user.args[2] is not node


def _moves(user: Any, node: Any) -> bool:
    """Whether the result is on another device, and so a copy."""
    one, other = (of.meta.get("example_value") for of in (node, user))
    return one is not None and other is not None and one.device != other.device
