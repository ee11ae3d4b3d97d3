"""Idle time in pieces, each booked to one cause; `gaps.py` states the rule."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hotlap.trace.view import Ints

Codes = npt.NDArray[np.int8]

CAUSES: Final = (
    "python",
    "launch",
    "input",
    "communication",
    "profiler",
    "allocator",
    "sync",
    "copy",
    "between kernels",
    "unknown",
)
PYTHON, LAUNCH, INPUT, COMMUNICATION, PROFILER, ALLOCATOR, SYNC, COPY, BETWEEN, UNKNOWN = range(len(CAUSES))


@dataclass(frozen=True)
class Pieces:
    """Idle time of one device in disjoint pieces, in order. gap: its number; cause: index into CAUSES; row: of `host`,
    the event that it is booked to, -1 for none."""

    gap: Ints
    start: Ints
    end: Ints
    cause: Codes
    row: Ints

    def __len__(self) -> int:
        return len(self.gap)
