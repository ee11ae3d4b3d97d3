"""Cuts the time of a step into phases, on the host and, by marks, on the device."""

from collections.abc import Callable
from typing import Any, Protocol

from hotlap.records.phases import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, OTHER

GAP = 6
"""Time after a forward whose phase is known only once a backward does or does not follow."""


class Segment:
    """What was accumulated since the last cut between steps."""

    __slots__ = (
        "compiles",
        "end_ns",
        "evaluation",
        "losses",
        "marks",
        "ns",
        "open_marks",
        "probe",
        "samples",
        "skipped",
    )

    def __init__(self) -> None:
        self.ns = [0] * 7
        self.marks: list[list[Any]] = []
        self.open_marks: list[list[Any]] = []
        self.losses: list[Any] = []
        self.samples = 0
        self.evaluation = False
        self.skipped = False
        self.probe = False
        self.compiles = 0
        self.end_ns = 0

    def absorb(self, later: "Segment") -> None:
        """Join a later segment to this one."""
        self.ns = [a + b for a, b in zip(self.ns, later.ns, strict=True)]
        self.marks += later.marks
        self.open_marks += later.open_marks
        self.losses += later.losses
        self.samples += later.samples
        self.evaluation |= later.evaluation
        self.skipped |= later.skipped
        self.probe |= later.probe
        self.compiles += later.compiles
        self.end_ns = later.end_ns

    def settle(self, phase: int) -> None:
        """Charge the open gap to a phase."""
        if self.ns[GAP]:
            self.ns[phase] += self.ns[GAP]
            self.ns[GAP] = 0
        for mark in self.open_marks:
            mark[0] = phase
        self.open_marks.clear()


class Watch(Protocol):
    """What wants to know of phases as they open and close, outside of the time that is charged to them."""

    def enter(self, phase: int) -> None: ...
    def leave(self) -> None: ...
    def unwind(self) -> None: ...


class Timeline:
    """A stack of open phases over one running segment. Every nanosecond goes to exactly one phase."""

    def __init__(self, clock: Callable[[], int], mark: Callable[[], Any]) -> None:
        self.clock = clock
        self.mark = mark
        self.marking = True
        self.stack = [OTHER]
        self.gap_depth = 0
        self.segment = Segment()
        self.last = clock()
        self.watch: Watch | None = None

    def cut(self) -> None:
        """Charge the time since the last cut to the phase that was open."""
        now = self.clock()
        phase = GAP if self.gap_depth == len(self.stack) else self.stack[-1]
        self.segment.ns[phase] += now - self.last
        self.last = now
        if self.marking:
            event = self.mark()
            if event is not None:
                self.segment.marks.append([phase, event])
                if phase == GAP:
                    self.segment.open_marks.append(self.segment.marks[-1])

    def enter(self, phase: int) -> None:
        """Open a phase inside the one that is open."""
        if self.watch is not None:
            self.watch.enter(phase)
        self.cut()
        if self.gap_depth == len(self.stack) and phase != H2D:
            self.settle(FORWARD if phase in (FORWARD, BACKWARD) else self.stack[-1])
        self.stack.append(phase)

    def leave(self, gap: bool = False) -> None:
        """Close the open phase; with `gap`, what follows waits for its phase."""
        self.cut()
        if self.gap_depth == len(self.stack):
            self.settle(self.stack[-1])
        if len(self.stack) > 1:
            self.stack.pop()
        if gap:
            self.gap_depth = len(self.stack)
        if self.watch is not None:
            self.watch.leave()

    def open_gap(self) -> None:
        """From here on the phase is known only once a backward follows."""
        self.gap_depth = len(self.stack)

    def settle(self, phase: int) -> None:
        """Charge the open gap to a phase and end it."""
        self.segment.settle(phase)
        self.gap_depth = 0

    def take(self) -> Segment:
        """Hand over the running segment as of the last cut."""
        if self.gap_depth:
            self.settle(self.stack[-1])
        if not self.marking:
            event = self.mark()
            if event is not None:
                self.segment.marks.append([OTHER, event])
        done, self.segment = self.segment, Segment()
        done.end_ns = self.last
        return done

    def inside(self, phase: int) -> bool:
        """Whether the phase is open."""
        return phase in self.stack

    def unwind(self) -> None:
        """Forget phases that an exception left open."""
        if self.watch is not None:
            self.watch.unwind()
        self.cut()
        del self.stack[1:]
        self.settle(OTHER)


__all__ = ["BACKWARD", "DATA", "FORWARD", "GAP", "H2D", "OPTIMIZER", "OTHER", "Segment", "Timeline"]
