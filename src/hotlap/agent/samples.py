"""Where the training thread is in the user's source, looked at every few milliseconds from another thread.

The looking thread has to be given the interpreter's lock. Where the training thread holds it, it waits (up to the
switch interval); where that is in C code without the lock, it does not. So each look counts for the time since the one
before: what is rarely seen for being busy counts as much longer. Time in which either thread waited for a core counts
for no line. The phase is read in the same call of C as the stack: what lets the lock go between them has the loop go
on, up to a whole backward. While it looks the interval is short, else what was
busy would be booked to the next line that lets the lock go, as torch's operations and every write to a file do. Of a
loop that is 20 us in Python (91%) and 2 in torch, Python was seen for 0% of the time with an interval of 0.2 ms, and
for 30 to 95% with SWITCH_S, as fast as a core wakes; for 5% where the kernel may end a wait 50 us late (`fine_timer`).
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import json
import operator
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple

from hotlap.records.phases import OTHER, PHASES
from hotlap.records.steady import FAR_LONGER

from .lines import Call, Places, package_of
from .methods import of_modules
from .op_call import Place
from .process_tree import read
from .searched import Searched
from .timeline import GAP, Timeline
from .torch_internals import TAKES_OVER

INTERVAL_S: Final = 0.002
SWITCH_S: Final = 1e-6
TIMER_SLACK: Final = 29
"""Of prctl, to set it, ns."""
CODE_AND_LINE: Final = operator.attrgetter("f_code", "f_lineno")
OPEN: Final = operator.attrgetter("stack")
CUTS: Final = operator.attrgetter("cuts")
AGENT: Final = os.path.dirname(__file__)
SEAMS: Final = frozenset({"seams.py", "guard.py"})
"""Files of it through which the script's own calls go."""
STANDS: Final = 4.0
"""Times as long as it runs there, that a thread has to stand at a line to be told so."""
MOST: Final = 5_000
"""Different places that are kept; time at others is in `left_out_ms`."""

WAITS: Final = frozenset({"multiprocessing.", "queue.", "selectors.", "threading."})
"""Packages in which a worker waits for what to do, where no code of the user's waits there."""
WORKER_LOOKS, WORKER_S = 500, 20.0
"""At a worker that does something, and of its time, at most."""
WORKER_ROWS: Final = 200
HANDS_OVER: Final = ("QueueFeederThread", "(_serve)")
"""How names of a worker's threads of multiprocessing end: one pickles batches, the other gives the files of their
tensors to who asks for them."""
BETWEEN_READINGS: Final = 8
"""Looks at a worker from one reading of its threads' clocks to the next: one that has ended is not told any more."""
LONGEST_FILE: Final = 1 << 20
LONG_LOOK_S, LONG_LOOKS = 0.05, 1000
"""Between looks at long steps, and how many there are at most."""
USUAL_LOOKS, MOST_FRAMES = 60, 16
"""Looks at other steps; frames of the user's that are kept of a look, the innermost."""

Key = tuple[str, int, int, str, str]
"""Phase; index into files, line, function; the function that it is in with its package, where not the user's."""
Path = tuple[str, tuple[Place, ...], str]
"""The same with all frames of the user's, up to MOST_FRAMES, in place of the innermost."""
Used = tuple[int, int] | None
"""Ns that a thread ran, and others; None where the system does not tell."""


def _cpu_time(numbers: dict[int, int]) -> dict[int, int]:
    """Ns that threads have run, by their identifiers. numbers: the system's; {} where it does not tell."""
    told = {thread: read(f"/proc/self/task/{number}/schedstat").split() for thread, number in numbers.items()}
    return {thread: int(one[0]) for thread, one in told.items() if one}


def _used() -> Callable[[], Used]:
    """Made in a thread: ns that it has run, and waited for a core. None where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: None
    clock, told = time.pthread_getcpuclockid(threading.get_ident()), f"/proc/self/task/{threading.get_native_id()}"

    def used() -> Used:
        waited = read(f"{told}/schedstat").split()[1:2]
        return (time.clock_gettime_ns(clock), int(waited[0])) if waited else None

    return used


class Phase(NamedTuple):
    """What is open in a timeline at a moment: its stack, the list of its cuts, and how many these are."""

    open: tuple[int, ...] = ()
    cuts: Sequence[tuple[int, int]] = ()
    at: int = 0

    @property
    def is_gap(self) -> bool:
        """Whether it is known later."""
        return bool(self.open) and self.open[-1] == GAP

    @property
    def number(self) -> int:
        """The open one. A gap is part of what it lies in."""
        return next((one for one in reversed(self.open) if one != GAP), OTHER)

    def settled(self) -> int | None:
        """What a gap turned out to be; None as long as it is not known."""
        return next((~one for one, _ in self.cuts[self.at :] if one < 0), None)


def _stack(thread: int, timeline: Timeline | None = None) -> tuple[list[Call], Phase]:
    """What a thread is in, innermost first, [] of one that has ended; and what is open in a timeline at that moment.

    In one call of C, in which no other thread runs: if it went on meanwhile, a frame might be gone that Python follows
    then (torch's compiler leaves some without what they were called by), and the phase be that of a later line. The
    frames are let go, and with them the tensors that they hold."""
    innermost = itertools.islice(map(operator.itemgetter(thread), iter(sys._current_frames, None)), 1)
    frames = itertools.accumulate(itertools.chain(innermost, itertools.repeat("f_back")), getattr)
    of = () if timeline is None else (timeline,)
    phase = itertools.chain(map(tuple, map(OPEN, of)), map(CUTS, of), map(len, map(CUTS, of)))
    found: list[Any] = []
    with contextlib.suppress(KeyError, AttributeError):  # behind the last one is None, which has no code
        found.extend(itertools.chain(phase, map(CODE_AND_LINE, frames)))
    begin = 3 * len(of)
    return [(code, line or code.co_firstlineno) for code, line in found[begin:]], Phase(*found[:begin])


def _counts(ns: int, before: tuple[Used, Used], after: tuple[Used, Used]) -> Used:
    """What a look counts for of the time since the one before: that a thread ran, and stood. before, after: of that
    thread and of the looking one, what they had run, and waited for a core. Where it is not known what the thread did
    as the looking one waited, or whether it waited for that one's lock, the look counts as one that came in time."""
    (one, own), (then, own_then) = before, after
    if one is None or then is None or own is None or own_then is None:
        return None
    awake = max(0, ns - (then[1] - one[1]))
    counted = max(min(awake, int(INTERVAL_S * 1e9)), awake - (own_then[1] - own[1]))
    cpu_ns = min(counted, then[0] - one[0])
    return cpu_ns, counted - cpu_ns


def fine_timer() -> None:
    """Have the kernel end this thread's waits at their time."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)


class Samples:
    """Host time of one thread by line; the document of samples.json."""

    def __init__(
        self,
        thread: int,
        outside: Callable[[], str],
        guarded: Callable[[Callable[[], Any]], Any],
        timeline: Timeline | None = None,
    ) -> None:
        """thread: its identifier. outside: the name of what is in none of the timeline's phases; of all, without one.
        guarded: calls what the looking thread does."""
        self.thread = thread
        self.outside = outside
        self.guarded = guarded
        self.timeline = timeline
        self.places = Places()
        self.searched = Searched()
        self.ns: dict[Key, int] = {}
        self.paths: dict[Path, int] = {}
        self.cpu_ns: dict[Key, int] = {}
        self.stood: dict[Key, int] = {}
        """Of `ns`, that the thread ran, and that it neither ran nor waited for a core."""
        self.idle_ns = 0
        """The latter over all looks: the system counts a wait when it is over, which may be some looks later."""
        self.squares: Counter[str] = Counter()
        """Sums of squares of what looks count for, by phase."""
        self._phase = Phase()
        """At the last look."""
        self._in_gaps: list[tuple[Phase, str, list[Call], int, tuple[int, int] | None]] = []
        """Looks whose phase is not known yet; the second is that outside of all."""
        self.looks = 0
        self.own_ns = 0
        self.left_out_ns = 0
        self.taking_over_ns = 0
        self.steps = 0
        self._stop = threading.Event()
        self._takes_over = False
        """At the last look, whether a batch was waited for while any thread took tensors over."""
        self._beside: dict[int, Counter[Place]] = {}
        """Of other threads of Python, where they are in the user's source, by their identifiers."""
        self._used: dict[int, float] = {}
        """Of the time that was sampled, the share that a thread ran."""

    def document(self) -> dict[str, Any]:
        """Plain lists, as the file holds them; the most time first."""
        self._settle(all_=True)
        rows = sorted(self.ns.items(), key=lambda item: -item[1])
        frames = {(self.places.files[one[0]], one[2]): one[0] for _, path, _ in self.paths for one in path}
        idle = min(1.0, max(0, self.idle_ns) / max(1, sum(self.stood.values())))
        return {
            "steps": self.steps,
            "looks": self.looks,
            "files": self.places.files,
            "lines": [[*key, ns / 1e6] for key, ns in rows],
            "equal_looks": self._equal_looks(),
            "paths": self._by_path(),
            "methods": [[frames[one], one[1]] for one in sorted(of_modules(frames))],
            "searched": [[file, line, *told] for (file, line), told in self.searched.found.items()],
            "stood": [
                [*key, idle * ns / 1e6] for key, ns in self.stood.items() if idle * ns > STANDS * self.cpu_ns[key]
            ],
            "beside": [
                [*seen.most_common(1)[0][0], self._used.get(thread, 0.0)]
                for thread, seen in self._beside.items()
                if seen
            ],
            "left_out_ms": self.left_out_ns / 1e6,
            "own_ms": self.own_ns / 1e6,
            "taking_over_ms": self.taking_over_ns / 1e6,
        }

    def _equal_looks(self) -> dict[str, float]:
        sums: Counter[str] = Counter()
        for (phase, *_), ns in self.ns.items():
            sums[phase] += ns
        return {phase: ns * ns / max(1, self.squares[phase]) for phase, ns in sums.items()}

    def _by_path(self) -> list[list[Any]]:
        rows = sorted(self.paths.items(), key=lambda item: -item[1])
        return [[phase, list(path), inside, ns / 1e6] for (phase, path, inside), ns in rows]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look until the end of the block, which also waits for the thread to end."""
        look = functools.partial(self._look, _used())
        looking = threading.Thread(target=self.guarded, args=(look,), name="hotlap-samples", daemon=True)
        others = [one for one in threading.enumerate() if not one.name.startswith("hotlap")]
        self._beside = {one.ident: Counter() for one in others if one.ident and one.ident != self.thread}
        numbers = {one.ident: one.native_id for one in others if one.ident and one.native_id}
        usual, begun, before = sys.getswitchinterval(), time.perf_counter_ns(), _cpu_time(numbers)
        sys.setswitchinterval(min(usual, SWITCH_S))
        looking.start()
        try:
            yield
        finally:
            sys.setswitchinterval(usual)
            self._stop.set()
            looking.join(timeout=1.0)
            after, took_ns = _cpu_time(numbers), time.perf_counter_ns() - begun
            self._used = {thread: (after[thread] - before[thread]) / took_ns for thread in before.keys() & after.keys()}

    def _look(self, used: Callable[[], Used]) -> None:
        fine_timer()
        own = _used()
        last, before = time.perf_counter_ns(), (used(), own())
        while not self._stop.wait(INTERVAL_S):
            stack, now, after = self._seen(), time.perf_counter_ns(), (used(), own())
            if not stack:
                return
            self._settle()
            self._count(stack, now - last, _counts(now - last, before, after))
            if before[0] is not None and after[0] is not None:
                self.idle_ns += now - last - (sum(after[0]) - sum(before[0]))
            if self._read_lists(stack):  # the thread may have waited for that
                now, after = time.perf_counter_ns(), (used(), own())
            last, before = now, after

    def _read_lists(self, stack: list[Call]) -> bool:
        """Where it is in code of the user's own, read the lists that this searches. Returns whether that took time."""
        code = stack[0][0]
        return self.places.users(code.co_filename) and self.searched.look(self.thread, code)

    def _seen(self) -> list[Call]:
        """What the thread is in, innermost first; [] of one that has ended."""
        collecting = gc.isenabled()
        gc.disable()  # which the frames' objects may set off, and what it calls lets the lock go
        try:
            seen, self._phase = _stack(self.thread, self.timeline)
            others = {thread: _stack(thread)[0] for thread in self._beside}
            for thread, stack in others.items():
                if (place := self.places.innermost_of(stack, through_backward=True)) is not None:
                    self._beside[thread][place] += 1
            self._takes_over = self._name(self._phase.number) == "data" and any(
                code.co_filename == TAKES_OVER for stack in (seen, *others.values()) for code, _ in stack
            )
            return seen
        finally:
            if collecting:
                gc.enable()

    def _name(self, phase: int) -> str:
        return PHASES[phase] if phase != OTHER and self.timeline is not None else self.outside()

    def _count(self, stack: list[Call], ns: int, used: Used = None) -> None:
        """used: of the time since the look before, that the thread ran and stood."""
        self.looks += 1
        ns = ns if used is None else sum(used)
        if self._is_own(stack):
            self.own_ns += ns
            return
        self.taking_over_ns += ns * self._takes_over
        if self._phase.is_gap:
            self._in_gaps.append((self._phase, self._name(self._phase.number), stack, ns, used))
        else:
            self._book(self._name(self._phase.number), stack, ns, used)

    def _settle(self, all_: bool = False) -> None:
        """Book looks of which it is known now whether they were a part of the forward; or all_."""
        waiting, self._in_gaps = self._in_gaps, []
        for phase, name, stack, ns, used in waiting:
            settled = phase.settled()
            if settled is None and not all_:
                self._in_gaps.append((phase, name, stack, ns, used))
            else:
                self._book(name if settled in (None, phase.number) else PHASES[settled], stack, ns, used)

    def _book(self, phase: str, stack: list[Call], ns: int, used: Used) -> None:
        phase, path, inside = self._add(phase, stack, ns)
        key = phase, *(path[-1] if path else (-1, 0, "")), inside
        if key in self.ns or len(self.ns) < MOST:
            self.ns[key] = self.ns.get(key, 0) + ns
            self.squares[phase] += ns * ns
            cpu_ns, stood = used or (ns, 0)
            self.cpu_ns[key] = self.cpu_ns.get(key, 0) + cpu_ns
            self.stood[key] = self.stood.get(key, 0) + stood
        else:
            self.left_out_ns += ns

    def _add(self, phase: str, stack: list[Call], ns: int) -> Path:
        code, path = stack[0][0], tuple(self.places.all_of(stack)[-MOST_FRAMES:])
        is_users = bool(path) and code.co_qualname == path[-1][2]
        found = phase, path, "" if is_users else package_of(code.co_filename) + code.co_qualname
        if found in self.paths or len(self.paths) < MOST:
            self.paths[found] = self.paths.get(found, 0) + ns
        return found

    def _is_own(self, stack: list[Call]) -> bool:
        """Whether it is hotlap's own work, such as a write of its records, which is in Python's own code: it comes
        before any code of the user's. What it calls for the script is in folders below, or in SEAMS, or not Python."""
        for code, _ in stack:
            folder, name = os.path.split(code.co_filename)
            if folder == AGENT and name not in SEAMS:
                return True
            if self.places.users(code.co_filename):
                return False
        return False


class LongSteps(Samples):
    """The same of later steps that take much longer, with all frames of the user's; the document of long.json, written
    after each of them. Some looks at other steps tell which lines they have in common."""

    def __init__(
        self,
        thread: int,
        outside: Callable[[], str],
        guarded: Callable[[Callable[[], Any]], Any],
        timeline: Timeline,
        usual_ns: float,
        began: Callable[[], int],
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """usual_ns: of a step. began: when the running one did, on time.perf_counter_ns; 0 of one that is not to be
        looked at."""
        super().__init__(thread, outside, guarded, timeline)
        longer, least_ms = FAR_LONGER
        self.least_ns = max(longer * usual_ns, least_ms * 1e6)
        self.began, self.write = began, write
        self.usual: set[Place] = set()
        self.usual_looks = 0
        self._looking = threading.Thread(target=guarded, args=(self._run,), name="hotlap-samples", daemon=True)

    def begin(self) -> None:
        """Look from now on."""
        self._looking.start()

    def end(self) -> None:
        """Look no more."""
        self._stop.set()
        self._looking.join(timeout=1.0)

    def document(self) -> dict[str, Any]:
        """Plain lists, as the file holds them; the most time first."""
        return {
            "looks": self.looks,
            "files": self.places.files,
            "lines": self._by_path(),
            "usual": sorted(self.usual),
        }

    def _run(self) -> None:
        said, last = 0, time.perf_counter_ns()
        open_: tuple[int, list[Place]] | None = None
        """When a step began that was looked at, which is not known to be short, and where it was."""
        while self.looks < LONG_LOOKS and not self._stop.wait(LONG_LOOK_S):
            began, now = self.began(), time.perf_counter_ns()
            if open_ is not None and began != open_[0]:
                if 0 < began - open_[0] < self.least_ns:
                    self.usual_looks += 1
                    self.usual |= {*open_[1]}
                open_ = None
            long = now - began >= self.least_ns and began > 0
            if began and (long or (open_ is None and self.usual_looks < USUAL_LOOKS)):
                stack = self._seen()
                if not stack:
                    break
                if long:
                    self._took(stack, now - last)
                elif not self._is_own(stack):
                    open_ = began, self.places.all_of(stack)
            if not long and self.looks > said:
                said = self._say()
            last = now
        if self.looks > said:
            self._say()

    def _took(self, stack: list[Call], ns: int) -> None:
        if self._is_own(stack):
            return
        self.looks += 1
        self._add(self._name(self._phase.number), stack, ns)

    def _say(self) -> int:
        self.write(self.document())
        return self.looks


class WorkerSamples(Samples):
    """The same of a loader's worker process in its first batches: lines of `workers-PID.jsonl`, PID that of its parent,
    one for each class of dataset."""

    def __init__(self, path: str, dataset: str, loop: CodeType, guarded: Callable[[Callable[[], Any]], Any]) -> None:
        """loop: what the worker runs; in a fork the frames below it are the parent's."""
        super().__init__(threading.get_ident(), lambda: "data", guarded)
        self.path, self.dataset, self.loop = path, dataset, loop
        self.thread_cpu_ns = self.handed_over_ns = 0
        self._looking = threading.Thread(target=guarded, args=(self._run,), name="hotlap-samples", daemon=True)

    def begin(self) -> None:
        """Look from now on, unless another worker has said what there is to say of this dataset."""
        if self._open():
            self._looking.start()

    def end(self) -> None:
        """The worker ends: say what was seen."""
        if self._looking.ident is not None:
            self._stop.set()
            self._looking.join(timeout=1.0)

    def _open(self) -> bool:
        """Whether nothing was said of this dataset yet, and there is room for it."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                said = file.read(LONGEST_FILE)
        except FileNotFoundError:
            return True
        return len(said) < LONGEST_FILE and f'"dataset": {json.dumps(self.dataset)}' not in said

    def _run(self) -> None:
        usual, last, at = sys.getswitchinterval(), time.perf_counter_ns(), 0
        until = last + WORKER_S * 1e9
        sys.setswitchinterval(min(usual, SWITCH_S))
        fine_timer()
        try:
            while self.looks < WORKER_LOOKS and last < until and not self._stop.wait(INTERVAL_S):
                stack, now = self._seen(), time.perf_counter_ns()
                if not stack:
                    break
                if package_of(stack[0][0].co_filename) not in WAITS or self.places.innermost_of(stack) is not None:
                    self._count(stack, now - last)
                    if self._read_lists(stack):
                        now = time.perf_counter_ns()
                last, at = now, at + 1
                if at % BETWEEN_READINGS == 0:
                    self._read_clocks()
        finally:
            sys.setswitchinterval(usual)
        self._read_clocks()
        if self.looks and self._open():
            rows = {
                name: value
                for name, value in self.document().items()
                if name in {"looks", "files", "lines", "searched"}
            }
            rows["lines"] = rows["lines"][:WORKER_ROWS]
            rows |= {"ran_ms": self.thread_cpu_ns / 1e6, "handed_over_ms": self.handed_over_ns / 1e6}
            with open(self.path, "ab", buffering=0) as file:
                file.write(json.dumps({"dataset": self.dataset, **rows}).encode("utf-8", "replace") + b"\n")

    def _read_clocks(self) -> None:
        told = {one.ident: one for one in threading.enumerate() if one.ident and one.native_id}
        cpu_ns = _cpu_time({thread: one.native_id for thread, one in told.items() if one.native_id})
        handing = sum(ns for thread, ns in cpu_ns.items() if told[thread].name.endswith(HANDS_OVER))
        self.thread_cpu_ns = max(self.thread_cpu_ns, cpu_ns.get(self.thread, 0))
        self.handed_over_ns = max(self.handed_over_ns, handing)

    def _seen(self) -> list[Call]:
        stack = super()._seen()
        return stack[: next((at for at, (code, _) in enumerate(stack) if code is self.loop), -1) + 1] or stack
