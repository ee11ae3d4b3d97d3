"""Samples are kept in memory or on disk as they are first made; later epochs take them from there.

Only where that changes nothing, which is proved in forked processes: some samples are made twice and must be equal bit
for bit, while no random generator (the global ones, and those that the dataset holds) moves and no attribute of the
dataset changes. Before each later epoch some are made anew and compared with what is kept; if one differs, or anything
of what the dataset holds has changed, the cache is given up. What changes within an epoch shows in the next one. What a
batch is made of is copied, so the script may change it. Once every sample is kept, worker processes have nothing left
to do and end.

On disk (`where = "disk"`) where they do not fit in memory, in hotlap's cache (`$HOTLAP_CACHE`, else `~/.cache/hotlap`):
a file without a name, which is gone when the process ends, however it ends. It takes at most half of the space that is
free; a disk that is full or fails ends the cache and not the command.

For map-style datasets with torch's own samplers and default_collate, in one process. The first epoch is not faster:
the step time measured with this lever is that of later epochs, and it pays off only in a command that makes more than
one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from . import _rows, _samples
from ._base import Applies, Context, Lever, Settings, integer, unknown
from ._dataset_state import state_of

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment, LoaderFacts

MOST_EPOCH_S: Final = 60.0
"""A trial has to get through the first epoch before it sees a gain."""
GREAT_SHARE: Final = 0.25
"""Of the step: with less waiting for data, an epoch has to be that much shorter to be waited for."""
SHARE_OF_MEMORY: Final = 0.4
LEAST_SHARE: Final = 0.02
PROVED: Final = 16
"""Samples that are made twice before the first epoch, and as many anew before each later one."""
PROOF_S: Final = 60.0
FILLING_EPOCHS: Final = 2


class SampleCache(Lever):
    name = "sample-cache"
    meaning = "samples are kept in memory or on disk as they are first made; later epochs take them from there"
    risk = "exact"
    excludes = ("batch-fetch", "dataset-on-device")
    stage = "late"

    def applies(self, context: Context) -> Applies:
        loader = _samples.structural(context)
        if isinstance(loader, Applies):
            return loader
        if context.facts.mode == "inference":
            return Applies(False, "a command that only infers mostly takes each sample once")
        if context.facts.world > 1:
            return Applies(False, "each rank sees other samples every epoch")
        if loader.draws:
            return Applies(False, "making a sample draws random numbers")
        share = self.share(context)
        if share < LEAST_SHARE:
            return Applies(False, f"data takes only {share:.1%} of the step")
        epoch_s = (loader.epoch_batches or 0) * context.diagnosis.step_ms / 1000
        if epoch_s > MOST_EPOCH_S:
            return Applies(False, f"it helps after an epoch of about {epoch_s:.0f} s, which no trial reaches")
        if epoch_s > MOST_EPOCH_S * share / GREAT_SHARE:
            what = f"an epoch of about {epoch_s:.0f} s, and data takes only {share:.0%} of the step"
            return Applies(False, f"it helps after {what}")
        need, memory, on_disk = _mib(loader), context.environment.memory_gib, _on_disk(context)
        if on_disk and (full := _rows.no_room(need * 2**20)):
            return Applies(False, f"its samples take {need} MiB of {memory:.0f} GiB of memory; {full}")
        takes = f"{need} MiB" + (" on disk" if on_disk else "")
        return Applies(True, f"{share:.0%} of the step waits for data; an epoch of {epoch_s:.1f} s takes {takes}")

    def variants(self, context: Context) -> list[Settings]:
        loader = context.training_loader
        where = {"where": "disk"} if _on_disk(context) else {}
        return [] if loader is None else [{"mib": _mib(loader), **where}]

    def share(self, context: Context) -> float:
        return context.share_of("data")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        where = settings.get("where", "memory")
        if str(where) not in {"memory", "disk"}:
            return f"where must be 'memory' or 'disk', not {where!r}"
        return unknown(settings, ("mib", "where")) or integer(settings, "mib", 1, 2**24)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings.get("where") == "disk":
            return _samples.no_fork(environment) or _rows.no_room(settings["mib"] * 2**20)
        if settings["mib"] > 0.5 * 1024 * environment.memory_gib:
            return f"{settings['mib']} MiB of samples in {environment.memory_gib:.1f} GiB of memory"
        return _samples.no_fork(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        cache = Cache(seams, settings["mib"] * 2**20, settings.get("where") == "disk")
        seams.on_loader(cache.look)
        seams.on_batch(cache.fetch)

    def source(self, settings: Settings) -> str:
        if settings.get("where") == "disk":
            return (
                "# in the dataset, where making a sample draws no random numbers; it pays from the second epoch on:\n"
                "self.made = numpy.memmap(path, numpy.float32, 'w+', shape=(len(self), *shape))  # in __init__\n"
                "self.have = numpy.zeros(len(self), bool)\n\n"
                "def __getitem__(self, index):\n"
                "    if not self.have[index]:\n"
                "        self.made[index], self.have[index] = self.make(index), True\n"
                "    return torch.tensor(self.made[index])  # a copy; with num_workers=0"
            )
        return (
            "# in the dataset, where making a sample draws no random numbers; it pays from the second epoch on:\n"
            "def __getitem__(self, index):\n"
            "    if index not in self.made:\n"
            "        self.made[index] = self.make(index)\n"
            "    return self.made[index]  # copies, where the loop changes them in place; with num_workers=0"
        )


def _on_disk(context: Context) -> bool:
    """Whether the samples are too many for memory."""
    loader = context.training_loader
    return loader is not None and _mib(loader) > SHARE_OF_MEMORY * 1024 * context.environment.memory_gib


def _mib(loader: "LoaderFacts") -> int:
    """Space that all samples take, a tenth more than batches show, MiB."""
    each = loader.batch_bytes / max(1, loader.batch_size or 1)
    return max(1, int(1.1 * each * (loader.rows or 0) / 2**20) + 1)


class Cache:
    """The in-process half: one dataset's samples."""

    def __init__(self, seams: "Seams", most_bytes: int, on_disk: bool = False) -> None:
        self.seams, self.most_bytes, self.on_disk = seams, most_bytes, on_disk
        self.store: Store | None = None
        self.looked = False

    def look(self, loader: Any) -> None:
        """Before a training loader is iterated. Raises Refused where the first one can't be taken."""
        from hotlap.agent.seams import Refused

        if not self.looked:
            self.looked = True
            why = _samples.why_not(loader)
            store = self._new(loader.dataset) if why is None else None
            why = why or self._ask(store.prove if store is not None else str)
            if why:
                raise Refused(why)
            self.store = store
        elif self._holds(loader.dataset) and self.store is not None and self.store.count:
            self.store.audits += 1
            why = self.store.why_not() or self._ask(self.store.audit) or self.store.changed()
            if why:
                self.give_up(why)
        taken = self._holds(loader.dataset) and _samples.why_not(loader) is None
        if self.store is not None and taken and loader.num_workers:
            if self.store.full:
                _samples.to_main(loader)
            elif not isinstance(loader.batch_sampler, Told):
                object.__setattr__(loader, "batch_sampler", Told(loader.batch_sampler))  # DataLoader forbids it

    def _new(self, dataset: Any) -> "Store":
        return Store(dataset, len(dataset), self.most_bytes, _rows.Disk if self.on_disk else _rows.Memory)

    def _holds(self, dataset: Any) -> bool:
        return self.store is not None and self.store.dataset is dataset

    def _ask(self, work: Callable[[], str]) -> str:
        said = self.seams.apart(work, PROOF_S)
        return f"its samples could not be made again within {PROOF_S:.0f} s" if said is None else said

    def fetch(self, iterator: Any, next_batch: Callable[[], Any]) -> Any:
        """In place of `next(iterator)`."""
        store = self.store
        if store is None or not self._holds(iterator._dataset) or not _samples.standard(iterator):
            return next_batch()
        inner = getattr(iterator, "_dataset_fetcher", None)
        if inner is not None:
            if not isinstance(inner, Fetcher):
                iterator._dataset_fetcher = Fetcher(inner, self)
            return next_batch()
        told = iterator._sampler_iter
        indices = told.taken.popleft() if isinstance(told, Telling) and told.taken else None
        batch = next_batch()
        if indices is not None:
            self.keep(indices, batch)
        return batch

    def taken(self, indices: Any) -> Any:
        """The batch from what is kept; None where it has to be made."""
        try:
            return self.store.take(indices) if self.store is not None else None
        except ValueError as error:
            self.give_up(str(error))
            return None

    def keep(self, indices: Any, batch: Any) -> None:
        """A batch was made."""
        store = self.store
        if store is None:
            return
        try:
            new = store.put(indices, batch)
        except ValueError as error:
            self.give_up(str(error))
            return
        store.seen += len(indices)
        if new and store.seen <= FILLING_EPOCHS * store.rows:
            self.seams.unsteady()

    def give_up(self, why: str) -> None:
        """From here on everything is made as without the lever."""
        self.store = None
        self.seams.refuse(SampleCache.name, why)


class Fetcher:
    """In place of the loader's own, where batches are made in the training process."""

    def __init__(self, inner: Any, cache: Cache) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner, self.cache = inner, cache

    def fetch(self, indices: Any) -> Any:
        batch = self.cache.taken(indices)
        if batch is None:
            batch = self.inner.fetch(indices)
            self.cache.keep(indices, batch)
        return batch


class Told:
    """A loader's batch sampler, whose iterators remember what they gave: with workers that is not known otherwise."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> "Telling":
        return Telling(iter(self.inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class Telling:
    """One pass; batches come back in the order in which their indices were taken."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner
        self.taken: deque[Any] = deque()

    def __iter__(self) -> "Telling":
        return self

    def __next__(self) -> Any:
        indices = next(self.inner)
        self.taken.append(indices)
        return indices


class Store:
    """Rows of batches by index. put and take raise ValueError with what is in the way."""

    def __init__(
        self, dataset: Any, rows: int, most_bytes: int, keep: type[_rows.Memory] | type[_rows.Disk] = _rows.Memory
    ) -> None:
        self.dataset, self.rows, self.most_bytes, self.keep = dataset, rows, most_bytes, keep
        self.have = bytearray(rows)
        self.count = self.seen = self.audits = 0
        self.form: Any = None
        self.shapes: list[Any] = []
        self.kept: _rows.Memory | _rows.Disk | None = None
        self.attributes, self.state = _samples.fingerprint(dataset), state_of(dataset)

    @property
    def full(self) -> bool:
        """Whether every sample is kept."""
        return self.count == self.rows

    def put(self, indices: Sequence[int], batch: Any) -> bool:
        """Keep a batch's rows. Returns whether there was anything new."""
        if max(indices) >= self.rows:
            raise ValueError("the dataset has grown")
        found: list[Any] = []
        form = _samples.flatten(batch, found)
        if any(leaf.dim() == 0 or leaf.shape[0] != len(indices) for leaf in found):
            raise ValueError("a batch is not one row a sample")
        kept = self.kept or self._make(form, found)
        if self.shapes != _shapes(found):
            raise ValueError("samples differ in shape")
        new = [place for place, index in enumerate(indices) if not self.have[index]]
        if not new:
            return False
        kept.write(
            [indices[place] for place in new], [leaf if len(new) == len(indices) else leaf[new] for leaf in found]
        )
        for place in new:
            self.count += not self.have[indices[place]]
            self.have[indices[place]] = 1
        return True

    def _make(self, form: Any, found: list[Any]) -> "_rows.Memory | _rows.Disk":
        need = self.rows * _rows.row_bytes(found)
        if need > self.most_bytes:
            raise ValueError(f"the samples take {need / 2**20:.0f} MiB")
        self.form, self.shapes = form, _shapes(found)
        self.kept = self.keep(self.rows, found)
        return self.kept

    def take(self, indices: Sequence[int]) -> Any:
        """The batch, in memory of its own; None where a row is missing."""
        if self.kept is None or max(indices) >= self.rows or not all(self.have[index] for index in indices):
            return None
        return _samples.rebuild(self.form, self.kept.read(indices))

    def why_not(self) -> str | None:
        """Before an epoch: why samples may be kept no longer, as far as it shows without making any."""
        full = self.kept.no_room() if self.kept is not None else None
        return full or _samples.changed_since(self.attributes, self.dataset)

    def changed(self) -> str:
        """Before an epoch: that anything of what the dataset holds is another, empty where nothing is, or no one can
        tell. An audit looks at a few samples alone."""
        changed = self.state is not None and state_of(self.dataset) != self.state
        return "what the dataset holds changes" if changed else ""

    def prove(self) -> str:
        """In a child: why samples may not be kept, empty where they may."""
        from torch.utils.data import default_collate

        changed = _samples.watched(self.dataset)
        for index in self._some():
            try:
                if not _samples.alike(*(default_collate([self.dataset[index]]) for _ in range(2))):
                    return "a sample made twice differs"
            except ValueError as error:
                return str(error)
        return changed() or ""

    def audit(self) -> str:
        """In a child: whether samples made anew are those that are kept; empty if so."""
        from torch.utils.data import default_collate

        changed = _samples.watched(self.dataset)
        kept = [index for index in self._some() if self.have[index]]
        try:
            if kept and not _samples.alike(default_collate([self.dataset[index] for index in kept]), self.take(kept)):
                return "a sample made anew is not the one that was kept"
        except ValueError as error:
            return str(error)
        return changed() or ""

    def _some(self) -> list[int]:
        """Some indices, others each time; the first and the last are among them the first time."""
        count = min(PROVED, self.rows)
        spread = [at * (self.rows - 1) // max(1, count - 1) for at in range(count)]
        return sorted({(self.audits * 7919 + at) % self.rows for at in spread})


def _shapes(leaves: list[Any]) -> list[Any]:
    return [(leaf.shape[1:], leaf.dtype) for leaf in leaves]


LEVER = SampleCache()
