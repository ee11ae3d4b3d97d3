"""A loader: as torch's DataLoader was given it, how many samples it has, what makes its batches, and what is in them.

Nothing here calls the user's dataset, except for its length where torch's own sampler asked for that already.
"""

from typing import Any, Final

import torch
from torch.utils.data.dataloader import default_collate

from ..lines import Places
from ..probe import leaves
from ..torch_internals import has_storage, sizes
from . import Facts, integer, place_of

MANY_OBJECTS: Final = 1_000_000
"""Python objects in a dataset's containers from which workers are said to copy them: some 64 MiB each."""
SAMPLED: Final = 16
MOST_ITEMS = 4096
"""Of a list in a batch."""


def describe_loader(loader: Any) -> Facts:
    """Its arguments, its length in rows and batches, and where its dataset makes a sample."""
    dataset, context = getattr(loader, "dataset", None), getattr(loader, "multiprocessing_context", None)
    kind, iterable = type(dataset), isinstance(dataset, torch.utils.data.IterableDataset)
    sampler = type(getattr(loader, "sampler", None))
    rows, batches = _lengths(loader, sampler)
    name, count = _objects(dataset)
    return {
        "dataset": kind.__qualname__, "iterable": iterable,
        "workers": integer(getattr(loader, "num_workers", 0)) or 0,
        "batch_size": integer(getattr(loader, "batch_size", None)),
        "pin_memory": bool(getattr(loader, "pin_memory", False)),
        "persistent": bool(getattr(loader, "persistent_workers", False)),
        "prefetch": integer(getattr(loader, "prefetch_factor", None)),
        "context": None if context is None else str(getattr(context, "_name", None) or context),
        "rows": rows, "epoch_batches": batches,
        "default_collate": getattr(loader, "collate_fn", None) is default_collate,
        "collate": _collate(getattr(loader, "collate_fn", None)),
        "holds_tensors": _holds_tensors(dataset),
        **({"objects": count, "objects_in": name} if count >= MANY_OBJECTS else {}),
        **place_of(kind, "__iter__" if iterable else "__getitem__"),
    }  # fmt: skip


def describe_batch(batch: Any) -> Facts:
    """How many tensors a batch has, their bytes, and whether one is on a device already."""
    found = list(leaves(batch, most=MOST_ITEMS))
    return {
        "batch_tensors": len(found),
        "on_device": any(leaf.device.type != "cpu" for leaf in found),
        "batch_bytes": sum(leaf.numel() * leaf.element_size() for leaf in found if has_storage(leaf)),
    }


def _collate(function: Any) -> tuple[str, int, str] | None:
    """File, line and name of the user's function that makes a batch of samples."""
    function = getattr(function, "func", function)  # of a partial
    function = getattr(function, "__func__", function) if hasattr(function, "__code__") else type(function).__call__
    code = getattr(function, "__code__", None)
    if code is None or not Places().users(code.co_filename):
        return None
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _lengths(loader: Any, sampler: type) -> tuple[int | None, int | None]:
    """Rows and batches an epoch, of torch's own samplers only: asking another runs code of the user's."""
    samplers = torch.utils.data
    if sampler not in {samplers.SequentialSampler, samplers.RandomSampler}:
        return None, None
    if type(getattr(loader, "batch_sampler", None)) is not samplers.BatchSampler:
        return None, None
    rows = min(len(loader.sampler), len(loader.sampler.data_source))  # `num_samples` may ask for any number of draws
    return rows, len(loader.batch_sampler)


def _holds_tensors(dataset: Any, depth: int = 0) -> bool:
    """Whether a dataset, or one that it wraps, has a tensor of several rows among its attributes."""
    for value in list(getattr(dataset, "__dict__", {}).values())[:64]:
        for item in value[:8] if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, torch.Tensor) and sizes(item)[:1] > (1,):
                return True
        if depth < 3 and isinstance(value, torch.utils.data.Dataset) and _holds_tensors(value, depth + 1):
            return True
    return False


def _objects(dataset: Any) -> tuple[str, int]:
    """The attribute with the most Python objects in lists, tuples, dicts and sets, and about how many."""
    found = [("", 0)]
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:64]:
        if isinstance(value, (list, tuple, dict, set)):
            found.append((str(name), _size(value)))
    return max(found, key=lambda item: item[1])


def _size(value: Any) -> int:
    """Objects in a container and, by a sample of its items, in those inside."""
    if isinstance(value, (list, tuple)) and value:
        items = value[:: max(1, len(value) // SAMPLED)][:SAMPLED]
        inside = sum(len(item) for item in items if isinstance(item, (list, tuple, dict, set))) / len(items)
        return int(len(value) * (1 + inside))
    return len(value)
