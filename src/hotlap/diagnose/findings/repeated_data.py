"""An IterableDataset delivers the same samples from every worker."""

from hotlap.records.diagnosis import Finding

from ._base import Measured


def find(measured: Measured) -> Finding | None:
    """Share 0: the step is not slower, but an epoch has every sample as often as there are workers.

    Seen where the first batches of two workers hold the same rows; a stream that shuffles or transforms at random
    repeats its samples unseen.
    """
    loader = measured.loader
    if loader is None or not loader.iterable or loader.workers < 2 or not loader.repeated_rows:
        return None
    return Finding(
        id="repeated-data",
        bound="unknown",
        share=0.0,
        title=f"every worker delivers the same samples of {loader.dataset}",
        where=measured.place_of(loader),
        evidence=f"the first batches of the first two of {loader.workers} workers have {loader.repeated_rows} rows in "
        "common, bit for bit",
        why="each worker iterates over its own whole copy of an IterableDataset, unless the dataset selects its share",
        instead="in __iter__ yield only every nth sample, by the worker's id: torch.utils.data.get_worker_info()",
        wrong=True,
    )
