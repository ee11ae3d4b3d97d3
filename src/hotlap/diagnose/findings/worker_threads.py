"""Loader workers compute on several threads each, more in all than there are cores."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured, counted

LEAST = 0.05
REPLACES = ("input",)
SETS = ("set_num_threads", "setNumThreads", "threadpool_limits")
"""Calls that give a library its threads: torch's, OpenCV's, threadpoolctl's."""


def find(measured: Measured) -> Finding | None:
    """Share: the data phase, as of `input`."""
    loader, share = measured.loader, measured.share("data")
    if loader is None or measured.cpu is None or share < LEAST:
        return None
    threads = loader.worker_threads
    if threads < 2 or loader.workers * threads <= measured.cpu.usable:
        return None
    return Finding(
        id="worker-threads",
        bound="input",
        share=share,
        cost_ms=measured.took_ms("data"),
        title=f"each of {counted(loader.workers, 'worker')} computes on {threads} threads",
        where=call_of(measured.facts, SETS) or measured.place_of(loader),
        evidence=f"{loader.workers * threads} threads on {counted(measured.cpu.usable, 'core')}; batches are waited "
        f"for {ms(measured.phases.data or 0.0)} a step",
        why="the threads compete for cores; torch uses one thread in each worker, but other libraries use all cores",
        instead="one thread a worker: in a `worker_init_fn` `torch.set_num_threads(1)`, `cv2.setNumThreads(0)`; for "
        "numpy and others `OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1` before the command",
        named=True,
    )
