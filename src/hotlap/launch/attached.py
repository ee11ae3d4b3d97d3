"""A profiler attached to a running command: started beside it, never in front of it, and ended by SIGINT."""

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import IO

Profiler = subprocess.Popen[bytes]


def started(words: list[str], said: IO[bytes] | int) -> Profiler | None:
    """In a session of its own: Ctrl-C is for the command. None where it can't be started."""
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError:
        return None


def end(process: Profiler, wait_s: float) -> None:
    """It writes what it has on SIGINT; after `wait_s` it is killed."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def remove_empty(path: Path) -> None:
    """Of a file that may be missing."""
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


__all__ = ["Profiler", "end", "remove_empty", "started"]
