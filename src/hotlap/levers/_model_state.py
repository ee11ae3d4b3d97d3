"""Not a lever: whether a model is still the one that something was recorded of."""

from collections.abc import Callable, Iterator
from typing import Any

from ._effects import PLAIN


class Model:
    """What a record takes for granted of a module: where its tensors lie, its other values, its parts and their hooks.

    Each call looks whether all is as it was, so loops over tensors and values are those of `map`.
    """

    def __init__(self, module: Any) -> None:
        parts = list(module.modules())
        dicts = [of for part in parts for of in (part._parameters, part._buffers, vars(part))]
        self._owners = [(of, names) for of in dicts if (names := _names(of, _is_tensor))]
        self._plain = [(of, names) for of in dicts if (names := _names(of, lambda item: type(item) in PLAIN))]
        self._inside = [part._modules for part in parts if part._modules]
        self._hooks = [of for part in parts for of in (part._forward_hooks, part._forward_pre_hooks)]
        # Classes of tensors that wrap others have no address of their own, and other values only by being another.
        whole = all(type(tensor).__name__ in {"Tensor", "Parameter"} for tensor in self._held())
        self._address: Callable[[Any], int] = _data_ptr() if whole else id
        self._was = self._now()

    def _held(self) -> list[Any]:
        return [tensor for of, names in self._owners for tensor in map(of.get, names)]

    @property
    def tensors(self) -> list[Any]:
        """Its parameters, buffers and other attributes; of quantized ones what they consist of."""
        return [inner for tensor in self._held() for inner in _inner(tensor)]

    def _now(self) -> tuple[Any, ...]:
        return (
            [list(map(self._address, map(of.get, names))) for of, names in self._owners],
            [list(map(of.get, names)) for of, names in self._plain],
            [list(map(id, of.values())) for of in self._inside],
            list(map(len, self._hooks)),
        )

    def same(self) -> bool:
        """Whether all is as it was."""
        try:
            return self._was == self._now()
        except TypeError:  # what was a tensor is none
            return False


def _data_ptr() -> Callable[[Any], int]:
    import torch

    return torch.Tensor.data_ptr  # type: ignore[no-any-return]


def _names(of: dict[str, Any], wanted: Callable[[Any], bool]) -> list[str]:
    return [name for name, item in of.items() if wanted(item)]


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)


def _inner(tensor: Any) -> Iterator[Any]:
    """The tensors that one of a wrapping class has its values in, or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))
