"""The hypervisor runs others on cores that this machine wanted."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.05


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold this time. At most: what was stolen of all cores together."""
    use = measured.cpu
    if use is None or use.steal_ms is None or use.busy_ms is None or not measured.host_matters:
        return None
    wanted = use.steal_ms + use.busy_ms
    if not wanted or use.steal_ms / wanted < LEAST:
        return None
    together = measured.facts is None or measured.facts.threads > 1
    return Finding(
        id="cpu-steal",
        bound="unknown",
        share=0.0,
        cost_ms=min(1.0, use.steal_ms / 1000) * measured.step_ms,
        title="the hypervisor takes cores away",
        evidence=f"{use.steal_ms / wanted:.0%} of the time that a core had work went to another virtual machine "
        f"({ms(use.steal_ms)} a second over {use.cores} cores, in {ms(1000 * use.seconds)} of steady steps)",
        why="the host of this virtual machine is overcommitted"
        + ("; an operation waits for the thread whose core is gone" if together else ""),
        instead="nothing in the script helps: use a machine with dedicated cores"
        + ("; fewer intra-op threads lose less" if together else ""),
        levers=answering("threads") if together else (),
        beneath=True,
    )
