"""The cgroup's CPU quota runs out: all threads of the job are held until the next period."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST_PERIODS = 0.05


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold this time. At most: held time is summed over cores, and some core may be free of it."""
    use = measured.cpu
    if use is None or use.quota is None or use.throttled is None or use.throttled_ms is None:
        return None
    most = min(1.0, use.throttled, use.throttled_ms / 1000)
    if use.throttled < LEAST_PERIODS or not measured.host_matters:
        return None
    return Finding(
        id="cpu-quota",
        bound="unknown",
        share=0.0,
        cost_ms=most * measured.step_ms,
        title=f"the CPU quota of {use.quota:g} cores runs out",
        evidence=f"in {use.throttled:.0%} of the cgroup's periods; threads were stopped for {ms(use.throttled_ms)} a "
        f"second, summed over cores, in {ms(1000 * use.seconds)} of steady steps; "
        f"{_threads(measured, use.cores)}",
        why="a quota is time, not cores: many threads use it up early in a period (mostly 100 ms), then all stop "
        "until the next one",
        instead="request more CPU (Docker --cpus, Kubernetes limits.cpu), or run no more threads and workers than the "
        "quota has cores",
        levers=answering("threads", "input"),
        beneath=True,
    )


def _threads(measured: Measured, cores: int) -> str:
    workers = measured.loader.workers if measured.loader else 0
    threads = measured.facts.threads if measured.facts else 0
    return f"{threads or 'unknown'} intra-op threads and {workers} workers see {cores} cores"
