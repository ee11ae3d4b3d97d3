"""The windows of a profiled run: heavy instruments, one at a time, each over a few steady steps.

In order, a step or more each: where the training thread is (`samples`), the lines that call ops (`lines`), the lines
that wait for the device (CUDA), one step in which torch.profiler warms up, the steps that it records, and where memory
is asked for some in which that is looked at (`memory.py`). From the first on, to the end, steps that take
much longer are looked at too. All of these, and the step in which the trace is written, are marked `probe`, so that no
time is quoted from them. Ranks begin at the same step and take the same windows.

A step ends inside `Optimizer.step`. What is switched there would cut through torch's own range of that name, so it is
switched where the next phase begins: "ProfilerStep#k" lies over step k from its first phase to that of the next.

With a profiler in front of the command there is one window instead, which that records (`capture.py`).

An error in any of this ends the profile and nothing else.
"""

import contextlib
import functools
import gzip
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from hotlap.records.phases import OTHER, PHASES
from hotlap.records.session import Session

from .capture import capture_window, nvtx
from .guard import hook
from .labels import Labels, recorded
from .lines import Lines, other_modes
from .samples import LongSteps, Samples
from .torch_internals import (
    PREPARE_TRACE,
    compiled_frames,
    profiler_enabled,
)

if TYPE_CHECKING:
    from .interface import Agent

WINDOW, SAMPLE, OP, LABEL, EXPORT = (
    hook("profile_window"),
    hook("profile_sample"),
    hook("profile_op"),
    hook("profile_label"),
    hook("profile_export"),
)
NSIGHT: Final = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH", "NV_COMPUTE_PROFILER_PERFWORKS_DIR")
"""Set in what nsys and ncu start (seen). NVTX itself looks for the second, which ncu sets with --nvtx only."""
TRACE: Final = "trace.json.gz"
SAMPLED_STEPS: Final = 10
SAMPLED_S: Final = 1.0
"""One process samples SAMPLED_STEPS, or fewer that took SAMPLED_S; ranks, which must take the same steps, these."""
MOST_SAMPLED: Final = 30
MOST_EVALUATED: Final = 3
"""Steps that held an evaluation, in whose place another one is looked at op by op."""
TRACES: Final = 3
COMPILED: Final = f"something was compiled in its steps, in each of {TRACES} tries"
FAILED: Final = "a problem of hotlap's own ended it"
ENOUGH_LOOKS: Final = 60
"""More steps, up to so many, where they are so short that there were fewer looks: then a fifth of the time is ten."""
LEAST_SAMPLED: Final = 2
EVALUATION: Final = "evaluation"
"""What samples are told in place of `other`, from where one begins in a step on that most others have not."""
COPIED: Final = 1 << 20
KINETO_SILENT: Final = "6"
"""Above its highest level; below it some versions print two lines for each trace."""

Windows = Generator[None, None, None]


class Ended(Exception):
    """Thrown into the windows where the run ends before they do."""


class Profile:
    """Takes the windows while `on`. As the timeline's watch it also labels phases.

    on: the steps that end now are not to be quoted. due: a step ended, and what changes between steps waits for the
    next phase. taken: the windows are behind us. over: and so is the step in which they ended.
    """

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.session = session
        self.agent = agent
        self.labels = Labels()
        self.on = self.due = self.taken = self.failed = self.foreign = False
        self.evaluated = False
        """Whether the last step held an evaluation."""
        self.over = not session.windows
        self.windows: Windows | None = None
        self.lines: Lines | None = None
        self.seen: Lines | None = None
        """The same until the end of the step after those windows, as what lives on may be used there."""
        self.long: LongSteps | None = None
        self.own: Any = None
        self.record: dict[str, Any] = {"first_step": None, "steps": 0, "note": ""}
        if session.capture_steps:
            self.record |= {"tool": session.capture, "wanted": session.capture_steps}
        else:
            self.record |= {
                "file": None,
                "wanted": session.profile_steps,
                "device": False,
                "memory": session.profile_memory,
                "stacks": session.profile_stacks,
            }

    def install(self) -> None:
        """Learn of profilers of the script's own: torch allows one at a time, and theirs comes first."""
        if self.over:
            return
        profile, original = self, getattr(*PREPARE_TRACE)

        @functools.wraps(original)
        def _prepare_trace(self: Any) -> Any:
            if self is not getattr(profile.own, "profiler", None) and profile.agent.mine():
                profile.agent.guard.spare(WINDOW, profile.give_up, profile._give_way)
            return original(self)

        setattr(*PREPARE_TRACE, _prepare_trace)

    def label_for_nsight(self) -> None:
        """Label every step from here on where Nsight records the process."""
        if under_nsight() and torch.cuda.is_initialized() and not self.session.capture_steps:
            self.labels.kinds.append(nvtx)
            self.agent.timeline.watch = self

    # between steps

    def boundary(self) -> bool:
        """A step ended, of those from which the windows are taken. Returns whether they are over."""
        if self.taken:
            self.over, self.on = True, False
            if not self.labels.kinds:
                self.agent.timeline.watch = None
        if self.over:
            return True
        self.on = self.due = True
        self.agent.timeline.watch = self
        return False

    def backward(self, tensors: Any) -> None:
        """One of these begins."""
        if self.seen is not None and not self.failed:
            self.agent.guard.spare(OP, self._let_go, self.seen.backward, tensors)

    def _let_go(self) -> None:
        self.seen = None

    def _turn(self) -> None:
        """Between two steps: one instrument may end and another begin."""
        self.labels.end_step()
        if self.on and not self.taken:
            if self.windows is None:
                self.agent.host.close()
                self.windows = self._windows()
            self._advance(self.windows.send, None)
        self.labels.begin_step(self.agent.recorder.index)

    def _advance(self, resume: Callable[[Any], None], what: Any) -> None:
        try:
            resume(what)
        except StopIteration:
            self.taken = True

    # the timeline's watch

    def enter(self, phase: int) -> None:
        """A phase begins. What is to be done between two steps is done before it."""
        if self.failed:
            self.give_up()
            return
        if self.due and not self._waits():
            self.due = False
            self.agent.guard.spare(WINDOW, self.give_up, self._turn)
        self.agent.guard.spare(LABEL, self.give_up, self._enter, phase)

    def _waits(self) -> bool:
        """Whether a turn waits for a phase outside of torch.inference_mode, whose end has no dispatch mode on that came
        in it, and one on that left in it."""
        modes = (self.lines, self.agent.memory.operations)
        stays = any(one is not None and one.mode_stays for one in modes)
        return stays or (torch.is_inference_mode_enabled() and not self.agent.steps.infers)

    def _enter(self, phase: int) -> None:
        if self.lines is not None:
            self.lines.phase(PHASES[phase])
        if self.agent.memory.looking:
            self.agent.memory.phase(phase)
        self.labels.enter(phase)

    def leave(self) -> None:
        """The innermost phase ends."""
        self.agent.guard.spare(LABEL, self.give_up, self._leave)

    def _leave(self) -> None:
        if self.agent.memory.looking:
            self.agent.memory.phase(self.agent.timeline.stack[-1])
        self.labels.leave()

    def unwind(self) -> None:
        """All of them do."""
        self.agent.guard.spare(LABEL, self.give_up, self.labels.unwind)

    # the windows, in order

    def _windows(self) -> Windows:
        """Goes on once a step."""
        try:
            if self.session.capture_steps:
                yield from capture_window(self.agent, self.record, self.labels)
            else:
                if self.session.profile_steps:
                    yield from self._sample_window()
                    yield from self._line_windows()
                    yield from self._trace_windows()
                if self.session.memory:
                    yield from self.agent.memory.window()
        except Ended as ended:
            self.record["note"] = str(ended)
        self.seen = None  # also where no trace was begun: it holds tensors, and follows each backward
        self._write_record()

    def _write_record(self) -> None:
        if not (self.session.profile_steps or self.session.capture_steps):
            return
        self.agent.folder().replace("capture.json" if self.session.capture_steps else "profile.json", self.record)

    def _sample_window(self) -> Windows:
        """Some steps in which another thread looks where this one is."""
        timeline = self.agent.timeline
        guarded = functools.partial(self.agent.guard.spare, SAMPLE, lambda: None)

        def outside() -> str:
            return EVALUATION if timeline.segment.evaluation and not self.agent.host.evaluates else PHASES[OTHER]

        samples = Samples(threading.get_ident(), outside, guarded, timeline)
        begun = time.perf_counter_ns()
        ends = [begun]
        try:
            with samples.watching():
                while not self._sampled(samples, (ends[-1] - begun) / 1e9):
                    yield
                    ends.append(time.perf_counter_ns())
                    samples.steps += 1
        finally:
            if samples.steps:
                self.agent.folder().replace("samples.json", samples.document())
        usual_ns = median(two - one for one, two in itertools.pairwise(ends))
        write = functools.partial(self.agent.folder().replace, "long.json")
        self.long = LongSteps(threading.get_ident(), outside, guarded, timeline, usual_ns, self._began, write)
        self.long.begin()

    def _began(self) -> int:
        """When the running step did; 0 of a step of the windows."""
        return 0 if self.on else self.agent.timeline.segment.begun_ns

    def _sampled(self, samples: Samples, took_s: float) -> bool:
        """Whether enough steps were."""
        if self.agent.world > 1:
            return samples.steps >= SAMPLED_STEPS
        if samples.steps >= SAMPLED_STEPS:
            return samples.looks >= ENOUGH_LOOKS or samples.steps >= MOST_SAMPLED
        return took_s > SAMPLED_S and samples.steps >= LEAST_SAMPLED

    def _line_windows(self) -> Windows:
        """One step with a dispatch mode on, and on CUDA one in sync debug mode. In place of one that held an evaluation
        (which most do not) another: it computes what the training does, of the same weights. Ranks take the same."""
        try:
            for left in range(0 if self.agent.world > 1 else MOST_EVALUATED, -1, -1):
                lines = self.lines = self.seen = Lines(self.tell)
                lines.skipped = self.no_ops()
                with lines.watching(ops=not lines.skipped):
                    yield
                if not left or not self.evaluated or self.agent.host.evaluates:
                    break
            lines.steps = int(not lines.skipped)
            if torch.cuda.is_initialized():
                free = torch.cuda.get_sync_debug_mode() == 0
                with (
                    lines.watching_again() if lines.steps else contextlib.nullcontext(),
                    lines.watching_syncs() if free else contextlib.nullcontext(),
                ):
                    yield
        except Ended as ended:
            if self.lines is not None:
                self.lines.skipped = self.lines.skipped or str(ended)
            self._write_lines()
            raise
        self._write_lines()

    def _write_lines(self) -> None:
        self.lines = None
        if self.seen is not None:
            self.agent.folder().replace("lines.json", self.seen.document())

    def no_ops(self) -> str:
        """Why ops can't be watched, "" where they can."""
        if self.agent.compiled_frames or any(root.facts["compiled"] for root in self.agent.script.roots.values()):
            return "torch.compile is in use: its graphs would be compiled again"
        return "the script uses its own dispatch mode" if other_modes() else ""

    def tell(self, act: Callable[..., None], *of: Any) -> None:
        """Act under the guard: an op is called. The mode can't be taken out from inside of one."""
        if self.agent.guard.on and not self.failed:
            self.agent.guard.spare(OP, self._fail, act, *of)

    def _fail(self) -> None:
        self.failed = True

    def _trace_windows(self) -> Windows:
        """Again where torch.compile was at work in it, as it is for each new shape; ranks take the same windows."""
        for _ in range(1 if self.agent.world > 1 else TRACES):
            frames = compiled_frames()
            yield from self._trace_window()
            if compiled_frames() == frames:
                return
        with contextlib.suppress(OSError):
            os.unlink(f"{self.agent.folder().path}/{TRACE}")
        self.record |= {"file": None, "note": COMPILED}

    def _trace_window(self) -> Windows:
        """A step to warm up, then those that are recorded."""
        if self.foreign or profiler_enabled():
            raise Ended("the script runs its own profiler")
        # torch crashes at exit where a thread has ended with its profiler on.
        if threading.current_thread() is not threading.main_thread():
            raise Ended("the loop runs in a thread, but torch's profiler starts only in the main thread")
        profiler = self.own = torch.profiler.profile(
            activities=self._activities(),
            record_shapes=True,
            profile_memory=self.session.profile_memory,
            acc_events=True,  # else some versions warn, on the script's stderr, that a next cycle would clear them
            with_stack=self.session.profile_stacks,
        )
        with _quiet():
            profiler.prepare_trace()
        yield
        self._write_lines()
        self.seen = None
        profiler.start_trace()
        self.labels.kinds.append(recorded)
        self.record |= {"first_step": self.agent.recorder.index, "steps": 0}
        why = ""
        try:
            for _ in range(self.session.profile_steps):
                yield
                self.record["steps"] += 1
        except Ended as ended:
            why = str(ended)
        finally:
            self.labels.clear()
            self.labels.kinds.remove(recorded)
            if self.agent.pid == os.getpid():  # a forked child has none of its threads
                profiler.stop_trace()
        self.own = None
        if self.agent.guard.spare(EXPORT, lambda: None, self._export, profiler):
            self.record["file"] = TRACE
        else:
            why = why or "the trace could not be written; problems.jsonl says why"
        if why:
            raise Ended(why)

    def _activities(self) -> list[Any]:
        kinds = torch.profiler.ProfilerActivity
        if not torch.cuda.is_initialized():
            return [kinds.CPU]
        if under_nsight():
            self.record["note"] = "Nsight holds the device's counters: the trace has the host's side only"
            return [kinds.CPU]
        self.record["device"] = True
        return [kinds.CPU, kinds.CUDA]

    def _export(self, profiler: Any) -> bool:
        """Write the trace so that a reader sees it whole. Raises OSError."""
        target = f"{self.agent.folder().path}/{TRACE}"
        plain, part = f"{target}.plain.part", f"{target}.part"
        try:
            profiler.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(part, "wb", compresslevel=4) as packed:
                source.seek(max(0, os.path.getsize(plain) - 64))
                if not source.read().rstrip().endswith(b"}"):  # torch does not look at what its writes return
                    raise OSError("the trace was cut short; is the disk full?")
                source.seek(0)
                shutil.copyfileobj(source, packed, COPIED)
            os.replace(part, target)
        finally:
            for path in (plain, part):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        return True

    # before their end

    def _give_way(self) -> None:
        """The script begins a profiler of its own."""
        self.foreign = True
        if self.windows is not None and not self.taken:
            self._advance(self.windows.throw, Ended("the script started its own profiler"))

    def finish(self) -> None:
        """The process ends."""
        if self.long is not None and self.agent.pid == os.getpid():  # a forked child has none of its threads
            self.long.end()
        if not (self.over or self.taken) and self.agent.recorder.index:
            self.agent.guard.spare(WINDOW, self.give_up, self._finish)
        self.over = True

    def _finish(self) -> None:
        if self.windows is None:
            self.record["note"] = "the run ended before enough steady steps were timed"
            self._write_record()
        elif self.agent.thread == threading.get_ident():
            done = f"{self.record['steps']} of {self.record['wanted']}"
            self._advance(self.windows.throw, Ended(f"the run ended after {done} steps"))
        else:
            self.record["note"] = "the thread that trains ended first"
            self._write_record()

    def give_up(self) -> None:
        """After an error: take everything out, keep nothing."""
        self.over, self.on, self.due, self.failed = True, False, False, False
        self.seen = None
        self.agent.timeline.segment.probe = True
        self.forget()
        self.labels.clear()
        windows, self.windows = self.windows, None
        if windows is not None:
            windows.close()
        self.agent.memory.give_up()
        if self.lines is not None and self.lines.mode_stays:
            self.failed, self.agent.timeline.watch = True, self  # again, at the next phase
        if self.session.windows and not self.taken and self.agent.pid == os.getpid():
            self.record["note"] = FAILED
            self._write_record()

    def forget(self) -> None:
        """Take out what a child forked from the loop would inherit. Its profiler is the parent's."""
        self.agent.timeline.watch = None
        if self.lines is not None:
            self.lines.forget()
        if self.agent.memory.operations is not None:
            self.agent.memory.operations.forget()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's tracer reads how much to print on stderr when it is first used."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = KINETO_SILENT
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def under_nsight() -> bool:
    """Whether nsys or ncu started this process."""
    return any(name in os.environ for name in NSIGHT)
