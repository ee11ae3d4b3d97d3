"""Not a lever: which forwards are compiled in a command that trains.

Those with gradients are. One without is where each size of its inputs lies between the least and the greatest of
forwards with gradients: an evaluation costs one more compilation, of a forward alone. It also is from the `MANY`th call
alike on (rollouts, an evaluation of larger batches), about when what eager calls took would have paid for it, for the
first `FEW` such calls. Calls are counted, not timed, so that a run computes what the run before it computed. Others run
as they were written: text that is sampled now and then grows by a token a call, and would be compiled for one size
after the other.

Until a forward with gradients came the command may be one that only infers: all are compiled, and if it trains after
that, it compiles once more for the gradients.

A backward of what is compiled can't be differentiated again ("torch.compile with aot_autograd does not currently
support double backward"). Penalties on gradients do so: an input needs a gradient, and the script asks for gradients
with `create_graph`, by the text of its files or in a function that is running. Such forwards run as they were written,
since a penalty may come once in hundreds of steps. Gradients of parameters: see `_create_graph`.
"""

import sys
from collections.abc import Mapping
from functools import cache
from operator import le
from types import CodeType
from typing import Any, Final, NamedTuple

from .._nested import tensors
from ._create_graph import differentiates_again

MANY: Final = 1000
FEW: Final = 4
MOST: Final = 4096
"""Calls that are remembered: sizes may be others each time."""
AGAIN: Final = "create_graph"
Kinds = tuple[Any, ...]
Sizes = tuple[int, ...]


class Worth:
    """Whether forwards of one model are worth compiling: asked before each of them."""

    def __init__(self) -> None:
        self._trained: dict[Kinds, tuple[Sizes, Sizes]] = {}
        """Of calls with gradients: their least and their greatest sizes."""
        self._came: dict[tuple[Kinds, Sizes], int] = {}
        """How often other calls did."""
        self._often: set[tuple[Kinds, Sizes]] = set()

    def __call__(self, args: Any, kwargs: Any) -> bool:
        import torch

        training = torch.is_grad_enabled()
        if not (training or self._trained):
            return True
        if training and _penalised(args, kwargs):
            return False
        kinds, sizes = read(args, kwargs)
        known = self._trained.get(kinds)
        if training:
            if known is not None and not _between(sizes, *known):
                self._trained[kinds] = tuple(map(min, known[0], sizes)), tuple(map(max, known[1], sizes))
            elif known is None and len(self._trained) < MOST:
                self._trained[kinds] = sizes, sizes
            return True
        return (known is not None and _between(sizes, *known)) or self._comes_often(kinds, sizes)

    def _comes_often(self, kinds: Kinds, sizes: Sizes) -> bool:
        call = kinds, sizes
        if call in self._often:
            return True
        if len(self._often) == FEW or any(isinstance(kind, Unseen) for kind in kinds):
            return False
        if call in self._came or len(self._came) < MOST:
            self._came[call] = self._came.get(call, 0) + 1
        if self._came.get(call, 0) < MANY:
            return False
        self._often.add(call)
        return True


def _penalised(args: Any, kwargs: Any) -> bool:
    """Whether the gradient of an input is likely to be differentiated again."""
    import torch

    if differentiates_again():
        return any(one.requires_grad and not isinstance(one, torch.nn.Parameter) for one in tensors((args, kwargs)))
    every = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    leaves = [one for one in every if one.requires_grad and one.is_leaf and not isinstance(one, torch.nn.Parameter)]
    return bool(leaves) and _asked_by_a_caller()


def _asked_by_a_caller() -> bool:
    """Whether a function that is running asks, whose file is not the script's, or is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if _asks(frame.f_code):
            return True
        frame = frame.f_back
    return False


@cache
def _asks(code: CodeType) -> bool:
    """Whether code names `create_graph` in a call."""
    return any(type(one) is tuple and AGAIN in one for one in code.co_consts)


class Unseen(NamedTuple):
    """The class of an argument whose sizes are not seen, such as a cache of keys and values, which may grow."""

    kind: type


def read(args: Any, kwargs: Any) -> tuple[Kinds, Sizes]:
    """What tells calls apart: the kinds of their arguments, and the sizes of tensors and whole numbers in them."""
    kinds: list[Any] = []
    sizes: list[int] = []
    _read(args, kinds, sizes)
    _read(kwargs, kinds, sizes)
    return tuple(kinds), tuple(sizes)


def _read(value: Any, kinds: list[Any], sizes: list[int]) -> None:
    import torch

    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        kinds.append((value.dtype, value.dim()))
        sizes.extend(value.shape)
    elif isinstance(value, (tuple, list)):
        kinds.append((type(value), len(value)))
        for item in value:
            _read(item, kinds, sizes)
    elif isinstance(value, Mapping):
        kinds.append((type(value), *value))
        for item in value.values():
            _read(item, kinds, sizes)
    elif type(value) is int:
        kinds.append(int)
        sizes.append(value)
    elif value is None or isinstance(value, (bool, str)):
        kinds.append(value)
    elif isinstance(value, float):
        kinds.append(float)
    else:
        kinds.append(Unseen(type(value)))


def _between(sizes: Sizes, least: Sizes, greatest: Sizes) -> bool:
    return all(map(le, least, sizes)) and all(map(le, sizes, greatest))
