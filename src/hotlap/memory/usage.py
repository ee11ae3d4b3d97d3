"""Whose memory it is at the peak of a window, and what its steps leave behind.

The window is replayed backwards from what was allocated at its end: each allocation then has the event that began it and
the one that ended it, as far as they lie in the window. Its category is told by identity where an object of the script's
held it, and else by its life: what a forward makes and its backward, or something later, lets go is an activation; what
ends in the phase that made it is a temporary.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from hotlap.records.memory import ACTIONS, Category, Frame, MemoryWindow, Owner
from hotlap.records.run import Count

ALLOC, FREE = ACTIONS.index("alloc"), ACTIONS.index("free")
RANK: Final = ("parameters", "optimizer state", "gradients", "buffers", "outputs", "held")
"""Of owners of the same memory the first counts."""
LASTING: Final = frozenset({"parameters", "optimizer state", "gradients", "buffers", "graph pools"})
"""May outlive their step."""
FED: Final = frozenset({"data", "h2d"})
STEP_END: Final = "step end"
NAMED: Final = 3


class Life(NamedTuple):
    """One allocation. begun, ended: numbers of its events; -1: before the window, and None: not in it."""

    address: int
    bytes: int
    stack: int
    begun: int
    ended: int | None
    graph: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one category, bytes."""

    category: Category
    bytes: Count


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at the peak that one line allocated, of one category. bytes: in all of `blocks` pieces. names: of what
    holds some of it."""

    where: Frame
    category: Category
    bytes: Count
    blocks: Count
    names: tuple[str, ...] = ()


class Stays(msgspec.Struct, frozen=True, kw_only=True):
    """What each step allocates at a line, and does not give back before another has passed. bytes, blocks: a step.
    names: of what holds it. graph: of these, a tensor with the graph that made it."""

    where: Frame | None
    bytes: float
    blocks: float
    names: tuple[str, ...] = ()
    graph: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a window at its peak.

    peak_bytes: the most that is allocated at once; step, phase: in which. parts: of the peak, the largest first. lines:
    the same, by line, as far as that is known. stays: what the steps leave behind, the most first. between_bytes:
    allocated at the end of the last step.
    """

    peak_bytes: Count
    step: Count
    phase: str
    parts: tuple[Part, ...]
    lines: tuple[Line, ...]
    stays: tuple[Stays, ...]
    between_bytes: Count

    def part(self, category: Category) -> int:
        """Bytes of a category at the peak."""
        return next((one.bytes for one in self.parts if one.category == category), 0)


def usage(window: MemoryWindow) -> Usage:
    """Of a window. Numbers in it that make no sense are passed over."""
    lives, peak, peak_bytes = _lives(window)
    told = _Told(window)
    alive = [one for one in lives if one.begun < peak and (one.ended is None or one.ended >= peak)]
    sizes: dict[Category, int] = defaultdict(int)
    lines: dict[tuple[Frame, Category], list[Life]] = defaultdict(list)
    for life in alive:
        category = told.category(life)
        sizes[category] += life.bytes
        if (where := told.where(life)) is not None:
            lines[where, category].append(life)
    rounding = sum(window.blocks.rounded) - sum(window.blocks.bytes) if window.blocks.rounded else 0
    if rounding > 0:
        sizes["rounding"] += rounding
    step, phase = told.at(peak)
    return Usage(
        peak_bytes=peak_bytes + max(0, rounding),
        step=step,
        phase=phase,
        parts=tuple(Part(category=c, bytes=b) for c, b in sorted(sizes.items(), key=lambda one: -one[1]) if b),
        lines=tuple(sorted((_line(told, *key, lives) for key, lives in lines.items()), key=lambda one: -one.bytes)),
        stays=tuple(sorted(_stays(told, lives), key=lambda one: -one.bytes)),
        between_bytes=sum(window.blocks.bytes) + max(0, rounding),
    )


def _lives(window: MemoryWindow) -> tuple[list[Life], int, int]:
    """All allocations, the number of events at the peak, and its bytes."""
    blocks, events = window.blocks, window.events
    graphs = {at for at, segment in enumerate(window.segments) if segment.graph}
    segments = blocks.segments or (-1,) * len(blocks.addresses)
    rows = zip(blocks.addresses, blocks.bytes, blocks.stacks, segments, strict=False)
    live = {address: (size, stack, None, at in graphs) for address, size, stack, at in rows}
    total = sum(size for size, *_ in live.values())
    lives: list[Life] = []
    count = len(events.actions)
    peak, most = count, total
    columns = (events.actions, events.addresses, events.bytes, events.stacks)
    for number, (action, address, size, stack) in zip(
        range(count - 1, -1, -1), zip(*(reversed(one) for one in columns), strict=False), strict=False
    ):
        if action == ALLOC and address in live:
            held, known, ended, graph = live.pop(address)
            lives.append(Life(address, held, stack if stack >= 0 else known, number, ended, graph))
            total -= held
        elif action == FREE and address not in live:
            live[address] = (size, stack, number, False)
            total += size
        if total > most:
            peak, most = number, total
    lives += [Life(address, size, stack, -1, ended, graph) for address, (size, stack, ended, graph) in live.items()]
    return lives, peak, most


class _Told:
    """What a window tells of its allocations."""

    def __init__(self, window: MemoryWindow) -> None:
        self.window = window
        self.times = window.events.times
        self.marks = sorted(window.marks, key=lambda one: one.time)
        self.mark_times = [one.time for one in self.marks]
        self.phases = _intervals([one.phase for one in self.marks], [one.step for one in self.marks])
        self.owners: dict[int, list[Owner]] = defaultdict(list)
        for owner in sorted(window.owners, key=lambda one: RANK.index(one.category)):
            self.owners[owner.address].append(owner)

    def at(self, number: int) -> tuple[int, str]:
        """Step and phase in which an event happened."""
        interval = self.interval(number)
        return (0, "") if interval < 0 else (self.marks[interval].step, self.marks[interval].phase)

    def interval(self, number: int) -> int:
        """The mark before an event; -1 before the first."""
        if number < 0 or not self.times:
            return -1
        return bisect_right(self.mark_times, self.times[min(number, len(self.times) - 1)]) - 1

    def owner(self, life: Life) -> Owner | None:
        """The object that held it while it lived."""
        begun = self.times[life.begun] if life.begun >= 0 else 0
        ended = self.times[life.ended] if life.ended is not None else float("inf")
        return next((one for one in self.owners.get(life.address, ()) if begun <= one.time <= ended), None)

    def last_owner(self, life: Life) -> Owner | None:
        """The object that held it after the last step."""
        return next((one for one in self.owners.get(life.address, ()) if one.time >= self.mark_times[-1]), None)

    def category(self, life: Life) -> Category:
        """What it is."""
        owner, began = self.owner(life), self.interval(life.begun)
        phase = self.marks[began].phase if began >= 0 else ""
        if life.graph and owner is None:
            return "graph pools"
        if owner is not None and not (owner.category == "held" and phase in FED):
            return owner.category
        if phase in FED:
            return "inputs"
        if began < 0:
            return "unknown"
        if life.ended is not None and self.phases[self.interval(life.ended)] == self.phases[began]:
            return "temporaries"
        if phase == "forward":
            return "activations"
        if life.ended is None:
            return "unknown" if phase != "backward" else "gradients"
        return "temporaries"

    def where(self, life: Life) -> Frame | None:
        """The user's innermost line that allocated it."""
        window = self.window
        if not 0 <= life.stack < len(window.stacks):
            return None
        frame = next(iter(window.stacks[life.stack]), -1)
        return window.frames[frame] if 0 <= frame < len(window.frames) else None


def _intervals(phases: Sequence[str], steps: Sequence[int]) -> list[int]:
    """Equal numbers for marks between which only the same phase of the same step was open."""
    numbers = [0] if phases else []
    for before, after in pairwise(zip(phases, steps, strict=True)):
        numbers.append(numbers[-1] + (before != after))
    return numbers


def _names(told: _Told, lives: Iterable[Life]) -> tuple[str, ...]:
    """Of what holds them, the largest first."""
    found: dict[str, int] = defaultdict(int)
    for life in lives:
        if (owner := told.owner(life)) is not None:
            found[owner.name] += life.bytes
    return tuple(sorted(found, key=lambda one: -found[one])[:NAMED])


def _line(told: _Told, where: Frame, category: Category, lives: list[Life]) -> Line:
    size = sum(one.bytes for one in lives)
    return Line(where=where, category=category, bytes=size, blocks=len(lives), names=_names(told, lives))


def _stays(told: _Told, lives: Iterable[Life]) -> Iterable[Stays]:
    """What every step but the last has left, by the line that allocated it, and who holds it at the end."""
    ends = [one.step for one in told.marks if one.phase == STEP_END]
    first = min((one.step for one in told.marks), default=0)
    whole = set(range(first, first + len(ends) - 1))
    left: dict[Frame | None, dict[int, list[Life]]] = defaultdict(lambda: defaultdict(list))
    for life in lives:
        began = told.interval(life.begun)
        if life.ended is None and began >= 0 and told.category(life) not in LASTING:
            left[told.where(life)][told.marks[began].step].append(life)
    for where, steps in left.items():
        if whole and whole <= set(steps):
            mine = [one for step in whole for one in steps[step]]
            owners = [owner for one in mine if (owner := told.last_owner(one)) is not None]
            yield Stays(
                where=where,
                bytes=sum(one.bytes for one in mine) / len(whole),
                blocks=len(mine) / len(whole),
                names=tuple(dict.fromkeys(owner.name for owner in owners))[:NAMED],
                graph=any(owner.category == "outputs" for owner in owners),
            )
