"""One step of a trace as bars, and memory over it: what a page draws. Made small whatever the trace."""

from typing import Final, Literal

import msgspec

KINDS: Final = (
    "data", "h2d", "forward", "backward", "optimizer", "other",
    "op", "launch call", "wait", "allocation", "host call", "python",
    "compute", "communication", "copy",
    "idle: python", "idle: launch", "idle: input", "idle: communication", "idle: profiler", "idle: allocator",
    "idle: sync", "idle: copy", "idle: between kernels", "idle: unknown",
)  # fmt: skip
"""What a bar is: a phase, host time, device work, or why the device is idle."""


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the timeline, column by column, in order of start. label: the row's; group: where it is drawn. start,
    dur: ns from the timeline's start; kind: index into KINDS; name, at: indices into `texts` (0: none); count: events
    that a bar stands for; busy: ns of a bar that its events cover."""

    label: str
    group: Literal["phases", "host", "device", "idle"]
    start: tuple[int, ...]
    dur: tuple[int, ...]
    kind: tuple[int, ...]
    name: tuple[int, ...]
    at: tuple[int, ...]
    count: tuple[int, ...]
    busy: tuple[int, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The step whose length is the median, on the trace's clock. step: its index in the window; start_ns, span_ns:
    begin and length of what is shown; host, device: begin and end of the step on this clock, from start_ns; the same
    unless the host runs ahead. shortest_ns: shorter neighbours are one bar. texts: that bars point to. left_out: rows
    of other threads, streams and devices, which are not drawn."""

    step: int
    start_ns: int
    span_ns: int
    host: tuple[int, int]
    device: tuple[int, int]
    shortest_ns: int
    texts: tuple[str, ...]
    rows: tuple[Bars, ...]
    left_out: int = 0


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of torch's allocator over the window. device: its index, -1 is the host; time: ns from the window's start;
    allocated, reserved: bytes, -1 where the total is unknown."""

    device: int
    time: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
