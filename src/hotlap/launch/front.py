"""A profiler in front of the command, with the command still as if it were our own child (`relay.py`)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from hotlap.records.errors import CommandNotRunnable

from . import relay

START_S: Final = 60.0
"""Until a profiler has started the relay; after that the command is started without it."""
FINISH_S: Final = 300.0
"""For a profiler to write what it recorded, once the command has ended."""
LOOK_S: Final = 0.1
END_S: Final = 5.0


class NotStarted(Exception):
    """The profiler did not start the relay; the message says why. The command has not run."""


class Relayed:
    """A command behind a profiler, as `subprocess.Popen` has one of our own: returncode is minus the signal that ended
    it."""

    def __init__(self, line: socket.socket, pid: int, rest: bytes) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line, self._rest = line, rest

    def send_signal(self, number: int) -> None:
        """Send the command a signal. Raises ProcessLookupError where it has ended."""
        try:
            self._line.sendall(bytes([number]))
        except OSError as error:
            raise ProcessLookupError from error

    def wait(self) -> int:
        """Wait for its end. Where the relay was killed that is as SIGKILL: how the command fared is not known."""
        if self.returncode is None:
            word, number, _ = _heard(self._line, self._rest)
            self.returncode = int(number) if word == "end" else -signal.SIGKILL
            self._line.close()
        return self.returncode


def _heard(line: socket.socket, text: bytes = b"") -> tuple[str, str, bytes]:
    """A line of the relay's in two parts, empty where it is gone; and what came after it."""
    with contextlib.suppress(ConnectionError):
        while b"\n" not in text and (more := line.recv(relay.CHUNK)):
            text += more
    one, _, rest = text.partition(b"\n")
    word, _, value = one.decode("utf-8", "replace").partition(" ")
    return word, value, rest


class Front:
    """One profiler that is put in front of one command. words: its command line, up to the program that it starts."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: Sequence[str],
        program: str,
        cwd: Path,
        environment: Mapping[str, str],
        out: IO[bytes],
        errors: IO[bytes],
        start_s: float = START_S,
    ) -> Relayed:
        """Start the command behind the profiler, whose own output goes to `out` and `errors`.

        Raises NotStarted, CommandNotRunnable.
        """
        told = {
            "words": list(command),
            "program": program,
            "cwd": str(cwd),
            "group": os.getpgrp(),
            "ignored": [number for number in relay.SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        }
        try:
            with (
                contextlib.ExitStack() as unless_started,
                # An error in taking it away would be told as one of starting, when the command runs already.
                tempfile.TemporaryDirectory(prefix="hotlap-", ignore_cleanup_errors=True) as folder,
                socket.socket(socket.AF_UNIX) as listener,
            ):
                unless_started.callback(self.end)
                path = f"{folder}/relay"
                listener.bind(path)
                listener.listen(1)
                self.process = self._begun(path, cwd, environment, out, errors)
                relayed = _handed_over(self._connected(listener, start_s), told)
                unless_started.pop_all()
                return relayed
        except OSError as error:
            raise NotStarted(error.strerror or str(error)) from error

    def _begun(
        self, path: str, cwd: Path, environment: Mapping[str, str], out: IO[bytes], errors: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """In a process group of its own: Ctrl-C is for the command, and the profiler ends after it."""
        return subprocess.Popen(
            [*self.words, sys.executable, "-I", "-S", relay.__file__, path],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            process_group=0,
        )

    def _connected(self, listener: socket.socket, start_s: float) -> socket.socket:
        """The relay's call. Raises NotStarted."""
        assert self.process is not None
        listener.settimeout(LOOK_S)
        deadline = time.monotonic() + start_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None and not self._left_others()
            with contextlib.suppress(TimeoutError):
                line, _ = listener.accept()
                line.settimeout(None)
                return line
            if ended:
                raise NotStarted(f"it ended before it had started the command (exit code {self.process.returncode})")
        raise NotStarted(f"it had not started the command after {start_s:.0f} s")

    def _left_others(self) -> bool:
        """Whether something that the profiler started still runs: the relay, which may be about to call."""
        assert self.process is not None
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def finish(self, finish_s: float = FINISH_S) -> str:
        """Wait for the profiler to end by itself. Returns why it was ended, "" where it was not. Ctrl-C ends it."""
        if self.process is None:
            return ""
        why = ""
        try:
            self.process.wait(finish_s)
        except subprocess.TimeoutExpired:
            why = f"it was ended, as it still ran {finish_s:.0f} s after the command's end"
        except KeyboardInterrupt:
            why = "it was ended by Ctrl-C before it had written what it recorded"
        self.end()
        return why

    def end(self) -> None:
        """End what is left of the profiler."""
        if self.process is None:
            return
        for number, wait_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, None)):
            if self.process.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)


def _handed_over(line: socket.socket, told: Mapping[str, object]) -> Relayed:
    """Tell the relay the command, with our own streams. Raises CommandNotRunnable; OSError before it was told."""
    text = json.dumps(told).encode() + b"\n"
    with contextlib.ExitStack() as stack:
        streams = [_stream(number, stack) for number in range(relay.STREAMS)]
        sent = socket.send_fds(line, [text], streams)
        if sent < len(text):  # to send nothing raises too, where the relay has what it needs and has ended
            line.sendall(text[sent:])
    word, value, rest = _heard(line)
    if word == "pid":
        return Relayed(line, int(value), rest)
    line.close()
    # Not NotStarted: it may have run, and never runs twice.
    raise CommandNotRunnable(f"{told['program']}: {value or 'the helper that starts it under the profiler was killed'}")


def _stream(number: int, stack: contextlib.ExitStack) -> int:
    """One of our standard streams; where it is closed, nothing, and not what we have opened since by its number."""
    try:
        ours = os.get_inheritable(number)  # what Python opens is not
    except OSError:
        ours = False
    if not ours:
        number = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, number)
    return number
