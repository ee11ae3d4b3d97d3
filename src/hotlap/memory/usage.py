"""Whose memory it is at the peak of a window, and what its steps leave behind.

The window is replayed backwards from what was allocated at its end: each allocation then has the event that began it
and the one that ended it, as far as they lie in the window. Its category is told by identity where an object of the
script's held it, and else by its life: what a forward makes and its backward, or something later, lets go is an
activation; what ends in the phase that made it is a temporary.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

import msgspec

from hotlap.records.memory import (
    ACTIONS,
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    STEP_END,
    Category,
    Events,
    Frame,
    Holder,
    MemoryLine,
    MemoryPart,
    MemoryUsage,
    MemoryWindow,
    ModuleMemory,
    OutOfMemory,
    Owner,
    Stays,
)

ALLOC, FREE = ACTIONS.index("alloc"), ACTIONS.index("free")
RANK: Final = ("parameters", "optimizer state", "gradients", "buffers", "outputs", "held", "inputs")
"""Of owners of the same memory the first counts."""
LASTING: Final = frozenset({"parameters", "optimizer state", "gradients", "buffers", "graph pools"})
"""May outlive their step."""
FED: Final = frozenset({"data", "h2d", "other"})
"""Phases in which variables of the loop get the batch."""
LOADED: Final = frozenset({"data", "h2d"})
NAMED: Final = 3
HOLDERS: Final = 8
TOGETHER: Final = 4
"""Parts of one variable that hold memory, from which on it is told as one."""
MOST_OF_IT: Final = 0.8
"""Of the weights, and of what is held, that have the same sizes, where one may be a copy of the other."""
KEY: Final = re.compile(r"\['[^']*'\]")
ROOT: Final = re.compile(r"[.\[:]")
"""Ends the variable in a name."""
LARGER: Final = 1.5
"""Times the nodes of the next graph."""
MODULES: Final = 16
"""At most: of more that are told apart by two parts of their names, the first part alone is told."""
FIRST_STEPS: Final = 2
"""Of the loop, over which the allocator's history is kept in any run: what is allocated later has no stack."""


class Life(NamedTuple):
    """One allocation. begun, ended: numbers of its events; -1: before the window, and None: not in it."""

    address: int
    bytes: int
    stack: int
    begun: int
    ended: int | None
    graph: bool = False


def usage(window: MemoryWindow) -> MemoryUsage:
    """Of a window. Numbers in it that make no sense are passed over."""
    told, lives, totals, stays = told_of(window)
    peak = totals.index(max(totals)) if window.ran_out is None else len(totals) - 1
    peak_bytes = totals[peak]
    alive = [one for one in lives if one.begun < peak and (one.ended is None or one.ended >= peak)]
    sizes: dict[Category, int] = defaultdict(int)
    lines: dict[tuple[tuple[Frame, Frame | None], Category], list[Life]] = defaultdict(list)
    for life in alive:
        category = told.category(life)
        sizes[category] += life.bytes
        if (where := told.where(life)) is not None:
            lines[where, category].append(life)
    rounding = sum(window.blocks.rounded) - sum(window.blocks.bytes) if window.blocks.rounded else 0
    if rounding > 0:
        sizes["rounding"] += rounding
    step, phase = told.at(peak) if window.ran_out is None else (window.ran_out.step, window.ran_out.phase)
    return MemoryUsage(
        peak_bytes=peak_bytes + max(0, rounding),
        step=step,
        phase=phase,
        parts=tuple(MemoryPart(category=c, bytes=b) for c, b in sorted(sizes.items(), key=lambda one: -one[1]) if b),
        lines=tuple(sorted((_line(told, *key, lives) for key, lives in lines.items()), key=lambda one: -one.bytes)),
        holders=tuple(_holders(told, alive)),
        modules=tuple(_modules(told, alive)),
        stays=stays,
        grown_bytes=_grown(told, lives),
        idle_gradients_bytes=_idle_gradients(told, lives, totals),
        between_bytes=max(0, sum(window.blocks.bytes)) + max(0, rounding),
        reserved_bytes=window.reserved_bytes,
        run_peak_bytes=window.peak_bytes,
        free_bytes=max((one.free for one in window.segments), default=0),
        mallocs=window.mallocs,
        retries=window.retries,
        device=window.device,
        source=window.source,
        total_bytes=window.total_bytes,
        used_bytes=window.used_bytes,
    )


def told_of(window: MemoryWindow) -> "tuple[Told, list[Life], list[int], tuple[Stays, ...]]":
    """What a window tells: of its allocations, these, what was allocated before each event and after the last one
    (bytes), and what its steps leave behind, the most first."""
    lives, totals = lives_of(window)
    told = Told(window)
    stays = tuple(sorted(_stays(told, lives), key=lambda one: -one.bytes))
    told.leaking = {one.where for one in stays}
    return told, lives, totals, stays


def lives_of(window: MemoryWindow) -> tuple[list[Life], list[int]]:
    """All allocations, and what was allocated before each event, and after the last one, bytes."""
    blocks, events = window.blocks, whole_rows(window.events)
    graphs = {at for at, segment in enumerate(window.segments) if segment.graph}
    segments = blocks.segments or (-1,) * len(blocks.addresses)
    at_end = zip(blocks.addresses, blocks.bytes, blocks.stacks, segments, strict=False)
    live: dict[int, tuple[int, int, int | None, bool]] = {
        address: (size, stack, None, at in graphs) for address, size, stack, at in at_end if size > 0
    }
    total = sum(size for size, *_ in live.values())
    lives: list[Life] = []
    rows_of_events = list(zip(events.actions, events.addresses, events.bytes, events.stacks, strict=True))
    totals = [total]
    for number in range(len(rows_of_events) - 1, -1, -1):
        action, address, size, stack = rows_of_events[number]
        if action == ALLOC and address in live:
            was, known, ended, graph = live.pop(address)
            lives.append(Life(address, was, stack if stack >= 0 else known, number, ended, graph))
            total -= was
        elif action == FREE and address not in live and size > 0:
            live[address] = (size, stack, number, False)
            total += size
        totals.append(total)
    totals.reverse()
    lives += [Life(address, size, stack, -1, ended, graph) for address, (size, stack, ended, graph) in live.items()]
    return lives, totals


def whole_rows(events: Events) -> Events:
    """Without what stands in some of the columns alone."""
    columns = msgspec.structs.asdict(events)
    count = min(map(len, columns.values()))
    return Events(**{name: column[:count] for name, column in columns.items()})


class Told:
    """What a window tells of its allocations."""

    def __init__(self, window: MemoryWindow) -> None:
        self.window = window
        self._installed = set(window.installed)
        self._known: dict[int, tuple[Frame, Frame | None] | None] = {}
        self.times = whole_rows(window.events).times
        self.marks = sorted(window.marks, key=lambda one: one.time)
        self.mark_times = [one.time for one in self.marks]
        self.phases = _intervals([one.phase for one in self.marks], [one.step for one in self.marks])
        self.open = _open(window)
        self.leaking: set[Frame | None] = set()
        """Lines that leave something behind in each step, once they are known."""
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

    def module(self, life: Life) -> str | None:
        """The innermost module that was being called when it was allocated; None of none, or before the window."""
        if life.begun < 0 or not self.open:
            return None
        at = bisect_right(self.window.calls.times, self.times[life.begun]) - 1
        number = self.open[at] if 0 <= at < len(self.open) else -1
        return self.window.calls.names[number] if 0 <= number < len(self.window.calls.names) else None

    def largest_graph(self) -> tuple[str, ...]:
        """The variable whose graph, or graphs, are by far the largest after the last step: what no object holds is kept
        by a graph."""
        nodes: Counter[str] = Counter()
        for owners in self.owners.values():
            nodes.update({one.name: one.nodes for one in owners if one.nodes and one.time >= self.mark_times[-1]})
        two = nodes.most_common(2)
        return (two[0][0],) if two and (len(two) == 1 or two[0][1] >= LARGER * two[1][1]) else ()

    def category(self, life: Life) -> Category:
        """What it is."""
        owner, began = self.owner(life), self.interval(life.begun)
        phase = self.marks[began].phase if began >= 0 else ""
        if life.graph and owner is None:
            return "graph pools"
        if began < 0 and self.window.ran_out is not None:
            return self._as_memory_ran_out(life, owner, self.window.ran_out)
        if owner is not None and not (owner.category == "held" and phase in FED and owner.name.isidentifier()):
            return owner.category
        if phase in FED and (owner is not None or phase != "other"):
            return "inputs"
        if began < 0:
            lasts = life.ended is None and bool(self.marks) and self.window.source == "allocator"
            if lasts and self.leaking:
                return "activations" if (self.where(life) or (None,))[0] in self.leaking else "unknown"
            return "workspaces" if lasts else "unknown"
        if life.ended is not None and self.phases[self.interval(life.ended)] == self.phases[began]:
            return "temporaries"
        if phase == "forward":
            return "activations"
        return "unknown" if life.ended is None else "temporaries"

    def _as_memory_ran_out(self, life: Life, owner: Owner | None, ran_out: OutOfMemory) -> Category:
        """What it was then, by the phase that was open."""
        mine = self.of_the_step(life, ran_out)
        kept = ran_out.phase == FORWARD and ran_out.grad is not False
        # What the backward makes has no line of the user's: it runs in a thread of its own.
        kept = kept or (ran_out.phase == BACKWARD and (mine is None or self.where(life) is not None))
        if owner is not None:  # with its graph, a variable of the running step holds what the backward needs
            return "activations" if kept and mine and owner.category == "outputs" else owner.category
        if mine is False or ran_out.phase not in {FORWARD, BACKWARD, OPTIMIZER, *LOADED}:
            return "unknown"
        if ran_out.phase in LOADED:
            return "inputs" if mine else "unknown"
        if kept:
            return "activations"
        return "temporaries" if mine or ran_out.phase != OPTIMIZER else "unknown"

    def of_the_step(self, life: Life, ran_out: OutOfMemory) -> bool | None:
        """Whether the step in which memory ran out had allocated it; None where that can't be told."""
        if life.begun >= 0 and ran_out.began is not None:
            return self.times[life.begun] >= ran_out.began
        if self.times:  # it is older than the first event
            return False if ran_out.began is not None and self.times[0] <= ran_out.began else None
        return False if self.where(life) is not None and ran_out.step > FIRST_STEPS else None

    def where(self, life: Life) -> tuple[Frame, Frame | None] | None:
        """The user's innermost line that allocated it, and the innermost one of an installed package inside of that."""
        window = self.window
        if not 0 <= life.stack < len(window.stacks):
            return None
        if life.stack not in self._known:
            frames = [one for one in window.stacks[life.stack] if 0 <= one < len(window.frames)]
            mine = next((one for one in frames if one not in self._installed), None)
            inside = frames[0] if frames and frames[0] in self._installed else None
            self._known[life.stack] = (
                None if mine is None else (window.frames[mine], None if inside is None else window.frames[inside])
            )
        return self._known[life.stack]


def _open(window: MemoryWindow) -> list[int]:
    """After each beginning or end of a call, the innermost module that is open."""
    stack, found = [-1], []
    for number in window.calls.modules:
        if number >= 0:
            stack.append(number)
        elif len(stack) > 1:
            stack.pop()
        found.append(stack[-1])
    return found


def _intervals(phases: Sequence[str], steps: Sequence[int]) -> list[int]:
    """Equal numbers for marks between which only the same phase of the same step was open."""
    numbers = [0] if phases else []
    for before, after in pairwise(zip(phases, steps, strict=True)):
        numbers.append(numbers[-1] + (before != after))
    return numbers


def _names(told: Told, lives: Iterable[Life]) -> tuple[str, ...]:
    """Of what holds them, the largest first."""
    found: dict[str, int] = defaultdict(int)
    for life in lives:
        if (owner := told.owner(life)) is not None:
            found[owner.name] += life.bytes
    return tuple(sorted(found, key=lambda one: -found[one])[:NAMED])


def _line(told: Told, at: tuple[Frame, Frame | None], category: Category, lives: list[Life]) -> MemoryLine:
    where, inside = at
    size, names = sum(one.bytes for one in lives), _names(told, lives)
    return MemoryLine(where=where, inside=inside, category=category, bytes=size, blocks=len(lives), names=names)


def _holders(told: Told, alive: Iterable[Life]) -> Iterable[Holder]:
    """Variables that hold memory at the peak which is no parameter's and the like."""
    sizes: dict[str, list[int]] = defaultdict(list)
    owners = [(owner, life.bytes) for life in alive if (owner := told.owner(life)) is not None]
    mine = [(KEY.sub("[…]", owner.name), size) for owner, size in owners if owner.category in {"held", "outputs"}]
    parts = Counter(ROOT.split(name, maxsplit=1)[0] for name in {name for name, _ in mine})
    for name, size in mine:
        variable = ROOT.split(name, maxsplit=1)[0]
        sizes[variable if parts[variable] >= TOGETHER else name].append(size)
    weights = sorted(one.bytes for one in alive if told.category(one) == "parameters")
    for name in sorted(sizes, key=lambda one: -sum(sizes[one]))[:HOLDERS]:
        alike = sum((Counter(weights) & Counter(sizes[name])).elements())
        copies = len(weights) > 1 and alike >= MOST_OF_IT * max(sum(weights), sum(sizes[name]))
        yield Holder(name=name, bytes=sum(sizes[name]), blocks=len(sizes[name]), weights=copies)


def _modules(told: Told, alive: Iterable[Life]) -> Iterable[ModuleMemory]:
    """Parameters and what goes with them, and what a module's call allocates, by module: the first two parts of its
    name beyond what all names have."""
    sizes: dict[tuple[str, ...], Counter[Category]] = defaultdict(Counter)
    for life in alive:
        owner = told.owner(life)
        if owner is not None and owner.category in LASTING:
            # A parameter of no module stands by its own name.
            path = owner.name.rpartition(" of ")[2].split(".")
            sizes[tuple(path[:-1] or path)][owner.category] += life.bytes
        elif (name := told.module(life)) is not None:
            sizes[tuple(name.split("."))][told.category(life)] += life.bytes
    ends = zip(min(sizes, default=()), max(sizes, default=()), strict=False)
    common = len(list(takewhile(lambda two: two[0] == two[1], ends)))
    found: dict[str, Counter[Category]] = {}
    for parts in (2, 1):
        if not found or len(found) > MODULES:
            found = defaultdict(Counter)
            for names, by_category in sizes.items():
                found[".".join(names[: common + parts])].update(by_category)
    for name, of in sorted(found.items(), key=lambda one: -one[1].total())[:MODULES]:
        told_parts = tuple(MemoryPart(category=category, bytes=size) for category, size in of.most_common())
        yield ModuleMemory(name=name, bytes=of.total(), parts=told_parts)


def _grown(told: Told, lives: Iterable[Life]) -> float:
    """Bytes a step by which what is allocated at the ends of steps rises, over all of them but the first."""
    ends = [one.time for one in told.marks if one.phase == STEP_END]
    if len(ends) < 2:
        return 0.0
    numbers = [bisect_right(told.times, end) for end in (ends[0], ends[-1])]
    there = [[one for one in lives if one.begun < at and (one.ended is None or one.ended >= at)] for at in numbers]
    before, after = (sum(one.bytes for one in found) for found in there)
    return (after - before) / (len(ends) - 1)


def _idle_gradients(told: Told, lives: Iterable[Life], totals: Sequence[int]) -> int:
    """Bytes of gradients at the peak of the last step's forward."""
    last = max((one.step for one in told.marks if one.phase == FORWARD), default=0)
    begins, backwards = (
        next((one.time for one in told.marks if one.phase == phase and one.step == last), None)
        for phase in (FORWARD, BACKWARD)
    )
    if begins is None or backwards is None or not begins < backwards:
        return 0
    first, end = bisect_right(told.times, begins), bisect_right(told.times, backwards)
    at = max(range(first, end + 1), key=totals.__getitem__)
    alive = [one for one in lives if one.begun < first and (one.ended is None or one.ended >= at)]
    return sum(one.bytes for one in alive if told.category(one) == "gradients")


def _stays(told: Told, lives: Iterable[Life]) -> Iterable[Stays]:
    """What every step but the last has left, by the line that allocated it, and who holds it at the end."""
    ends = [one.step for one in told.marks if one.phase == STEP_END]
    first = min((one.step for one in told.marks), default=0)
    whole = set(range(first, first + len(ends) - 1))
    left: dict[Frame | None, dict[int, list[Life]]] = defaultdict(lambda: defaultdict(list))
    for life in lives:
        began = told.interval(life.begun)
        if life.ended is None and began >= 0 and told.category(life) not in LASTING:
            left[at[0] if (at := told.where(life)) else None][told.marks[began].step].append(life)
    for where, steps in left.items():
        if whole and whole <= set(steps):
            mine = [one for step in whole for one in steps[step]]
            owners = [owner for one in mine if (owner := told.last_owner(one)) is not None]
            names = tuple(dict.fromkeys(owner.name for owner in owners))[:NAMED]
            yield Stays(
                where=where,
                bytes=sum(one.bytes for one in mine) / len(whole),
                blocks=len(mine) / len(whole),
                names=names or told.largest_graph(),
                graph=not names or any(owner.category == "outputs" for owner in owners),
            )
