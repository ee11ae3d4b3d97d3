"""Cuts the time of a step into phases, on the host and, by marks, on the device.

In the loop a cut is two numbers in a list; what they come to is reckoned when the step is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import sub
from typing import Any, Protocol

from hotlap.records.phases import BACKWARD, FORWARD, H2D, OTHER

GAP = 6
"""Time after a forward whose phase is known only once a backward does or does not come next."""
_IN_GAP = {H2D, OTHER}
"""Phases that are cut out of a gap, which goes on after them: transfers, and forwards without gradients."""
MOST_CUTS = 4096
"""In one step, kept as they are. An evaluation between two steps may make millions, and each holds a hundred bytes."""


@dataclass(slots=True, eq=False)
class Segment:
    """What was accumulated since the last cut between steps.

    cuts: the phase that a cut ends, and when, ns. A phase below zero is the complement of that to which the
    time of GAP so far belongs. marks: phase, event and ns of each cut. open_marks: those whose phase is not known yet.
    full: whether every cut was marked. starved: it waited for workers (`records.run.Step`). unsampled: it was not
    looked at, or not from its beginning.
    """

    begun_ns: int
    end_ns: int = field(init=False)
    kind: str = ""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    open_marks: list[list[Any]] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    samples: int = 0
    tokens: int = 0
    compiles: int = 0
    evaluation: bool = False
    skipped: bool = False
    probe: bool = False
    full: bool = False
    unsampled: bool = False
    starved: bool = False

    def __post_init__(self) -> None:
        self.end_ns = self.begun_ns

    @property
    def ns(self) -> list[int]:
        """Ns by phase, GAP included."""
        ns, last = [0] * 7, self.begun_ns
        for phase, at in self.cuts:
            if phase >= 0:
                ns[phase] += at - last
                last = at
            else:
                ns[~phase] += ns[GAP]
                ns[GAP] = 0
        return ns

    def fold(self) -> None:
        """Keep one cut a phase, at times at which they come to the same."""
        at, folded = self.begun_ns, []
        for phase, ns in enumerate(self.ns):
            if ns:
                at += ns
                folded.append((phase, at))
        self.cuts[:] = folded

    def absorb(self, later: "Segment") -> None:
        """Join the next segment to this one."""
        self.cuts += later.cuts
        self.marks += later.marks
        self.open_marks += later.open_marks
        self.losses += later.losses
        self.samples += later.samples
        self.tokens += later.tokens
        self.evaluation |= later.evaluation
        self.skipped |= later.skipped
        self.probe |= later.probe
        self.unsampled |= later.unsampled
        self.starved |= later.starved
        self.compiles += later.compiles
        self.end_ns = later.end_ns


@dataclass(slots=True, eq=False)
class Stretch:
    """Unsampled steps in a row (`agent/step_sampling.py`): when each ended is all that is known of most.

    ends: when, ns, and the event that was recorded then, if any. marked: there may be any. together: steps in a row of
    which the last alone has one. told: how many of the steps are written. one_stream: all events were recorded in one
    stream, so where the last is done all are. compiles: frames that were compiled, put down to the longest step (to
    compile takes longer than an unsampled step). evaluated, skipped: the places of steps in which an evaluation ran, or
    whose update was left out.
    """

    begun_ns: int
    ends: list[tuple[int, Any]]
    kind: str
    probe: bool
    told: int = 0
    compiles: int = 0
    together: int = 1
    marked: bool = False
    one_stream: bool = False
    evaluated: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()

    @property
    def walls_ns(self) -> list[int]:
        """How long each step took."""
        ends = [end for end, _ in self.ends]
        return list(map(sub, ends, [self.begun_ns, *ends]))

    @property
    def unusual(self) -> bool:
        """Whether there is more to say of some of them."""
        return bool(self.compiles or self.probe or self.evaluated or self.skipped)

    def facts(self, at: int) -> tuple[bool, bool, bool, int]:
        """Of one of its steps: evaluation, skipped, probe, compiles."""
        walls = self.walls_ns
        longest = self.compiles and at == walls.index(max(walls))
        return at in self.evaluated, at in self.skipped, self.probe, self.compiles if longest else 0


class Watch(Protocol):
    """Who is told of the phases, such as a profile."""

    def enter(self, phase: int) -> None:
        """A phase begins."""

    def leave(self) -> None:
        """The innermost one ends."""

    def unwind(self) -> None:
        """All of them do."""


class Timeline:
    """A stack of open phases (and gaps) over one running segment. Every nanosecond goes to exactly one phase."""

    __slots__ = ("clock", "cuts", "mark", "marking", "segment", "stack", "watch")

    def __init__(self, clock: Callable[[], int], mark: Callable[[], Any] | None) -> None:
        self.clock = clock
        self.mark = mark
        self.marking = True
        self.watch: Watch | None = None
        """Is told of phases as they open and close, outside of the time that is charged to them."""
        self.begin()

    def begin(self) -> None:
        """Time starts here."""
        self.stack = [OTHER]
        self.segment = Segment(self.clock())
        self.cuts = self.segment.cuts

    def cut(self) -> None:
        """Charge the time since the last cut to the phase that was open."""
        phase = self.stack[-1]
        self.cuts.append((phase, self.clock()))
        if self.marking:
            self._mark(phase)

    def _mark(self, phase: int) -> None:
        event = self.mark() if self.mark is not None else None
        if event is not None:
            self.segment.marks.append([phase, event, self.cuts[-1][1] if self.cuts else self.segment.begun_ns])
            if phase == GAP:
                self.segment.open_marks.append(self.segment.marks[-1])

    # `enter` and `leave` hold what `cut` does: a call more costs as much as all the rest, eight times a step.

    def enter(self, phase: int) -> None:
        """Open a phase inside the one that is open."""
        if self.watch is not None:
            self.watch.enter(phase)
        stack = self.stack
        open_one = stack[-1]
        self.cuts.append((open_one, self.clock()))
        if self.marking:
            self._mark(open_one)
        if open_one == GAP and phase not in _IN_GAP:
            stack.pop()
            self._settle(FORWARD if phase == BACKWARD else stack[-1])
        stack.append(phase)

    def leave(self, gap: bool = False) -> None:
        """Close the open phase; with `gap`, what follows waits for its phase."""
        stack = self.stack
        open_one = stack.pop()
        self.cuts.append((open_one, self.clock()))
        if self.marking:
            self._mark(open_one)
        if open_one == GAP:
            self._settle(stack.pop())
        if not stack:
            stack.append(OTHER)
        if gap:
            self.open_gap()
        if self.watch is not None:
            self.watch.leave()

    def open_gap(self) -> None:
        """From here on the phase is known only once a backward follows."""
        if self.stack[-1] != GAP:
            self.stack.append(GAP)

    def close_gap(self) -> None:
        """No backward will follow that the time since would belong to."""
        if self.stack[-1] == GAP:
            self.cut()
            self.stack.pop()
            self._settle(self.stack[-1])

    def _settle(self, phase: int) -> None:
        """Charge the open gap to a phase."""
        segment, cuts = self.segment, self.cuts
        cuts.append((~phase, cuts[-1][1] if cuts else segment.begun_ns))
        if segment.open_marks:
            for mark in segment.open_marks:
                mark[0] = phase
            segment.open_marks.clear()

    def take(self) -> Segment:
        """Hand over the running segment as of the last cut."""
        stack = self.stack
        if GAP in stack:
            self.stack = stack = [phase for phase in stack if phase != GAP]
            self._settle(stack[-1])
        done = self.segment
        if self.cuts:
            done.end_ns = self.cuts[-1][1]
        if self.mark is not None and not self.marking:
            self._mark(OTHER)
        self.segment = Segment(done.end_ns)
        self.cuts = self.segment.cuts
        return done

    def go_on(self, at_ns: int) -> None:
        """Begin a segment at a time before which nothing was cut for a while."""
        self.segment = Segment(at_ns)
        self.cuts = self.segment.cuts

    @property
    def busy(self) -> bool:
        """Whether a phase is open."""
        return any(phase not in {OTHER, GAP} for phase in self.stack)

    def fold(self) -> None:
        """Bound what a step of very many cuts holds; its phases on the device are then not told."""
        self.segment.fold()
        self.marking = False

    def unwind(self) -> None:
        """Forget phases that an exception left open."""
        if self.watch is not None:
            self.watch.unwind()
        self.cut()
        del self.stack[1:]
        self._settle(OTHER)
