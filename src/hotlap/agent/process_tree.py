"""The processes that one started, from `/proc`: its loader workers stand still while it waits for its turn.

Standard library only.
"""

import contextlib
import os
import signal
import threading


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started (Linux with CONFIG_PROC_CHILDREN).

    Reads as many files as the family has threads. Raises NotImplementedError where the kernel does not tell.
    """
    found: list[int] = []
    left = [pid]
    while left:
        born = children(left.pop())
        found += born
        left += born
    return found


def children(pid: int) -> list[int]:
    """Processes that a process started, or that came to it when theirs ended. Raises NotImplementedError."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        if not os.path.isdir("/proc/self/task"):
            raise NotImplementedError from None
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            if not os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children"):
                raise NotImplementedError from None
    return found


class Stopped:
    """Processes that this one started, stopped while the block runs. Where the kernel does not tell, none are."""

    def __enter__(self) -> "Stopped":
        try:
            self.pids = [pid for pid in descendants(os.getpid()) if _signal(pid, signal.SIGSTOP)]
        except NotImplementedError:
            self.pids = []
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False
