"""What is told of a run in which memory ran out: `ran_out` of `hotlap run --json`."""

from typing import Any, Literal

import msgspec

from .memory import Frame, MemoryUsage
from .run import Count
from .tune import Risk


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that leaves more memory. what: to do, in words. gives_bytes: of memory, None where that can't be told;
    bound: what that figure is. costs: what it costs, in words. risk: as of levers. lever: that makes the change, ""
    where there is none; settings: of it. code: how it is written by hand, "" where `what` says all. enough: by itself
    it gives what lacked, as far as its bound tells."""

    what: str
    gives_bytes: Count | None = None
    bound: Literal["about", "at most", "at least"] = "about"
    costs: str = ""
    risk: Risk = "exact"
    lever: str = ""
    settings: dict[str, Any] = {}
    code: str = ""
    enough: bool = False


class RanOut(msgspec.Struct, frozen=True, kw_only=True):
    """Memory ran out in a run. rank: of the process, None where it left nothing; ranks: processes in which it did.
    went_on: the script caught it and made further steps, or ended well. killed: the kernel ended a process (`SIGKILL`),
    for lack of host memory; certain: it counted that itself.

    device: `cuda:0`, `cpu`. asked_bytes: for what memory lacked; lacks_bytes: of these, that were not free either.
    where: the user's innermost line then. phase: that was open, or `before the loop`. step: that was running, from 1.
    usage: what was allocated then. distinct: activations are told from temporaries in it. total_bytes: of the device,
    or the limit of host memory; free_bytes: of these. outside_bytes: in use on the device beside torch's allocator
    (other processes, CUDA's context); before_bytes: in use there as the command began. resident_bytes: of host memory,
    the most that was seen. changes: that leave more memory, the cheapest first; together: none of them alone gives what
    lacked, all of them may.
    """

    rank: int | None = None
    ranks: Count = 0
    went_on: bool = False
    killed: bool = False
    certain: bool = True
    device: str = "cpu"
    asked_bytes: Count | None = None
    lacks_bytes: Count | None = None
    where: Frame | None = None
    phase: str = ""
    step: Count = 0
    usage: MemoryUsage | None = None
    distinct: bool = True
    total_bytes: Count | None = None
    free_bytes: Count | None = None
    outside_bytes: Count | None = None
    before_bytes: Count | None = None
    resident_bytes: Count | None = None
    changes: tuple[MemoryChange, ...] = ()
    together: bool = False
