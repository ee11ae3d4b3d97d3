"""What an op is called with, and from where: its arguments by name, and the tensors among them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from .torch_internals import base_of, is_capturing, is_plain, version_of

Place = tuple[int, int, str]
"""Index into the list of files, line, function."""
Chain = tuple[Place, ...]
"""The user's frames around an op, the outermost first."""
CASTS: Final = "aten::_to_copy"
PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Of two matrices, and which argument the first of these is."""


class OpCall(NamedTuple):
    """given: what it is given, by name. written: of that, what it writes to."""

    name: str
    func: Any
    schema: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    given: dict[str, Any]
    written: list[Any]

    @classmethod
    def of(cls, name: str, func: Any, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "OpCall":
        """Arguments get their names from the schema."""
        given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
        written = [given.get(one.name) for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        return cls(name, func, schema, args, kwargs, given, written)

    @property
    def is_view(self) -> bool:
        """Whether it returns another view of what it is given, and computes nothing."""
        alias = [one.alias_info for one in self.schema.returns]
        return any(one is not None and not one.is_write for one in alias)

    @property
    def factors(self) -> int | None:
        """Which argument is the first of two matrices that it multiplies; None of another op."""
        at = PRODUCTS.get(self.name)
        return at if at is not None and all(map(is_plain, self.args[at : at + 2])) else None

    @property
    def has_weights(self) -> bool:
        """Whether one of the matrices that it multiplies is a weight."""
        at = self.factors
        return at is not None and any(map(is_weight, self.args[at : at + 2]))


def tensors(*values: Any) -> Iterator[Any]:
    """Those among values, and in lists of them."""
    for one in values:
        if isinstance(one, (list, tuple)):
            yield from tensors(*one)
        elif isinstance(one, torch.Tensor):
            yield one


def is_weight(tensor: Any) -> bool:
    """Whether it is a parameter, or a view of one."""
    return isinstance(tensor, torch.nn.Parameter) or isinstance(base_of(tensor), torch.nn.Parameter)


def version(tensor: Any) -> int:
    """How often it was written to; tensors of the inference mode don't count that."""
    return 0 if tensor.is_inference() else int(version_of(tensor))


def recording() -> bool:
    """Whether the thread records a CUDA graph, so that nothing may be computed beside it."""
    return bool(torch.cuda.is_initialized() and is_capturing())
