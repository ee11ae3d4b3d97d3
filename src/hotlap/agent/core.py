"""The agent of one process: what it holds, and what happens at the end of each step."""

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from multiprocessing import util

import torch

from hotlap.records.session import Session

from .besides import Besides
from .device import DeviceMarks, LateLosses
from .facts import Script
from .guard import Guard, hook
from .hooks.forward import Finder
from .host import Host
from .lines import Places
from .memory import Memory
from .peaks import Peaks
from .probe import Probe
from .profile import Profile
from .recorder import Folder, Recorder, environment_int
from .seams import Seams
from .step_sampling import StepSampling
from .steps import Steps
from .stopper import Stopper
from .timeline import Segment, Timeline
from .tokens import Tokens
from .torch_internals import COMPILE_WORKER, STEP_CODE, compiled_frames
from .unused import Unused
from .updates import parameters_of
from .wasted import Wasted

AT_EXIT, FACTS = hook("exit"), hook("facts")
LAUNCHER = "torch.distributed.run"
"""A module that only processes import which launch training."""
SHORT_STEP_MS = 10.0
SAMPLE_EVERY = 16
"""Of steps shorter than SHORT_STEP_MS only one in SAMPLE_EVERY has its phases marked on the device (marks cost), and
once they are at their pace they are looked at and written SAMPLE_EVERY at a time: code that runs once a step runs with
cold caches, and then costs several times as much."""
FACTS_NS, FACTS_PART = 1_000_000_000, 20
"""So old are facts at least when they are written again, and of all steps one in so many: a model that is gone before
the process ends, with the function that made it, was then looked at not long ago."""
COUNT_EVERY, COUNTED = 8, 256
"""Steps from one count of what is trained to the next, at least, and tensors that are counted a step in the mean."""
ONE_BY_ONE = 64
"""Steps at the start that are looked at one by one however short they are."""


class Agent:
    """One per process. Hooks call it through its guard."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.guard = Guard(session.fail_in)
        self.guard.report = self._report
        self.pid, self.torch_imported = os.getpid(), time.time()
        self.thread: int | None = None
        self.begun = False
        self._folder: Folder | None = None
        self.marks = DeviceMarks()
        self.losses = LateLosses()
        self.timeline = Timeline(time.perf_counter_ns, self.marks.mark if self.marks.alive else None)
        self.steps = Steps(self.timeline, self._finished, _optimizer_steps_on_stack)
        self.recorder = Recorder(self.folder, self.marks, self.losses)
        if session.turns:  # it ends with its tune, which follows one file
            self.recorder.most_bytes = sys.maxsize
        self.script = Script(self)
        self.host = Host()
        self.seams = Seams(self)
        self.probe = Probe(session, self.append)
        self.tokens = Tokens()
        self.peaks = Peaks(self.guard, self.steps, time.perf_counter_ns, lambda: not self.profile.on)
        self.besides = Besides(time.perf_counter_ns, lambda: not self.profile.on)
        self.unused = Unused(time.perf_counter_ns, lambda: not self.profile.on)
        self.wasted = Wasted(self.steps.optimizers, Places().caller)
        if session.levers or session.turns:  # some leave themselves out where parameters have hooks
            self.wasted.give_up()
        self.memory = Memory(session, self)
        self.stopper = Stopper(session, self)
        self.profile: Profile = Profile(session, self)
        self.guard.undo = self.profile.give_up
        self.step_sampling = StepSampling(session, self)
        self.probed = session.probe_steps or -1
        self.compiled_frames = 0
        self.facts_at, self.facts_ns = sys.maxsize, 0  # none yet
        self._count_at = self._trained = 0
        self.rank = 0
        self.world = 1
        self.done = False
        self.finder = Finder(self)

    # where records go

    def folder(self) -> Folder:
        """The rank's folder, made when it is first needed."""
        if self._folder is None:
            self._look_for_ranks()
            self._folder = Folder(self.session.folder, self.rank)
        return self._folder

    def _look_for_ranks(self) -> None:
        """Who we are among the ranks; spawned ones know it from the process group, maybe made after the folder."""
        if self._folder is None:
            self.rank, self.world = environment_int("RANK", 0), environment_int("WORLD_SIZE", 1)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def append(self, name: str, line: str) -> None:
        """Append a line to a file of the rank."""
        self.folder().append(name, line)

    def _report(self, where: str, what: str, trace: str, lever: str | None) -> None:
        record = {"where": where, "what": what, "trace": trace, "lever": lever, "time": time.time()}
        self.append("problems.jsonl", json.dumps(record, ensure_ascii=False) + "\n")

    # who is observed

    def mine(self) -> bool:
        """Whether this thread is the one that trains (the first that runs a loader or a model).

        Hooks ask only where `guard.live` is not their thread already.
        """
        if self.guard.live is None:
            if torch.utils.data.get_worker_info() is not None:  # a spawned worker may run a model; it trains none
                self.guard.on = False
                return False
            self.guard.live = self.thread = threading.get_ident()
        return self.guard.live == threading.get_ident()

    def trains(self) -> bool:
        """As `mine`, for a thread that runs a backward: the first took this one's place if it has run none."""
        here, untrained = threading.get_ident(), not (self.steps.backwards or self.steps.in_backward)
        if self.guard.on and self.thread not in {None, here} and untrained:
            self.guard.live = self.thread = here
            self.steps.taken_over()
        return self.mine()

    def begin(self) -> None:
        """The first event of the loop: time starts here."""
        self.begun = True
        if self.stopper.turnstile is not None and not self.session.first_steps:
            self._look_for_ranks()
            self.stopper.turnstile.before_loop()
        self.timeline.begin()
        self.recorder.previous_event = self.marks.mark()
        self.seams.begun()
        self.memory.loop_begins()

    def forked(self) -> None:
        """This is a child process. What was seen in the parent is no loop if it trained nothing, such as a forward that
        it tried, and the child may be a rank; unless it was forked in the midst of something, as a loader's workers."""
        steps = self.steps
        inside = steps.unsampled or steps.in_data or steps.in_forward or steps.in_backward or steps.step_depth
        trained, watched = steps.backwards or steps.optimizer_steps, self.timeline.watch is not None
        if not self.begun or inside or trained or watched:
            return
        self.begun, self._folder = False, None
        self.recorder.begin_anew()
        self.stopper.begin_anew()
        self.host.begin_anew()
        self.seams.begin_anew()
        self.step_sampling.leave()
        self.timeline.marking = True
        steps.taken_over()
        steps.forwards = 0
        self.finder.look_again()

    # the end of a step

    def _finished(self, segment: Segment, kind: str) -> None:
        recorder, timeline = self.recorder, self.timeline
        frames = compiled_frames()
        if frames != self.compiled_frames:
            segment.compiles += frames - self.compiled_frames
            self.compiled_frames = frames
        # Evidence taken after an update costs the step that follows it, so that one is marked too.
        if self.profile.on or recorder.index <= self.probed:
            segment.probe = True
        segment.kind, segment.full = kind, timeline.marking
        recorder.add(segment)
        self._count(segment, kind)
        self.besides.step_done(recorder.index)
        self.unused.step_done(recorder.index)
        self.memory.step_done(recorder.index)
        index, wall_ms = recorder.index, (segment.end_ns - segment.begun_ns) / 1e6
        if self.stopper.wanted:
            disturbed = bool(segment.compiles or segment.probe)
            there = self.steps.prefetch.there()
            self.stopper.step_done(wall_ms, disturbed, segment.evaluation, kind, segment.starved, there)
        self.profile.due, self.profile.evaluated = timeline.watch is not None, segment.evaluation
        timeline.marking = wall_ms >= SHORT_STEP_MS or index % SAMPLE_EVERY == 0
        # Ranks must look at the same steps, since they stop together.
        due = self.stopper.at.at is not None and index >= self.stopper.at.at
        look = timeline.marking or index <= ONE_BY_ONE or self.world > 1 or self.profile.on or due
        if self.step_sampling.allowed:
            look = self.step_sampling.after(segment.end_ns, wall_ms, look)
        if look:
            self._look(index, kind)

    def _count(self, segment: Segment, kind: str) -> None:
        """What it cost the host. Steps that were held back are told after more of the loop has passed, or at exit."""
        host = self.host
        host.passed(1, kind, segment.evaluation, bool(segment.compiles or segment.probe))
        if segment.end_ns == self.timeline.segment.begun_ns and not self.done:
            host.look(segment.evaluation)

    def _look(self, index: int, kind: str) -> None:
        """What need not be done in each of many short steps."""
        self.recorder.drain()
        self.probe.step_done(index)
        self.finder.step_ended(index)
        if index >= self._count_at:
            self._count_trained(index)
        if not self.profile.on:
            self.script.habits.step_done(index)
        if index == 3:
            self.profile.label_for_nsight()
        if self.world == 1:
            self._look_for_ranks()
        if index in {3, 10, 40} or self._facts_are_old(index):
            self.write_facts(kind)
        if not self.done:
            self.stopper.look(index, kind)

    def _count_trained(self, index: int) -> None:
        """What was frozen may be trained from some step on. A thousand tensors take some 30 us."""
        wanted = [getattr(one, "requires_grad", False) for one in parameters_of(self.steps.optimizers)]
        self._count_at, trained = index + max(COUNT_EVERY, len(wanted) // COUNTED), sum(wanted)
        if trained != self._trained:
            self._trained = self.recorder.trained = trained

    def _facts_are_old(self, index: int) -> bool:
        """To write them costs 1 ms and more, which is microseconds a step where steps are short."""
        old_ns = self.timeline.segment.begun_ns - self.facts_ns
        return FACTS_PART * (index - self.facts_at) >= index and old_ns >= FACTS_NS

    def write_facts(self, kind: str, stopped: bool = False) -> None:
        """Write what was seen of the script. Steps are observed without it too."""
        self.facts_at, self.facts_ns = self.recorder.index, self.timeline.segment.begun_ns
        self.guard.spare(FACTS, self._no_facts, self._write_facts, kind, stopped)

    def _no_facts(self) -> None:
        """They can't be told: that is said once or a few times, and not as long as the script runs."""
        self.facts_at = sys.maxsize

    def _write_facts(self, kind: str, stopped: bool) -> None:
        self.folder().replace("facts.json", self.script.facts(kind, stopped))

    # the end of the process

    def finish(self) -> None:
        """At exit: the last steps, and what was seen."""
        if self.pid != os.getpid() or self.done:
            return
        self.done = True
        self.guard.on = False
        self.memory.ends()
        if self.steps.unsampled:
            self.step_sampling.finish()
        self.steps.finish()
        self.profile.finish()
        self.memory.finish()
        if not self.recorder.index:
            self._write_seen()
            return
        self.recorder.drain(wait=True)
        mode = "train" if self.steps.backwards else "inference"
        self.write_facts(mode, self.stopper.stopped)

    def _write_seen(self) -> None:
        """A process without a step says what it did, so that the user learns why nothing was measured."""
        main = str(getattr(sys.modules.get("__main__"), "__file__", ""))
        if LAUNCHER in sys.modules or COMPILE_WORKER in main or torch.utils.data.get_worker_info() is not None:
            return
        seen = self.script.facts("none", False)
        path = os.path.join(self.session.folder, f"seen-{self.pid}.json")
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump(seen, file, ensure_ascii=False)


def _optimizer_steps_on_stack() -> int:
    frame, found = sys._getframe(1), 0
    while frame is not None:
        found += frame.f_code is STEP_CODE
        frame = frame.f_back  # type: ignore[assignment]
    return found


def register_exit(agent: Agent) -> None:
    """Finish at exit, under the guard. Another Ctrl-C meanwhile ends that without a word: the script is over."""

    def finish() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            if agent.guard.on:
                agent.guard.call(AT_EXIT, agent.finish)

    def finish_child() -> None:
        if agent.begun:  # of the others there may be many
            finish()

    atexit.register(finish)
    # A process that multiprocessing forks ends without the functions of `atexit`, but with those that ask it there.
    util.register_after_fork(agent, lambda _: util.Finalize(agent, finish_child, exitpriority=0))
