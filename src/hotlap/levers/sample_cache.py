"""Samples are kept in memory as they are first made; epochs after the first take them from there.

Only where that changes nothing, which is proved in forked processes: some samples are made twice and must be equal bit
for bit, while no random generator (the global ones, and those that the dataset holds) moves and no attribute of the
dataset changes. Before each later epoch some are made anew and compared with what is kept; if one differs the cache is
given up. What a batch is made of is copied, so the script may change it. Once every sample is kept, worker processes
have nothing left to do and end. For map-style datasets with torch's own samplers and default_collate, in one process.
The first epoch is not faster: the step time measured with this lever is that of later epochs, and it pays off only in
a command that makes more than one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from . import _samples
from ._base import Applies, Context, Lever, Settings, integer, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment, LoaderFacts

MOST_EPOCH_S: Final = 60.0
"""A trial has to get through the first epoch before it sees a gain."""
SHARE_OF_MEMORY: Final = 0.4
LEAST_SHARE: Final = 0.02
PROVED: Final = 16
"""Samples that are made twice before the first epoch, and as many anew before each later one."""
PROOF_S: Final = 60.0
FILLING_EPOCHS: Final = 2


class SampleCache(Lever):
    name = "sample-cache"
    meaning = "samples are kept in memory as they are first made; epochs after the first take them from there"
    risk = "exact"
    excludes = ("batch-fetch",)

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
        need = _mib(loader)
        if need > SHARE_OF_MEMORY * 1024 * context.environment.memory_gib:
            return Applies(False, f"its samples take {need} MiB of {context.environment.memory_gib:.0f} GiB")
        return Applies(True, f"{share:.0%} of the step waits for data; an epoch of {epoch_s:.1f} s takes {need} MiB")

    def variants(self, context: Context) -> list[Settings]:
        loader = context.training_loader
        return [] if loader is None else [{"mib": _mib(loader)}]

    def share(self, context: Context) -> float:
        return context.share_of("data")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return unknown(settings, ("mib",)) or integer(settings, "mib", 1, 2**24)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings["mib"] > 0.5 * 1024 * environment.memory_gib:
            return f"{settings['mib']} MiB of samples in {environment.memory_gib:.1f} GiB of memory"
        return _samples.no_fork(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        cache = Cache(seams, settings["mib"] * 2**20)
        seams.on_loader(cache.look)
        seams.on_batch(cache.fetch)

    def source(self, settings: Settings) -> str:
        return (
            "# in the dataset, where making a sample draws no random numbers; it pays from the second epoch on:\n"
            "def __getitem__(self, index):\n"
            "    if index not in self.made:\n"
            "        self.made[index] = self.make(index)\n"
            "    return self.made[index]  # copies, where the loop changes them in place; with num_workers=0"
        )


def _mib(loader: "LoaderFacts") -> int:
    """Memory that all samples take, a tenth more than batches show, MiB."""
    each = loader.batch_bytes / max(1, loader.batch_size or 1)
    return max(1, int(1.1 * each * (loader.rows or 0) / 2**20) + 1)


class Cache:
    """The in-process half: one dataset's samples."""

    def __init__(self, seams: "Seams", most_bytes: int) -> None:
        self.seams, self.most_bytes = seams, most_bytes
        self.store: Store | None = None
        self.looked = False

    def look(self, loader: Any) -> None:
        """Before a training loader is iterated. Raises RuntimeError where the first one can't be taken."""
        if not self.looked:
            self.looked = True
            why = _samples.why_not(loader)
            store = Store(loader.dataset, len(loader.dataset), self.most_bytes) if why is None else None
            why = why or self._ask(store.prove if store is not None else str)
            if why:
                raise RuntimeError(why)
            self.store = store
        elif self._holds(loader.dataset) and self.store is not None and self.store.count:
            self.store.audits += 1
            why = _samples.changed_since(self.store.attributes, loader.dataset) or self._ask(self.store.audit)
            if why:
                self.give_up(why)
        if self.store is not None and self._holds(loader.dataset) and loader.num_workers:
            if self.store.full:
                _samples.to_main(loader)
            elif not isinstance(loader.batch_sampler, Told):
                object.__setattr__(loader, "batch_sampler", Told(loader.batch_sampler))  # DataLoader forbids it

    def _holds(self, dataset: Any) -> bool:
        return self.store is not None and self.store.dataset is dataset

    def _ask(self, work: Callable[[], str]) -> str:
        said = self.seams.apart(work, PROOF_S)
        return f"its samples could not be made again within {PROOF_S:.0f} s" if said is None else said

    def fetch(self, iterator: Any, next_batch: Callable[[], Any]) -> Any:
        """In place of `next(iterator)`."""
        store = self.store
        if store is None or not self._holds(iterator._dataset):
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
        batch = self.cache.store.take(indices) if self.cache.store is not None else None
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
    """Rows of batches by index. put raises ValueError with what is in the way."""

    def __init__(self, dataset: Any, rows: int, most_bytes: int) -> None:
        self.dataset, self.rows, self.most_bytes = dataset, rows, most_bytes
        self.have = bytearray(rows)
        self.count = self.seen = self.audits = 0
        self.form: Any = None
        self.leaves: list[Any] = []
        self.attributes = _samples.fingerprint(dataset)

    @property
    def full(self) -> bool:
        """Whether every sample is kept."""
        return self.count == self.rows

    def put(self, indices: Sequence[int], batch: Any) -> bool:
        """Keep a batch's rows. Returns whether there was anything new."""
        import torch

        if max(indices) >= self.rows:
            raise ValueError("the dataset has grown")
        found: list[Any] = []
        form = _samples.flatten(batch, found)
        if any(leaf.dim() == 0 or leaf.shape[0] != len(indices) for leaf in found):
            raise ValueError("a batch is not one row a sample")
        if not self.leaves:
            self._make(form, found)
        shapes = [(leaf.shape[1:], leaf.dtype) for leaf in found]
        if shapes != [(leaf.shape[1:], leaf.dtype) for leaf in self.leaves]:
            raise ValueError("samples differ in shape")
        new = [index for index in indices if not self.have[index]]
        at = torch.tensor(indices)
        for leaf, rows in zip(self.leaves, found, strict=True):
            leaf[at] = rows
        for index in new:
            self.have[index] = 1
        self.count += len(set(new))
        return bool(new)

    def _make(self, form: Any, found: list[Any]) -> None:
        import torch

        need = self.rows * sum(leaf[:1].numel() * leaf.element_size() for leaf in found)
        free = _free_bytes()
        if need > self.most_bytes or (free is not None and need > free / 2):
            raise ValueError(f"the samples take {need / 2**20:.0f} MiB")
        self.form = form
        self.leaves = [torch.empty((self.rows, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in found]

    def take(self, indices: Sequence[int]) -> Any:
        """The batch, in memory of its own; None where a row is missing."""
        import torch

        if not self.leaves or max(indices) >= self.rows or not all(self.have[index] for index in indices):
            return None
        at = torch.tensor(indices)
        return _samples.rebuild(self.form, [torch.index_select(leaf, 0, at) for leaf in self.leaves])

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
        if kept and not _samples.alike(default_collate([self.dataset[index] for index in kept]), self.take(kept)):
            return "a sample made anew is not the one that was kept"
        return changed() or ""

    def _some(self) -> list[int]:
        """Some indices, others each time; the first and the last are among them the first time."""
        count = min(PROVED, self.rows)
        spread = [at * (self.rows - 1) // max(1, count - 1) for at in range(count)]
        return sorted({(self.audits * 7919 + at) % self.rows for at in spread})


def _free_bytes() -> int | None:
    """Memory that is free to use without swapping; None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs the user an import
            lines = [line for line in file if line.startswith("MemAvailable:")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


LEVER = SampleCache()
