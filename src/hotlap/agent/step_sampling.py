"""Which steps are looked at: all of them, until so many were that the loop is known, fewer of very short ones. Then,
where what ends each step is known too, one of OFTEN where steps are long, one of EVERY where they are shorter than
SHORT_MS, and one of RARELY where they are very short. The steps between are unsampled: each is timed, counted, and
written as a line, but has no phases, loss or samples.

To look at a step costs 0.12 to 0.3 ms (docs/benchmarks.md). That is a tenth of a step of 2 ms, and nothing beside one
of a second; but what is promised is microseconds a step, however long. What the hooks do in an unsampled step is to
look at `Steps.unsampled` and to call the original, in one Python frame each: code that runs once a step runs with cold
caches, and a hook then costs 1 to 7 microseconds. In a loop that trains, models have none then: an evaluation begins
with `eval()` or delivers batches while gradients are off, and both are seen.

What ends a step is known where one optimizer does, with closures or without, or several in a cycle, which are expected
one after the other; where there is none, and each step of the last ones had one backward; or where a step is one
forward and nothing trains. Anything else that turns up in an unsampled step
(another optimizer than the expected one, a backward where there was none, many backwards and no update) has all steps
looked at again, for FIRST steps at least. The step in whose midst that is stays one that was not looked at; parts of it
that other optimizers ended are what they would be, had it been looked at, so no update is in two steps or in none.

All steps are looked at where their end is known only later: updates by hand after several backwards or with an
optimizer that steps no more, or optimizers that take turns without a cycle.

Of each EVERY steps in a row one is looked at, at a place that is a function of its number alone: so it falls in with
nothing that the script does periodically, and on all ranks, which wait for one another, it is the same. Those of which
one of RARELY is looked at are some of these, and these are some of those of which one of OFTEN is: where the steps of
one rank are short and those of another a little longer, they still look at the same ones, and one looks at others too.

Unsampled steps are handed over and written many at a time, but where they are long within LONGEST_WAIT_NS or a little
more, and where one lasts longer as it ends: the rest is lost if the process is killed, as is what the device has not
done.
"""

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hotlap.records.phases import OTHER
from hotlap.records.session import Session

from .guard import hook
from .steps import BY_HAND, INFERENCE
from .timeline import Segment, Stretch
from .torch_internals import compiled_frames

if TYPE_CHECKING:
    from .interface import Agent

LAP, LEAVE, EVENT = hook("unsampled_step"), hook("unsampled_leave"), hook("unsampled_event")
SHORT_MS: Final = 40.0
VERY_SHORT_MS: Final = 8.0
OFTEN: Final = 8
EVERY: Final = 32
RARELY: Final = 128
"""Each a multiple of the one before."""
FIRST: Final = 200
"""Loaders, inputs, warm-up and the host's counters are known long before."""
SOON: Final = 72
"""The same where steps are very short, of which to look at one takes up to a fifth: they fill WATCHED by then."""
WATCHED: Final = 64
TOGETHER: Final = 4
"""Unsampled steps in a row of which the device has one mark, at the end of the last, where one of RARELY is looked at:
each gets its share of the device's time."""
MOST_WAITING: Final = 64
LONGEST_WAIT_NS: Final = 1_000_000_000
"""Lines of unsampled steps that are not yet written, and for how long, when they are."""
HANDED_OVER: Final = 32
"""Unsampled steps in a row that are handed over at a time, at most."""


def until_full(step: int, every: int) -> int:
    """Steps from `step` on that come before the next one that is looked at."""
    block = step // every
    at = _looked_at(block, every)
    if at < step:
        at = _looked_at(block + 1, every)
    return at - step


def _looked_at(block: int, every: int) -> int:
    """Which step of so many in a row: of the blocks in it one, of the blocks in that one, and of its steps one."""
    sizes = (OFTEN, EVERY, RARELY)
    for level in range(sizes.index(every), 0, -1):
        of = sizes[level] // sizes[level - 1]
        block = block * of + _mixed(block - (level << 24)) % of
    return block * OFTEN + _mixed(block) % OFTEN


def _mixed(number: int) -> int:
    """A number without a pattern: the finalizer of MurmurHash3 (public domain), 32 bits."""
    x = (number + 1) * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


class StepSampling:
    """Decides at the end of each step whether the next is looked at, and ends those that are not.

    allowed: this run may have unsampled steps at all. on: it has some now. every: of how many steps one is looked at.
    left: unsampled steps until then. ends: what is known of those that were not handed over yet. most: so many are at
    once. order: the optimizers of the cycle, where more than one steps. turns: when those ended, ns, that have stepped
    in the running step. backward_ns: when the last backward of a loop BY_HAND ended. evaluated, skips: steps that held
    an evaluation, or whose update was left out, each with how many turns came before. looked_index, looked_ns: when it
    was last time to write, at a step that was looked at.
    """

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.agent = agent
        counted = session.steps is not None or session.windows or session.probe_steps
        self.allowed = not (session.every_step or counted or session.nudge or session.redraw is not None)
        self.on = False
        self.begins = FIRST
        self.every = EVERY
        self.together = 1
        self.order: tuple[int, ...] = ()
        self.turns: list[int] = []
        self.walls_ns: deque[float] = deque(maxlen=WATCHED)
        self.looked_index = self.looked_ns = 0
        self.left = self.most = 0
        self.ends: list[tuple[int, Any]] = []
        self.evaluated: set[tuple[int, int]] = set()
        self.skips: set[tuple[int, int]] = set()
        self.streams = 0
        self.steps = agent.steps
        self.clock = agent.timeline.clock
        self.mark = agent.guard.injected(LAP, agent.timeline.mark)
        self._left = agent.guard.around(LEAVE, self._leave)
        self.event = agent.guard.around(EVENT, self._event)
        self.backward_ns = 0

    # the end of a step that was looked at

    def after(self, ended_ns: int, wall_ms: float, look: bool) -> bool:
        """Choose what the next step is. Returns whether to do now what is not done after each of many short steps;
        look: whether it would be, were there no unsampled steps."""
        index = self.agent.recorder.index
        self.walls_ns.append(wall_ms * 1e6)
        if self.on:
            look = self._due(ended_ns)
        elif index < self.begins and not self._soon(index):
            return look
        key = self._key(look)
        self.on = bool(key)
        if not self.on:
            self.begins = index + FIRST
            return look
        if look:
            self.looked_index, self.looked_ns = index, ended_ns
        self.left = until_full(index, self.every)
        self.agent.timeline.marking = True
        if self.left:
            several = len(self.steps.cycle) > 1 or self.steps.nested
            self.order = tuple(self.steps.cycle) if several else ()
            self._begin_stretch()
            self.steps.unsampled, self.steps.evaluated = key, False
            self.steps.rows.clear()
            self.steps.prefetch.forget()
            if key > 0:
                self.agent.finder.see(False)
        return look

    def _key(self, look: bool) -> int:
        """Who steps next, if the next steps may be unsampled: an optimizer, INFERENCE or BY_HAND; else 0."""
        key = self.steps.expected()
        if not key or (self.on and not look):
            return key
        if not self.on and (self.agent.timeline.watch is not None or not self.agent.finder.ready()):
            return 0
        typical = median(self.walls_ns) / 1e6
        self.together = TOGETHER if typical < VERY_SHORT_MS else 1
        self.every = RARELY if typical < VERY_SHORT_MS else EVERY if typical < SHORT_MS else OFTEN
        return key

    def _soon(self, index: int) -> bool:
        """Whether the loop is known well enough for steps as short as these."""
        return index >= self.begins - FIRST + SOON and median(self.walls_ns) / 1e6 < VERY_SHORT_MS

    def _due(self, now_ns: int) -> bool:
        """Whether it is time to write."""
        waiting = self.agent.recorder.index - self.looked_index
        return waiting >= MOST_WAITING or now_ns - self.looked_ns >= LONGEST_WAIT_NS

    # unsampled steps

    def lapped(self) -> None:
        """An unsampled step ended, or one of several optimizers stepped. All else is done later, for many steps at
        once."""
        try:
            mark, steps, ends, now = self.mark, self.steps, self.ends, self.clock()
            if self.order:  # is the one that was expected, and stepped, the cycle's last? else the next one is expected
                turns, order = self.turns, self.order
                if steps.nested and steps.on_stack() > 1:
                    return
                if len(turns) + 1 < len(order):
                    turns.append(now)
                    steps.optimizer_steps += 1
                    steps.backwards_since_step = 0
                    steps.unsampled = order[len(turns)]
                    return
                turns.clear()
                steps.unsampled = order[0]
            if len(ends) >= steps.unsampled_most or now >= steps.unsampled_until:
                self._ended(now)
                return
            ends.append((now, mark() if mark is not None and (len(ends) + 1) % self.together == 0 else None))
            if steps.unsampled > 0:
                steps.optimizer_steps += 1
                steps.backwards_since_step = 0
        except Exception as error:  # noqa: BLE001 - the guard itself, without a frame of its own
            self.agent.guard.failed(LAP, error)

    def _ended(self, now: int) -> None:
        """The same, where the step may be the last one before they are handed over."""
        mark, steps, count = self.mark, self.steps, len(self.ends) + 1
        last = count >= self.most or now >= steps.unsampled_until
        self.ends.append((now, mark() if mark is not None and (last or count % self.together == 0) else None))
        if steps.unsampled > 0:
            steps.optimizer_steps += 1
            steps.backwards_since_step = 0
        if last:
            self.turn()

    @property
    def begun_ns(self) -> int:
        """When the step under way began."""
        return int(self.ends[-1][0] if self.ends else self.agent.timeline.segment.begun_ns)

    def _begin_stretch(self) -> None:
        self.most = min(self.left, HANDED_OVER)
        self.steps.unsampled_most = self.most - 1
        self.steps.unsampled_until = self.agent.timeline.segment.begun_ns + LONGEST_WAIT_NS
        self.streams = self.agent.marks.streams

    def turn(self) -> None:
        """So many unsampled steps ended that they are handed over. The next step is looked at, or more unsampled ones
        come."""
        now, late_ns = self.ends[-1][0], self.steps.unsampled_until
        self.left -= len(self.ends)
        self.close()
        if self.left <= 0:
            self.steps.unsampled = 0
            self.agent.finder.see(True)
        else:
            self._begin_stretch()
        if (self.left > 0 or now >= late_ns) and self._due(now):  # else soon: at the end of the step that is looked at
            self.agent.recorder.drain()

    def _event(self) -> None:
        """What begins a step, in a loop that no optimizer ends: that ends whose backward was before."""
        steps = self.steps
        if steps.manual_open:
            steps.manual_open = 0
            self.lapped()

    def inside(self) -> None:
        """Optimizers stepped inside a backward that has ended, in a step that was unsampled as that began."""
        steps = self.steps
        if steps.unsampled == steps.key_inside():
            steps.inside.clear()
            steps.optimizer_steps -= 1  # all are counted
            self.lapped()
            return
        self.leave()
        self.agent.timeline.cut()
        steps.updated_inside()

    def finish(self) -> None:
        """The process ends: what follows the last backward is no step."""
        self.close()
        if self.steps.unsampled == BY_HAND and self.steps.manual_open:
            timeline = self.agent.timeline
            timeline.cuts.append((OTHER, self.backward_ns))
            timeline.segment.unsampled = True

    def evaluating(self) -> None:
        """An evaluation runs in the step that is going on."""
        self.agent.peaks.evaluates()
        self.evaluated.add((len(self.ends), len(self.turns)))

    def skipped(self, optimizer: int) -> None:
        """An update was left out; that ends the step too."""
        steps = self.steps
        if steps.unsampled == optimizer:
            self.skips.add((len(self.ends), len(self.turns)))
            steps.optimizer_steps -= 1
            self.lapped()
            return
        if steps.unsampled:
            self._leave()
        steps.skipped_step(optimizer)

    def leave(self, beginning: int = 0) -> None:
        """Something happened that was not expected: look at all from here on. beginning: how many optimizer steps begin
        at this moment."""
        if self.steps.unsampled:
            self._left(beginning)
        elif self.on:
            self._off()

    def _off(self) -> None:
        self.agent.timeline.marking = self.on = False
        self.begins = self.agent.recorder.index + FIRST
        self.walls_ns.clear()

    def _leave(self, beginning: int = 0) -> None:
        at, turns = len(self.ends), self.turns.copy()
        evaluated, skips = self.evaluated.copy(), self.skips.copy()
        self.turns.clear()
        self.close()
        parts = self._parts(turns)
        for turn, part in enumerate(parts):
            part.evaluation, part.skipped = (at, turn) in evaluated, (at, turn) in skips
        self._off()
        self.agent.finder.see(True)
        self.steps.look_again(parts[:-1], beginning)

    def _parts(self, turns: list[int]) -> list[Segment]:
        """The running step so far, cut where optimizers of the cycle stepped."""
        timeline = self.agent.timeline
        parts = [timeline.segment]
        for ended_ns in turns:
            parts[-1].end_ns = ended_ns
            timeline.go_on(ended_ns)
            parts.append(timeline.segment)
        for part in parts:
            part.unsampled = True
        return parts

    def close(self) -> None:
        """Hand over the unsampled steps that have ended."""
        agent, ends = self.agent, self.ends.copy()
        self.ends.clear()  # before all else: a Ctrl-C in here must not have them told twice
        before = agent.timeline.segment
        if ends:
            kind = "inference" if self.steps.unsampled == INFERENCE else "train"
            stretch = Stretch(before.begun_ns, ends, kind, before.probe)
            stretch.evaluated = frozenset(at for at, _ in self.evaluated)
            stretch.skipped = frozenset(at for at, _ in self.skips)
            stretch.marked, stretch.together = self.mark is not None, self.together
            stretch.one_stream = self.streams == agent.marks.streams
            frames = compiled_frames()
            stretch.compiles, agent.compiled_frames = frames - agent.compiled_frames, frames
            agent.recorder.add_unsampled(stretch)
            agent.host.passed(len(ends), kind, bool(self.evaluated), bool(stretch.compiles or stretch.probe))
            self.walls_ns.extend(stretch.walls_ns)
        self.evaluated.clear()
        self.skips.clear()
        agent.timeline.go_on(ends[-1][0] if ends else before.begun_ns)
