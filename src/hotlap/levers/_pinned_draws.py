"""Not a lever that is tuned: it proves those that `redraw`. Each sample's random draws depend on the sample alone.

Before a sample is made, every generator is seeded by its position in the dataset; in the training process the
generators are put back afterwards. So the bare command and one whose samples are made in worker
processes draw the same numbers, and must learn the same. Used by its module's name: no recipe can hold it.
"""

import copy
import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ._base import Lever, Settings
from ._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

NAME: Final = __name__.rpartition(".")[2]


class PinnedDraws(Lever):
    """Seed every generator by a sample's position in the dataset before it is fetched."""

    name = NAME
    meaning = "each sample's random draws depend only on the sample"

    def install(self, seams: "Seams", settings: Settings) -> None:
        kind = internals().MapFetcher
        original = kind.fetch

        def pinned(self: Any, index: Any) -> Any:
            pinning = copy.copy(self)
            pinning.dataset = _Dataset(self.dataset)
            with _generators_kept():
                return original(pinning, index)

        kind.fetch = pinned


class _Dataset:
    """Seeds before each item."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        items = getattr(dataset, "__getitems__", None)
        if items is not None:
            self.__getitems__ = partial(_items, items)

    def __getitem__(self, index: Any) -> Any:
        _seed(index)
        return self.dataset[index]


def _items(items: Any, indices: Any) -> Any:
    _seed(indices)
    return items(indices)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Put the generators back: in the training process shuffling and dropout draw from them too."""
    import torch

    numpy = sys.modules.get("numpy")
    kept = torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        if numpy is not None and kept[2] is not None:
            numpy.random.set_state(kept[2])


def _seed(index: Any) -> None:
    import torch

    seed = zlib.crc32(repr(index).encode())
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


LEVER = PinnedDraws()
