"""Ops of a step that could cost less: products with matrices of zeros, convolutions with long kernels, ops that
denormal or 16-bit numbers slow down, and those in numbers of 64 bits."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import torch

from .done_again import slower, slower_in_half
from .op_call import Chain, OpCall, Place, recording
from .torch_internals import base_of, is_plain, storage

LARGE, MOST_ELEMENTS, FULL = 256, 2**24, (torch.float32, torch.float64)
"""Rows and columns of a constant matrix, at least, how many of its elements are looked at, and their types: others have
units for dense products alone."""
ZEROS, ZEROS_ON_A_DEVICE = 0.98, 0.995
"""Share of these from which a sparse matrix is the faster one; dense products are what devices are best at."""
MOST_MADE, MADE_ELEMENTS, WIDE = 64, 2**20, 16
"""Of matrices that a step makes itself, how many and how many of their elements are looked at, and columns of what they
are multiplied with, at least."""
PASSES: Final = frozenset(
    f"aten::{name}" for name in ("mul", "mul_", "div", "div_", "native_dropout", "empty_like", "clone", "_to_copy")
) | {"aten::bernoulli_"}
"""Ops that leave a zero of their first tensor one, or make the mask of such, as dropout does: what they do of it is not
needed either."""
PASSED: Final = "passed"
"""The kind of these: told with the products."""
LEAST_FULL: Final = 0.5
"""Share of its rows, and of its columns, with a number other than zero: others are padding, or wait to be written."""
CHANNELS, CHANNELS_ON_A_DEVICE, TAPS, TIMES_FFT = 8, 64, 128, 3.0
"""Channels that a convolution makes at once, on the CPU and on a device; taps of its kernel at least; how much
dearer it is than by FFT."""
SPARE_NS: Final = 2_000_000_000
"""That ops are done again for, to see what denormal numbers, or halves, cost in them."""
LONGER: Final = ("denormals", "half")
MADE: Final = "sparse_made"
"""The kind of products with a matrix that the step makes."""
MATRICES: Final = frozenset({"sparse", MADE, PASSED})
KINDS: Final = ("sparse", MADE, "long_convolutions", *LONGER, "double")
DOUBLE: Final = frozenset({torch.float64, torch.complex128})
HALF: Final = 0.5
"""What single precision saves at least: half of the bytes, and of the numbers that are computed at once."""

Told = tuple[str, int, Any]
"""Of an op: which kind; its kernel's taps or how many times as long it takes, and the share that is saved; of a
product, the storage of its matrix, and the share of zeros from which it is told."""


class ForLess:
    """work: of each line, in numbers that are written."""

    def __init__(self) -> None:
        self.work: Counter[Place] = Counter()
        self._callers: defaultdict[Place, set[Chain]] = defaultdict(set)
        self._told: list[tuple[Chain, Told, float]] = []
        self._origins: dict[int, int] = {}
        """Of storages that such an op made, that with the matrix that it was made of."""
        self._filled: dict[int, Any] = {}
        """Of storages with a matrix that no op has written, or by a number below 0 of one that the step made, how full
        it and its rows and columns are."""
        self._made = 0
        self._spare_ns = SPARE_NS

    def begin(
        self, call: OpCall, given: Sequence[Any], known: bool, draws: bool, written: Collection[int]
    ) -> list[Told]:
        """An op is about to be called. given: tensors that it is; known: what is in them; draws: random numbers;
        written: storages that the step made or wrote to."""
        told: list[Told | None] = []
        at = call.factors
        if at is not None and known:
            first, second = call.args[at : at + 2]
            told = [self._sparse(first, written, second.size(-1)), self._sparse(second, written, first.size(-2))]
        elif call.name == "aten::convolution":
            told = [_long(*call.args)]
        elif call.name in PASSES:
            matrices = [one for one in given if type(one) is torch.Tensor and is_plain(one) and one.dim() > 1]
            largest = max(matrices, key=lambda one: one.numel(), default=None)
            if largest is not None and (passed := self._sparse(largest, written)) is not None:
                told = [(PASSED, *passed[1:])]
        if not (draws or call.is_view) and self._spare_ns > 0 and call.name.startswith("aten::"):
            begun = time.perf_counter_ns()
            of = call.func, call.args, call.kwargs, given
            multiplies = at is not None or call.name == "aten::convolution"
            for kind, times in zip(LONGER, (slower(*of), slower_in_half(*of) if multiplies else 1.0), strict=True):
                if times > 1:
                    told.append((kind, round(times), 1 - 1 / times))
            self._spare_ns -= time.perf_counter_ns() - begun
        return [one for one in told if one is not None]

    def end(self, told: Iterable[Told], made: Iterable[Any]) -> None:
        """It was called. made: what it made, or wrote to."""
        origin = next((number for kind, number, _ in told if kind == PASSED), None)
        for one in made:
            self._origins.pop(storage(one), None)
            if origin is not None:
                self._origins[storage(one)] = origin

    def called(self, chain: Chain, told: Iterable[Told], size: int) -> int:
        """It computed something. chain: the user's frames around it, the outermost first; size: what it takes, but for
        numbers that make it longer; returns that with them."""
        work = size * max((times for kind, times, _ in told if kind in LONGER), default=1)
        self.work[chain[-1]] += work
        self._callers[chain[-1]].add(chain[-2:])
        self._told += [(chain[-2:], one, work) for one in told if work]
        return work

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """By kind, of each line with such ops: the line; the number of the largest; the part of the line's work that is
        saved; the line again, or that which calls it with such a matrix where others call it without."""
        filled = {at: of.tolist() for at, of in self._filled.items()}
        lines: defaultdict[tuple[str, Place], list[tuple[float, int, Chain]]] = defaultdict(list)
        multiplied = {number for _, (kind, number, _), _ in self._told if kind == "sparse"}
        for frames, (kind, number, saved), work in self._told:
            place = frames[-1]
            if kind not in MATRICES:
                lines[kind, place].append((work * saved, number, frames))
                continue
            if kind == PASSED and number not in multiplied:
                continue
            full, *sides = filled[number]
            if 1 - full >= saved and min(sides) >= LEAST_FULL:
                of = MADE if kind == MADE else "sparse"
                lines[of, place].append((work * (1 - full), int(100 * (1 - full)), frames))
        found: dict[str, list[tuple[Any, ...]]] = {one: [] for one in KINDS}
        for (kind, place), those in lines.items():
            part, most = min(1.0, sum(saved for saved, *_ in those) / self.work[place]), max(those)
            shared = kind in MATRICES and self._callers[place] != {frames for *_, frames in those}
            found[kind].append((*place, most[1], part, *(most[2][0] if shared else place)))
        return found

    def _sparse(self, one: Any, written: Collection[int], columns: int = 0) -> Told | None:
        """Of a large matrix that is not trained, and was there before the step or is made of such; or of one that the
        step made itself, to multiply it with so many columns. How full it is, is not waited for."""
        origin = self._origins.get(storage(one))
        at = storage(one) if origin is None else origin
        base = base_of(one)
        trained = one.requires_grad or (base is not None and base.requires_grad)
        small = min(one.shape[-2:]) < LARGE or one.dtype not in FULL or not one.numel()
        own = origin is None and at in written
        if trained or small or recording() or (own and (columns < WIDE or one.dim() > 2 or self._made >= MOST_MADE)):
            return None
        if own:
            self._made += 1
            at = -self._made  # another may have its address later
        if at not in self._filled:
            of = one[0] if one.dim() > 2 and not one.stride(0) else one
            self._filled[at] = _filled(of, 1 + of.numel() // (MADE_ELEMENTS if own else MOST_ELEMENTS))
        return MADE if own else "sparse", at, ZEROS_ON_A_DEVICE if one.is_cuda else ZEROS


def _filled(matrix: Any, every: int) -> Any:
    """How full a matrix, its rows and its columns are, by every so many of these."""
    rows, columns = matrix[..., ::every, :] != 0, matrix[..., ::every] != 0
    return torch.stack([some.sum() / some.numel() for some in (rows, rows.any(-1), columns.any(-2))])


def double(made: Iterable[Any]) -> list[Told]:
    """Of tensors that an op made."""
    return [("double", 64, HALF)] if any(one.dtype in DOUBLE for one in made) else []


def _long(x: Any, weight: Any, _bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> Told | None:
    """Of a convolution whose kernel has many taps; rest: whether it is transposed, a padding, its groups."""
    transposed, _, groups = rest
    kernel = weight.shape[2:]
    if transposed or max(kernel, default=0) < TAPS or weight.dim() != x.dim():
        return None
    padded = [size + 2 * more for size, more in zip(x.shape[2:], padding, strict=True)]
    made = math.prod(
        (size - far * (taps - 1) - 1) // step + 1
        for size, taps, step, far in zip(padded, kernel, stride, dilation, strict=True)
    )
    pairs, length = weight.size(0) * weight.size(1), math.prod(padded)
    at_once = min(CHANNELS_ON_A_DEVICE if weight.is_cuda else CHANNELS, weight.size(0) // groups)
    direct = len(x) * pairs * made * kernel.numel() / at_once
    transforms = len(x) * (x.size(1) + weight.size(0)) + pairs
    by_fft = length * (2.5 * math.log2(length) * transforms + 2 * len(x) * pairs)
    return ("long_convolutions", max(kernel), 1 - by_fft / direct) if direct > TIMES_FFT * by_fft else None
