"""Which steps are looked at: all of them, until so many were that the loop is known; then, where steps are short and
the loop is a simple one, one of EVERY, or of RARELY where they are very short. The steps between are thin: each is
timed, counted, and written as a line, but has no phases, loss or samples.

To look at a step costs 0.12 to 0.3 ms (docs/benchmarks.md). That is little beside a step of SHORT_MS, and a tenth of
one of 2 ms. What the hooks do in a thin step is to look at `Steps.thin` and to call the original, in one Python frame
each: code that runs once a step runs with cold caches, and a hook then costs 1 to 7 microseconds.

A loop is simple where one optimizer ends each step, without closures or steps within steps, or where a step is one
forward and nothing trains. Anything else that turns up in a thin step (another optimizer, a backward where there was
none, many backwards and no update) has all steps looked at again, for FIRST steps at least.

Of each EVERY steps in a row one is looked at, at a place that is a function of its number alone: so it falls in with
nothing that the script does periodically, and on all ranks, which wait for one another, it is the same. Those of which
one of RARELY is looked at are some of these: where the steps of one rank are very short and those of another are a
little longer, they still look at the same ones, and one looks at others too.
"""

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hotlap.records.session import Session

from .compiled import compiled_frames
from .guard import hook
from .steps import INFERENCE
from .timeline import Stretch

if TYPE_CHECKING:
    from .core import Agent

LAP, LEAVE = hook("thin_step"), hook("thin_leave")
SHORT_MS: Final = 40.0
VERY_SHORT_MS: Final = 8.0
EVERY: Final = 16
RARELY: Final = 64
FIRST: Final = 200
"""Loaders, inputs, warm-up and the host's counters are known long before."""
WATCHED: Final = 64
MARKED_MS: Final = 10.0
"""From here on every step that is looked at has marks on the device, of shorter ones every other, unless only one of
RARELY is looked at."""
TOGETHER: Final = 4
"""Thin steps in a row of which the device has one mark, at the end of the last, where one of RARELY is looked at: each
gets its share of the device's time."""
MOST_WAITING: Final = 64
LONGEST_WAIT_NS: Final = 250_000_000
"""Lines of thin steps that are not yet written, and for how long, when steps are handed over."""
HANDED_OVER: Final = 2 * EVERY
"""Thin steps in a row that are handed over at a time, at most: they are lost if the process is killed."""


def until_full(step: int, every: int) -> int:
    """Steps from `step` on that come before the next one that is looked at."""
    block = step // every
    at = _looked_at(block, every)
    if at < step:
        at = _looked_at(block + 1, every)
    return at - step


def _looked_at(block: int, every: int) -> int:
    """Which step of so many in a row; `every` is a multiple of EVERY."""
    of = every // EVERY
    small = block * of + _mixed(~block) % of
    return small * EVERY + _mixed(small) % EVERY


def _mixed(number: int) -> int:
    """A number without a pattern: the finalizer of MurmurHash3 (public domain), 32 bits."""
    x = (number + 1) * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


class Thin:
    """Decides at the end of each step whether the next is looked at, and ends those that are not.

    allowed: this run may have thin steps at all. on: it has some now. every: of how many steps one is looked at. left:
    thin steps until then. ends: what is known of those that were not handed over yet.
    """

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.agent = agent
        counted = session.steps is not None or session.windows or session.probe_steps
        self.allowed = not (session.every_step or counted or session.nudge or session.redraw is not None)
        self.on = False
        self.begins = FIRST
        self.every = EVERY
        self.together = 1
        self.walls_ns: deque[float] = deque(maxlen=WATCHED)
        self.written_ns = 0
        self.left = 0
        self.ends: list[tuple[int, Any]] = []
        self.evaluated: set[int] = set()
        self.skips: set[int] = set()
        self.streams = 0
        self.steps = agent.steps
        self.clock = agent.timeline.clock
        self.mark = agent.guard.injected(LAP, agent.timeline.mark)
        self._left = agent.guard.around(LEAVE, self._leave)

    # the end of a step that was looked at

    def after(self, ended_ns: int, wall_ms: float, look: bool) -> bool:
        """Choose what the next step is. Returns whether to do now what is not done after each of many short steps;
        look: whether it would be, were there no thin steps."""
        index = self.agent.recorder.index
        self.walls_ns.append(wall_ms * 1e6)
        if self.on:
            look = self._due(ended_ns)
        elif index < self.begins:
            return look
        key = self._key(look)
        self.on = bool(key)
        if not self.on:
            self.begins = index + FIRST
            return look
        if look:
            self.written_ns = ended_ns
        self.left = until_full(index, self.every)
        seldom = wall_ms >= MARKED_MS or self.every > EVERY
        self.agent.timeline.marking = seldom or (index + self.left) // EVERY % 2 == 0
        if self.left:
            self._begin_stretch()
            self.steps.thin = key
        return look

    def _key(self, look: bool) -> int:
        """What ends each step, if the next ones may be thin: an optimizer's, or INFERENCE; else 0."""
        key = self.steps.simple()
        if not key or (self.on and not look):
            return key
        if not self.on and (self.agent.timeline.watch is not None or not self.agent.modules_known()):
            return 0
        typical = median(self.walls_ns) / 1e6
        self.every, self.together = (RARELY, TOGETHER) if typical < VERY_SHORT_MS else (EVERY, 1)
        return key if typical < SHORT_MS else 0

    def _due(self, now_ns: int) -> bool:
        """Whether it is time to write."""
        recorder = self.agent.recorder
        return recorder.index - recorder.written >= MOST_WAITING or now_ns - self.written_ns >= LONGEST_WAIT_NS

    # thin steps

    def lapped(self) -> None:
        """A thin step ended. All else is done later, for many steps at once."""
        try:
            mark, steps, ends = self.mark, self.steps, self.ends
            count = len(ends) + 1
            whole = count % self.together == 0 or count >= steps.thin_most
            ends.append((self.clock(), mark() if whole and mark is not None else None))
            steps.optimizer_steps += steps.thin > 0
            steps.backwards_since_step = 0
            if count >= steps.thin_most:
                self.turn()
        except Exception as error:  # noqa: BLE001 - the guard itself, without a frame of its own
            self.agent.guard.failed(LAP, error)

    def _begin_stretch(self) -> None:
        self.steps.thin_most = min(self.left, HANDED_OVER)
        self.streams = self.agent.marks.streams

    def turn(self) -> None:
        """So many thin steps ended that they are handed over. The next step is looked at, or more thin ones come."""
        self.left -= len(self.ends)
        self.close()
        if self.left <= 0:
            self.steps.thin = 0
            return
        self._begin_stretch()
        now = self.agent.timeline.segment.begun_ns
        if self._due(now):
            self.written_ns = now
            self.agent.recorder.drain()

    def evaluating(self) -> None:
        """An evaluation runs in the step that is going on."""
        self.evaluated.add(len(self.ends))

    def skipped(self, optimizer: int) -> None:
        """An update was left out; that ends the step too."""
        steps = self.steps
        if steps.thin == optimizer:
            self.skips.add(len(self.ends))
            steps.optimizer_steps -= 1
            self.lapped()
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
        self.walls_ns.clear()
        steps.unseen, steps.thin = steps.thin, 0

    def close(self) -> None:
        """Hand over the thin steps that have ended."""
        agent, ends = self.agent, self.ends.copy()
        self.ends.clear()  # before all else: a Ctrl-C in here must not have them told twice
        before = agent.timeline.segment
        if ends:
            kind = "inference" if self.steps.thin == INFERENCE else "train"
            stretch = Stretch(before.begun_ns, ends, kind, before.probe)
            stretch.evaluated, stretch.skipped = frozenset(self.evaluated), frozenset(self.skips)
            stretch.marked, stretch.together = self.mark is not None, self.together
            stretch.one_stream = self.streams == agent.marks.streams
            frames = compiled_frames()
            stretch.compiles, agent.compiled_frames = frames - agent.compiled_frames, frames
            agent.recorder.add_thin(stretch)
            self.walls_ns.extend(stretch.walls_ns)
        self.evaluated.clear()
        self.skips.clear()
        agent.timeline.go_on(ends[-1][0] if ends else before.begun_ns)
