"""Not a lever: whether a model is still the one that something was recorded of."""

import dis
import itertools
import operator
import random
import types
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from .._internals import internals
from ._effects import PLAIN

ITERATORS: Final = (itertools.count, itertools.cycle, types.GeneratorType)
CONTAINERS: Final = (list, tuple, dict, set, deque)
MOST_INSIDE: Final = 10_000
"""Items of containers in containers that are looked at."""
MOST_GUARDS: Final = 4
"""Some models are trained with parts frozen in turns, and under autocast or not."""


class Model:
    """What a record takes for granted of a module: where its tensors lie, its other values, its parts and their hooks.

    Of lists, dictionaries and objects that a part holds, such as a config, it is what they hold themselves, and of
    containers in containers, and of numbers in objects, that too (MOST_INSIDE at most). So are numbers that its classes
    hold, and those that their code, or functions beside that, read from outside, also from lists, dictionaries and
    objects there.

    Each call looks whether all is as it was, so loops are those of `map`, over all values of a kind at once, and what
    is still the very same object is not looked at further, where it can't be another value.

    Raises TypeError where it holds tensors of other classes: those that wrap others have no address of their own.
    """

    def __init__(self, module: Any) -> None:
        import torch

        parts, inner = list(module.modules()), internals()
        usual = _usual()
        items = [item for part in parts for name, item in vars(part).items() if name not in usual]
        own = [of for part in parts for of in (inner.own_parameters(part), inner.own_buffers(part), vars(part))]
        beside = _dicts(items)
        dicts = [*own, *beside]
        outer, cells = _outer(parts)
        found = [of[name] for of, names in outer for name in names if name in of]
        found += [cell.cell_contents for cell in cells]
        cells = [cell for cell in cells if type(cell.cell_contents) in PLAIN]
        values = [*found, *(item for part in parts for item in vars(part).values())]
        lists = [item for item in values if type(item) is list]
        deep = _containers(items, beside, lists)
        lists += [one for one in deep if type(one) in {list, deque}]
        dicts += [one for one in deep if type(one) is dict]
        self._sets = [(one, frozenset(one)) for one in deep if type(one) is set]
        known = [(of, [*_data_names(of), *_others(of)]) for of in dicts]
        outside = [(of, [n for n in names if n in of and type(of[n]) in PLAIN]) for of, names in outer]
        outside += [(of, _data_names(of)) for of in _dicts(found)]
        inside = list(filter(None, map(inner.own_modules, parts)))
        self._read_tensors = _reader((of, [name for name, item in of.items() if _is_tensor(item)]) for of in own)
        self._values = _Values(_reader(known))
        self._outside = _Values(_reader(outside))  # a script may write to its globals in each step
        absent = [(of.__contains__, name) for of, names in outer for name in names if name not in of]
        self._absent = [has for has, _ in absent], [name for _, name in absent]  # such as Python's own functions
        self._parts = _Values(lambda: list(_flat(map(dict.values, inside))))
        self._loose = _Values(lambda: [*_flat(lists), *map(_contents, cells)])
        sized = [*dicts, *map(inner.own_modules, parts)]
        hooks = [*_flat(map(inner.hooks_of, parts)), *inner.hooks_of_all()]  # nothing is recorded with any
        self._sized, self._lists = list(filter(None, sized)), lists
        self._sizes, self._lengths = list(map(len, self._sized)), list(map(len, lists))
        self._empty = [*hooks, *(of for of in sized if not of)]
        self.draws = any(map(_generator, [*found, *(item for of in dicts for item in of.values())]))
        """Whether there is a generator of random numbers of its own, or an iterator: where it stands can't be seen."""
        now = self._read_tensors()
        for tensor in now:
            if type(tensor).__name__ not in {"Tensor", "Parameter"}:
                raise TypeError(f"it contains a tensor of class {type(tensor).__name__}")
        self._address: Callable[[Any], int] = torch.Tensor.data_ptr
        self._kinds_of = torch.Tensor.size, torch.Tensor.stride, operator.attrgetter("dtype")
        self._addresses, self._kinds = list(map(self._address, now)), self._kinds_in(now)
        self._tensors: list[Any] = []
        self._once: list[Any] = []
        self._guards: list[Any] = []

    @property
    def tensors(self) -> list[Any]:
        """Its parameters, buffers and other attributes."""
        return _each_once(self._read_tensors())

    def same(self) -> bool:
        """Whether all is as it was."""
        try:
            now = self._read_tensors()
            return (
                self._addresses == list(map(self._address, now))
                and self._parts.same()
                and self._values.same()
                and self._outside.same()
                and not any(self._empty)
                and self._sizes == list(map(len, self._sized))
                and not any(map(operator.call, *self._absent))
                and self._lengths == list(map(len, self._lists))
                and self._loose.same()
                and all(now == was for now, was in self._sets)
                and self._same_kinds(now)
            )
        except (TypeError, LookupError, ValueError):  # something is not there, or a cell of a function is empty
            return False

    def _kinds_in(self, tensors: list[Any]) -> list[Any]:
        return [list(map(kind, tensors)) for kind in self._kinds_of]

    def _same_kinds(self, now: list[Any]) -> bool:
        """Whether tensors have the sizes that they had, and so on. A guard asks that of all at once, and whether the
        same ones need a gradient; it knows one state of the thread, such as autocast, so there are some."""
        known = self._tensors
        if now is not known and (len(now) != len(known) or not all(map(operator.is_, now, known))):
            self._tensors, self._once, self._guards = [], [], []
            if not all(tensor.is_leaf for tensor in now):  # to keep them would keep a graph
                return self._kinds == self._kinds_in(now)
            self._tensors, self._once = now, _each_once(now)
        if not any(guard.check(*self._once) for guard in self._guards):
            if self._kinds != self._kinds_in(now):
                return False
            found = internals().tensor_guard(self._once)
            self._guards = [guard for guard in (found, *self._guards[: MOST_GUARDS - 1]) if guard is not None]
        return True


def _reader(pairs: Iterable[tuple[Any, list[str]]]) -> Callable[[], list[Any]]:
    """Gives what is now under names in dictionaries, some of it twice. Raises KeyError where nothing is."""
    found = [(of, names) for of, names in pairs if names]
    dicts = [of for of, _ in found]
    # Of one name alone, `itemgetter` would not make a tuple.
    getters = [operator.itemgetter(*names, *names[: len(names) == 1]) for _, names in found]
    return lambda: list(_flat(map(operator.call, getters, dicts)))


class _Values:
    """Values that are to stay: numbers, words and flags as they are, all else the same objects."""

    def __init__(self, now: Callable[[], list[Any]]) -> None:
        self._now, self._was = now, now()

    def same(self) -> bool:
        now, was = self._now(), self._was
        if len(now) != len(was):
            return False
        if not all(map(operator.is_, now, was)):
            if not all(map(_alike, now, was)):
                return False
            self._was = now
        return True


_flat = itertools.chain.from_iterable
_contents = operator.attrgetter("cell_contents")


def _alike(one: Any, other: Any) -> bool:
    kind = type(one)
    if one is other or kind is not type(other) or kind not in PLAIN:
        return one is other
    return bool(repr(one) == repr(other) if kind in {float, complex} else one == other)  # -0.0 is another number


def _each_once(tensors: list[Any]) -> list[Any]:
    """A guard takes no tensor twice, as tied weights are."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def _generator(item: Any) -> bool:
    import torch

    numpy = type(item).__module__.startswith("numpy.random") and hasattr(item, "shuffle")
    return numpy or isinstance(item, (random.Random, torch.Generator)) or type(item) in ITERATORS


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


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)


def _data_names(of: dict[str, Any]) -> list[str]:
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


def _dicts(items: list[Any]) -> list[dict[str, Any]]:
    """Those among them, and those of objects, each once."""
    import torch

    found: dict[int, dict[str, Any]] = {}
    for item in items:
        if isinstance(item, (torch.nn.Module, torch.Tensor, type, types.ModuleType)):
            continue
        of = item if type(item) is dict else getattr(item, "__dict__", None)
        if type(of) is dict:
            found[id(of)] = of
    return list(found.values())


def _containers(contents: list[Any], dicts: list[dict[str, Any]], lists: list[Any]) -> list[Any]:
    """Containers within those that parts hold, and of the objects that they hold those of nothing but numbers, words
    and flags: a trainer holds all sorts of things that change. dicts: those that parts hold and those of objects
    there; they are known already, as are lists."""
    known, own = set(map(id, [*lists, *dicts])), set(map(id, contents))
    waiting = [item for item in contents if type(item) in CONTAINERS]
    objects = [of for of in dicts if id(of) not in own]
    waiting += [c for of in objects for c in of.values() if type(c) in CONTAINERS and _all_data(c)]
    found, looked = [], 0
    while waiting and looked < MOST_INSIDE:
        one = waiting.pop()
        inside = list(one.values()) if type(one) is dict else list(one)
        looked += len(inside) + 1
        if id(one) not in known and type(one) is not tuple:
            found.append(one)
        known.add(id(one))
        waiting += [item for item in inside if type(item) in CONTAINERS and id(item) not in known]
    return found


def _all_data(container: Any) -> bool:
    return all(type(item) in PLAIN for item in (container.values() if type(container) is dict else container))
