"""Not a lever: the batches of indices that a loader will ask for, which are known before it does.

Torch's own samplers draw an order once, when they are asked first. So to ask them for some batches ahead draws nothing
that they would not have drawn by then, but for the last batch: a `RandomSampler` draws once more when it is exhausted,
from the script's own generator where it has one. That batch is left to the loader.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any


class Coming:
    """In place of an iterator over batches of indices. made: what was made for those to come, by whoever asks for
    them."""

    def __init__(self, order: Iterator[Any], batches: int) -> None:
        self.made: deque[Any] = deque()
        self._order, self._left = order, batches
        self._known: deque[Any] = deque()

    def __iter__(self) -> "Coming":
        return self

    def __next__(self) -> Any:
        return self._known.popleft() if self._known else self._ask()

    def after(self, count: int) -> list[Any]:
        """The next so many batches, or as many as can be known."""
        while len(self._known) < count and self._left > 1:
            self._known.append(self._ask())
        return list(islice(self._known, count))

    def _ask(self) -> Any:
        self._left -= 1
        return next(self._order)


def coming(iterator: Any) -> Coming | None:
    """Put one into a loader's fresh iterator; None where its sampler is none that can be asked ahead."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    batches = iterator._index_sampler
    order: Any = batches.sampler if type(batches) is BatchSampler else None
    once = type(order) is RandomSampler and not order.replacement and order.num_samples <= len(order.data_source)
    if type(order) is not SequentialSampler and not once:
        return None
    found = Coming(iterator._sampler_iter, len(batches))
    iterator._sampler_iter = found
    return found
