"""The changes that leave more memory where it ran out: what each gives, and what it costs.

What a change gives is a bound from what was allocated then. It is no promise: the rest of the step may ask for more.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from hotlap.levers import all_levers
from hotlap.levers._base import Context, Lever, Settings
from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.memory import BACKWARD, FORWARD, MemoryUsage, OutOfMemory
from hotlap.records.ran_out import MemoryChange
from hotlap.records.run import Environment, Facts, Phases
from hotlap.records.sizes import size_text
from hotlap.records.tune import Risk

FRAGMENTATION: Final = "fragmentation"
"""In `Lever.frees`: what the allocator holds of the driver, and nobody has."""
REQUEST: Final = "request"
"""In `Lever.frees`: what was asked for within the model, which a change may make smaller too."""
BY_HAND: Final = 50
"""As `Lever.memory_order`, of what no lever does."""
MOST_PARTS: Final = 1024
LEAST: Final = 0.02
"""Of what was allocated, from which a change is told at all."""
EIGHT_BITS: Final = 0.75
"""Of optimizer state in 32 bits that is gone with 8."""
UNKNOWN_STEP: Final = Diagnosis(
    mode="train", bound="memory", step_ms=0.0, spread=Spread(p10=0.0, p50=0.0, p90=0.0), phases=Phases()
)


def changes(
    usage: MemoryUsage, ran_out: OutOfMemory, facts: Facts | None = None, environment: Environment | None = None
) -> tuple[MemoryChange, ...]:
    """Those that give something here, in the order in which to try them: what gives enough alone first, of these what
    costs least. facts, environment: of the run; with them levers that can't be used in it are left out."""
    lacks, least = lacking(ran_out), LEAST * usage.peak_bytes
    request = ran_out.asked_bytes or 0 if ran_out.phase in {FORWARD, BACKWARD} else 0
    found = [(0, change) for change in _mends(usage, ran_out)]
    found += _by_levers(usage, request, facts, environment)
    found += [(BY_HAND, change) for change in _by_hand(usage, ran_out)]
    if not any(all_levers()[change.lever].resizes_step for _, change in found if change.lever):
        found += [(BY_HAND, change) for change in _smaller(usage, request, lacks)]
    told = [(order, _judged(change, lacks)) for order, change in found if (change.gives_bytes or 0) >= least]
    told.sort(key=lambda one: (not one[1].enough, _cost(one[1].risk), one[0], -(one[1].gives_bytes or 0)))
    return tuple(change for _, change in told)


def lacking(ran_out: OutOfMemory) -> int:
    """Bytes of what was asked for that were not free either."""
    free = ran_out.free_bytes
    if free is None and ran_out.total_bytes is not None and ran_out.resident_bytes is not None:
        free = max(0, ran_out.total_bytes - ran_out.resident_bytes)
    return max(1, (ran_out.asked_bytes or 0) - (free or 0))


def few(found: tuple[MemoryChange, ...], lacks: int, most: int = 3) -> tuple[tuple[MemoryChange, ...], bool]:
    """The first of them: of those that give enough alone; where none does, the cheapest that do together, and True.
    Neither: all that there are, which do not."""
    enough = [one for one in found if one.enough]
    if enough:
        return tuple(enough[:most]), False
    chosen: list[MemoryChange] = []
    for one in found:
        chosen.append(one)
        if len(chosen) == most or sum(each.gives_bytes or 0 for each in chosen) >= lacks:
            break
    return tuple(chosen), len(chosen) > 1 and sum(each.gives_bytes or 0 for each in chosen) >= lacks


def change_text(change: MemoryChange) -> str:
    """A change on one line: what it gives and costs."""
    gives = f"gives {change.bound} {size_text(change.gives_bytes)}" if change.gives_bytes is not None else ""
    costs = f"costs {change.costs}" if change.costs else ""
    return ": ".join(filter(None, (change.lever or change.what, ", ".join(filter(None, (gives, costs))))))


def _cost(risk: Risk) -> int:
    """What is exact costs least."""
    return ("exact", "numeric", "semantic").index(risk)


def _judged(change: MemoryChange, lacks: int) -> MemoryChange:
    enough = change.gives_bytes is not None and change.gives_bytes >= lacks
    return msgspec.structs.replace(change, enough=enough)


def not_told(facts: Facts | None, environment: Environment | None) -> tuple[MemoryChange, ...]:
    """Levers that leave more memory, where what was allocated is not known."""
    levers = sorted(
        (one for one in all_levers().values() if one.frees), key=lambda one: (_cost(one.risk), one.memory_order)
    )
    return tuple(found for one in levers if (found := _by_lever(one, None, facts, environment)) is not None)


def _by_lever(
    lever: Lever, gives: int | None, facts: Facts | None, environment: Environment | None
) -> MemoryChange | None:
    """What a lever does; None where it can't be used here, as far as that is known."""
    settings: Settings | None = None
    if facts is not None and environment is not None:
        context = Context(UNKNOWN_STEP, facts, environment, {})
        variants = lever.variants(context)
        # That memory ran out is the evidence for which the allocator's own lever looks at counters.
        if not variants or not (FRAGMENTATION in lever.frees or lever.applies(context).yes):
            return None
        settings = variants[0 if FRAGMENTATION in lever.frees or lever.resizes_step else -1]
    return MemoryChange(
        what=lever.meaning,
        gives_bytes=gives,
        bound="at most",
        costs=lever.takes,
        risk=lever.risk,
        lever=lever.name,
        settings=settings or {},
        code="" if settings is None else lever.source(settings),
    )


def _by_levers(
    usage: MemoryUsage, request: int, facts: Facts | None, environment: Environment | None
) -> Iterator[tuple[int, MemoryChange]]:
    for lever in all_levers().values():
        gives = sum(int(share * _bytes(usage, request, what)) for what, share in lever.frees.items())
        if gives and (usage.device.startswith("cuda") or not lever.needs_gpu):
            change = _by_lever(lever, gives, facts, environment)
            if change is not None:
                yield 1 + lever.memory_order, change


def _bytes(usage: MemoryUsage, request: int, what: str) -> int:
    """Of a category."""
    if what == REQUEST:
        return request
    if what == FRAGMENTATION:
        return fragmented(usage)
    return sum(part.bytes for part in usage.parts if part.category == what)


def fragmented(usage: MemoryUsage) -> int:
    """Bytes that the allocator holds and nobody has: in pieces, each too small for what was asked for."""
    return max(0, usage.reserved_bytes - usage.peak_bytes) if usage.source == "allocator" else 0


def _mends(usage: MemoryUsage, ran_out: OutOfMemory) -> Iterator[MemoryChange]:
    """What is wrong, or costs nothing to leave."""
    graphs, older = usage.part("outputs"), usage.part("unknown")
    if graphs and ran_out.step > 1:
        names = tuple(dict.fromkeys(name for one in usage.lines if one.category == "outputs" for name in one.names))
        holders = [one.name for one in usage.holders]
        named = " and ".join((names or tuple(holders))[:2]) or "a variable"
        yield MemoryChange(
            what=f"keep values, not graphs: {named} holds what earlier steps made, with the graph behind it",
            gives_bytes=graphs + older,
            bound="at most",
            costs="nothing",
            code="loss.item(), or output.detach()",
        )
    if ran_out.phase == FORWARD and ran_out.grad and ran_out.training is False:
        yield MemoryChange(
            what="evaluate without gradients",
            gives_bytes=usage.part("activations"),
            costs="nothing",
            code="with torch.no_grad():",
        )
    for one in usage.holders:
        if one.weights:
            yield MemoryChange(
                what=f"keep the copy of the weights in {one.name} on the host, or not at all",
                gives_bytes=one.bytes,
                costs="a copy of it where it is used",
                code=".cpu()",
            )
    if ran_out.phase == FORWARD and ran_out.training is not False and usage.part("gradients"):
        yield MemoryChange(
            what="drop the gradients before the forward, not after it",
            gives_bytes=usage.part("gradients"),
            bound="at most",
            costs="nothing; not where several backwards add up",
            code="optimizer.zero_grad(set_to_none=True)",
        )


def _by_hand(usage: MemoryUsage, ran_out: OutOfMemory) -> Iterator[MemoryChange]:
    """What no lever does."""
    if ran_out.phase in {BACKWARD, "optimizer"} and usage.part("gradients"):
        yield MemoryChange(
            what="update each parameter as soon as its gradient is there (optimizer in the backward)",
            gives_bytes=usage.part("gradients"),
            bound="at most",
            costs="no clipping by the norm of all gradients, no accumulation",
            code="parameter.register_post_accumulate_grad_hook(step_of_its_own_optimizer)",
        )
    if usage.part("optimizer state"):
        yield MemoryChange(
            what="optimizer state in 8 bits",
            gives_bytes=int(EIGHT_BITS * usage.part("optimizer state")),
            bound="at most",
            costs="other updates, so training has to be checked",
            risk="semantic",
            code="torchao.optim.AdamW8bit(...)",
        )


def _smaller(usage: MemoryUsage, request: int, lacks: int) -> Iterator[MemoryChange]:
    """Smaller batches, of so many parts that the rest of the request fits."""
    scales = usage.part("activations") + usage.part("temporaries") + request
    parts = 2
    while parts < MOST_PARTS and scales * (1 - 1 / parts) < lacks:
        parts *= 2
    if scales:
        yield MemoryChange(
            what=f"batches of 1/{parts} of the rows",
            gives_bytes=int(scales * (1 - 1 / parts)),
            costs="other updates, or accumulation of the gradients of as many batches",
            risk="semantic",
        )
