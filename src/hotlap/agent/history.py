"""What torch's allocator of a CUDA device keeps of itself: its history, with Python's stacks, as columns.

The script's own recording is left alone: where it records, or begins to, hotlap does neither begin nor end.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from .lines import Places
from .torch_internals import RECORD_MEMORY, memory_is_recorded, memory_snapshot, record_memory
from .windows import ALLOC, FREE, MOST_EVENTS, RELEASE, RESERVE, Columns, columns

ACTIONS: Final = {
    "alloc": ALLOC,
    "free_requested": FREE,  # as torch's `allocated_bytes` counts; `free_completed` waits for other streams
    "segment_alloc": RESERVE,
    "segment_map": RESERVE,
    "segment_free": RELEASE,
    "segment_unmap": RELEASE,
}
IN_USE: Final = "active_allocated"


class History:
    """on: hotlap records it. theirs: the script does, or did.

    hotlap calls torch's own function, as it was bound when torch was imported; the script finds a wrapper of it.
    """

    def __init__(self, mine: Callable[[], bool]) -> None:
        """mine: whether hooks run at all."""
        self.on = self.theirs = False
        self._mine = mine

    def install(self) -> None:
        """Learn when the script records by itself."""
        history, original = self, getattr(*RECORD_MEMORY, None)
        if original is None:
            return

        @functools.wraps(original)
        def record(*args: Any, **kwargs: Any) -> Any:
            if history._mine():
                history.on, history.theirs = False, True
            return original(*args, **kwargs)

        setattr(*RECORD_MEMORY, record)

    def begin(self) -> bool:
        """Record from here on, if nobody does. Returns whether it is on."""
        if not self.on and not self.theirs and not memory_is_recorded():
            record_memory(enabled="all", context="all", stacks="python", max_entries=MOST_EVENTS)
            self.on = True
        return self.on

    def end(self) -> None:
        """Record no more."""
        if self.on:
            self.on = False
            record_memory(enabled=None)


def taken(device: int, since_ns: int, places: Places) -> dict[str, Any]:
    """Blocks and segments of a device as they are, and its events since a time, as a document of
    `records.memory.MemoryWindow`."""
    told, rows = memory_snapshot(device), Columns()
    stacks: dict[int, int] = {}

    def stack(frames: Any) -> int:
        """torch gives equal stacks as one object."""
        if id(frames) not in stacks:
            named = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames or ()]
            stacks[id(frames)] = rows.stack(named, places.users)
        return stacks[id(frames)]

    events = told["device_traces"][device] if device < len(told["device_traces"]) else []
    if len(events) >= MOST_EVENTS and events[0].get("time_us", 0) * 1000 > since_ns:
        rows.left_out = 1  # at least: what was before is gone
    for one in events:
        action, at_ns = ACTIONS.get(one["action"]), int(one.get("time_us", 0)) * 1000
        if action is not None and at_ns >= since_ns:
            rows.event(action, int(one["addr"]), int(one["size"]), at_ns, stack(one.get("frames")))
    blocks: list[tuple[int, ...]] = []
    segments: list[dict[str, Any]] = []
    for segment in told["segments"]:
        if segment["device"] != device:
            continue
        free = 0
        for block in segment["blocks"]:
            size = int(block["size"])
            if block["state"] == IN_USE:
                asked = int(block.get("requested_size", size))
                blocks.append((int(block["address"]), asked, size, stack(block.get("frames")), len(segments)))
            elif block["state"] == "inactive":
                free = max(free, size)
        segments.append(
            {
                "address": int(segment["address"]),
                "bytes": int(segment["total_size"]),
                "allocated": int(segment["allocated_size"]),
                "free": free,
                "graph": tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0),
                "stream": int(segment["stream"]),
            }
        )
    names = ("addresses", "bytes", "rounded", "stacks", "segments")
    return {
        **rows.document(),
        "blocks": dict(zip(names, columns(blocks, len(names)), strict=True)),
        "segments": segments,
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_bytes": torch.cuda.max_memory_allocated(device),
    }
