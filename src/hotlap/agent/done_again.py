"""How much longer an op takes on the CPU for denormal numbers, or for numbers of 16 bits where the processor has none:
it is done again, with these and with others."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from .torch_internals import is_plain

FLOATS: Final = (torch.float32, torch.float64, torch.bfloat16)
HALVES: Final = frozenset({torch.float16, torch.bfloat16})
SAMPLED, MOST_TENSORS, MOST_NUMBERS = 4096, 256, 1 << 23
"""Numbers of a tensor that are looked at for denormal ones, tensors, and numbers up to which an op is done again."""
LEAST, SLOWER, TIMES = 0.01, 1.5, 3
"""Of the numbers other than zero; times as long, below which it may be noise; how often each is timed."""


def denormal_share(tensors: Iterable[Any]) -> float:
    """Of the numbers other than zero in a tensor on the CPU, the share too small to be normal: the largest among them.
    SAMPLED of each are looked at."""
    largest = 0.0
    for tensor in itertools.islice(tensors, MOST_TENSORS):
        if not is_plain(tensor) or tensor.device.type != "cpu" or tensor.dtype not in FLOATS:
            continue
        plain = tensor if tensor.dim() < 2 or tensor.is_contiguous() else tensor.mT  # as a product's weights may lie
        if tensor.numel() < SAMPLED or not plain.is_contiguous():
            continue
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            continue  # it was given back, as shards of parameters are
        some = plain.detach().view(-1)[:: tensor.numel() // SAMPLED | 1].abs()  # an odd stride meets all columns
        others = some > 0
        small = int((others & (some < torch.finfo(some.dtype).tiny)).sum())
        largest = max(largest, small / max(1, int(others.sum())) if small else 0.0)
    return largest


def slower(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any]) -> float:
    """How many times as long an op takes as with zeros in place of such numbers, which `set_flush_denormal` makes of
    them; 1 where there are few. tensors: that it is given. It must draw no numbers."""
    if sum(one.numel() for one in tensors) > MOST_NUMBERS or denormal_share(tensors) < LEAST:
        return 1.0
    return _times_as_long(func, args, kwargs, _flushed)


def slower_in_half(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any]) -> float:
    """How many times as long an op on the CPU takes as in float32; 1 where it is not on numbers of 16 bits."""
    kinds, devices = ({getattr(one, of) for one in tensors} for of in ("dtype", "device"))
    on_the_cpu = all(map(is_plain, tensors)) and devices == {torch.device("cpu")}
    if not kinds or kinds - HALVES or not on_the_cpu or sum(one.numel() for one in tensors) > MOST_NUMBERS:
        return 1.0
    return _times_as_long(func, args, kwargs, torch.Tensor.float)


def _times_as_long(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], other: Callable[[Any], Any]) -> float:
    """As an op on other tensors, made of copies of its own; 1 below SLOWER, or where it can't be done again."""
    took: tuple[list[int], list[int]] = [], []
    for changed in (0, 1) * TIMES:
        given, named = (_copied(of, other if changed else lambda one: one) for of in (args, kwargs))
        begun = time.perf_counter_ns()
        try:
            func(*given, **named)
        except RuntimeError:  # its tensor is a part of another's memory, as for `as_strided`
            return 1.0
        took[changed].append(time.perf_counter_ns() - begun)
    times = min(took[0]) / min(took[1])
    return times if times >= SLOWER else 1.0


def _copied(of: Any, other: Callable[[Any], Any]) -> Any:
    """So that an op may write to it."""
    if isinstance(of, dict):
        return {name: _copied(one, other) for name, one in of.items()}
    if isinstance(of, (list, tuple)):
        return [_copied(one, other) for one in of]
    return other(of.detach().clone()) if isinstance(of, torch.Tensor) else of


def _flushed(copy: Any) -> Any:
    return copy.masked_fill_(copy.abs() < torch.finfo(copy.dtype).tiny, 0) if copy.dtype in FLOATS else copy
