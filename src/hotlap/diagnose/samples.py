"""Rows of samples of the host's stack: places, time under frames, and how much has to be there."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from hotlap.records.diagnosis import Place
from hotlap.records.profile import SampledLine, SampledPath, Samples, UserFrame, place_in

LEAST_LOOKS: Final = 10
LEAST_SHARE: Final = 0.2
"""Of the phase's samples: a line with less does not stand for it."""
MOSTLY_THERE: Final = 0.6
"""Of some time, from which on it is said to be at a line."""
COLLECTIVES: Final = re.compile(r"^(torch\.)?(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier)(_|$)")
"""Functions of torch.distributed that wait for other ranks. Code of the user's is never the inside of a line."""


def known_lines(rows: Iterable[SampledLine], files: Sequence[str]) -> list[SampledLine]:
    """Those whose file is known."""
    return [row for row in rows if 0 <= row[1] < len(files)]


def known_paths(paths: Sequence[SampledPath], files: Sequence[str]) -> list[SampledPath]:
    """Those whose files are known."""
    return [row for row in paths if all(0 <= one[0] < len(files) for one in row[1])]


def under(rows: Sequence[SampledPath]) -> defaultdict[UserFrame, float]:
    """Ms under each frame."""
    took: defaultdict[UserFrame, float] = defaultdict(float)
    for _, path, _, ms in rows:
        for one in {*path}:
            took[one] += ms
    return took


def place_of(samples: Samples, row: SampledLine) -> Place:
    """Of a row, whose file has to be known."""
    return place_in(samples.files, row[1:4])


def without_comprehension(function: str) -> str:
    """`collate` of `collate.<locals>.<listcomp>`."""
    return function.partition(".<locals>.<")[0]
