"""Workers copy a dataset's Python objects."""

from hotlap.records.diagnosis import Finding

from ._base import Measured

LEAST_BYTES = 2**25


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory, and the time only where that runs short."""
    loader = measured.loader
    if loader is None or not loader.workers or not loader.objects or loader.worker_growth_bytes < LEAST_BYTES:
        return None
    growth = loader.worker_growth_bytes / 2**20
    return Finding(
        id="worker-copies",
        bound="unknown",
        share=0.0,
        title=f"each worker copies the Python objects of {loader.dataset}",
        where=measured.place_of(loader),
        evidence=f"about {loader.objects:,} objects in its {loader.objects_in!r}; the memory of one of "
        f"{loader.workers} workers grew by {growth:.0f} MiB while watched",
        why="reading a Python object writes its reference count, so its page is no longer shared with the parent",
        instead="keep the data in one tensor or numpy array (strings as bytes with an array of offsets), or in a file",
        levers=(),
    )
