"""The tensors that samples are views of are kept on the device, and batches are gathered there: no batch is made on the
host or copied to the device.

For datasets in memory, as `batch-fetch` takes them and by the same proof (every sample is asked for once, in a forked
process, the first batches are compared bit for bit, of each later batch one sample must lie where it did), where they
fit into a quarter of the device's free memory. A write to the dataset's tensors by torch is seen before the next batch,
by their version, and they are copied anew. A write past torch (through numpy, or `.data`) is not: of one batch in so
many a sample is compared with the dataset's own, and where it differs the lever gives up. Small batches are gathered
some at a time, where torch's own sampler says which will come. As with `device-prefetch` the script's own `.to(device)`
finds the batch there; leaves of a batch that it leaves on the host are made on the host.
"""

import itertools
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import _samples
from ._base import Applies, Context, Lever, Settings, no_gpu
from ._coming import Coming, coming
from .batch_fetch import Gathering, Table, not_views, numbers
from .device_prefetch import LEVER as DEVICE_PREFETCH

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

SHARE_OF_MEMORY: Final = 0.25
"""Of the device's free memory when the loop begins; activations and the optimizer's state come after that."""
LEAST_SHARE: Final = 0.02
MOST_COPIES: Final = 4
"""Of a dataset whose tensors are written to."""
COMPARE_EVERY: Final = 16
"""Batches; to compare a sample costs some launches."""
MOST_AHEAD: Final = 16
AHEAD_BYTES: Final = 16 << 20
"""Batches, and their size on the device, that are gathered at once: for each alone it takes the host longer to issue
that than a small model's kernels take (on an H200 a fifth of a DLRM's step of 1.4 ms)."""
ALIGNED: Final = 512
"""Bytes, as torch's allocator places tensors: libraries choose kernels by that."""


class DatasetOnDevice(Lever):
    name = "dataset-on-device"
    meaning = "the tensors that samples are views of are kept on the device, and batches are gathered there"
    risk = "exact"
    excludes = ("batch-fetch", "device-prefetch")

    def applies(self, context: Context) -> Applies:
        loader, share = context.training_loader, self.share(context)
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; there is no device to keep it on")
        if why := not_views(context):
            return Applies(False, why)
        if loader is None or loader.custom_batch or not loader.moved:
            return Applies(False, "the script was not seen to move its batches to the device")
        if share < LEAST_SHARE:
            return Applies(False, f"data and h2d take only {share:.1%} of the step")
        return Applies(True, f"{share:.0%} of the step waits for batches of {loader.dataset}, which holds tensors")

    def variants(self, context: Context) -> list[Settings]:
        return DEVICE_PREFETCH.variants(context)

    def share(self, context: Context) -> float:
        return context.share_of("data", "h2d")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return DEVICE_PREFETCH.check(settings)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment) or _samples.no_fork(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        chosen = None if settings["leaves"] == "all" else frozenset(settings["leaves"])
        Residing(seams, self.name, chosen).install("inference" in settings)

    def source(self, settings: Settings) -> str:
        return (
            "# before the loop:\n"
            "images, labels = images.to(device), labels.to(device)\n"
            "# in the loop, in place of the loader:\n"
            "for at in torch.randperm(len(images)).split(batch_size):\n"
            "    at = at.to(device, non_blocking=True)\n"
            "    x, y = images[at], labels[at]"
        )


class Residing(Gathering):
    """The in-process half. chosen: leaves of a batch that come on the device, None: all. place: where; the current
    CUDA device."""

    def __init__(self, seams: "Seams", lever: str, chosen: frozenset[int] | None, place: Any = None) -> None:
        super().__init__(seams, lever)
        self.chosen, self.place = chosen, place
        self.inference = False

    def install(self, inference: bool = False) -> None:
        self.inference = inference
        super().install(inference)

    def table_of(self, dataset: Any) -> Table:
        import torch

        place = self.place or torch.device("cuda", torch.cuda.current_device())
        return Resident(dataset, len(dataset), self.chosen, place, self.inference)


class Resident(Table):
    """A table whose tensors are on a device too. graded: only while gradients are enabled are batches made there."""

    def __init__(self, dataset: Any, rows: int, chosen: frozenset[int] | None, place: Any, inference: bool) -> None:
        super().__init__(dataset, rows)
        self.chosen, self.place, self.inference = chosen, place, inference
        self.copies = self.gathered = 0
        self.numbers: list[int] = []
        self.there: list[Any] = []
        self.versions: list[int] = []
        self.check: Check | None = None
        self.compares = 0

    def survey(self, apart: Any) -> str | None:
        why = super().survey(apart)
        if why is not None:
            return why
        self.numbers = [at for at in range(len(self.windows)) if self.chosen is None or at in self.chosen]
        need = sum(of.untyped_storage().nbytes() for of in self._once(self._chosen())) + self.offsets.nbytes
        free = free_memory(self.place)
        if need > SHARE_OF_MEMORY * free:
            return f"its tensors take {need / 2**20:.0f} MiB; {free / 2**20:.0f} MiB are free on the device"
        self._copy()
        return None

    def _chosen(self) -> list[Any]:
        return [self.windows[at] for at in self.numbers]

    @staticmethod
    def _once(tensors: Sequence[Any]) -> list[Any]:
        """One for each storage and dtype: several leaves may lie in one tensor."""
        return list({(of.untyped_storage().data_ptr(), of.dtype): of for of in tensors}.values())

    def _copy(self) -> None:
        """Copy the dataset to the device, as it is now."""
        import torch

        self.copies += 1
        self.versions = [of._version for of in self._chosen()]
        flat: dict[tuple[int, Any], Any] = {}
        for of in self._once(self._chosen()):
            size = of.untyped_storage().nbytes() // of.element_size()
            whole = torch.as_strided(of, (size,), (1,), 0)
            flat[of.untyped_storage().data_ptr(), of.dtype] = whole.to(self.place, copy=True)
        self.there = [windows_in(flat[of.untyped_storage().data_ptr(), of.dtype], of) for of in self._chosen()]
        self.places = self.offsets[self.numbers].to(self.place)
        self.check = Check(self.place)

    def take(self, iterator: Any) -> Coming | None:
        super().take(iterator)
        iterator._pin_memory = False  # what is on the device can't be
        return coming(iterator) if len(self.numbers) == len(self.windows) else None

    def moved(self, indices: Any) -> str | None:
        why = super().moved(indices)
        if why is None and self.check is not None and self.check.differed():
            return "a sample is no longer what it was: something has written to it past torch"
        if why is None and self.versions != [of._version for of in self._chosen()]:
            if self.copies == MOST_COPIES:
                return f"the dataset's tensors were written to {MOST_COPIES} times"
            self._copy()
        return why

    def gather(self, indices: Sequence[int], coming: Coming | None = None) -> Any:
        import torch

        if not (self.inference or torch.is_grad_enabled()):
            return super().gather(indices)
        return _samples.rebuild(self.form, self._leaves(indices) if coming is None else self._ahead(indices, coming))

    def seen(self, indices: Sequence[int]) -> Any:
        return _samples.rebuild(self.form, [leaf.cpu() for leaf in self._leaves(indices)])

    def _ahead(self, indices: Sequence[int], coming: Coming) -> list[Any]:
        """The same, with the batches to come, for which that is done at once."""
        made, now = coming.made, (self.copies, _stream(self.place))
        if not made or made[0].indices is not indices or made[0].when != now:
            made.clear()
            lists = [indices, *coming.after(self._fits(len(indices)) - 1)]
            made.extend(Made(of, now, leaves) for of, leaves in zip(lists, self._several(lists), strict=True))
        first: Made = made.popleft()
        return first.leaves

    def _fits(self, rows: int) -> int:
        """How many batches are made at once: one where most of the memory between them would be none's."""
        if self._between(rows) > rows:
            return 1
        size = rows * sum(int(of[0].nbytes) for of in self.there)
        return max(1, min(MOST_AHEAD, AHEAD_BYTES // max(1, size)))

    def _between(self, rows: int) -> int:
        """Rows to leave after a batch, so that the next one begins where a tensor of its own might."""
        sizes = [int(of[0].nbytes) for of in self.there]
        return -rows % max(ALIGNED // math.gcd(ALIGNED, size) for size in sizes)

    def _several(self, lists: Sequence[Sequence[int]]) -> list[list[Any]]:
        """Of each batch its leaves. Those of several share memory, each with a version of its own."""
        every, begins = array("q", lists[0]), [0]
        for before, of in itertools.pairwise(lists):
            every.extend(itertools.repeat(before[0], self._between(len(before))))
            begins.append(len(every))
            every.extend(of)
        whole = self._gathered(numbers(every), lists[0][0], len(lists))
        if len(lists) == 1:
            return [whole]
        pairs = zip(begins, lists, strict=True)
        return [[leaf[at : at + len(of)].data for leaf in whole] for at, of in pairs]

    def _gathered(self, at: Any, first: int, batches: int) -> list[Any]:
        """What is on the device of these samples. first: one of them, that is compared with the dataset's own now and
        then."""
        import torch

        places = self.places.index_select(1, sent(at, self.place))
        made = [torch.index_select(of, 0, place) for of, place in zip(self.there, places, strict=True)]
        self.gathered += batches
        if self.gathered // COMPARE_EVERY > self.compares and self.check is not None:
            self.compares = self.gathered // COMPARE_EVERY
            self.check.compare([of[0] for of in made], [self.windows[n][self.offsets[n, first]] for n in self.numbers])
        return made

    def _leaves(self, indices: Sequence[int]) -> list[Any]:
        at = numbers(indices)
        there = dict(zip(self.numbers, self._gathered(at, indices[0], 1), strict=True))
        every = enumerate(self.windows)
        return [there[n] if n in there else of.index_select(0, self.offsets[n, at]) for n, of in every]


class Made(NamedTuple):
    """A batch that was made ahead. when: which copy of the dataset it is of, and the stream that made it."""

    indices: Sequence[int]
    when: tuple[int, int]
    leaves: list[Any]


class Check:
    """Compares samples on the device with those of the host, without waiting for the answer."""

    def __init__(self, place: Any) -> None:
        import torch

        self.place = place
        self.differs = torch.zeros((), dtype=torch.bool, device=place)
        on_cuda = place.type == "cuda"
        self.told = torch.zeros((), dtype=torch.bool, pin_memory=on_cuda)
        self.done = torch.cuda.Event() if on_cuda else None

    def compare(self, there: Sequence[Any], here: Sequence[Any]) -> None:
        """Bit for bit."""
        for one, other in zip(there, here, strict=True):
            self.differs |= (_bytes(one) != sent(_bytes(other), self.place)).any()
        self.told.copy_(self.differs, non_blocking=True)
        if self.done is not None:
            self.done.record()

    def differed(self) -> bool:
        """Whether any so far was another, as far as the device has told."""
        return (self.done is None or self.done.query()) and bool(self.told)


def windows_in(flat: Any, of: Any) -> Any:
    """What `windows` gives, in a copy of its memory."""
    import torch

    return torch.as_strided(flat, of.shape, of.stride(), 0)


def sent(tensor: Any, place: Any) -> Any:
    """On the device, without waiting for it."""
    return tensor.pin_memory().to(place, non_blocking=True) if place.type == "cuda" else tensor.clone()


def _stream(place: Any) -> int:
    """What the current stream is known by."""
    import torch

    return int(torch.cuda.current_stream(place).cuda_stream) if place.type == "cuda" else 0


def free_memory(place: Any) -> float:
    """Bytes."""
    import torch

    return float(torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else float("inf")


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


LEVER = DatasetOnDevice()
