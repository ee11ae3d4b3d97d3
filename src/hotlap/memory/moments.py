"""The most memory at each moment of a step, so that the same moments of other runs can be compared.

A command does the same operations with a larger batch, so its allocations come in the same order: a moment is a part of
a phase, by the number of allocations. At one moment memory grows along a line where the largest of all does not: which
moment is the largest changes with the batch.
"""

from typing import Final

import numpy as np

from hotlap.records.memory import ACTIONS, MemoryWindow

PARTS: Final = 16
"""Of a phase."""
ALLOC, FREE = ACTIONS.index("alloc"), ACTIONS.index("free")
STEP_END: Final = "step end"


def moments(window: MemoryWindow) -> dict[str, int]:
    """Bytes by moment, the most of the window's steps: `backward 3`. Empty where the window does not tell."""
    events, marks = window.events, sorted(window.marks, key=lambda mark: mark.time)
    count = min(map(len, (events.actions, events.bytes, events.times)))
    if not count or not marks or window.left_out:
        return {}
    actions = np.array(events.actions[:count])
    change = np.where(actions == ALLOC, 1, np.where(actions == FREE, -1, 0)) * np.array(events.bytes[:count], np.int64)
    rounding = max(0, sum(window.blocks.rounded) - sum(window.blocks.bytes)) if window.blocks.rounded else 0
    end = sum(window.blocks.bytes) + rounding
    level = end - change.sum() + np.cumsum(change)
    at = np.searchsorted(np.array([mark.time for mark in marks]), np.array(events.times[:count]), side="right") - 1
    # a phase goes on over marks of the same name: each stretch of them is divided into as many parts
    names = [mark.phase for mark in marks]
    begins = [number for number in range(len(marks)) if not number or names[number] != names[number - 1]]
    stretch = np.searchsorted(np.array(begins), at, side="right") - 1
    found: dict[str, int] = {}
    nth: dict[str, int] = {}
    for number, begin in enumerate(begins):
        name = names[begin]
        inside = np.flatnonzero(stretch == number)
        if name == STEP_END:
            nth = {}
        nth[name] = nth.get(name, 0) + 1
        for part, piece in enumerate(np.array_split(inside, PARTS)):
            if len(piece):
                key = f"{name} {nth[name]}.{part}"
                found[key] = max(found.get(key, 0), int(level[piece].max()))
    return {name: size for name, size in found.items() if size > 0}
