"""Not a lever: what a forward does beside returning something, seen while it runs once.

A dispatch mode sees every op of torch's: which tensors from outside are read and written, and where the host waits for
a value. What is no op of torch's (kernels of other libraries that are called directly, files, Python objects outside of
the model) is not seen.
"""

import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .._internals import internals
from .._nested import tensors as leaves

DEEPEST: Final = 6
MOST: Final = 100_000
WAITS: Final = ("item", "is_nonzero", "equal", "allclose")
"""Ops whose result is a Python value, by their own name; torch tags those that they consist of."""
OUT: Final = ("tolist", "numpy", "__array__")
"""Methods that read values with no op, where the tensor is on the host."""
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


@dataclass
class Effects:
    """Of one forward. read: tensors that were not made inside of it, one for each storage; written: storages of them
    that were written to; waits: the op for which the host waited, "" none; draws: it drew random numbers;
    draws_on_host: other ones than from the device's default generator; leaves: it left new tensors, or other numbers
    and words, in the model or in its arguments; hooked: modules have hooks, or it puts some on tensors; odd: what is
    not seen of its tensors: a layout without a storage, an operator of several, "" none."""

    read: dict[int, Any] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    waits: str = ""
    draws: bool = False
    draws_on_host: bool = False
    leaves: bool = False
    hooked: bool = False
    odd: str = ""


def watched(module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Effects]:
    """The output of a forward, run eagerly also where something in it is compiled, and what else it did."""
    import torch

    from hotlap.agent.probe import random_state

    numpy = sys.modules.get("numpy.random")  # where it is loaded only now, nobody can have drawn from it before
    effects, others = Effects(), _other_random_states(numpy)
    hooks = [*internals().hooks_of_all(), *(one for part in module.modules() for one in internals().hooks_of(part))]
    effects.hooked = any(hooks)
    before, words, drawn = tensors((module, args, kwargs)), _plain_values(module), random_state()
    # What is compiled runs as it was written. Where nothing is, the compiler is not even imported.
    compiled = internals().compiler_loaded()
    eagerly = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    with eagerly, _hooks(effects), _watch(effects):
        output = forward(*args, **kwargs)
    host, device = (a is not None and not torch.equal(a, b) for a, b in zip(drawn, random_state(), strict=True))
    effects.draws_on_host = host or _other_random_states(numpy) != others
    effects.draws = device or effects.draws_on_host
    after = tensors((module, args, kwargs))
    effects.leaves = bool(after.keys() - before.keys()) or words != _plain_values(module)
    return output, effects


def _other_random_states(numpy: Any) -> tuple[Any, ...]:
    """Of Python's own generator, and NumPy's where the script uses that."""
    name, keys, *more = numpy.get_state() if numpy is not None else ("", b"")
    return random.getstate(), name, bytes(keys), more


def _watch(effects: Effects) -> Any:
    import torch

    from hotlap.agent.torch_internals import DispatchMode, HigherOrderOperator, schema_of

    values_of = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

    class Watch(DispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()
            self.made: set[int] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if isinstance(func, HigherOrderOperator):  # what it consists of is not seen
                effects.odd = effects.odd or f"those of {func.name()}"
                return func(*args, **kwargs)
            name = str(schema_of(func).name)
            given = [(storage(t), t) for t in leaves((args, kwargs))]
            effects.odd = effects.odd or next((f"layout {t.layout}" for _, t in given if t.layout != torch.strided), "")
            if name.startswith("aten::lift_fresh"):  # what `torch.tensor` made of Python's values
                self.made |= {key for key, _ in given}
            for key, tensor in given:
                if key not in self.made:
                    effects.read.setdefault(key, tensor)
            by_value = values_of & set(func.tags) and not _by_integers(func, args)
            if by_value or name.removeprefix("aten::") in WAITS:
                effects.waits = effects.waits or name
            for at, argument in enumerate(schema_of(func).arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written = leaves(args[at] if at < len(args) else kwargs.get(argument.name))
                    effects.written |= set(map(storage, written)) - self.made
            output = func(*args, **kwargs)
            known = {key for key, _ in given}
            seeds = name.startswith("aten::_scaled_dot_product")  # on the host, and of the host
            for tensor in leaves(output):
                if storage(tensor) not in known:
                    self.made.add(storage(tensor))
                if any(t.device != tensor.device and t.dim() for _, t in given) and not seeds:
                    effects.waits = effects.waits or f"{name} from one device to another"
            return output

    return Watch()


def _by_integers(func: Any, args: Any) -> bool:
    """Whether it is `x[rows]`, which gives as many as there are rows; by truth values, as many as are true."""
    import torch

    masks = (torch.bool, torch.uint8)
    schema = internals().schema_of(func)
    return schema.name == "aten::index" and all(by is None or by.dtype not in masks for by in args[1])


def _hooks(effects: Effects) -> Any:
    """Sees hooks that are put on tensors, and values that become Python's without an op."""
    from torch.overrides import TorchFunctionMode

    class Hooks(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            effects.hooked |= name in {"register_hook", "retain_grad"}
            effects.waits = effects.waits or (name if name in OUT else "")
            return func(*args, **(kwargs or {}))

    return Hooks()


def storage(tensor: Any) -> int:
    """Tells storages apart, while they live; a tensor that has none (sparse) from all others."""
    return int(internals().storage(tensor))


def _plain_values(module: Any) -> list[Any]:
    """The numbers, words and flags that a model and its parts hold."""
    return [item for part in module.modules() for item in vars(part).values() if type(item) in PLAIN]


def tensors(value: Any) -> dict[int, Any]:
    """Tensors that can be reached from a value, by identity: DEEPEST objects deep, among the first MOST objects."""
    import torch

    found: dict[int, Any] = {}
    seen: set[int] = set()
    level = [value]
    for _ in range(DEEPEST):
        inside: list[Any] = []
        for item in level:
            if isinstance(item, torch.Tensor):
                found[id(item)] = item
            elif id(item) not in seen and len(seen) < MOST:
                seen.add(id(item))
                inside += _inside(item)
        level = inside
    return found


def _inside(value: Any) -> list[Any]:
    """What an object holds: items, attributes, and of a module those of all its parts."""
    import torch

    if isinstance(value, torch.nn.Module):
        parts = internals().PARTS
        return [item for part in value.modules() for name, item in vars(part).items() if name != parts]
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, (type, str)):
        return []
    return list((value if isinstance(value, dict) else getattr(value, "__dict__", {})).values())


def strange(value: Any) -> str:
    """The class of something in an output that `each_tensor` does not look into and that may hold tensors, if any."""
    import torch

    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return next((found for item in items if (found := strange(item))), "")
    known = value is None or isinstance(value, (torch.Tensor, int, float, complex, str))
    return "" if known else type(value).__qualname__
