"""Whether memory between steps rises over a run."""

from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from hotlap.records.memory import MemorySeries

PARTS: Final = 6
"""Of the run after its first fifth, whose medians all have to rise."""
GOES_ON: Final = 0.5
"""Of what the first half of these rises by, that the second does: a cache that fills rises by less and less."""
LEAST_POINTS: Final = 30
FLAT: Final = 10
"""Steps' worth of what a step leaves."""
LEAST_BYTES: Final = 2**25
LEAST_RESIDENT: Final = 2**28
"""In all, in tensors and of the process, whose allocator keeps what shapes of all kinds needed."""
LEAST_PART: Final = 0.05
"""Of what there is at the end."""


class Growth(NamedTuple):
    """By which it rises, bytes a step; over so many steps. resident: of the process in host memory, not in tensors."""

    bytes: float
    steps: int
    resident: bool


def levels_off(series: MemorySeries, a_step: float) -> bool:
    """Whether what rose by so many bytes a step rises no more in the last third of the run, nor falls back, as what is
    emptied each epoch does: a buffer that is full."""
    column = series.allocated if any(series.allocated) else series.resident
    last = column[-(len(column) // 3) :] if len(column) >= LEAST_POINTS else ()
    return bool(last) and max(last) - min(last) < FLAT * a_step


def growth(series: MemorySeries) -> Growth | None:
    """Of tensors on the device, else of the process; None where it does not rise steadily."""
    for column, resident in ((series.allocated, False), (series.resident, True)):
        points = list(zip(series.steps, column, strict=False))[len(series.steps) // 5 :]
        if len(points) < LEAST_POINTS or not points[-1][1]:
            continue
        size = len(points) // PARTS
        parts = [points[at * size : (at + 1) * size] for at in range(PARTS)]
        levels = [median(in_use for _, in_use in part) for part in parts]
        rise = levels[-1] - levels[0]
        goes_on = levels[-1] - levels[PARTS // 2] >= GOES_ON * (levels[PARTS // 2 - 1] - levels[0])
        steady = goes_on and all(a < b for a, b in pairwise(levels))
        if steady and rise >= max(LEAST_RESIDENT if resident else LEAST_BYTES, LEAST_PART * levels[-1]):
            steps = round(median(at for at, _ in parts[-1]) - median(at for at, _ in parts[0]))
            return Growth(rise / max(1, steps), steps, resident)
    return None
