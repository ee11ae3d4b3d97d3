"""Dead code of a step: what it computes with gradients, and nothing uses.

An op is used if a backward goes through it, if the host reads its number, if what it wrote to lives on, or if an op
that is used is given its result. Each op that autograd makes a node for is known by the node's number. Which nodes a
backward can reach is looked up in its graph as it begins, in the step after too. What Python itself reads of memory, as
numpy does, is not seen.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .op_call import Chain
from .torch_internals import graph_task, interpreter, next_sequence_number, sequence_number

MOST_NODES: Final = 200_000
READS: Final = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Ops by which the host gets numbers."""


@dataclass(eq=False, slots=True)
class Made:
    """What an op made. node: number of its node, -1 without; reads, writes: what is in the memory that it gets and
    leaves; kept: it has an effect of its own; chain, size: of one that computes, and how much."""

    node: int
    kept: bool
    reads: Sequence[int]
    writes: Sequence[int] = ()
    chain: Chain = ()
    size: int = 0


class Dead:
    """Follows the ops of a step. unknown: not all of them were seen."""

    def __init__(self) -> None:
        self._first = self._last = -1
        """Numbers of nodes: that of the first one after the begin, and of the next one as the last op had ended."""
        self._ops: list[Made] = []
        self._contents: dict[int, int] = {}
        """By storage."""
        self._numbers = itertools.count()
        self._reached: set[int] = set()
        self.unknown = False

    def begin(self, name: str, given: Iterable[int]) -> None:
        """An op is about to be called. given: storages that it gets."""
        now = next_sequence_number()
        self._first = now - 1 if self._first < 0 else self._first
        node = now - 1 if now > self._last >= 0 else -1
        kept = not name.startswith("aten::") or name in READS or graph_task() != -1 or interpreter() is not None
        reads = [self._contents[one] for one in given if one in self._contents]
        self._ops.append(Made(node, kept, reads))

    def end(self, left: Sequence[int], kept: bool, size: int) -> None:
        """It was called. left: storages that it made or wrote to; kept: one of them was there before the step."""
        made, self._last = self._ops[-1], next_sequence_number()
        self._contents.update(zip(left, self._numbers, strict=False))
        made.writes, made.kept, made.size = [self._contents[one] for one in left], made.kept or kept, size

    def called(self, chain: Chain) -> None:
        """It computed something."""
        self._ops[-1].chain = chain

    def backward(self, tensors: Iterable[Any]) -> None:
        """A backward of these begins."""
        left = [one.grad_fn for one in tensors if getattr(one, "grad_fn", None) is not None]
        known = set(left)
        while left and not self.unknown:
            node = left.pop()
            number = sequence_number(node)
            if number < self._first:
                continue
            self._reached.add(number)
            more = {one for one, _ in node.next_functions if one is not None} - known
            known |= more
            left += more
            self.unknown = len(known) > MOST_NODES

    def sizes(self, living: Iterable[int]) -> tuple[Counter[Chain], Counter[Chain], Counter[Chain]]:
        """Of what is computed for nothing, by chain: sizes of what has gradients and of all, and by all that lies
        around it how many ops have gradients. living: storages that are still in use."""
        graded, all_, times = Counter[Chain](), Counter[Chain](), Counter[Chain]()
        needed = {self._contents[one] for one in living if one in self._contents}
        for made in reversed(self._ops if self._reached and not self.unknown else []):
            if made.kept or made.node in self._reached or not needed.isdisjoint(made.writes):
                needed.update(made.reads)
            elif made.chain:
                all_[made.chain] += made.size
                if made.node >= 0:
                    graded[made.chain] += made.size
                    times.update(made.chain[:end] for end in range(1, len(made.chain) + 1))
        return graded, all_, times
