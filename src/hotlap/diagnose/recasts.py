"""Weights that are cast to another type several times in a forward, with the time of these copies and of those that
cast the gradients back."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in
from hotlap.records.trace import HostTime, OpRoofline

from .causes import Cause

LEAST: Final = 0.05
"""Of what the machine leaves of the step."""
COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy"})
BY_AUTOCAST: Final = Cause(
    "weights-cast-again",
    "the same weights are cast again in each call, as autocast is entered again",
    "autocast caches cast weights only until its outermost block ends; each new block casts all of them again, "
    "and each backward casts their gradients back",
    "one `with torch.autocast(...)` around the whole forward and the loss, outside of the loop over these "
    "calls, and none in the module; or keep the weights in bf16",
    "bandwidth",
)
BY_ITSELF: Final = Cause(
    "weights-cast-again",
    "the same weights are cast again in each call",
    "autocast caches casts of trained parameters only; frozen ones, slices of one, and what the script casts "
    "itself are cast at each use",
    "keep frozen modules in the type they compute in, `module.to(torch.bfloat16)`; no `cache_enabled=False`; "
    "cast once, before the loop over these calls",
    "bandwidth",
)


class Recast(NamedTuple):
    """At a line: how often the same is cast, the part of its copies that are not needed, and where to change it."""

    line: tuple[str, int | None]
    times: int
    part: float
    where: Place
    cause: Cause


def of_lines(lines: Lines) -> Iterator[Recast]:
    """As a profiled step has shown them."""
    for file, line, function, times, part, entered in lines.recasts:
        where = next(iter(entered), (file, line, function))
        if max(file, where[0]) < len(lines.files):
            cause = BY_AUTOCAST if entered else BY_ITSELF
            yield Recast((lines.files[file], line), times, part, place_in(lines.files, where), cause)


def again(
    rows: Sequence[OpRoofline | HostTime], recasts: Sequence[Recast], share: float, step_ms: float, left: float
) -> Iterator[Finding]:
    """By place of the change. share: of the step, of one ns; left: share of the step that the model could have."""
    copied: Counter[tuple[str, int | None]] = Counter()
    for row in rows:
        if row.where is not None and (row.op if isinstance(row, OpRoofline) else row.name) in COPIES:
            copied[row.where.file, row.where.line] += row.ns
    by_place: defaultdict[tuple[Cause, Place], list[Recast]] = defaultdict(list)
    for one in recasts:
        by_place[one.cause, one.where].append(one)
    for (cause, where), those in by_place.items():
        took = min(1.0, share * sum(one.part * copied[one.line] for one in those))
        if took >= LEAST * left:
            times = max(one.times for one in those)
            said = f"each {times} times before the backward; all casts but the first, with those of gradients, take "
            said += f"{ms(took * step_ms)} a step of copies, estimated from these lines' copies"
            yield cause.finding(took, where, said, took * step_ms)
