"""Dead code of a step: what it computes with gradients, and nothing uses; and what only a product with zero uses.

An op is used if a backward goes through it, if the host reads its number, if what it wrote to lives on, or if an op
that is used is given its result. Each op that autograd makes a node for is known by the node's number. Which nodes a
backward can reach is looked up in its graph as it begins, in the step after too. What Python itself reads of memory, as
numpy does, is not seen.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .op_call import Chain, OpCall, Place, recording, tensors
from .torch_internals import graph_task, interpreter, is_plain, next_sequence_number, sequence_number, storage

MOST_NODES: Final = 200_000
READS: Final = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Ops by which the host gets numbers."""
PRODUCTS: Final = frozenset({"aten::mul", "aten::mul_"})
BACKWARD: Final = 2
"""Times what the forward of an op takes."""


@dataclass(eq=False, slots=True)
class Made:
    """What an op made. node: number of its node, -1 without; reads, writes: what is in the memory that it gets and
    leaves; kept: it has an effect of its own; zero: see `times_zero`; multiplied: see `siblings.multiplied`; recurrent:
    by a recurrent net of torch's; chain, size: of one that computes, and how much."""

    node: int
    kept: bool
    reads: Sequence[int]
    zero: Any = False
    multiplied: Any = None
    recurrent: bool = False
    writes: Sequence[int] = ()
    chain: Chain = ()
    size: int = 0


class Dead:
    """Follows the ops of a step. unknown: not all of them were seen."""

    def __init__(self) -> None:
        self._first = self._last = -1
        """Numbers of nodes: that of the first one after the begin, and of the next one as the last op had ended."""
        self.ops: list[Made] = []
        self._contents: dict[int, int] = {}
        """By storage."""
        self._numbers = itertools.count()
        self._roots: set[int] = set()
        self._behind: defaultdict[int, set[int]] = defaultdict(set)
        """Nodes that backwards began with, and what lies behind each that they can reach."""
        self._of_step, self._older, self._into = 0, 0, set[int]()
        """How many nodes a backward goes through of this step, and of those before; those that lead into these.
        Without those of parameters, which stay."""
        self.unknown = False

    def begin(
        self, name: str, given: Iterable[int], zero: Any = False, multiplied: Any = None, recurrent: bool = False
    ) -> None:
        """An op is about to be called. given: storages that it gets. The others: see `Made`."""
        now = next_sequence_number()
        self._first = now - 1 if self._first < 0 else self._first
        node = now - 1 if now > self._last >= 0 else -1
        kept = not name.startswith("aten::") or name in READS or graph_task() != -1 or interpreter() is not None
        reads = [self._contents[one] for one in given if one in self._contents]
        self.ops.append(Made(node, kept, reads, zero, multiplied, recurrent))

    def end(self, left: Sequence[int], kept: bool, size: int) -> None:
        """It was called. left: storages that it made or wrote to; kept: one of them was there before the step."""
        made, self._last = self.ops[-1], next_sequence_number()
        self._contents.update(zip(left, self._numbers, strict=False))
        made.writes, made.kept, made.size = [self._contents[one] for one in left], made.kept or kept, size

    def numbers(self, given: Iterable[Any]) -> list[int]:
        """What is in the memory of these, as far as the step made it."""
        return [self._contents[one] for one in map(storage, filter(is_plain, given)) if one in self._contents]

    def called(self, chain: Chain) -> None:
        """It computed something."""
        self.ops[-1].chain = chain

    def backward(self, tensors: Iterable[Any]) -> None:
        """A backward of these begins."""
        left = [one.grad_fn for one in tensors if getattr(one, "grad_fn", None) is not None]
        known = set(left)
        self._roots.update(map(sequence_number, left))
        while left and not self.unknown:
            node = left.pop()
            number = sequence_number(node)
            behind = {one for one, _ in node.next_functions if one is not None}
            if number >= self._first:
                numbers = {*map(sequence_number, behind)}
                self._behind[number].update(numbers)
                self._into.update({number} if any(one < self._first for one in numbers) else ())
                self._of_step += bool(behind)
            else:
                self._older += bool(behind)
            left += behind - known
            known |= behind
            self.unknown = len(known) > MOST_NODES

    def sizes(self, living: Iterable[int]) -> tuple[Counter[Chain], Counter[Chain], Counter[Chain]]:
        """Of what is computed for nothing, by chain: sizes of what has gradients and of all, and by all that lies
        around it how many ops have gradients. living: storages that are still in use."""
        graded, all_, times = Counter[Chain](), Counter[Chain](), Counter[Chain]()
        reached, needed = self._reached(), self._in(living)
        for made in reversed(self.ops if reached and not self.unknown else []):
            if made.kept or made.node in reached or not needed.isdisjoint(made.writes):
                needed.update(made.reads)
            elif made.chain:
                all_[made.chain] += made.size
                if made.node >= 0:
                    graded[made.chain] += made.size
                    times.update(made.chain[:end] for end in range(1, len(made.chain) + 1))
        return graded, all_, times

    def zeroed(self, living: Iterable[int]) -> list[tuple[Any, ...]]:
        """Of lines that compute what only a product with zero uses, forward or in the backward, most first: the line;
        how many of its ops do; their part of the line's work; and the line of the product. living: as above."""
        zeros = {one.node for one in self.ops if one.node >= 0 and bool(one.zero)}
        reached, without, needed = self._reached(), self._reached(zeros), self._in(living)
        product_of: dict[int, Place] = {}
        whole, sizes, times = Counter[Place](), Counter[tuple[Place, Place]](), Counter[tuple[Place, Place]]()
        for made in reversed(self.ops if zeros & without and not self.unknown else []):
            backward = BACKWARD * made.size if made.node in reached else 0
            if made.chain:
                whole[made.chain[-1]] += made.size + backward
            if made.node in zeros & without and made.chain:
                product_of.update((one, made.chain[-1]) for one in made.reads)
                continue
            if used := made.kept or made.node in without or not needed.isdisjoint(made.writes):
                needed.update(made.reads)
            product = next((product_of[one] for one in made.writes if one in product_of), None)
            if product is None or made.node in without or (used and not backward):
                continue
            product_of.update((one, product) for one in made.reads if one not in product_of)
            if made.chain:
                sizes[made.chain[-1], product] += backward if used else made.size + backward
                times[made.chain[-1], product] += 1
        return [(*at[0], times[at], size / whole[at[0]], *at[1]) for at, size in sizes.most_common() if size]

    def older(self) -> list[tuple[Any, ...]]:
        """Of the first line whose backward goes on into what steps before have made: the line; through how many nodes
        of these; their part of all nodes; and the line again."""
        into = (made.chain[-1] for made in self.ops if made.node in self._into and made.chain)
        at, all_ = next(into, None), self._older + self._of_step
        return [(*at, self._older, self._older / all_, *at)] if at is not None and self._older else []

    def _in(self, living: Iterable[int]) -> set[int]:
        return {self._contents[one] for one in living if one in self._contents}

    def _reached(self, ends: Collection[int] = ()) -> set[int]:
        """Numbers of nodes that a backward can reach, but for what lies behind some."""
        found, left = set[int](), list(self._roots & self._behind.keys())
        while left:
            if (number := left.pop()) not in found:
                found.add(number)
                left += () if number in ends else self._behind[number] & self._behind.keys()
        return found


def times_zero(call: OpCall, made: Collection[int]) -> Any:
    """Whether an op multiplies by zero: a number of Python's, or a tensor of one that is not trained and was there
    before the step; on a device that is not waited for. made: storages that the step made or wrote to."""
    if call.name not in PRODUCTS:
        return False
    if any(isinstance(one, (int, float)) and one == 0 for one in call.args):
        return True
    numbers = [one for one in tensors(*call.args) if is_plain(one) and one.numel() == 1 and not one.requires_grad]
    there = [one for one in numbers if not one.dim() and storage(one) not in made]
    return there[0].detach() == 0 if there and not recording() else False
