"""`torch.cuda.synchronize()` and `torch.cuda.empty_cache()` in each step: a proposal to take them out."""

import re
from collections.abc import Iterator
from typing import Final

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import CannotWrite, calls_in

from ..edits import Replacement
from ._base import Change, Outcome, Wait, numbered

SYNCHRONIZE: Final = "torch.cuda.synchronize"
EMPTY_CACHE: Final = "torch.cuda.empty_cache"
STREAMS: Final = frozenset(["torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream"])
NEEDS_IT: Final = frozenset(["elapsed_time", "wait_stream", "record_stream"])
CLOCKS: Final = frozenset(
    ["time.time", "time.perf_counter", "time.monotonic", "time.time_ns", "time.perf_counter_ns", "timeit.default_timer"]
)
DONE: Final = "what the device has not done yet is then not there for what does not go through torch"
MEMORY: Final = "memory that is not in use stays with the process: other processes on this device do not get it"
PEAK: Final = "where shapes change, more memory may be taken at the peak: look at it in the next run"


def change(wait: Wait) -> Outcome:
    """Refuses where streams, events or copies that do not wait need the wait, and where a branch would do nothing."""
    full = wait.resolve(wait.call.func) if wait.call is not None else ""
    if full not in {SYNCHRONIZE, EMPTY_CACHE}:
        return None
    needed = tuple(_needing(wait)) if full == SYNCHRONIZE else ()
    if needed:
        return CannotWrite("streams, events or copies that do not wait may need it", needed)
    whole = _with_if(wait)
    if isinstance(whole, CannotWrite):
        return whole
    notes = (DONE, *_clocks(wait)) if full == SYNCHRONIZE else (MEMORY, PEAK)
    removed: dict[cst.CSTNode, Replacement] = {whole: lambda _: cst.FlattenSentinel[cst.BaseStatement]([])}
    return Change(removed, f"`{full}()` is taken out", notes, review=True)


def _with_if(wait: Wait) -> cst.CSTNode | CannotWrite:
    """The statement, with the `if` that does nothing else."""
    block = wait.source.parent(wait.line)
    if not isinstance(block, cst.IndentedBlock) or len(block.body) > 1:
        return wait.line
    above = wait.source.parent(block)
    alone = isinstance(above, cst.If) and above.orelse is None and _only_looks(wait, above.test)
    if above is not None and alone and isinstance(wait.source.parent(above), cst.IndentedBlock | cst.Module):
        return above
    return CannotWrite("it is all that a block does: take the block out too", wait.lines([above or block]))


def _only_looks(wait: Wait, test: cst.BaseExpression) -> bool:
    """Whether a condition does nothing but look."""
    calls = [wait.resolve(call.func) for call in calls_in(test)]
    return ":=" not in wait.source.tree.code_for_node(test) and set(calls) <= {"torch.cuda.is_available"}


def _needing(wait: Wait) -> Iterator[Line]:
    """Calls in any file whose results may not be there without the wait."""
    for scope, call in wait.places.names.calls:
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        named = {arg.keyword.value for arg in call.args if arg.keyword is not None}
        to_host = "non_blocking" in named and re.search("cpu|copy_", scope.source.tree.code_for_node(call))
        if to_host or method in NEEDS_IT or wait.places.names.resolve(call.func, scope) in STREAMS:
            yield scope.source.place(call)


def _clocks(wait: Wait) -> Iterator[str]:
    """What clocks of the same function show then."""
    calls = [call for scope, call in wait.places.names.calls if scope is wait.scope]
    read = wait.lines(call for call in calls if wait.resolve(call.func) in CLOCKS)
    if read:
        yield f"the clock in {numbered(read)} then times how long launching takes; CUDA events time the device"
