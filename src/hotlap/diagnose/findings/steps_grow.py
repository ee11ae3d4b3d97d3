"""Each step takes longer than the last."""

from hotlap.diagnose.source import call_of, files_of, growing
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

HOOKS = ("register_forward_hook", "register_forward_pre_hook")


def find(measured: Measured) -> Finding | None:
    """Share: of the mean step what it is longer than the first steps."""
    if measured.growth is None:
        return None
    first, last, steps = measured.growth
    lost = max(0.0, measured.step_ms - first)
    grown = [
        root for root in (measured.facts.roots if measured.facts else ()) if root.hooks[1] > root.hooks[0] + steps / 2
    ]
    joined = next((at for file in files_of(measured.facts) for at in growing(file)), None) if not grown else None
    more = "; ".join(f"hooks on the forwards of {root.name}: {root.hooks[0]}, then {root.hooks[1]}" for root in grown)
    return Finding(
        id="steps-grow",
        bound="unknown",
        share=min(1.0, lost / measured.step_ms),
        cost_ms=lost,
        title="hooks pile up: each step takes longer" if grown else "each step takes longer than the last",
        where=call_of(measured.facts, HOOKS) if grown else joined or measured.place_of(measured.root),
        evidence=f"{ms(first)} a step at first, {ms(last)} {steps} steps later"
        + (f": {ms((last - first) / steps)} more in each" if steps else "")
        + (f"; {more}" if more else ""),
        why="a hook that is registered in each step is called in all that follow"
        if grown
        else "what is joined with more of its kind in each step is copied whole each time"
        if joined
        else "something that is kept grows: hooks, losses with their graphs (`total += loss`), lists, a cache",
        instead="register hooks once, before the loop, or `handle.remove()` them at the step's end"
        if grown
        else "write into a tensor that is there, `buffer[at : at + n] = new`, or keep a `collections.deque(maxlen=...)`"
        if joined
        else "`total += loss.detach()`; bound what is kept; `del` what holds a graph",
        named=True,
    )
