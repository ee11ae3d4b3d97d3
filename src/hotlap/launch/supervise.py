"""Waits for a command: keeps to a time limit, and leaves no process behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, NamedTuple, Protocol

import psutil

from hotlap.agent.process_tree import children, stat, threads

from .process_tree import note_family
from .signals import Receiver, passing_signals, waited

KILL_AFTER_S: Final = 8.0
POLL_S: Final = 0.05
LOOK_S: Final = 0.5
RAN_S: Final = 0.05
"""Of a core between two looks, from which a thread counts as one that wants to run."""
GO_ON: Final = """
import os, signal, sys
sys.stdin.read()
for pid in map(int, sys.argv[1:]):
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        pass
"""
GENERATIONS: Final = 8
"""Of left-overs: those of one that is ended come to us too."""
PR_SET_CHILD_SUBREAPER: Final = 36


class Started(Receiver, Protocol):
    """A command that runs: `subprocess.Popen` of our own, or `front.Relayed` behind a profiler."""

    @property
    def returncode(self) -> int | None:
        """How it ended, as of `subprocess.Popen`; None while it runs."""

    def wait(self) -> int:
        """Wait for its end; returns how it ended."""


class Ended(NamedTuple):
    """How a command ended. code: exit code, None if a signal ended it; interrupted: by Ctrl-C in the terminal."""

    code: int | None
    signal: int | None
    timed_out: bool = False
    interrupted: bool = False
    out_of_memory: bool = False


def adopt_orphans() -> None:
    """Become the parent of processes that lose theirs, so that a trial's left-overs are found (Linux only)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_in_foreground(process: Started) -> Ended:
    """Wait for a command that shares our terminal, and say how it ended."""
    with passing_signals(process) as noted:
        code = waited(process.wait)
    return ended_with(code, interrupted=bool(noted))


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """Ctrl-C that comes in here raises KeyboardInterrupt at the end: what is being started is known by then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:  # also where it failed: the Ctrl-C must not be lost
            raise KeyboardInterrupt


class Supervised:
    """A command in a session of its own, and all that it starts: others may run beside it.

    Free memory under `least_free_gib` counts as the end of it (`starved`).
    """

    _running: ClassVar["set[Supervised]"] = set()
    _before: ClassVar[set[int]] = set()
    """Our processes before the first of those that run."""

    def __init__(self, start: Callable[[], "subprocess.Popen[bytes]"], least_free_gib: float = 0.0) -> None:
        self.least_free_gib = least_free_gib
        self.starved = False
        self._family: dict[int, psutil.Process] = {}
        self._looked = 0.0
        self._ticks: dict[tuple[int, str], int] = {}
        self._stopped: subprocess.Popen[bytes] | None = None
        """Lets it go on when we say so, or are gone: a `kill -9` of ours must not leave processes that stand still."""
        if not self._running:
            Supervised._before = set(children(os.getpid()))
        try:
            with interrupted_after():
                self.process = start()
                self._running.add(self)
        except KeyboardInterrupt:
            if self in self._running:  # else the Ctrl-C came before it was started
                self.end()
            raise

    def over(self) -> bool:
        """Whether it ended by itself or has to be ended; looks for new processes of it now and then."""
        if self.process.poll() is not None or self.starved:
            return True
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            note_family(self.process.pid, self._family)
            self.starved = psutil.virtual_memory().available < self.least_free_gib * 2**30
        return self.starved

    def busy_threads(self) -> int:
        """Its threads that ran since the last call, for RAN_S at least."""
        before, self._ticks = self._ticks, {}
        for pid in [self.process.pid, *self._family]:
            for one in threads(pid):
                with contextlib.suppress(IndexError, ValueError):  # it may end meanwhile
                    self._ticks[pid, one] = sum(map(int, stat(f"{pid}/task/{one}")[11:13]))
        least = RAN_S * os.sysconf("SC_CLK_TCK")
        return sum(ticks - before.get(thread, 0) >= least for thread, ticks in self._ticks.items())

    def stand_still(self) -> None:
        """Stop it, with all that it started, until `go_on`."""
        note_family(self.process.pid, self._family)
        pids = [self.process.pid, *(pid for pid, child in self._family.items() if child.is_running())]
        self._stopped = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", GO_ON, *map(str, pids)], stdin=subprocess.PIPE, start_new_session=True
        )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        if self._stopped is not None:
            self._stopped.communicate()
            self._stopped = None

    @property
    def stands_still(self) -> bool:
        """Whether it was stopped."""
        return self._stopped is not None

    def end(self, timed_out: bool = False) -> Ended:
        """End what is left of it."""
        self.go_on()
        if self in self._running:
            end_family(self.process, self._family)
            self._running.discard(self)
            if not self._running:  # else it is not known whose an orphan is
                _end_orphans(self._before)
        ended = ended_with(self.process.returncode)
        return ended._replace(timed_out=timed_out, out_of_memory=self.starved)


def end_family(process: "subprocess.Popen[bytes]", family: dict[int, psutil.Process]) -> None:
    """End the command and all it started: SIGTERM to the group, SIGKILL to what is left after KILL_AFTER_S."""
    note_family(process.pid, family)
    running = process.poll() is None
    if running:
        _signal_group(process.pid, signal.SIGTERM)
        _signal_group(process.pid, signal.SIGCONT)  # what stands still hears of it when it goes on
    left = [child for child in family.values() if child.is_running()]
    for child in left:
        with contextlib.suppress(psutil.Error):
            child.terminate()
            child.resume()
    limit = time.monotonic() + (KILL_AFTER_S if running else 2.0)
    while time.monotonic() < limit:
        left = [child for child in left if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        if process.poll() is not None and not left:
            break
        time.sleep(POLL_S)
    _signal_group(process.pid, signal.SIGKILL)
    for child in left:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()
    _reap()


def _end_orphans(before: set[int]) -> None:
    """End what the command left behind between two looks: since `adopt_orphans` it is ours. What shares our session we
    have started ourselves."""
    for _ in range(GENERATIONS):
        left = [pid for pid in set(children(os.getpid())) - before if _in_other_session(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        _reap()


def _in_other_session(pid: int) -> bool:
    try:
        return os.getsid(pid) != os.getsid(0)
    except (ProcessLookupError, PermissionError):
        return False


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _reap() -> None:
    """Collect adopted orphans that have ended; how a command of ours ended is asked by whom it is of."""
    ours = {one.process.pid for one in Supervised._running}
    for pid in set(children(os.getpid())) - ours - Supervised._before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def ended_with(returncode: int, interrupted: bool = False) -> Ended:
    """How a command ended, by the `returncode` of its process."""
    if returncode < 0:
        return Ended(None, -returncode, interrupted=interrupted)
    return Ended(returncode, None, interrupted=interrupted)


def exit_like(ended: Ended) -> int:
    """The exit code of a command; where a signal ended it, end this process by the same signal."""
    if ended.signal is None:
        return ended.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        signal.signal(ended.signal, signal.SIG_DFL)
    os.kill(os.getpid(), ended.signal)
    return 128 + ended.signal
