"""Not a lever: whether a model is still the one that something was recorded of."""

import dis
import operator
import random
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from ._effects import PLAIN, hooks_of, hooks_of_all


class Model:
    """What a record takes for granted of a module: where its tensors lie, its other values, its parts and their hooks.

    Of lists, dictionaries and objects that a part holds, such as a config, it is what they hold themselves; so are
    numbers that its classes hold, and those that their code, or functions beside that, read from outside, also from
    lists, dictionaries and objects there.

    Each call looks whether all is as it was, so loops are those of `map`, over all values of a kind at once.
    """

    def __init__(self, module: Any) -> None:
        parts = list(module.modules())
        own = [of for part in parts for of in (part._parameters, part._buffers, vars(part))]
        beside = _beside(parts)
        dicts = [*own, *beside]
        outer, self._cells = _outer(parts)
        found = [of[name] for of, names in outer for name in names if name in of]
        found += [cell.cell_contents for cell in self._cells]
        self._cells = [cell for cell in self._cells if type(cell.cell_contents) in PLAIN]
        self._held = _Places((of, _names(of, _is_tensor)) for of in own)
        plain = [(of, _plain(of)) for of in dicts]
        plain += [(of, [n for n in names if type(of.get(n)) in PLAIN]) for of, names in outer]
        plain += [(of, _plain(of)) for of in _dicts(found)]
        self._plain = _Places(plain)
        self._other = _Places((of, _others(of)) for of in dicts)
        values = [*found, *(item for part in parts for item in vars(part).values())]
        self._lists = [item for item in values if type(item) is list]
        self._inside = [part._modules for part in parts if part._modules]
        self._hooks = [
            *(of for part in parts for of in hooks_of(part)),
            *hooks_of_all(),
        ]  # nothing is recorded with any
        self._sizes = [*map(vars, parts), *beside, *(part._modules for part in parts)]
        self.draws = any(map(_generator, [*found, *(item for of in dicts for item in of.values())]))
        """Whether there is a generator of random numbers of its own."""
        # Classes of tensors that wrap others have no address of their own, and other values only by being another.
        whole = all(type(tensor).__name__ in {"Tensor", "Parameter"} for tensor in self._held.values())
        self._address: Callable[[Any], int] = _data_ptr() if whole else id
        self._sizes_of: tuple[Callable[[Any], Any], ...] = _shape() if whole else ()
        self._was = self._now()

    @property
    def tensors(self) -> list[Any]:
        """Its parameters, buffers and other attributes; of quantized ones what they consist of."""
        return [inner for tensor in self._held.values() for inner in _inner(tensor)]

    def _now(self) -> tuple[Any, ...]:
        tensors = self._held.values()
        return (
            list(map(self._address, tensors)),
            [list(map(size, tensors)) for size in self._sizes_of],
            self._plain.values(),
            list(map(id, self._other.values())),
            [[item if type(item) in PLAIN else id(item) for item in items] for items in self._lists],
            [cell.cell_contents for cell in self._cells],
            [list(map(id, of.values())) for of in self._inside],
            list(map(len, self._sizes)),
        )

    def same(self) -> bool:
        """Whether all is as it was."""
        try:
            return not any(self._hooks) and self._was == self._now()
        except TypeError:  # what was a tensor is none
            return False


class _Places:
    """Names in dictionaries."""

    def __init__(self, pairs: Iterable[tuple[Any, list[str]]]) -> None:
        both = [(of.get, name) for of, names in pairs for name in names]
        self._get, self._names = [get for get, _ in both], [name for _, name in both]

    def values(self) -> list[Any]:
        """What is there now, None where nothing is."""
        return list(map(operator.call, self._get, self._names))


def _data_ptr() -> Callable[[Any], int]:
    import torch

    return torch.Tensor.data_ptr  # type: ignore[no-any-return]


def _shape() -> tuple[Callable[[Any], Any], ...]:
    import torch

    return torch.Tensor.size, torch.Tensor.stride


def _generator(item: Any) -> bool:
    import torch

    numpy = type(item).__module__.startswith("numpy.random") and hasattr(item, "shuffle")
    return numpy or isinstance(item, (random.Random, torch.Generator))


def _outer(parts: list[Any]) -> tuple[list[tuple[Any, list[str]]], list[types.CellType]]:
    """Where the classes of the parts, other than torch's own, and their code look for values outside of the model:
    dictionaries with the names there, and cells of functions around them."""
    kinds = {kind for part in parts for kind in type(part).__mro__ if not f"{kind.__module__}.".startswith("torch.")}
    kinds.discard(object)
    todo = [f for kind in kinds for f in vars(kind).values() if isinstance(f, types.FunctionType)]
    seen: set[types.CodeType] = set()
    cells: list[types.CellType] = []
    names: dict[int, tuple[Any, dict[str, None]]] = {
        id(k): (vars(k), dict.fromkeys(n for n in vars(k) if not n.startswith("__"))) for k in kinds
    }
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        cells += function.__closure__ or ()
        of, found = function.__globals__, _global_names(function.__code__)
        names.setdefault(id(of), (of, {}))[1].update(dict.fromkeys(found))
        others = [of.get(name) for name in found]
        todo += [f for f in others if isinstance(f, types.FunctionType) and f.__globals__ is of]
    return [(of, list(found)) for of, found in names.values()], [cell for cell in cells if _filled(cell)]


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not NotImplemented
    except ValueError:  # nothing was ever put in
        return False


def _global_names(code: types.CodeType) -> set[str]:
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    inside = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return names.union(*map(_global_names, inside))


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
    usual = _usual()
    return _dicts([item for part in parts for name, item in vars(part).items() if name not in usual])


def _dicts(items: list[Any]) -> list[dict[str, Any]]:
    """Those among them, and those of objects."""
    import torch

    found: dict[int, dict[str, Any]] = {}
    for item in items:
        if isinstance(item, (torch.nn.Module, torch.Tensor, type, types.ModuleType)):
            continue
        of = item if type(item) is dict else getattr(item, "__dict__", None)
        if type(of) is dict:
            found[id(of)] = of
    return list(found.values())


def _inner(tensor: Any) -> Iterator[Any]:
    """The tensors that one of a wrapping class has its values in, or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))
