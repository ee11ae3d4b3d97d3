"""Which steps are looked at: all of them, until so many were that the loop is known; then, where steps are short and
the loop is a simple one, one of EVERY. The steps between are thin: each is timed, counted, and written as a line, but
has no phases, loss or samples.

To look at a step costs 0.12 to 0.22 ms (docs/benchmarks.md). That is little beside a step of SHORT_MS, and a tenth of
one of 2 ms. What the hooks do in a thin step is to look at `Steps.thin` and to call the original.

A loop is simple where one optimizer ends each step, without closures or steps within steps, or where a step is one
forward and nothing trains. Anything else that turns up in a thin step (another optimizer, a backward where there was
none, many backwards and no update) has all steps looked at again, for FIRST steps at least.

Of each EVERY steps in a row one is looked at, at a place that is a function of its number alone: so it falls in with
nothing that the script does periodically, and on all ranks, which wait for one another, it is the same.
"""

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hotlap.records.session import Session

from .compiled import compiled_frames
from .guard import hook
from .steps import INFERENCE
from .timeline import OTHER, Segment

if TYPE_CHECKING:
    from .core import Agent

LAP, LEAVE = hook("thin_step"), hook("thin_leave")
SHORT_MS: Final = 40.0
EVERY: Final = 16
FIRST: Final = 200
"""Loaders, inputs, warm-up and the host's counters are known long before."""
WATCHED: Final = 64
MARKED_MS: Final = 10.0
"""From here on every step that is looked at has marks on the device, of shorter ones every other."""
MOST_WAITING: Final = 64
LONGEST_WAIT_NS: Final = 250_000_000
"""Lines of thin steps that are not yet written, and for how long, when a step that is looked at ends."""


def until_full(step: int) -> int:
    """Steps from `step` on that come before the next one that is looked at."""
    block = step // EVERY
    at = block * EVERY + _place(block)
    if at < step:
        at = (block + 1) * EVERY + _place(block + 1)
    return at - step


def _place(block: int) -> int:
    """0 to EVERY - 1, alike often and without a pattern: the finalizer of MurmurHash3 (public domain), 32 bits."""
    x = (block + 1) * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (x ^ x >> 16) % EVERY


class Thin:
    """Decides at the end of each step whether the next is looked at, and ends those that are not.

    allowed: this run may have thin steps at all. on: it has some now. What is known of the thin steps in a row that are
    going on is in lists, of which segments are made at their end.
    """

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.agent = agent
        counted = session.steps is not None or session.windows or session.probe_steps
        self.allowed = not (session.every_step or counted or session.nudge or session.redraw is not None)
        self.on = False
        self.begins = FIRST
        self.walls: deque[float] = deque(maxlen=WATCHED)
        self.written_ns = 0
        self.left = 0
        self.ends: list[tuple[int, Any]] = []
        self.evaluated: set[int] = set()
        self.skips: set[int] = set()
        self.steps, self.clock, self.mark = agent.steps, agent.timeline.clock, agent.timeline.mark
        self.lapped = agent.guard.around(LAP, self._lap)
        self._left = agent.guard.around(LEAVE, self._leave)

    # the end of a step that was looked at

    def after(self, ended_ns: int, wall_ms: float, look: bool) -> bool:
        """Choose what the next step is. Returns whether to do now what is not done after each of many short steps;
        look: whether it would be, were there no thin steps."""
        index, waiting = self.agent.recorder.index, self.agent.recorder.waiting
        if self.on:
            look = len(waiting) >= MOST_WAITING or ended_ns - self.written_ns >= LONGEST_WAIT_NS
            short = not look or median(step.end_ns - step.begun_ns for step in waiting) < SHORT_MS * 1e6
        else:
            self.walls.append(wall_ms)
            if index < self.begins:
                return look
            short = median(self.walls) < SHORT_MS and self.agent.timeline.watch is None
        key = self.steps.simple() if short and (self.on or self.agent.modules_known()) else 0
        self.on = bool(key)
        if not self.on:
            self.begins = index + FIRST
            return look
        if look:
            self.written_ns = ended_ns
        self.left = until_full(index)
        self.agent.timeline.marking = wall_ms >= MARKED_MS or (index + self.left) // EVERY % 2 == 0
        if self.left:
            self.steps.thin = key
        return look

    # thin steps

    def _lap(self) -> None:
        """A thin step ended. All that is done is done later, at once: code that runs once a step runs with cold
        caches, and then costs several times as much."""
        self.ends.append((self.clock(), None if self.mark is None else self.mark()))
        steps = self.steps
        steps.optimizer_steps += steps.thin != INFERENCE
        steps.backwards += steps.backwards_since_step
        steps.backwards_since_step = 0
        self.left -= 1
        if self.left <= 0:
            self.close()
            steps.thin = 0

    def evaluating(self) -> None:
        """An evaluation runs in the step that is going on."""
        self.evaluated.add(len(self.ends))

    def skipped(self, optimizer: int) -> None:
        """An update was left out; that ends the step too."""
        steps = self.steps
        if steps.thin == optimizer:
            self.skips.add(len(self.ends))
            self._lap()
            steps.optimizer_steps -= 1
            return
        if steps.thin:
            self._leave()
        steps.skipped_step(optimizer)

    def leave(self) -> None:
        """Something happened that does not happen in a simple loop: look at all from here on."""
        if self.steps.thin:
            self._left()

    def _leave(self) -> None:
        steps, timeline = self.steps, self.agent.timeline
        evaluated = len(self.ends) in self.evaluated
        self.close()
        timeline.segment.thin, timeline.segment.evaluation = True, evaluated
        timeline.marking = self.on = False
        self.begins = self.agent.recorder.index + FIRST
        self.walls.clear()
        steps.backwards += steps.backwards_since_step
        steps.unseen, steps.thin = steps.thin, 0

    def close(self) -> None:
        """Hand over the thin steps that have ended."""
        agent, steps = self.agent, self.steps
        stretch = agent.timeline.segment
        begun = stretch.begun_ns
        segments = []
        ends, self.ends = self.ends, []  # before all else: a Ctrl-C in here must not have them told twice
        for at, (ended, event) in enumerate(ends):
            segment = Segment(begun)
            segment.end_ns = begun = ended
            segment.thin, segment.probe = True, stretch.probe
            segment.evaluation, segment.skipped = at in self.evaluated, at in self.skips
            segment.kind = "inference" if steps.thin == INFERENCE else "train"
            if event is not None:
                segment.marks.append([OTHER, event])
            segments.append(segment)
            agent.recorder.add(segment)
        frames = compiled_frames()
        if segments and frames != agent.compiled_frames:  # to compile takes longer than a thin step
            longest = max(segments, key=lambda segment: segment.end_ns - segment.begun_ns)
            longest.compiles = frames - agent.compiled_frames
            agent.compiled_frames = frames
        self.evaluated.clear()
        self.skips.clear()
        agent.timeline.go_on(begun)
