"""What a step computes anew though it has it already: the same operations on the same numbers.

Each storage has a number for what is in it. An op of the same name, with the same arguments, on storages of the same
numbers makes the same again, so that copies, views and writes in place are seen through. What nobody can know from its
arguments has a number of its own: random numbers, what a backward or a library's own op makes, memory that numpy or
other processes share, and filled tensors, into which kernels outside of torch may write.
"""

import itertools
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any, Final

import torch

from .denormals import slower
from .orders import Orders, Seen
from .torch_internals import base_of, graph_task, has_storage, is_capturing, storage, storage_reference, version_of

FILLED: Final = re.compile(r"aten::(new_)?(empty|zeros|ones|full)(_like|_strided)?")
RUNNING: Final = slice(3, 5)
"""Of a batch norm's arguments: running averages, which it writes to unsaid, and which, in training (the argument behind
them), its result does not hang on."""
DROPOUTS: Final = frozenset({"dropout_p", "dropout"})
CONSTANT: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
WHOLE, MOSTLY = 0.9, 0.5
"""Of what is computed below a call, from which the call is what is repeated, and of what its line computes at least."""
MOST_ROWS: Final = 200
SIBLINGS, MOST_GATES = 3, 200
"""Modules that compute the same rows, from which these may be experts, and columns that are looked at."""
PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Of matrices, and which arguments these are."""
LARGE, MOST_ELEMENTS, FULL = 256, 2**24, (torch.float32, torch.float64)
"""Rows and columns of a constant matrix, at least, how many of its elements are looked at, and their types: others have
units for dense products alone."""
ZEROS, ZEROS_ON_A_DEVICE = 0.98, 0.995
"""Share of these from which a sparse matrix is the faster one; dense products are what devices are best at."""
CHANNELS, CHANNELS_ON_A_DEVICE, TAPS, TIMES_FFT = 8, 64, 128, 3.0
"""Channels that a convolution makes at once, on the CPU and on a device; taps of its kernel at least; how much
dearer it is than by FFT."""
SPARE_NS: Final = 2_000_000_000
"""That ops are done again for, to see what denormal numbers cost in them."""
KINDS: Final = ("sparse", "long_convolutions", "denormals", "double")
DOUBLE: Final = frozenset({torch.float64, torch.complex128})
HALF: Final = 0.5
"""What single precision saves at least: half of the bytes, and of the numbers that are computed at once."""
AT_ONCE: Final = 8
"""Multiplications in the time that it takes to write a number."""

Place = tuple[int, int, str]
Chain = tuple[Place, ...]
Told = tuple[str, int, Any]
"""Of an op that something else does for less: which kind; its kernel's taps or how many times as long it takes, and the
share that is saved; of a product, the storage of its matrix, and the share of zeros from which it is told."""
Op = tuple[int, list[Any], set[int], Any, Any, int, list[Told | None], Seen]
"""What it makes, as a number; tensors that it writes to; storages that it is given; the rows that a product multiplies;
the share of a column's rows that are zero, which rows are multiplied by; multiplications for each number of its result;
what else does it for less; products that it is given."""


class Repeats:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, Chain]] = Counter()
        self._sizes: dict[int, int] = {}
        """By what an op makes: from where and how often it was made, and how many elements that is, each as often as it
        takes time to write one."""
        self._numbers = itertools.count()
        self._made: dict[Any, int] = {}
        self._held: dict[int, tuple[Any, int, int]] = {}
        """By storage: a weak reference, so that no other gets its address; the highest version of a tensor on it, as
        some have counters of their own; and what is in it."""
        self._siblings: defaultdict[tuple[Chain, Any], set[int]] = defaultdict(set)
        self._gates: list[tuple[Chain, Any]] = []
        self._fresh: set[int] = set()
        self._filled: dict[int, Any] = {}
        """Storages that were made or written to; of others with a matrix, how full it and its rows and columns are."""
        self._told: list[tuple[Place, Told, float]] = []
        self._work: Counter[Place] = Counter()
        self._orders = Orders(lambda one: int(self._of(one)[0]))
        self._spare_ns = SPARE_NS

    def begin(self, func: Any, schema: Any, args: Sequence[Any], kwargs: dict[str, Any], own: bool) -> Op:
        """An op is about to be called. own: by torch's own Python."""
        given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
        written = [given.get(one.name) for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        if schema.name.endswith("batch_norm") and len(args) > RUNNING.stop and args[RUNNING.stop]:
            written += args[RUNNING]
            given |= dict.fromkeys(one.name for one in schema.arguments[RUNNING])
        tensors = list(_tensors([*given.values(), *written]))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws and any(one.name in DROPOUTS for one in schema.arguments):
            draws = any(given.get(name) for name in DROPOUTS)
        unknown = draws or graph_task() != -1 or (FILLED.fullmatch(schema.name) is not None and not own)
        if not schema.name.startswith("aten::"):
            unknown, written = True, tensors
        unknown = unknown or not all(map(_in_storage, tensors))
        number = next(self._numbers)
        if not unknown:
            key = func, *((name, self._of(one)) for name, one in given.items())
            number = self._made.setdefault(key, number)
        known = {storage(one) for one in filter(_in_storage, tensors)}
        zeros = _zeros(*tensors) if schema.name == "aten::mul" and len(tensors) > 1 and not unknown else None
        rows, told, inner = None, [], 0
        if (at := PRODUCTS.get(schema.name)) is not None:
            inner = args[at].size(-1)
            if not unknown:
                rows, told = self._of(args[at]), [self._sparse(one) for one in args[at : at + 2]]
        elif "scaled_dot_product" in schema.name or "_attention_forward" in schema.name:
            inner = 2 * args[1].size(-2)
        elif schema.name == "aten::convolution":
            inner, told = args[1][0].numel(), [_long(*args)]
        if not draws and self._spare_ns > 0 and schema.name.startswith("aten::"):
            begun = time.perf_counter_ns()
            if (times := slower(func, args, kwargs, tensors)) > 1:
                told.append(("denormals", round(times), 1 - 1 / times))
            self._spare_ns -= time.perf_counter_ns() - begun
        seen = self._orders.begin(schema.name, args, list(filter(_in_storage, _tensors(given.values()))), at)
        return number, list(filter(_in_storage, _tensors(written))), known, rows, zeros, inner, told, seen

    def end(self, op: Op, made: Any) -> bool:
        """It was. Returns whether it computed anything, as views do not."""
        number, written, known, _, _, inner, told, _ = op
        fresh = [one for one in filter(_in_storage, _tensors([made])) if storage(one) not in known]
        if any(one.dtype in DOUBLE for one in fresh):
            told.append(("double", 64, HALF))
        for at, one in enumerate([*written, *fresh]):  # autograd counts a write after the op
            self._hold(one, self._made.setdefault((number, at), next(self._numbers)), at < len(written))
            self._fresh.add(storage(one))
        self._orders.end(op[-1], self._made.get((number, 0), -1))
        self._sizes[number] = sum(one.numel() for one in (fresh or written)) * (1 + inner // AT_ONCE)
        return bool(written or fresh)

    def called(self, op: Op, chain: Chain) -> None:
        """It counts. chain: the user's frames around it, the outermost first."""
        number, _, _, rows, zeros, _, told, seen = op
        self._seen[number, chain] += 1
        work = self._sizes[number] * max(
            (times for kind, times, _ in filter(None, told) if kind == "denormals"), default=1
        )
        self._work[chain[-1]] += work
        self._orders.called(seen, chain[-1], work)
        self._told += [(chain[-1], one, work) for one in told if one is not None and work]
        if rows is not None:
            self._siblings[chain, rows].add(number)
        if zeros is not None and len(self._gates) < MOST_GATES:
            self._gates.append((chain, zeros))

    def _of(self, one: Any) -> Any:
        """What an argument is."""
        if isinstance(one, (list, tuple)):
            return tuple(map(self._of, one))
        if not isinstance(one, torch.Tensor):
            return repr(one) if isinstance(one, CONSTANT) else next(self._numbers)
        _, version, number = self._held.get(storage(one), (None, -1, -1))
        if version < _version(one) or not one.untyped_storage().resizable():
            number = next(self._numbers)
            self._hold(one, number)
        return number, one.shape, one.stride(), one.storage_offset(), one.dtype, one.is_conj(), one.is_neg()

    def _hold(self, one: Any, number: int, written: bool = False) -> None:
        before = self._held.get(storage(one), (None, -1))[1]
        version = max(before, _version(one) + (written and not one.is_inference()))
        self._held[storage(one)] = storage_reference(one.untyped_storage()), version, number

    def _sparse(self, one: Any) -> Told | None:
        """Of a large matrix that was there before the step and is not trained; how full it is is not waited for."""
        at = storage(one)
        base = base_of(one)
        trained = one.requires_grad or (base is not None and base.requires_grad)
        small = min(one.shape[-2:]) < LARGE or one.dtype not in FULL or not one.numel()
        if trained or small or at in self._fresh or (torch.cuda.is_initialized() and is_capturing()):
            return None
        if at not in self._filled:
            of = one[0] if one.dim() > 2 and not one.stride(0) else one
            every = 1 + of.numel() // MOST_ELEMENTS
            rows, columns = of[..., ::every, :] != 0, of[..., ::every] != 0
            counted = rows, rows.any(-1), columns.any(-2)
            self._filled[at] = torch.stack([some.sum() / some.numel() for some in counted])
        return "sparse", at, ZEROS_ON_A_DEVICE if one.is_cuda else ZEROS

    def for_less(self) -> dict[str, list[tuple[Any, ...]]]:
        """By kind, the same of lines with ops that something else does for less, the number of the largest for how
        often."""
        filled = {at: of.tolist() for at, of in self._filled.items()}
        lines: defaultdict[tuple[str, Place], list[tuple[float, int]]] = defaultdict(list)
        for place, (kind, number, saved), work in self._told:
            if kind != "sparse":
                lines[kind, place].append((work * saved, number))
                continue
            full, *sides = filled[number]
            if 1 - full >= saved and min(sides) >= MOSTLY:  # empty rows are padding, or wait to be written
                lines[kind, place].append((work * (1 - full), int(100 * (1 - full))))
        found: dict[str, list[tuple[Any, ...]]] = {one: [] for one in KINDS}
        for (kind, place), those in lines.items():
            part = min(1.0, sum(saved for saved, _ in those) / self._work[place])
            found[kind].append((*place, max(those)[1], part, *place))
        return found

    def orders(self) -> list[tuple[Any, ...]]:
        """Lines with products in the dear order (`Orders.rows`)."""
        return self._orders.rows(self._work)

    def rows(self) -> list[tuple[Any, ...]]:
        """Of each line that computes what there is already, most first: the line; how often the same is made; of what
        the line computes, the part that was there; and the outermost call below the step's own frames all of which,
        but for a little, is made several times."""
        times: Counter[int] = Counter()
        sizes, alike, again, whole, several = (Counter[Chain]() for _ in range(5))
        at_line: Counter[Place] = Counter()
        usual: defaultdict[Chain, Counter[int]] = defaultdict(Counter)
        for (number, _), count in self._seen.items():
            times[number] += count
        made: set[int] = set()
        for (number, chain), count in self._seen.items():
            size = self._sizes[number]
            at_line[chain[-1]] += count * size
            again[chain] += (count - (number not in made)) * size
            made.add(number)
            sizes[chain] += count * size
            if times[number] > 1:
                alike[chain] += count * size
                usual[chain][times[number]] += 1
        for chain, size in sizes.items():
            for end in range(1, len(chain) + 1):
                whole[chain[:end]] += size
                several[chain[:end]] += alike[chain]
        ends = zip(*(chain[:-1] for chain in sizes), strict=False)
        first = sum(1 for _ in itertools.takewhile(lambda those: len(set(those)) == 1, ends))
        rows = []
        for chain, size in again.most_common(MOST_ROWS):
            if size and several[chain] >= MOSTLY * whole[chain]:
                calls = (chain[: end + 1] for end in range(first, len(chain)))
                outer = next((one for one in calls if several[one] >= WHOLE * whole[one]), chain)
                rows.append((*chain[-1], usual[chain].most_common(1)[0][0], size / at_line[chain[-1]], *outer[-1]))
        return rows

    def gated(self) -> list[tuple[Any, ...]]:
        """The same of lines below a call that several modules are called by, each with the same rows, most of which are
        then multiplied by zero in the same function, once for each call: how many modules, the part of what the line
        makes that is, and that call."""
        zeros: defaultdict[tuple[Chain, int, str], list[float]] = defaultdict(list)
        for chain, share in self._gates:
            zeros[chain[:-1], chain[-1][0], chain[-1][2]].append(float(share))
        of: defaultdict[Chain, list[int]] = defaultdict(list)
        for (chain, _), numbers in self._siblings.items():
            if len(numbers) >= SIBLINGS:
                of[chain].append(len(numbers))
        calls: dict[Chain, tuple[int, float]] = {}
        for chain, modules in of.items():
            for at, (file, _, function) in enumerate(chain):
                shares = zeros.get((chain[:at], file, function), [])
                if len(shares) >= sum(modules) and fmean(shares) >= MOSTLY:
                    calls[chain[: at + 1]] = min(modules), fmean(shares)
        made: Counter[Chain] = Counter()
        at_line: Counter[Place] = Counter()
        for (number, chain), count in self._seen.items():
            made[chain] += count * self._sizes[number]
            at_line[chain[-1]] += count * self._sizes[number]
        return [
            (*chain[-1], modules, share * size / at_line[chain[-1]], *call[-1])
            for chain, size in made.most_common(MOST_ROWS)
            for call, (modules, share) in calls.items()
            if size and chain[: len(call)] == call
        ]


def _zeros(one: Any, other: Any) -> Any:
    """Of rows and a column that they are multiplied by, the share of the column that is zero; it is not waited for."""
    column, rows = sorted((one, other), key=lambda tensor: tensor.numel())
    if column.dim() < 2 or column.shape != (*rows.shape[:-1], 1) or rows.size(-1) < 2 or not column.numel():
        return None
    return None if torch.cuda.is_initialized() and is_capturing() else (column == 0).double().mean()


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


def _tensors(of: Iterable[Any]) -> Iterator[Any]:
    for one in of:
        if isinstance(one, (list, tuple)):
            yield from _tensors(one)
        elif isinstance(one, torch.Tensor):
            yield one


def _in_storage(one: Any) -> bool:
    """Whether all that it is lies in its storage."""
    known = type(one) in PLAIN and one.layout is torch.strided and has_storage(one)
    return bool(known and not one.is_nested and not one.is_quantized)


def _version(one: Any) -> int:
    return 0 if one.is_inference() else int(version_of(one))
