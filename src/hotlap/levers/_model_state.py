"""Not a lever: whether a model is still the one that something was recorded of."""

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from ._effects import PLAIN


class Model:
    """What a record takes for granted of a module: where its tensors lie, its other values, its parts and their hooks.

    Of lists, dictionaries and objects that a part holds, such as a config, it is what they hold themselves.

    Each call looks whether all is as it was, so loops over tensors and values are those of `map`.
    """

    def __init__(self, module: Any) -> None:
        parts = list(module.modules())
        own = [of for part in parts for of in (part._parameters, part._buffers, vars(part))]
        beside = _beside(parts)
        dicts = [*own, *beside]
        self._owners = [(of, names) for of in own if (names := _names(of, _is_tensor))]
        self._plain = [(of, names) for of in dicts if (names := _plain(of))]
        self._other = [(of, names) for of in dicts if (names := _others(of))]
        self._lists = [item for part in parts for item in vars(part).values() if type(item) is list]
        self._inside = [part._modules for part in parts if part._modules]
        hooks = [of for part in parts for of in (part._forward_hooks, part._forward_pre_hooks)]
        self._sizes = [*map(vars, parts), *beside, *(part._modules for part in parts), *hooks, *_hooks_of_all()]
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
            [list(map(id, map(of.get, names))) for of, names in self._other],
            [[item if type(item) in PLAIN else id(item) for item in items] for items in self._lists],
            [list(map(id, of.values())) for of in self._inside],
            list(map(len, self._sizes)),
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


def _plain(of: dict[str, Any]) -> list[str]:
    usual = _usual() - {"training"}
    return [name for name, item in of.items() if name not in usual and type(item) in PLAIN]


def _others(of: dict[str, Any]) -> list[str]:
    """Functions, objects, tuples: another one is another value."""
    usual = _usual()
    return [n for n, item in of.items() if n not in usual and type(item) not in PLAIN and not _is_tensor(item)]


@cache
def _usual() -> frozenset[str]:
    """What every module has."""
    import torch

    return frozenset(vars(torch.nn.Module()))


def _beside(parts: list[Any]) -> list[dict[str, Any]]:
    """Dictionaries that parts hold, and those of objects that they hold, each once."""
    import torch

    found: dict[int, dict[str, Any]] = {}
    usual = _usual()
    for item in [item for part in parts for name, item in vars(part).items() if name not in usual]:
        if isinstance(item, (torch.nn.Module, torch.Tensor, type, types.ModuleType)):
            continue
        of = item if type(item) is dict else getattr(item, "__dict__", None)
        if type(of) is dict:
            found[id(of)] = of
    return list(found.values())


def _hooks_of_all() -> tuple[Any, ...]:
    from torch.nn.modules import module as everywhere

    return everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks


def _inner(tensor: Any) -> Iterator[Any]:
    """The tensors that one of a wrapping class has its values in, or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))
