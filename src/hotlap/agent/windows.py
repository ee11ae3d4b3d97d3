"""The columns of a window of memory, as `records.memory.MemoryWindow` has them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from .lines import HOTLAP, TORCH

ALLOC, FREE, RESERVE, RELEASE = range(4)
"""Indices into `records.memory.ACTIONS`."""
UNSURE: Final = -1
"""Memory was seen for the first time: it may have been there before. Such events are not told."""
MOST_EVENTS: Final = 200_000
MOST_FRAMES: Final = 16
"""Of a stack."""


class Columns:
    """Events with their stacks, each stack and frame once."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, int, str], int] = {}
        self.installed: set[int] = set()
        self.stacks: dict[tuple[int, ...], int] = {}
        self.events: deque[list[int]] = deque(maxlen=MOST_EVENTS)
        self.left_out = 0

    def stack(self, frames: Iterable[tuple[str, int, str]], users: Callable[[str], bool]) -> int:
        """The number of a stack, the innermost frame first; -1 of an empty one. users: whether a file is the user's."""
        row: list[int] = []
        for frame in frames:
            if len(row) < MOST_FRAMES and not frame[0].startswith(("<", HOTLAP, TORCH)):
                number = self.frames.setdefault(frame, len(self.frames))
                row.append(number)
                if not users(frame[0]):
                    self.installed.add(number)
        return self.stacks.setdefault(tuple(row), len(self.stacks)) if row else -1

    def event(self, action: int, address: int, size: int, at_ns: int, stack: int) -> list[int]:
        """One; the last ones are kept. Its row, in which the action may be changed later."""
        self.left_out += len(self.events) == MOST_EVENTS
        row = [action, address, size, at_ns, stack]
        self.events.append(row)
        return row

    def document(self) -> dict[str, Any]:
        """Frames, stacks and events."""
        names = ("actions", "addresses", "bytes", "times", "stacks")
        told = (row for row in self.events if row[0] != UNSURE)
        return {
            "frames": list(self.frames),
            "installed": sorted(self.installed),
            "stacks": list(self.stacks),
            "events": dict(zip(names, columns(told, len(names)), strict=True)),
            "left_out": self.left_out,
        }


def columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns."""
    found = [list(column) for column in zip(*rows, strict=True)]
    return found or [[] for _ in range(width)]
