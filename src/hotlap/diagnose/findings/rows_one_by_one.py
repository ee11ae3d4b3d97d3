"""Rows of a tensor in memory are fetched one by one and collated."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured
from .input import ON_DEVICE

LEAST = 0.05
LEAST_ROWS = 8
REPLACES = ("input",)


def find(measured: Measured) -> Finding | None:
    """Share: the data phase. Told of a TensorDataset, and of samples that were seen to be views of a tensor."""
    loader, share = measured.loader, measured.share("data")
    if loader is None or share < LEAST or loader.workers or not loader.default_collate or loader.iterable:
        return None
    rows = loader.batch_size or 0
    if rows < LEAST_ROWS or not (loader.views or loader.dataset == "TensorDataset"):
        return None
    return Finding(
        id="rows-one-by-one",
        bound="input",
        share=share,
        cost_ms=share * measured.step_ms,
        title=f"rows of a tensor in memory ({loader.dataset}) are fetched one by one",
        where=call_of(measured.facts, ("DataLoader",)) or measured.place_of(loader),
        evidence=f"data takes {ms(measured.phases.data or 0)} a step, of batches of {rows:,} rows",
        why=f"each batch makes {rows:,} calls of __getitem__ and stacks as many tensors; one index would do",
        instead="`for at in torch.randperm(len(x)).split(batch_size): batch = x[at], y[at]`; or pass the loader "
        "`sampler=BatchSampler(RandomSampler(data), batch_size, False), batch_size=None`"
        + ("" if loader.dataset == "TensorDataset" else " and let `__getitem__` take a list of indices")
        + (ON_DEVICE if measured.cuda else ""),
        named=True,
    )
