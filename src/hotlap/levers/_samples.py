"""What the levers share that make batches another way than the loader does: which loaders they may touch, the leaves
of a batch, random generators that a dataset could draw from. Not a lever."""

import random
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context

if TYPE_CHECKING:
    from hotlap.records.run import Environment, LoaderFacts

MOST_THINGS: Final = 4096
DEEPEST: Final = 6
IN_MAIN: Final = "_hotlap_in_main"
"""Set on a loader whose batches are made in the training process for good; loader-workers then leaves it alone."""


def structural(context: Context) -> "Applies | LoaderFacts":
    """The training loader, or why none can be taken: what both levers ask before their own questions."""
    loader = context.training_loader
    if loader is None:
        return Applies(False, "no DataLoader feeds the loop")
    if loader.iterable:
        return Applies(False, "an IterableDataset has no index to know a sample by")
    if loader.on_device:
        return Applies(False, "the dataset returns tensors on the device")
    if not loader.default_collate:
        return Applies(False, "the loader has a collate function of the script's own")
    if loader.rows is None or loader.epoch_batches is None:
        return Applies(False, "the loader has a sampler or batch sampler other than torch's own")
    if loader.own_workers:
        return Applies(False, "the loader sets a timeout or starts its workers with a function of the script's")
    why = no_fork(context.environment)
    return loader if why is None else Applies(False, why)


def no_fork(environment: "Environment") -> str | None:
    """The reason of levers whose proof forks a process, where it can't be done."""
    return None if environment.os.startswith("Linux") else "its proof forks a process, which is for Linux"


def why_not(loader: Any) -> str | None:
    """Why a loader in the process can't be taken; None if it can."""
    import torch
    from torch.utils.data import IterableDataset
    from torch.utils.data.dataloader import DataLoader, default_collate

    if type(loader).__iter__ is not DataLoader.__iter__ or type(loader)._get_iterator is not DataLoader._get_iterator:
        return "the loader is of a class that iterates in its own way"
    if isinstance(loader.dataset, (IterableDataset, torch.utils.data.MapDataPipe)):
        return "the dataset has no index to know a sample by"
    if not _torchs_own(loader.batch_sampler):
        return "the loader has a sampler or batch sampler other than torch's own"
    if loader.collate_fn is not default_collate:
        return "the loader has a collate function of the script's own"
    if loader.worker_init_fn is not None or loader.timeout or not getattr(loader, "in_order", True):
        return "the loader sets a timeout, an order or a function for its workers"
    return None


def standard(iterator: Any) -> bool:
    """Whether an iterator makes its batches as `why_not` asks of its loader: another one over the same dataset, of a
    later stage or of an evaluation, may have a collate function of its own, or no batches."""
    from torch.utils.data.dataloader import default_collate

    by_batch = iterator._auto_collation and iterator._collate_fn is default_collate
    return by_batch and _torchs_own(iterator._index_sampler)


def _torchs_own(batches: Any) -> bool:
    """Whether a batch sampler and the sampler in it are, or a lever's around them: they give lists of indices."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    inner = getattr(batches, "inner", batches)
    return type(inner) is BatchSampler and type(inner.sampler) in {RandomSampler, SequentialSampler}


def to_main(loader: Any) -> None:
    """Make batches in the training process from here on."""
    if getattr(loader, "_iterator", None) is not None:  # persistent workers, which nobody asks any more
        loader._iterator._shutdown_workers()
        loader._iterator = None
    loader.num_workers = 0
    setattr(loader, IN_MAIN, True)


def flatten(value: Any, found: list[Any]) -> Any:
    """The tensors of a sample or batch into `found`; returns its form, in which a tensor is its number.

    Raises ValueError with what is in the way: anything but plain tensors in lists, tuples and dicts.
    """
    import torch

    if type(value) is torch.Tensor:
        if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad:
            raise ValueError("a sample holds a tensor that is not a plain one on the CPU")
        if value.is_conj() or value.is_neg() or value.is_quantized:
            raise ValueError("a sample holds a tensor that is not a plain one on the CPU")
        found.append(value)
        return len(found) - 1
    if type(value) in {list, tuple}:
        return type(value), [flatten(item, found) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (lambda items: type(value)(*items)), [flatten(item, found) for item in value]
    if type(value) is dict:
        names = list(value)
        return (lambda items: dict(zip(names, items, strict=True))), [flatten(value[name], found) for name in names]
    raise ValueError(f"a sample holds a {type(value).__name__}, not only tensors")


def rebuild(form: Any, leaves: list[Any]) -> Any:
    """The batch of a form."""
    if isinstance(form, int):
        return leaves[form]
    make, items = form
    return make([rebuild(item, leaves) for item in items])


def bits(tensor: Any) -> bytes:
    """Of a tensor's values, NaNs and all."""
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def alike(one: Any, two: Any) -> bool:
    """Whether two batches hold the same tensors, bit for bit, in the same places. Raises ValueError as `flatten`."""
    left: list[Any] = []
    right: list[Any] = []
    flatten(one, left)
    flatten(two, right)
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b) for a, b in zip(left, right, strict=True)
    )


# what a dataset could draw from, or change


def watched(dataset: Any) -> Callable[[], str | None]:
    """Look at random generators and a dataset's attributes now; the result says later what has changed."""
    before, attributes = _states(dataset), fingerprint(dataset)

    def changed() -> str | None:
        if _states(dataset) != before:
            return "making a sample draws random numbers"
        return _different(attributes, fingerprint(dataset))

    return changed


def fingerprint(dataset: Any) -> dict[str, Any]:
    """A dataset's attributes: plain values as they are, all others by identity and length."""
    plain = (int, float, str, bytes, bool, type(None))
    return {
        str(name): value if type(value) in plain else (id(value), _length(value))
        for name, value in list(getattr(dataset, "__dict__", {}).items())
    }


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple, dict, set)) else 0


def _different(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name in before.keys() | after.keys():
        if before.get(name, _MISSING) != after.get(name, _MISSING):
            return f"the dataset's attribute {name!r} changes"
    return None


_MISSING: Final = object()


def changed_since(attributes: dict[str, Any], dataset: Any) -> str | None:
    """Which attribute is another than in the fingerprint."""
    return _different(attributes, fingerprint(dataset))


def _states(dataset: Any) -> list[Any]:
    """The states of the global generators and of all that a dataset holds."""
    import torch

    states = [_frozen(torch.get_rng_state()), random.getstate()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append(_frozen(numpy.random.get_state()))
    return [*states, *(_state(generator) for generator in _generators(dataset, numpy))]


def _generators(dataset: Any, numpy: Any) -> Iterator[Any]:
    import torch

    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    seen: set[int] = set()
    level: list[Any] = [dataset]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for thing in level:
            if id(thing) in seen or len(seen) > MOST_THINGS:
                continue
            seen.add(id(thing))
            if isinstance(thing, kinds):
                yield thing
            else:
                below += _parts(thing)
        level = below


def _parts(thing: Any) -> list[Any]:
    """Where a generator may lie: in attributes, containers, a function's closure and the owner of a method."""
    if isinstance(thing, (list, tuple, set)):
        return list(thing)[:64]
    if isinstance(thing, dict):
        return list(thing.values())[:64]
    if isinstance(thing, type) or type(thing).__name__ in {"module", "Tensor", "ndarray"}:
        return []
    cells = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or () if _filled(cell)]
    owner = getattr(thing, "__self__", None)
    return [*cells, *([] if owner is None else [owner]), *list(getattr(thing, "__dict__", {}).values())[:256]]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # an empty cell
        return False


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    bit_generator = getattr(generator, "bit_generator", None)
    return _frozen(generator.get_state() if bit_generator is None else bit_generator.state)


def _frozen(state: Any) -> Any:
    """A state as plain values that can be compared."""
    if isinstance(state, dict):
        return tuple((name, _frozen(value)) for name, value in state.items())
    if isinstance(state, (tuple, list)):
        return tuple(_frozen(value) for value in state)
    return bytes(state.numpy()) if hasattr(state, "numpy") else state.tobytes() if hasattr(state, "tobytes") else state
