"""What torch's operations allocate, and when it is gone, where no allocator tells, as on the CPU.

A storage is seen as an operation returns it, and is followed by a weak reference. One that no operation returned, as
numpy's, is seen as an operation gets it: if it goes within the window it is taken to have begun there, else to have
been there before. What an operation takes and gives back inside is not seen. An operation of the backward is put down
to the line of the forward that made its node.
"""

import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch

from .lines import OpWatch, caller_of_op, calls
from .torch_internals import current_node, memory_of, next_sequence_number, sequence_number, storage, tree_leaves
from .windows import ALLOC, FREE, UNSURE, Columns

MOST_NODES: Final = 200_000
"""Of the forward, whose lines are kept."""


class Operations(OpWatch):
    """Follows storages from what is alive at its beginning on."""

    def __init__(self, tell: Any, columns: Columns) -> None:
        super().__init__(tell)
        self.columns = columns
        self.live: dict[int, tuple[Any, int, int, int]] = {}
        """By storage: the weak reference, address, bytes, stack."""
        self._made: dict[int, int] = {}
        """Stacks by the numbers of nodes."""
        self._stack = -1

    @contextlib.contextmanager
    def watching(self, alive: list[Any]) -> Iterator[None]:
        """Follow operations, and these tensors, which there are already."""
        self._all(alive, new=False)
        del alive  # it lies in this frame as long as the window is open
        with self._looking(ops=True):
            yield

    def forget(self) -> None:
        """Follow no more."""
        super().forget()
        self._made.clear()

    def _op(self, func: Any, args: Any, kwargs: Any) -> None:
        self._stack = -1
        caller = caller_of_op() if self.looking else None
        if caller is None:
            return
        self._all(args, kwargs, new=False)  # what was made before, or where nothing was seen of it
        node = current_node()
        if node is not None:
            self._stack = self._made.get(sequence_number(node), -1)
        if self._stack < 0:
            named = ((code.co_filename, line, code.co_qualname) for code, line in calls(caller))
            self._stack = self.columns.stack(named, self.places.users)
            if node is None and len(self._made) < MOST_NODES:
                self._made[next_sequence_number() - 1] = self._stack

    def _done(self, made: Any) -> None:
        if self.looking:
            self._all(made, new=True)

    def _all(self, *nested: Any, new: bool) -> None:
        for one in tree_leaves(nested):
            if isinstance(one, torch.Tensor):
                self._follow(one, self._stack if new else -1, new)

    def _follow(self, tensor: Any, stack: int, new: bool) -> None:
        found = memory_of(tensor)
        if found is None or (key := storage(tensor)) in self.live:
            return
        kept, address, size = found
        row = None
        if self.looking and size:
            row = self.columns.event(ALLOC if new else UNSURE, address, size, time.time_ns(), stack)
        self.live[key] = weakref.ref(kept, functools.partial(self._gone, key, row)), address, size, stack

    def _gone(self, key: int, row: list[int] | None, _: Any) -> None:
        _, address, size, stack = self.live.pop(key)
        if self.looking and size and not sys.is_finalizing():
            if row is not None:
                row[0] = ALLOC
            self.columns.event(FREE, address, size, time.time_ns(), stack)

    def blocks(self) -> list[tuple[int, int, int]]:
        """What is alive: address, bytes, stack."""
        return [(address, size, stack) for _, address, size, stack in self.live.values() if size]
