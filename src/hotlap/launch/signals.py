"""Passes signals on to the command, each once: not what the command has had already, as one of our process group."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from hotlap.agent.process_tree import read

FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
REACHED_S: Final = 0.05
"""Until what is sent to a whole group has reached all of it: by the kernel, at once; by a batch system, one by one."""


class Receiver(Protocol):
    """A command that runs."""

    @property
    def pid(self) -> int:
        """Its number."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""


class Witness:
    """A process of our group that takes no signal, so that those it was sent stay pending and can be looked up.

    Ctrl-C, and `kill -- -GROUP`, go to the whole group, whose processes can't tell that from what was sent to one of
    them. Needs /proc, and `cat`, which ends when this process does, however that ends.
    """

    def __init__(self) -> None:
        self._process = _blocked()
        self._had = 0
        """A bit a signal, the first for number 1: what it was sent and was not asked for yet."""

    def had(self, numbers: Collection[int]) -> set[int] | None:
        """Which of the signals it was sent since it was asked for them the last time; None unknown."""
        pending = None if self._process is None else _pending(self._process.pid)
        if pending is None:
            return None
        if pending:  # it stays so; a new one comes before the old goes, so that none is missed
            before, self._process = self._process, _blocked()
            _end(before)
        had = self._had | pending
        self._had = had & ~sum(1 << (number - 1) for number in set(numbers))
        return {number for number in numbers if had >> (number - 1) & 1}

    def end(self) -> None:
        """End it."""
        _end(self._process)


def _blocked() -> "subprocess.Popen[bytes] | None":
    """A process with all signals blocked, None where it can't be started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pending(pid: int) -> int | None:
    """The signals that wait for a process as a whole; None where the system does not tell."""
    found = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", read(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1], 16) if found else None


def _end(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        with process:
            process.kill()


class Passing:
    """What comes in for the command. noted: each SIGINT, whoever sent it to whom."""

    def __init__(self, command: Receiver) -> None:
        self.command = command
        self.noted: list[int] = []
        self.witness: Witness | None = None
        self._due: list[int] = []
        self._busy = False

    def __call__(self, number: int, frame: object) -> None:
        """A signal has come in. One that comes while another is looked into is looked into after it."""
        if number == signal.SIGINT:
            self.noted.append(number)
        self._due.append(number)
        if self._busy:
            return
        self._busy = True
        try:
            while self._due:
                self._pass_on()
        finally:
            self._busy = False

    def _pass_on(self) -> None:
        """Send the command what it has not had yet."""
        beside = self._beside()
        if beside:
            time.sleep(REACHED_S)
        due, self._due = self._due, []
        had = self._had(due) if beside else set()
        for number in due:
            if number not in had:
                with contextlib.suppress(ProcessLookupError):
                    self.command.send_signal(number)

    def _beside(self) -> bool:
        """Whether the command is in our group, so that it gets what a group is sent."""
        try:
            return os.getpgid(self.command.pid) == os.getpgrp()
        except OSError:
            return False

    def _had(self, numbers: Collection[int]) -> set[int]:
        """What the command has had without us; where there is no witness, that is supposed of Ctrl-C alone."""
        had = self.witness.had(numbers) if self.witness else None
        if had is None:
            return {signal.SIGINT} if _in_foreground() else set()
        return had


def _in_foreground() -> bool:
    """Whether Ctrl-C at our terminal, be it stdin or not, is for our process group."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb", 0) as terminal:  # noqa: PTH123
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


@contextlib.contextmanager
def passing_signals(command: Receiver) -> Iterator[list[int]]:
    """Pass signals on to the command, each once; the list gets the SIGINTs."""
    passing = Passing(command)
    before = {number: signal.signal(number, passing) for number in FORWARDED}
    try:
        passing.witness = Witness()
        yield passing.noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if passing.witness is not None:
            passing.witness.end()


def waited(work: Callable[[], int]) -> int:
    """What `work` returns, from a thread of its own, while signals are handled at once.

    Were it to wait in the main thread, a signal that the kernel gives to another one of ours (numpy's library has some)
    would be handled when it is over: seen with two signals, the second right after the first. Where the system gives us
    no thread, the main thread waits.
    """
    woken, waker = socket.socketpair()
    with woken, waker, ThreadPoolExecutor(1) as pool:
        try:
            ended = pool.submit(work)
        except RuntimeError:
            return work()
        waker.setblocking(False)
        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            ended.add_done_callback(lambda _: woken.shutdown(socket.SHUT_RD))
            while not ended.done():
                woken.recv(1024)
        finally:
            signal.set_wakeup_fd(before)
        return ended.result()  # raises what it raised
