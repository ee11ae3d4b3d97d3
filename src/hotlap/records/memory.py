"""Records of memory over a few steps: `rank-K/memory-WHEN.json`, one for each window, and what torch's snapshots hold.

Numbers stand in columns: `blocks` and `events` may have a hundred thousand rows. A row of `stacks` is the numbers of
its frames in `frames`, the innermost first; -1 in a column of stacks means that it is not known.
"""

from typing import Annotated, Final, Literal

import msgspec

from .run import Count

ACTIONS: Final = ("alloc", "free", "reserve", "release")
"""By their numbers in `Events.actions`: a block is taken from the allocator, or given back to it; the allocator takes a
segment from the driver, or gives one back."""
When = Literal["start", "first", "steady", "oom", "snapshot"]
"""Until the loop begins; its first steps; steady steps; what led to the first time that memory ran out; torch's own
snapshot, of which no more is known."""
Category = Literal[
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    "outputs",
    "activations",
    "temporaries",
    "held",
    "graph pools",
    "workspaces",
    "rounding",
    "unknown",
]
"""Of bytes. activations: kept for the backward. temporaries: made and gone within a phase. held: by Python objects of
the script that are none of the others. graph pools: of CUDA graphs. workspaces: there all the time, and no object's of
the script, as libraries' own. rounding: what the allocator adds to a block."""
Owned = Literal["parameters", "buffers", "gradients", "optimizer state", "inputs", "outputs", "held"]
"""Categories that are told by identity: the script's own objects hold the memory."""

STEP_END, FORWARD, BACKWARD, OPTIMIZER = "step end", "forward", "backward", "optimizer"
"""Phases of marks."""

Numbers = tuple[int, ...]
Frame = tuple[str, Count, str]
"""File, line, function."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """What was allocated at the end of the window.

    addresses: of each. bytes: that were asked for; rounded: with what the allocator adds. stacks: that allocated it.
    segments: index into those of the window, -1: not known.
    """

    addresses: Numbers = ()
    bytes: Numbers = ()
    rounded: Numbers = ()
    stacks: Numbers = ()
    segments: Numbers = ()


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in the window, in order.

    actions: index into `ACTIONS`. addresses, bytes: of the block or segment. times: ns since the epoch. stacks: that
    did it.
    """

    actions: Numbers = ()
    addresses: Numbers = ()
    bytes: Numbers = ()
    times: Numbers = ()
    stacks: Numbers = ()


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator holds of the driver in one piece, at the end of the window.

    address: of it. bytes: of it; allocated: of
    these, in blocks that are in use; free: the largest block that is not. graph: a pool of a CUDA graph's. stream:
    address of the stream that it serves."""

    address: int
    bytes: Count
    allocated: Count
    free: Count = 0
    graph: bool = False
    stream: int = 0


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A phase begins, or a step ends (`step end`). time: ns since the epoch. step: that runs from here on."""

    time: int
    phase: str
    step: Count


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """An object of the script's holds the block at an address, as seen at a time (ns since the epoch). name: of a
    parameter, or of what holds it. nodes: of the graph that made it, where they were counted."""

    address: int
    bytes: Count
    category: Owned
    name: str
    time: int
    nodes: Count = 0


class ModuleCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a model's modules in the window, in order. names: of the modules, as the model has them. times: ns since
    the epoch, at which a call begins or ends; modules: index into names, or -1 where the innermost open call ends."""

    names: tuple[str, ...] = ()
    times: Numbers = ()
    modules: Numbers = ()


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The first time that memory ran out. asked_bytes: for what it did; None where that is not told. frames: the
    user's, the innermost first. phase: that was open, or `before the loop`. step: that was running, from 1; began: when
    it began, ns since the epoch (None: not known). grad: gradients were on; training: a model of the script's was in
    training mode (both None: not known). total_bytes: of the device; free_bytes: of it, free; of host memory, the limit
    on the process, where it has one. resident_bytes: of host memory, the most that the process held."""

    asked_bytes: Count | None = None
    frames: tuple[Frame, ...] = ()
    phase: str = ""
    step: Count = 0
    began: int | None = None
    grad: bool | None = None
    training: bool | None = None
    total_bytes: Count | None = None
    free_bytes: Count | None = None
    resident_bytes: Count | None = None


class MemoryWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device over a window.

    when: as in `When`. device: `cuda:0`, `cpu`. source: who told. allocator: torch's own history; operations: results
    of torch's operations, as on the CPU, where what an operation takes inside is not seen. frames, stacks: of blocks
    and events, by their numbers; installed: indices of frames in installed packages, where the others are the user's.
    first_step, steps: of the window.
    left_out: events before the first that is here, which were more than are kept. allocated_bytes, reserved_bytes: in
    blocks, and held by the allocator, at the end of the window (the first on the CPU: of what was seen); peak_bytes:
    the most in blocks, by the allocator itself, since the process began (None: not told). retries, mallocs: as of the
    allocator's counters, within the window. used_bytes: in use on the device, by anyone, with what lies outside of
    torch's allocator; total_bytes: of the device.
    """

    when: When
    device: str
    source: Literal["allocator", "operations"]
    first_step: Count = 0
    steps: Count = 0
    frames: tuple[Frame, ...] = ()
    installed: Numbers = ()
    stacks: tuple[Numbers, ...] = ()
    blocks: Blocks = Blocks()
    events: Events = Events()
    segments: tuple[Segment, ...] = ()
    marks: tuple[Mark, ...] = ()
    owners: tuple[Owner, ...] = ()
    calls: ModuleCalls = ModuleCalls()
    left_out: Count = 0
    allocated_bytes: Count = 0
    reserved_bytes: Count = 0
    peak_bytes: Count | None = None
    retries: Count = 0
    mallocs: Count = 0
    used_bytes: Count | None = None
    total_bytes: Count | None = None
    ran_out: OutOfMemory | None = None


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one category. category: what it is; bytes: of it."""

    category: Category
    bytes: Count


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at the peak that one line of the user's allocated. inside: the line of an installed package that it
    calls, where that allocates. category: what it is. bytes: in all pieces; blocks: number of pieces. names: of what
    holds some of it."""

    where: Frame
    inside: Frame | None = None
    category: Category
    bytes: Count
    blocks: Count
    names: tuple[str, ...] = ()


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of the script's that holds memory at the peak. bytes: in all pieces; blocks: number of pieces.
    weights: most of it has the sizes of most parameters, so that it may be a copy of them."""

    name: str
    bytes: Count
    blocks: Count
    weights: bool = False


class ModuleMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at the peak of a module's parameters, and of their gradients, optimizer state and buffers. name: the first
    parts of its dotted name. bytes: of all; parts: by category, the largest first."""

    name: str
    bytes: Count
    parts: tuple[MemoryPart, ...]


class Stays(msgspec.Struct, frozen=True, kw_only=True):
    """What each step allocates at a line, and does not give back before another has passed. bytes, blocks: a step.
    names: of what holds it. graph: of these, a tensor with the graph that made it."""

    where: Frame | None
    bytes: float
    blocks: float
    names: tuple[str, ...] = ()
    graph: bool = False


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a window at its peak (`memory.usage`).

    peak_bytes: the most that is allocated at once; step, phase: in which. parts: of the peak, the largest first. lines:
    the same, by line, as far as that is known. holders: variables that hold some of it. modules: whose parameters and
    what goes with them are in it, the largest first. stays: what the steps leave behind, the most first. grown_bytes:
    by which what is allocated between steps rises, a step. idle_gradients_bytes: of gradients of the step before, at
    the highest point of the forward. between_bytes: allocated at the end of the last step. device, source,
    reserved_bytes, total_bytes, used_bytes, mallocs, retries: as in `MemoryWindow`. run_peak_bytes: its peak_bytes, of
    the run until then. free_bytes: the largest free block
    of the allocator's.
    """

    device: str
    source: Literal["allocator", "operations"]
    peak_bytes: Count
    step: Count
    phase: str
    parts: tuple[MemoryPart, ...] = ()
    lines: tuple[MemoryLine, ...] = ()
    holders: tuple[Holder, ...] = ()
    modules: tuple[ModuleMemory, ...] = ()
    stays: tuple[Stays, ...] = ()
    grown_bytes: float = 0.0
    idle_gradients_bytes: Count = 0
    between_bytes: Count = 0
    run_peak_bytes: Count | None = None
    reserved_bytes: Count = 0
    free_bytes: Count = 0
    mallocs: Count = 0
    retries: Count = 0
    total_bytes: Count | None = None
    used_bytes: Count | None = None

    def part(self, category: Category) -> int:
        """Bytes of a category at the peak."""
        return next((one.bytes for one in self.parts if one.category == category), 0)


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Allocated memory over a window (`memory.timeline`), thinned out so that its highest and lowest points stay.
    times: ns from its first event or mark. categories: those of which most is there always first; bytes: of each of
    them, at each time, without the allocator's rounding. marks: phases that begin and steps that end, by the same
    times; of many, the ends of steps alone."""

    times: Numbers
    categories: tuple[Category, ...]
    bytes: tuple[Numbers, ...]
    marks: tuple[Mark, ...] = ()


class MemoryDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the peaks of two runs.

    category: of memory. before_bytes, after_bytes: of it in either run. where: the line that allocated these, as the
    run after has it; None: of the whole category.
    """

    category: Category
    before_bytes: Count
    after_bytes: Count
    where: Frame | None = None

    @property
    def more(self) -> int:
        """Bytes that the run after has more."""
        return self.after_bytes - self.before_bytes


class MemoryDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What made the difference in memory between two runs. before_bytes, after_bytes: at the peaks of the steps that
    `--memory` looked at. categories: that differ, which add up to the difference; lines: that differ. The largest
    difference comes first."""

    before_bytes: Count
    after_bytes: Count
    categories: tuple[MemoryDifference, ...] = ()
    lines: tuple[MemoryDifference, ...] = ()


class MemorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """`rank-K/memory-steps.json`: memory at the ends of steps over the run, thinned out so that no more than some
    thousand are kept. steps: their numbers. allocated, reserved: bytes of torch's allocator of the current device
    (0: no CUDA); resident: bytes of the process in host memory. note: why no window was taken."""

    steps: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    allocated: Numbers = ()
    reserved: Numbers = ()
    resident: Numbers = ()
    note: str = ""
