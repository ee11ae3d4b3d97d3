"""`torch.cuda.synchronize()` and `torch.cuda.empty_cache()` in each step: a proposal to take them out."""

import re
from collections.abc import Iterator
from typing import Final

import libcst as cst

from hotlap.source.names import keyword_of
from hotlap.source.places import CannotTell, Site, lines_of
from hotlap.source.scopes import is_method_call, nodes

from ._base import Change, Wait, numbered

SYNCHRONIZE: Final = "torch.cuda.synchronize"
EMPTY_CACHE: Final = "torch.cuda.empty_cache"
STREAMS: Final = frozenset(["torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream"])
NEEDS_IT: Final = frozenset(["elapsed_time", "wait_stream", "record_stream"])
CLOCKS: Final = frozenset(
    ["time.time", "time.perf_counter", "time.monotonic", "time.time_ns", "time.perf_counter_ns", "timeit.default_timer"]
)
DONE: Final = "code outside of torch may then run before the device is done"
CLOCK: Final = "the clock in {} then times only launching; use CUDA events to time the device"
MEMORY: Final = "unused memory stays with this process; other processes on the device can't use it"
PEAK: Final = "if shapes change, the memory peak may rise; check it in the next run"


def change(wait: Wait) -> Change | None:
    """Refuses where streams, events or copies that do not wait need the wait, and where a branch would do nothing."""
    full = wait.resolve(wait.call.func) if wait.call is not None else ""
    if full not in {SYNCHRONIZE, EMPTY_CACHE}:
        return None
    needed = tuple(_needing(wait)) if full == SYNCHRONIZE else ()
    if needed:
        raise CannotTell("streams, events or non-blocking copies may need it", needed)
    notes: tuple[str, ...] = (MEMORY, PEAK)
    if full == SYNCHRONIZE:
        read = lines_of(site for site in wait.places.calls_of(*CLOCKS) if site.scope is wait.scope)
        notes = (DONE, CLOCK.format(numbered(read))) if read else (DONE,)
    return Change({_with_if(wait): cst.RemoveFromParent()}, f"`{full}()` is removed", notes, review=True)


def _with_if(wait: Wait) -> cst.CSTNode:
    """The statement, with the `if` that does nothing else."""
    block = wait.source.parent(wait.line)
    if not isinstance(block, cst.IndentedBlock) or len(block.body) > 1:
        return wait.line
    above = wait.source.parent(block)
    alone = isinstance(above, cst.If) and above.orelse is None and _only_looks(wait, above.test)
    if above is not None and alone and isinstance(wait.source.parent(above), cst.IndentedBlock | cst.Module):
        return above
    raise CannotTell("it is all that its block does; remove the block too", wait.lines([above or block]))


def _only_looks(wait: Wait, test: cst.BaseExpression) -> bool:
    """Whether a condition does nothing but look."""
    calls = [wait.resolve(call.func) for call in nodes(test, cst.Call)]
    return ":=" not in wait.source.code(test) and set(calls) <= {"torch.cuda.is_available"}


def _needing(wait: Wait) -> Iterator[Site]:
    """Calls in any file whose results may not be there without the wait."""
    for site in (Site(scope, call) for scope, call in wait.places.names.calls):
        waits = keyword_of(site.call, "non_blocking") is None
        to_host = not waits and re.search("cpu|copy_", site.source.code(site.call))
        needs = is_method_call(site.call, *NEEDS_IT)
        if to_host or needs or wait.places.names.resolve(site.call.func, site.scope) in STREAMS:
            yield site
