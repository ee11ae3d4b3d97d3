"""A batch is gathered at once from the tensors that its samples are views of, not sample by sample.

For datasets whose samples are rows or slices of tensors in memory (TensorDataset, `return self.x[i]`, windows of a
text). Where each sample lies is asked of the dataset itself, every index once, in a forked process: every sample must
be a view of the same tensors and draw nothing. The first batches are made both ways and compared bit for bit; of
every later batch one sample is asked of the dataset and must lie where it did, and all of them are before an epoch
where anything of the dataset has changed; what else is moved within an epoch shows in the next one. With torch's own
samplers and default_collate. Workers are not needed any more: such batches are made in the training process.
"""

import math
import mmap
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import _samples
from ._base import Applies, Context, Lever, Settings, inference_only, unknown
from ._dataset_state import state_of

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

MOST_ROWS: Final = 5_000_000
ASKING_S: Final = 10.0
COMPARED: Final = 2
"""Batches that are made both ways."""
LEAST_SHARE: Final = 0.02
MOST_LEAVES: Final = 8
GRAIN: Final = 32768
"""Elements up to which torch's functions stay in the calling thread (`at::internal::GRAIN_SIZE`)."""
SMALL: Final = 32 * GRAIN
"""Elements of a batch up to which it is gathered in one thread. A team of threads waits for the last of them, some ms
where a core is taken: the scheduler's turn."""
MOST_DATASETS: Final = 4


class BatchFetch(Lever):
    name = "batch-fetch"
    meaning = "a batch is gathered at once from the tensors that its samples are views of"
    risk = "exact"

    def applies(self, context: Context) -> Applies:
        why, share = not_views(context), self.share(context)
        if why is None and share < LEAST_SHARE:
            why = f"data takes only {share:.1%} of the step"
        loader = context.training_loader
        if why is not None or loader is None:
            return Applies(False, why or "")
        return Applies(True, f"{share:.0%} of the step waits for batches of {loader.dataset}, which holds tensors")

    def variants(self, context: Context) -> list[Settings]:
        return [context.for_inference]

    def share(self, context: Context) -> float:
        return context.share_of("data")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return unknown(settings, ("inference",)) or inference_only(settings)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return _samples.no_fork(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        Gathering(seams, self.name).install("inference" in settings)

    def source(self, settings: Settings) -> str:
        return (
            "# take whole batches of indices, and let the loader not collate:\n"
            "batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)\n"
            "DataLoader(dataset, sampler=batches, batch_size=None)  # with __getitem__(self, indices): self.x[indices]"
        )


def not_views(context: Context) -> str | None:
    """Why the samples of the training loader can't be views of tensors in memory, as far as was seen; None where they
    may be."""
    loader = _samples.structural(context)
    if isinstance(loader, Applies):
        return loader.why
    if not loader.holds_tensors:
        return "the dataset holds no tensor that its samples could be views of"
    if loader.views is False:
        return "the samples are not views of the same tensors"
    if (loader.rows or 0) > MOST_ROWS:
        return f"asking for all {loader.rows} samples once would take too long"
    return "making a sample draws random numbers" if loader.draws else None


class Gathering:
    """The in-process half: for each training dataset that can be taken, a table of where its samples lie. lever: whose
    it is."""

    def __init__(self, seams: "Seams", lever: str) -> None:
        self.seams, self.lever = seams, lever
        self.tables: dict[int, Table | None] = {}
        self.kept: list[Any] = []
        """The datasets themselves, so that no other takes the place of one that is gone."""

    def install(self, inference: bool = False) -> None:
        self.seams.on_loader(self.look, inference)
        self.seams.on_batch(self.fetch)

    def look(self, loader: Any) -> None:
        """Before a training loader is iterated. Raises Refused where the first one can't be taken."""
        from hotlap.agent.seams import Refused

        key = id(loader.dataset)
        if key not in self.tables and len(self.tables) < MOST_DATASETS:
            self.kept.append(loader.dataset)
            self.tables[key] = None
            why = _samples.why_not(loader)
            if why is None:
                table = self.table_of(loader.dataset)
                why = table.survey(self.seams.apart)
                self.tables[key] = table if why is None else None
            if why is not None and len(self.tables) == 1:
                raise Refused(why)
        elif (known := self._table(loader.dataset)) is not None:
            self._look_again(known)
        if self._table(loader.dataset) is not None and loader.num_workers and _samples.why_not(loader) is None:
            _samples.to_main(loader)

    def _look_again(self, table: "Table") -> None:
        """Where anything of the dataset has changed since its samples were asked for, such as a list of indices in it:
        ask for all of them again. A batch asks for one."""
        before, table.state = table.state, state_of(table.dataset)
        if table.state is None or table.state == before:
            return
        said = self.seams.apart(table.compare, ASKING_S + 2.0)
        if said != "":
            table.why = said or f"the samples could not be asked for again in {ASKING_S:.0f} s"
            self.give_up(table.why)

    def table_of(self, dataset: Any) -> "Table":
        """An empty table."""
        return Table(dataset, len(dataset))

    def _table(self, dataset: Any) -> "Table | None":
        table = self.tables.get(id(dataset))
        return table if table is not None and table.why is None else None

    def fetch(self, iterator: Any, next_batch: Callable[[], Any]) -> Any:
        """In place of `next(iterator)`: give it the other fetcher before its first batch."""
        inner = getattr(iterator, "_dataset_fetcher", None)
        if inner is not None and not isinstance(inner, Fetcher):
            table = self._table(iterator._dataset)
            if table is not None and _samples.standard(iterator):
                table.pinned = bool(getattr(iterator, "_pin_memory", False))
                iterator._dataset_fetcher = Fetcher(inner, table, self.give_up)
        return next_batch()

    def give_up(self, why: str) -> None:
        """A table was found wrong."""
        self.seams.refuse(self.lever, why)


class Fetcher:
    """In place of the loader's own."""

    def __init__(self, inner: Any, table: "Table", give_up: Callable[[str], None]) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner, self.table, self.give_up = inner, table, give_up

    def fetch(self, indices: Any) -> Any:
        table = self.table
        if table.why is not None:
            return self.inner.fetch(indices)
        why = table.moved(indices)
        if why is None and table.compared < COMPARED:
            table.compared += 1
            own = self.inner.fetch(indices)
            if _samples.alike(own, table.gather(indices)):
                return own
            why = "a gathered batch is not what the dataset makes"
        if why is None:
            return table.gather(indices)
        table.why = why
        self.give_up(why)
        return self.inner.fetch(indices)


class Table:
    """Where each sample of a dataset lies in the tensors that it is a view of."""

    def __init__(self, dataset: Any, rows: int) -> None:
        self.dataset, self.rows, self.state = dataset, rows, state_of(dataset)
        self.why: str | None = None
        self.compared = 0
        self.pinned = False
        self.memory = mmap.mmap(-1, 8 * MOST_LEAVES * max(1, rows))  # shared with the child that fills it
        self.cells = memoryview(self.memory).cast("q")

    def survey(self, apart: Callable[[Callable[[], str], float], str | None]) -> str | None:
        """Ask for every sample; returns why this dataset can't be taken."""
        said = apart(self._ask_all, ASKING_S + 2.0)
        if said != "":
            return said or f"the samples could not be asked for in {ASKING_S:.0f} s"
        import torch

        first = self._begin()
        count = len(first)
        self.offsets = torch.frombuffer(self.memory, dtype=torch.int64).view(MOST_LEAVES, self.rows)[:count]
        self.windows = [windows(leaf) for leaf in first]
        return None

    def _begin(self) -> list[Any]:
        """Take the first sample as what all others must be like. Raises ValueError with why it can't be."""
        first: list[Any] = []
        self.form = _collated(_samples.flatten(self.dataset[0], first))
        if not 0 < len(first) <= MOST_LEAVES:
            raise ValueError(f"a sample holds {len(first)} tensors")
        self.shapes = [(leaf.shape, leaf.stride(), leaf.dtype) for leaf in first]
        self.homes = [leaf.untyped_storage().data_ptr() for leaf in first]
        return first

    def _ask_all(self) -> str:
        """In the child: fill the table. Returns why it can't be, empty where it is whole."""
        begun = time.monotonic()
        changed = _samples.watched(self.dataset)
        try:
            self._begin()
        except ValueError as error:
            return str(error)
        for index in range(self.rows):
            why = self._place(self.dataset[index], partial(self._put, index))
            if why is not None:
                return why
            if index % 1024 == 0 and time.monotonic() - begun > ASKING_S:
                return f"asking for all {self.rows} samples once takes too long"
        return changed() or ""

    def _put(self, index: int, leaf: int, offset: int) -> None:
        self.cells[leaf * self.rows + index] = offset

    def _place(self, sample: Any, put: Callable[[int, int], None]) -> str | None:
        """Tell where a sample's leaves lie; returns why it is not like the first."""
        found: list[Any] = []
        try:
            _samples.flatten(sample, found)
        except ValueError as error:
            return str(error)
        if len(found) != len(self.homes):
            return "samples differ in what they hold"
        for number, leaf in enumerate(found):
            if leaf.untyped_storage().data_ptr() != self.homes[number]:
                return "the samples are not views of one tensor"
            if (leaf.shape, leaf.stride(), leaf.dtype) != self.shapes[number]:
                return "samples differ in shape"
            put(number, leaf.storage_offset())
        return None

    def compare(self) -> str:
        """In a child: why samples no longer lie where they did, empty where all do."""
        begun = time.monotonic()
        for index in range(self.rows):
            why = self._elsewhere(index)
            if why is not None:
                return why
            if index % 1024 == 0 and time.monotonic() - begun > ASKING_S:
                return f"asking for all {self.rows} samples again takes too long"
        return ""

    def moved(self, indices: Any) -> str | None:
        """Whether the first sample of a batch no longer lies where it did."""
        at = indices[0]
        if type(at) is not int or at < 0:
            return "the sampler gives something else than indices"
        if max(indices) >= self.rows:
            return "the dataset has grown"
        return self._elsewhere(at)

    def _elsewhere(self, at: int) -> str | None:
        lies: list[bool] = []
        sample = self.dataset[at]
        why = self._place(sample, lambda leaf, offset: lies.append(self.cells[leaf * self.rows + at] == offset))
        return why or (None if all(lies) else "a sample lies elsewhere than it did")

    def gather(self, indices: Sequence[int]) -> Any:
        """The batch of some samples, in memory of its own."""
        at = numbers(indices)
        pairs = zip(self.windows, self.offsets, strict=True)
        return _samples.rebuild(self.form, [_taken(window, offsets[at], self.pinned) for window, offsets in pairs])


def numbers(indices: Sequence[int]) -> Any:
    """Indices as a tensor, several times as fast as `torch.tensor`."""
    import torch

    return torch.frombuffer(array("q", indices), dtype=torch.int64)


def _collated(form: Any) -> Any:
    """What default_collate makes of a sample's form: of a plain tuple a list."""
    if isinstance(form, int):
        return form
    make, items = form
    return (list if make is tuple else make), [_collated(item) for item in items]


def _taken(window: Any, at: Any, pinned: bool) -> Any:
    """Rows of a window."""
    import torch

    batch = torch.empty((len(at), *window.shape[1:]), dtype=window.dtype, pin_memory=pinned)
    rows = max(1, GRAIN // max(1, math.prod(window.shape[1:]))) if batch.numel() <= SMALL else len(at)
    for begin in range(0, len(at), rows):
        torch.index_select(window, 0, at[begin : begin + rows], out=batch[begin : begin + rows])
    return batch


def windows(leaf: Any) -> Any:
    """Every place of the tensor's memory at which a sample of this shape could begin."""
    import torch

    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    room = leaf.untyped_storage().nbytes() // leaf.element_size() - extent + 1
    return torch.as_strided(leaf, (room, *leaf.shape), (1, *leaf.stride()), 0)


LEVER = BatchFetch()
