"""Masks whose values can be known when a graph is compiled, and the guard that they stay so.

A mask is constant where it is made of numbers alone (`tril(ones(T, T))`) or of tensors that a module holds (a buffer
`mask[:, :, :T, :T] == 0`). The values of the second kind may be changed by the script later: the guard looks at their
versions and addresses before each outermost forward, and at the bytes where these have changed.
"""

import hashlib
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from hotlap.agent.torch_internals import own_buffers, version_of

from ._find import computed, op, writes

NEVER: Final = -1e4
"""A score at or below this has a weight of exactly 0 in float32 beside any score above NEVER + 104."""
MOST_ELEMENTS: Final = 1 << 28
OF_ONE_MODULE: Final = re.compile(r"L\['(reference|forward)'\](\(\)|\.__closure__)")
"""How Dynamo writes what it reached from the outermost module itself (`agent/hooks/forward.py` and the levers' wraps
hold it in these variables). From anywhere else, such as a method compiled by itself after a graph break, the same code
runs for every module of the class: masks are passed as they are there."""


class Varies(Exception):
    """The value is not known when the graph is compiled."""


KNOWN: Final = {
    "ones", "zeros", "full", "arange", "tensor", "eye", "ones_like", "zeros_like", "full_like",
    "new_ones", "new_zeros", "new_full", "tril", "triu", "tril_indices",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "invert", "bitwise_not", "not_",
    "bitwise_and", "bitwise_or", "and_", "or_", "to", "bool", "float", "half", "bfloat16", "double", "int", "long",
    "type", "type_as", "neg", "unsqueeze", "contiguous", "detach", "clone",
    "getitem", "view", "reshape", "expand", "expand_as", "squeeze", "transpose", "permute", "t", "repeat", "flip",
    "masked_fill", "where", "add", "sub", "rsub", "mul", "div", "abs", "sqrt", "cumsum", "flatten", "log", "exp", "pow",
}  # fmt: skip
"""Functions that compute a mask from numbers and other masks."""


@dataclass
class Guarded:
    """A tensor that a module holds under a name, as it was when its values were looked at."""

    owner: Callable[[], Any]
    name: str
    tensor: Callable[[], Any]
    version: int
    address: int
    digest: bytes

    def same(self) -> bool:
        """Whether it has the same values; about a microsecond where nothing was written and nothing replaced."""
        owner = self.owner()
        if owner is None:
            return True  # the module is gone, and with it the code
        tensor = own_buffers(owner).get(self.name) if self.name in own_buffers(owner) else vars(owner).get(self.name)
        known = tensor is not None and tensor is self.tensor()
        if known and version_of(tensor) == self.version and tensor.data_ptr() == self.address:
            return True
        if type(tensor) is not torch.Tensor or tensor.is_inference() or digest(tensor) != self.digest:
            return False
        self.tensor, self.version, self.address = weakref.ref(tensor), version_of(tensor), tensor.data_ptr()
        return True


def digest(tensor: Any) -> bytes:
    """Of a tensor's shape, type and values."""
    host = tensor.detach().cpu().contiguous()
    shape = f"{tuple(host.shape)} {host.dtype}".encode()
    return hashlib.blake2b(shape + host.reshape(-1).view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


Relied = dict[tuple[int, str], Guarded]
"""By the module's identity and the name."""


Place = tuple[Any, str]
"""A module and the name under which it holds a tensor."""


def holders(roots: list[Any]) -> dict[int, list[Place]]:
    """Tensors that modules hold and that are not trained: by identity, where."""
    found: dict[int, list[Place]] = {}
    for root in roots:
        for module in root.modules():
            for name, value in [*module.__dict__.items(), *own_buffers(module).items()]:
                if type(value) is torch.Tensor and not value.requires_grad and not value.is_inference():
                    found.setdefault(id(value), []).append((module, name))
    return found


@dataclass
class Constants:
    """Computes nodes of a graph whose values are known now. inputs: of the graph's first call, by placeholder."""

    inputs: dict[Any, Any]
    held_by: dict[int, list[Place]]
    known: dict[Any, tuple[Any, Relied]] = field(default_factory=dict)

    def value(self, node: Any) -> tuple[Any, Relied]:
        """The value, and the held tensors it comes from. Raises Varies."""
        if node not in self.known:
            self.known[node] = self._value(node)
        return self.known[node]

    def _value(self, node: Any) -> tuple[Any, Relied]:
        if node.op == "placeholder":
            return self._placeholder(node)
        name = op(node)
        if writes(node) and len(node.all_input_nodes[0].users) != 1:
            raise Varies(f"{name} in place")
        if name not in KNOWN:
            raise Varies(name)
        known = {one: self.value(one) for one in node.all_input_nodes}
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda one: known[one][0])
        guarded = {place: one for _, relied in known.values() for place, one in relied.items()}
        try:
            value = computed(node, args, kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise Varies(str(error)) from error
        if isinstance(value, torch.Tensor) and value.numel() > MOST_ELEMENTS:
            raise Varies("too large to look at")
        return value, guarded

    def _placeholder(self, node: Any) -> tuple[Any, Relied]:
        """A buffer or an attribute of a module, by identity and by where Dynamo found it."""
        tensor: Any = self.inputs.get(node)
        places = self.held_by.get(id(tensor), [])
        source = getattr(node.meta.get("grapharg"), "source", None)
        path = getattr(source, "name", "")
        path = path() if callable(path) else path
        if not any(path.endswith((f"._buffers['{name}']", f".{name}")) for _, name in places):
            raise Varies("an input of the script")
        if any(writes(user) for user in node.users):
            raise Varies("written in the forward")
        if not OF_ONE_MODULE.match(path):
            raise Varies("code that serves several modules")
        now = version_of(tensor), tensor.data_ptr(), digest(tensor)
        return tensor, {
            (id(owner), name): Guarded(weakref.ref(owner), name, weakref.ref(tensor), *now) for owner, name in places
        }


def is_causal(keep: Any) -> bool:
    """Whether a square mask (True: may attend) is the lower triangle with its diagonal."""
    size = keep.shape[0]
    return keep.shape[1] == size and bool(torch.equal(keep, torch.ones_like(keep).tril()))
