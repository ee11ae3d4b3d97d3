"""Rows of samples of the host's stack: places, time under frames, and how much has to be there."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from hotlap.records.diagnosis import Place
from hotlap.records.profile import SampledLine, SampledPath, Samples, UserFrame, place_in

LEAST_LOOKS: Final = 10
LEAST_SHARE: Final = 0.2
"""Of the phase's samples: a line with less does not stand for it."""
LEAST_SURE: Final = 0.12
"""What such a share has to be at least, but for one case in twenty: a fifth of sixty looks is sure of it, or a third of
twelve."""
ONE_SIDED: Final = 1.645
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


def at_least(share: float, samples: Samples, phases: Collection[str]) -> float:
    """What a share of the looks of some phases is at least: the lower end of Wilson's interval, corrected for what is
    counted, so that one look is sure of nothing."""
    own, all_ = (sum(row[5] for row in samples.lines if of is None or row[0] in of) for of in (phases, None))
    usual = samples.looks * own / max(1e-9, all_)
    n, z2, share = sum(samples.equal_looks.get(one, 0.0) for one in phases) or usual, ONE_SIDED**2, min(1.0, share)
    if n <= 0:
        return 0.0
    wide = ONE_SIDED * math.sqrt(max(0.0, z2 - 2 - 1 / n + 4 * share * (n * (1 - share) + 1)))
    return max(0.0, (2 * n * share + z2 - 1 - wide) / (2 * (n + z2)))


def place_of(samples: Samples, row: SampledLine) -> Place:
    """Of a row, whose file has to be known."""
    return place_in(samples.files, row[1:4])


def without_comprehension(function: str) -> str:
    """`collate` of `collate.<locals>.<listcomp>`."""
    return function.partition(".<locals>.<")[0]
