"""Lines at which the host waits for the device, and the device then for the host."""

from collections import defaultdict
from collections.abc import Sequence

from hotlap.levers import answering
from hotlap.records.diagnosis import WAITS, Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace, Sync

from ..analyses.syncs import BY_OPTIMIZER, PAGEABLE_IN, WITHIN_AN_OP
from ..scaling import host_ms, idle_ms, share
from ._base import between_waits, inside
from .offloaded import kept, waits_within

ITEM = "`.item()`"
INSTEAD = {
    ITEM: "keep the value on the device; read it every n steps, or a step later from a pinned copy",
    "`print(tensor)`": "print every n steps; detach and copy without blocking first",
    "`bool(tensor)`, as in `if` or `assert`": "decide on the device (torch.where), or check every n steps, for NaN "
    "only the loss; if torch's encoder or decoder reads its mask, pass `is_causal`",
    "boolean mask": "multiply by the mask or use torch.where: a boolean index has to count on the host",
    "`nonzero`": "use a mask, or torch.nonzero_static with a size",
    "`torch.cuda.synchronize()`": "remove it from the loop; time with CUDA events",
    WITHIN_AN_OP: "remove hooks that copy what autograd saves (`save_on_cpu`); if the operation itself runs "
    "on the host, use another",
    BY_OPTIMIZER: "use a Python number as learning rate and step counts on the CPU (`torch.load(..., "
    "map_location='cpu')`); or `fused=True` or `capturable=True`, with which torch's optimizers "
    "read them on the device",
    "`.cpu()` or `.to('cpu')`": "copy every n steps, into pinned memory with non_blocking=True",
    "`clip_grad_norm_`": "pass error_if_nonfinite=False and do not read the norm on the host",
}


BATCHED = "one operation, or one call of the model, on all rows in place of the loop"
TOLIST = "read all values at once, before the loop: `values.tolist()`"


def find(answers: RankTrace) -> list[Finding]:
    """One finding for the waits of a kind in a function, or for all in one that waits many times a step, at the dearest
    line; share and cost: the idle time that follows from them. What follows from staging pageable copies is in the
    finding of copies, what from offloading activations in that of these."""
    offloads, theirs = kept(answers), waits_within(answers)
    between = {at: ns for at, ns in between_waits(answers).items() if at not in theirs}
    alike: defaultdict[object, list[Sync]] = defaultdict(list)
    for sync in answers.syncs:
        at = inside(sync.where)
        told = sync.cause == PAGEABLE_IN or (offloads and sync.cause == WITHIN_AN_OP)
        if not told and (sync.idle_ns > 0 or at in between):
            alike[at if at in between else (at, sync.cause)].append(sync)
    return [_finding(answers, some, between.get(inside(some[0].where))) for some in alike.values()]


def _finding(answers: RankTrace, alike: Sequence[Sync], between_ns: int | None) -> Finding:
    """between_ns: idle time between waits that are many."""
    sync = max(alike, key=lambda one: one.idle_ns)
    count = sum(one.count for one in alike) / answers.window.count
    waited = ms(host_ms(answers, sum(one.host_ns for one in alike)))
    cost = idle_ms(answers, sum(one.idle_ns for one in alike) + (between_ns or 0))
    lines = sorted({one.where.line for one in alike if one.where is not None and one.where.line is not None})
    at = f", at lines {', '.join(map(str, lines))}" if len(lines) > 1 else ""
    stands = "between and after them the device stands" if between_ns else "the device then stands"
    instead = INSTEAD.get(sync.cause, "keep the value on the device, or read it less often")
    if between_ns is not None and sync.cause != BY_OPTIMIZER:
        instead = f"{TOLIST if sync.cause == ITEM else instead}; or {BATCHED}"
    return Finding(
        id="sync",
        bound="sync",
        share=share(answers, cost),
        cost_ms=cost,
        title=f"{WAITS}{sync.cause}",
        where=sync.where,
        evidence=f"{count:.3g} a step in {sync.call}{f' under {sync.op}' if sync.op else ''}; the host waits "
        f"{waited} a step, {stands} still for {ms(cost)}{at}",
        why="nothing new is launched until the value arrives, so the device runs out of work",
        instead=instead,
        levers=answering("syncs") if sync.cause == ITEM else (),
        named=between_ns is not None,  # that function is a cause, also where the rest of the model waits for launches
    )
