"""Not a lever: the arguments of a call, taken apart."""

from typing import Any, Final, NamedTuple

from .._base import Unfit
from .._internals import internals

Key = tuple[Any, ...]
ODD: Final = (RuntimeError, TypeError, AttributeError, LookupError, ValueError)
"""What may go wrong where models, arguments and outputs are looked at."""


class Inputs(NamedTuple):
    """Arguments of a call. form: all but the tensors' values, by which calls are told apart."""

    form: Key
    tensors: list[Any]


def read(args: Any, kwargs: Any) -> Inputs:
    """Take arguments apart. Raises Unfit for what is neither a tensor, a number, a word nor a nest of these."""
    found: list[Any] = []
    form = _form(args, found), _form(kwargs, found)
    which = [id(tensor) for tensor in found]
    return Inputs((*form, *map(which.index, which)), found)  # a forward may ask whether two are the same


def _form(value: Any, found: list[Any]) -> Any:
    import torch

    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise Unfit(f"its inputs have a tensor of layout {value.layout}")
        if any(not name.startswith(internals().COMPILERS_MARK) for name in vars(value)):
            raise Unfit("its inputs have tensors with attributes of their own")
        found.append(value)
        return kind, tuple(value.shape), value.stride(), value.dtype, value.device
    if kind in {tuple, list}:
        return (kind, *[_form(item, found) for item in value])
    if kind is dict:
        return (kind, *[(name, _form(item, found)) for name, item in value.items()])
    if value is None or kind in {bool, int, float, str} or kind in {torch.dtype, torch.device}:
        return kind, value
    raise Unfit(f"its inputs have an object of class {kind.__qualname__}")
