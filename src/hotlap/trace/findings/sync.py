"""Lines at which the host waits for the device, and the device then for the host."""

from hotlap.levers import answering
from hotlap.records.diagnosis import WAITS, Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace, Sync

from ..analyses.syncs import PAGEABLE_IN
from ._base import idle_ms, share

ITEM = "`.item()`"
INSTEAD = {
    ITEM: "keep the value on the device; read it every n steps, or a step later from a pinned copy",
    "`print(tensor)`": "print every n steps; detach and copy without blocking first",
    "`bool(tensor)`, as in `if` or `assert`": "decide on the device (torch.where), or check every n steps; where "
    "torch's encoder or decoder looks at its mask, give it `is_causal`",
    "boolean mask": "multiply by the mask or use torch.where: a boolean index has to count on the host",
    "`nonzero`": "use a mask, or torch.nonzero_static with a size",
    "`torch.cuda.synchronize()`": "take it out of the loop; time with CUDA events",
    "`.cpu()` or `.to('cpu')`": "copy every n steps, into pinned memory with non_blocking=True",
    "`clip_grad_norm_`": "pass error_if_nonfinite=False and do not read the norm on the host",
}


def find(answers: RankTrace) -> list[Finding]:
    """One finding a line; share and cost: the idle time that follows from it. What follows from staging pageable copies
    is in the finding of copies."""
    return [_finding(answers, sync) for sync in answers.syncs if sync.idle_ns > 0 and sync.cause != PAGEABLE_IN]


def _finding(answers: RankTrace, sync: Sync) -> Finding:
    count = sync.count / answers.window.count
    cost = idle_ms(answers, sync.idle_ns)
    return Finding(
        id="sync",
        bound="sync",
        share=share(answers, cost),
        cost_ms=cost,
        title=f"{WAITS}{sync.cause}",
        where=sync.where,
        evidence=f"{count:.3g} a step in {sync.call}{f' under {sync.op}' if sync.op else ''}; the host waits "
        f"{ms(sync.host_ns / answers.window.count / 1e6)} a step, the device then stands still for "
        f"{ms(cost)}",
        why="until the value has arrived nothing new is launched, so that the device runs dry",
        instead=INSTEAD.get(sync.cause, "keep the value on the device, or read it less often"),
        levers=answering("syncs") if sync.cause == ITEM else (),
    )
