"""The loop ended in a wait for a batch that never came."""

from hotlap.records.diagnosis import Finding
from hotlap.records.run import Hung

from ._base import Measured

LOCKS = (
    "threads of a parent are gone in a forked worker, and locks that they held stay held: OMP_NUM_THREADS=1, "
    'or multiprocessing_context="forkserver"'
)


def find(measured: Measured) -> Finding | None:
    """Share: of the time of all steps and this wait."""
    hung = measured.facts.hung if measured.facts else None
    if measured.facts is None or hung is None:
        return None
    waited_ms = 1000 * hung.waited_s
    hung_at = (hung.file, hung.line or 0, hung.function or "") if hung.file else None
    only = measured.facts.loaders[0] if len(measured.facts.loaders) == 1 else None
    whose = "its loader" if hung.worker is None else f"worker {hung.worker}"
    return Finding(
        id="loader-hangs",
        bound="input",
        share=waited_ms / (waited_ms + measured.run_ms),
        title=f"a batch never came: {whose} {'hangs' if hung.alive is not False else 'is dead'}",
        where=measured.place_of(only) or measured.place_at(hung_at),
        evidence=said(hung),
        why="the loop waits for the batch whose turn it is, however many others are there"
        + (f"; {LOCKS}" if hung.alive else ""),
        instead="see where it stands, while it hangs: `py-spy dump --pid "
        f"{hung.worker_pid or measured.facts.pid}`; `DataLoader(..., timeout=60)` ends such a wait with an error; "
        "`num_workers=0` shows whether it is the worker or the sample",
        named=True,
    )


def said(hung: Hung) -> str:
    """A wait for a batch in which the loop ended, in words."""
    at = f" at {hung.file}:{hung.line}" if hung.file else ""
    state = "alive" if hung.alive else "dead"
    whose = "" if hung.worker is None else f" of worker {hung.worker} (process {hung.worker_pid}, {state})"
    return f"the loop had waited {hung.waited_s:.0f} s for a batch{whose}{at} when it ended"
