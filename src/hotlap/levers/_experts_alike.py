"""Not a lever: experts of one structure, and one of them that computes all: its linear layers stand for those of all.

What else an expert does has to be the same for each row and of that row alone. Whether it is, is seen in one run: each
op has to be elementwise, or one of a few that leave the rows where they are.
"""

import dis
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.agent.reach import reachable

from ._effects import PLAIN, hooks_of, hooks_of_all, storage, values, written_by
from ._experts_plan import Layout, Linear, has_grouped
from ._training_call import tensors

STORES: Final = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"})
KEEPERS: Final = frozenset({"append", "extend", "insert", "update", "setdefault", "pop", "print", "register_buffer"})
"""Names of what leaves something behind in a list, or on the screen, once for each expert."""
KEEP_ROWS: Final = frozenset(
    {"view", "_unsafe_view", "reshape", "alias", "detach", "clone", "_to_copy", "contiguous", "expand"}
)
BY_DIM: Final = {"split": 2, "split_with_sizes": 2, "slice": 1, "unsqueeze": 1, "squeeze": 1, "glu": 1, "cat": 1}
"""Ops of one dimension, which must not be that of the rows, and the argument that it is."""
MAKES: Final = ("zeros_like", "ones_like", "full_like", "empty_like", "scalar_tensor", "lift_fresh", "full")


class Unlike(Exception):
    """Why experts can't be computed at once."""


class At:
    """layout: of the rows that the stand-in computes now; inside: a linear layer is computed."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.inside = 0


class StandIn:
    """Computes all experts at once. grouped: torch has a product for it."""

    def __init__(self, experts: Sequence[Any]) -> None:
        self.experts = len(experts)
        self.at = At()
        layers = [part for part in experts[0].modules() if type(part) is torch.nn.Linear]
        sizes = {size for part in layers for size in (part.in_features, part.out_features)}
        self.grouped = bool(layers) and has_grouped(layers[0].weight.device, sorted(sizes))
        self.modules = {mode: _copy(list(experts), self.at, mode, {}) for mode in (False, True)}

    def __call__(self, rows: Any, layout: Layout, training: bool) -> Any:
        self.at.layout = layout
        answers = self.modules[training](rows)
        self.at.layout = None
        return answers


def _copy(experts: list[Any], at: At, training: bool, known: dict[int, Any]) -> Any:
    """The first of modules at one place, with stand-ins for its linear layers; it shares all else."""
    first = experts[0]
    if id(first) in known:
        return known[id(first)]
    if type(first) is torch.nn.Linear:
        known[id(first)] = Linear(experts, at)
        return known[id(first)]
    copy = known[id(first)] = object.__new__(type(first))
    vars(copy).update(vars(first))
    parts = {name: [one._modules[name] for one in experts] for name in first._modules}
    made = {name: None if of[0] is None else _copy(of, at, training, known) for name, of in parts.items()}
    vars(copy).update(training=training, _modules=made)
    return copy


def alike(experts: Sequence[Any], root: Any) -> None:
    """Raises Unlike where experts differ, or are not made of linear layers and what has no state."""
    if len(experts) < 2:
        raise Unlike("there are fewer than two experts")
    _same(list(experts), type(experts[0]).__name__)
    uses: dict[int, int] = {}
    for _, tensor in root.named_parameters(remove_duplicate=False):
        uses[storage(tensor)] = uses.get(storage(tensor), 0) + 1
    for expert in experts:
        if any(uses.get(storage(p), 0) != 1 for p in expert.parameters()):
            raise Unlike("the experts share parameters with each other or with other modules")
    codes = reachable(experts[0].modules())
    for code in codes:
        stores = [one for one in dis.get_instructions(code) if one.opname in STORES]
        kept = KEEPERS & set(code.co_names)
        if stores or kept:
            what = stores[0].argval if stores else min(kept)
            raise Unlike(f"{code.co_name} of the experts leaves something behind ({what})")


def _same(parts: list[Any], name: str) -> None:
    """Modules at one place of all experts."""
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise Unlike(f"{name} is of different classes")
    if first is None:
        return
    if any(hooks for part in parts for hooks in hooks_of(part)):
        raise Unlike(f"{name} has hooks")
    if any(buffer is not None for part in parts for buffer in part._buffers.values()):
        raise Unlike(f"{name} has buffers")
    if any(part._compiled_call_impl is not None for part in parts):
        raise Unlike(f"{name} is compiled")
    if any(list(part._modules) != list(first._modules) for part in parts):
        raise Unlike(f"{name} has different parts")
    if type(first) is torch.nn.Linear:
        _same_layers(parts, name)
    elif any(p is not None for part in parts for p in part._parameters.values()):
        raise Unlike(f"{name} is a {type(first).__name__} with parameters, and only linear layers may have them")
    if len({_described(part) for part in parts}) > 1:
        raise Unlike(f"{name} has other settings in different experts")
    for below in first._modules:
        _same([part._modules[below] for part in parts], below)


def _same_layers(parts: list[Any], name: str) -> None:
    for kind in ("weight", "bias"):
        own = [getattr(part, kind) for part in parts]
        if all(one is None for one in own):
            continue
        if any(type(one) is not torch.nn.Parameter for one in own):
            raise Unlike(f"the {kind} of {name} is no ordinary parameter")
        if any(one._backward_hooks or one._post_accumulate_grad_hooks for one in own):
            raise Unlike(f"the {kind} of {name} has hooks")
        if len({(tuple(one.shape), one.dtype, one.device) for one in own}) > 1:
            raise Unlike(f"the {kind} of {name} has different shapes")


def _described(part: Any) -> tuple[Any, ...]:
    """What a module holds beside parts and parameters: values, and which objects."""
    own = {key: vars(part)[key] for key in _own(part)}
    if any(isinstance(value, torch.Tensor) for value in own.values()):
        raise Unlike(f"a {type(part).__name__} holds tensors that are no parameters")
    return tuple(
        (key, repr(value) if type(value) in PLAIN or type(value) in (tuple, list) else id(value))
        for key, value in own.items()
    )


def _own(part: Any) -> list[str]:
    """Names of what a module holds that not every module does."""
    everyones = vars(torch.nn.Module())
    return [key for key in vars(part) if key not in everyones]


class Watched:
    """What must stay as it was for stand-ins to be right, asked before each outermost forward."""

    def __init__(self, owner: Any, experts: Any) -> None:
        self.owner, self.list, self.experts = owner, experts, list(experts)
        parts = [part for expert in experts for part in expert.modules()]
        self.hooks = [*(hooks for part in parts for hooks in hooks_of(part)), *hooks_of_all()]
        self.places = [(part._modules, name) for part in parts for name in part._modules]
        self.parts = values(self.places)
        self.held = [(vars(part), key) for part in parts for key in _own(part)]
        self.values = values(self.held)
        self.own = [part._parameters for part in parts if type(part) is torch.nn.Linear]
        self.biases = [of.get("bias") is None for of in self.own]

    def changed(self) -> str:
        """What has changed for good, "" nothing."""
        if list(self.list) != self.experts:
            return "the experts are others now"
        if any(self.hooks):
            return "the experts have hooks now"
        if values(self.places) != self.parts:
            return "the parts of the experts are others now"
        pairs = [(a, b) for a, b in zip(values(self.held), self.values, strict=True) if a is not b]
        if any(type(a) not in PLAIN or a != b for a, b in pairs):
            return "the experts have other settings now"
        if any((of.get("bias") is None) is not none for of, none in zip(self.own, self.biases, strict=True)):
            return "the biases of the experts are others now"
        return ""

    def apart(self) -> bool:
        """Whether some experts train and some do not, for the moment."""
        mode = self.owner.training
        return any(expert.training is not mode for expert in self.experts)


class ByRow(TorchDispatchMode):  # type: ignore[misc]
    """Sees whether what a stand-in does to rows is of each row alone. why: the first op that is not, "" none."""

    def __init__(self, at: At) -> None:
        super().__init__()
        self.at, self.why = at, ""
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.at.layout is not None:
            if not self.at.inside and not self.why:
                self.why = self._why(func, args, kwargs or {}, output, self.at.layout.rows)
            given = set(map(storage, tensors((args, kwargs or {}))))  # a view of what was given is that
            self.made |= set(map(storage, tensors(output))) - given
        return output

    def _why(self, func: Any, args: Any, kwargs: Any, output: Any, rows: int) -> str:
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        given, made = tensors((args, kwargs)), tensors(output)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return f"{name} draws random numbers"
        if any(storage(one) not in self.made for one in written_by(func, args, kwargs)):
            return f"{name}_ writes to the rows that it was given"
        if name in MAKES or not given:
            return "" if all(one.dim() == 0 or "like" in name for one in made) else f"{name} makes rows of its own"
        if any(one.dim() and one.shape[0] != rows and one.dim() > 1 for one in given):
            return f"{name} takes a tensor of other rows"
        if any(not one.dim() or one.shape[0] != rows for one in made):
            return f"{name} does not leave the rows as they are"
        if torch.Tag.pointwise in func.tags or name in KEEP_ROWS:
            return ""
        if name in BY_DIM:
            at = BY_DIM[name]
            dim = args[at] if len(args) > at else kwargs.get("dim", -1 if name == "glu" else 0)
            width = max(one.dim() for one in given) + (name == "unsqueeze")
            return "" if isinstance(dim, int) and dim % max(1, width) else f"{name} works along the rows"
        return f"{name} is not known to work on each row alone"
