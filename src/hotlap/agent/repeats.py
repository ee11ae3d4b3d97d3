"""What a step computes anew though it has it already: the same operations on the same numbers.

Each storage has a number for what is in it. An op of the same name, with the same arguments, on storages of the same
numbers makes the same again, so that copies, views and writes in place are seen through. What nobody can know from its
arguments has a number of its own: random numbers, what a backward or a library's own op makes, memory that numpy or
other processes share, and filled tensors, into which kernels outside of torch may write.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from . import siblings
from .dead import Dead, times_zero
from .few_used import FewUsed, Product, Use
from .for_less import ForLess, Told, double
from .gated import MOST_ROWS, Gated, zeros
from .joined import Joined, Part
from .op_call import Chain, OpCall, Place, tensors, version
from .orders import Orders, Seen
from .recasts import Recasts, casts
from .same_rows import SameRows, hashes
from .torch_internals import graph_task, is_plain, storage, storage_reference

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
WHOLE, MOSTLY = 0.9, 0.5
"""Of what is computed below a call, from which the call is what is repeated, and of what its line computes at least."""
AT_ONCE: Final = 8
"""Multiplications in the time that it takes to write a number."""


LARGE_BYTES, MOST_LARGE = 2**17, 8
"""Of a tensor of the host's, from which on glibc may ask the kernel for it anew; and lines that are told of them."""


@dataclass(eq=False, slots=True)
class Op:
    """An op that is called.

    number: of what it makes. given: storages that it gets; written: tensors that it writes to. rows: those that a
    product multiplies, hashes: of these; zeros: see `gated.zeros`. inner: multiplications for each number of its
    result. told: what does it for less; seen: products that it is given; uses, product: see `FewUsed`; joined: see
    `Joined`. large: bytes of the large tensors that it makes.
    """

    number: int
    given: set[int]
    written: list[Any]
    rows: Any
    hashes: Any
    zeros: Any
    inner: int
    told: list[Told]
    seen: Seen
    cast: bool | None
    call: OpCall
    uses: list[Use]
    joined: tuple[Part, bool] | None
    product: Product | None = None
    large: int = 0


class Repeats:
    """Of the ops of a step."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, Chain]] = Counter()
        self._sizes: dict[int, int] = {}
        """By what an op makes: from where and how often it was made, and how many elements that is, each as often as it
        takes time to write one."""
        self._numbers = itertools.count()
        self._made: dict[Any, int] = {}
        self._contents: dict[int, tuple[Any, int, int]] = {}
        """By storage: a weak reference, so that no other gets its address; the highest version of a tensor on it, as
        some have counters of their own; and what is in it."""
        self._weights: set[int] = set()
        """Numbers of casts of weights, which are told by themselves."""
        self._fresh: set[int] = set()
        """Storages that were made or written to."""
        self._for_less, self._gated, self._same_rows, self.dead = ForLess(), Gated(), SameRows(), Dead()
        self.recasts, self._few_used = Recasts(), FewUsed()
        self._large: Counter[Place] = Counter()
        self._orders, self._joined = Orders(lambda one: int(self._of(one)[0])), Joined()

    def begin(self, call: OpCall, own: bool, recurrent: bool = False) -> Op:
        """An op is about to be called. own: by torch's own Python; recurrent: by a recurrent net of its own."""
        args, given, written = call.args, call.given, call.written
        if call.name.endswith("batch_norm") and len(args) > RUNNING.stop and args[RUNNING.stop]:
            written = [*written, *args[RUNNING]]
            given = given | dict.fromkeys(one.name for one in call.schema.arguments[RUNNING])
        those = list(tensors(*given.values(), *written))
        draws = _draws(call)
        unknown = draws or graph_task() != -1 or (FILLED.fullmatch(call.name) is not None and not own)
        if not call.name.startswith("aten::"):
            unknown, written = True, those
        known = not unknown and all(map(is_plain, those))
        number = next(self._numbers)
        if known:
            key = call.func, *((name, self._of(one)) for name, one in given.items())
            number = self._made.setdefault(key, number)
        at = call.factors
        multiplies = at is not None or call.name == "aten::convolution"
        storages = {storage(one) for one in filter(is_plain, those)}
        self.dead.begin(call.name, storages, times_zero(call, self._fresh), siblings.multiplied(call), recurrent)
        return Op(
            number=number,
            given=storages,
            written=list(filter(is_plain, tensors(*written))),
            rows=self._of(args[at]) if known and at is not None else None,
            hashes=hashes(call, at) if known and multiplies and self._same_rows.looking else None,
            zeros=zeros(call, *those) if known else None,
            inner=_inner(call, at),
            told=self._for_less.begin(call, those, known, draws, self._fresh),
            seen=self._orders.begin(call.name, args, list(filter(is_plain, tensors(*given.values()))), at),
            cast=casts(call),
            call=call,
            uses=self._few_used.begin(call, those),
            joined=self._joined.begin(call),
        )

    def end(self, op: Op, made: Any) -> bool:
        """It was called. Returns whether it computed anything, as views do not."""
        fresh = [one for one in filter(is_plain, tensors(made)) if storage(one) not in op.given]
        op.told += double(fresh)
        sizes = {storage(one): one.untyped_storage().nbytes() for one in fresh if one.device.type == "cpu"}
        op.large = sum(size for size in sizes.values() if size >= LARGE_BYTES)
        op.product = self._few_used.end(op.call, op.uses, fresh)
        kept = not all(storage(one) in self._fresh for one in op.written) or not all(map(is_plain, tensors(made)))
        for at, one in enumerate([*op.written, *fresh]):  # autograd counts a write after the op
            self._hold(one, self._made.setdefault((op.number, at), next(self._numbers)), at < len(op.written))
            self._fresh.add(storage(one))
        self._for_less.end(op.told, (*op.written, *fresh))
        self._joined.end(op.joined, [storage(one) for one in (*op.written, *fresh)])
        self._orders.end(op.seen, self._made.get((op.number, 0), -1))
        self._sizes[op.number] = sum(one.numel() for one in (fresh or op.written)) * (1 + op.inner // AT_ONCE)
        self.dead.end([storage(one) for one in (*op.written, *fresh)], kept, self._sizes[op.number])
        return bool(op.written or fresh)

    def called(self, op: Op, chain: Chain) -> None:
        """It computed something. chain: the user's frames around it, the outermost first."""
        self._seen[op.number, chain] += 1
        self._large[chain[-1]] += op.large
        work = self._for_less.called(chain, op.told, self._sizes[op.number])
        self._orders.called(op.seen, chain[-1], work)
        self._joined.called(op.joined, chain[-1], work)
        self.dead.called(chain)
        self.recasts.called(chain[-1], op.number, op.cast, self._sizes[op.number])
        if op.product is not None:
            self._few_used.called(op.product, chain, self._sizes[op.number])
        if op.cast:
            self._weights.add(op.number)
        self._gated.called(chain, op.number, op.rows, op.zeros)
        self._same_rows.called(chain, op.hashes, work)

    def document(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows by their name in lines.json."""
        made, at_line = Counter[Chain](), Counter[Place]()
        for (number, chain), count in self._seen.items():
            made[chain] += count * self._sizes[number]
            at_line[chain[-1]] += count * self._sizes[number]
        return {
            "repeats": self._again(made, at_line),
            "unused": self._unused(made, at_line),
            "zeroed": self.dead.zeroed(self._living())[:MOST_ROWS],
            "older": self.dead.older(),
            "gated": self._gated.rows(made, at_line),
            "siblings": siblings.rows(self.dead.ops),
            "samplewise": siblings.samplewise(self.dead.ops),
            "recasts": self.recasts.rows()[:MOST_ROWS],
            "large": [
                (*at, made, made / self._large.total()) for at, made in self._large.most_common(MOST_LARGE) if made
            ],
            "same_rows": self._same_rows.rows(self._for_less.work),
            "orders": self._orders.rows(self._for_less.work),
            "repeated_columns": self._joined.rows(self._for_less.work),
            **self._few_used.rows(at_line),
            **self._for_less.rows(),
        }

    def _of(self, one: Any) -> Any:
        """What an argument is."""
        if isinstance(one, (list, tuple)):
            return tuple(map(self._of, one))
        if not is_plain(one):
            return repr(one) if isinstance(one, CONSTANT) else next(self._numbers)
        _, known, number = self._contents.get(storage(one), (None, -1, -1))
        if known < version(one) or not one.untyped_storage().resizable():
            number = next(self._numbers)
            self._hold(one, number)
        return number, one.shape, one.stride(), one.storage_offset(), one.dtype, one.is_conj(), one.is_neg()

    def _hold(self, one: Any, number: int, written: bool = False) -> None:
        before = self._contents.get(storage(one), (None, -1))[1]
        now = max(before, version(one) + (written and not one.is_inference()))
        self._contents[storage(one)] = storage_reference(one.untyped_storage()), now, number

    def _again(self, sizes: Counter[Chain], at_line: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of lines that compute what there is already, how often the same is made: see `_rows`."""
        times: Counter[int] = Counter()
        alike, again = Counter[Chain](), Counter[Chain]()
        usual: defaultdict[Chain, Counter[int]] = defaultdict(Counter)
        for (number, _), count in self._seen.items():
            times[number] += count * (number not in self._weights)
        made: set[int] = set()
        for (number, chain), count in self._seen.items():
            size = self._sizes[number]
            again[chain] += (count - (number not in made)) * size * (number not in self._weights)
            made.add(number)
            if times[number] > 1:
                alike[chain] += count * size
                usual[chain][times[number]] += 1
        return _rows(again, alike, lambda chain, _: usual[chain].most_common(1)[0][0], sizes, at_line)

    def _living(self) -> Iterator[int]:
        """Storages that are still in use."""
        return (at for at, (reference, *_) in self._contents.items() if not reference.expired())

    def _unused(self, sizes: Counter[Chain], at_line: Counter[Place]) -> list[tuple[Any, ...]]:
        """Of lines that compute what nothing uses, with how many operations that have a gradient: see `_rows`."""
        graded, all_, times = self.dead.sizes(self._living())
        return _rows(graded, all_, lambda _, outer: times[outer], sizes, at_line)


def _rows(
    spare: Counter[Chain],
    those: Counter[Chain],
    times: Callable[[Chain, Chain], int],
    sizes: Counter[Chain],
    at_line: Counter[Place],
) -> list[tuple[Any, ...]]:
    """Of each line that makes what is not needed, most first: the line; a number, of its chain and that call; of what
    the line computes, the part that is not; and the outermost call below the step's own frames all of which, but for a
    little, is of the kind. spare, those: sizes of what is not needed, and of what is of the kind; sizes, at_line: of
    all that is made, by chain and by line."""
    whole, alike = Counter[Chain](), Counter[Chain]()
    for chain, size in sizes.items():
        for end in range(1, len(chain) + 1):
            whole[chain[:end]] += size
            alike[chain[:end]] += those[chain]
    ends = zip(*(chain[:-1] for chain in sizes), strict=False)
    first = sum(1 for _ in itertools.takewhile(lambda frames: len(set(frames)) == 1, ends))
    rows = []
    for chain, size in spare.most_common(MOST_ROWS):
        if size and alike[chain] >= MOSTLY * whole[chain]:
            calls = (chain[: end + 1] for end in range(first, len(chain)))
            outer = next((one for one in calls if alike[one] >= WHOLE * whole[one]), chain)
            rows.append((*chain[-1], times(chain, outer), size / at_line[chain[-1]], *outer[-1]))
    return rows


def _draws(call: OpCall) -> bool:
    """Whether an op draws random numbers."""
    draws = torch.Tag.nondeterministic_seeded in call.func.tags
    if draws and any(one.name in DROPOUTS for one in call.schema.arguments):
        return any(call.given.get(name) for name in DROPOUTS)
    return draws


def _inner(call: OpCall, factors: int | None) -> int:
    """Multiplications for each number of an op's result. factors: see `Orders.begin`."""
    if factors is not None:
        return int(call.args[factors].size(-1))
    if ("scaled_dot_product" in call.name or "_attention_forward" in call.name) and is_plain(call.args[1]):
        return 2 * int(call.args[1].size(-2))
    return int(call.args[1][0].numel()) if call.name == "aten::convolution" else 0
