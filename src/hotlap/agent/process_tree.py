"""The processes that one started, from `/proc`: its loader workers stand still while it waits for its turn.

Standard library only.
"""

import contextlib
import os
import signal
import threading


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started. Raises NotImplementedError without `/proc`."""
    families = None if _told() else _families()
    found: list[int] = []
    left = [pid]
    while left:
        parent = left.pop()
        more = children(parent) if families is None else families.get(parent, [])
        found += more
        left += more
    return found


def children(pid: int) -> list[int]:
    """Processes that a process started, or that came to it when theirs ended. Raises NotImplementedError without
    `/proc`."""
    if not _told():
        return _families().get(pid, [])
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _told() -> bool:
    """Whether the kernel tells of each thread what it started (CONFIG_PROC_CHILDREN): as many files as the family has
    threads are read then, and else one of every process."""
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def _families() -> dict[int, list[int]]:
    """Processes by the one that they belong to, as each says itself in `/proc/PID/stat`."""
    if not os.path.isdir("/proc/self/task"):
        raise NotImplementedError
    families: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # it may end meanwhile
            parent = int(file.read().rpartition(b")")[2].split()[1])  # after its name, which may hold anything
            families.setdefault(parent, []).append(int(name))
    return families


class Stopped:
    """Processes that this one started, stopped while the block runs. Without `/proc` they go on."""

    def __enter__(self) -> "Stopped":
        try:
            self.pids = [pid for pid in descendants(os.getpid()) if _signal(pid, signal.SIGSTOP)]
        except (NotImplementedError, OSError):  # too many files may be open
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
