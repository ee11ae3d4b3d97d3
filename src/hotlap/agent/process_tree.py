"""Processes as `/proc` shows them, and those that one started: its loader workers stand still while it waits for its
turn. Standard library only.
"""

import contextlib
import os
import signal
import threading
from typing import Final

MOST_BYTES: Final = 1 << 20
CHUNK: Final = 1 << 16
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def read(path: object) -> str:
    """A small file of the kernel's; "" where it can't be read. A file object takes three times as long."""
    parts, left = [], MOST_BYTES
    try:
        file = os.open(str(path), os.O_RDONLY)
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return ""
    try:
        while left > 0 and (part := os.read(file, min(left, CHUNK))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return ""
    finally:
        os.close(file)
    return b"".join(parts).decode("utf-8", "replace")


def peak_rss() -> int | None:
    """Peak resident memory of this process, where Linux tells. (`ru_maxrss` counts what the parent had before exec.)"""
    told = read("/proc/self/status").partition("VmHWM:")[2].split()
    return int(told[0]) * 1024 if told else None


def rss() -> int | None:
    """Resident memory of this process, bytes, where Linux tells."""
    told = read("/proc/self/statm").split()
    return int(told[1]) * PAGE if len(told) > 1 else None


def stat(task: object) -> list[str]:
    """The fields of `proc(5)`'s `stat` from the third on, of a process or of `PROCESS/task/THREAD`; [] of one that is
    gone. (The name before them may hold anything.)"""
    return read(f"/proc/{task}/stat").rpartition(")")[2].split()


def threads(pid: object) -> list[str]:
    """Of a process; [] where the system does not tell."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
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
    """Processes that a process started, or that came to it when theirs ended."""
    if not _told():
        return _families().get(pid, [])
    return [int(child) for one in threads(pid) for child in read(f"/proc/{pid}/task/{one}/children").split()]


def _told() -> bool:
    """Whether the kernel tells of each thread what it started (CONFIG_PROC_CHILDREN): as many files as the family has
    threads are read then, and else one of every process."""
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def _families() -> dict[int, list[int]]:
    """Processes by the one that they belong to, as each says itself in `/proc/PID/stat`."""
    families: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(IndexError):  # it may end meanwhile
            families.setdefault(int(stat(name)[1]), []).append(int(name))
    return families


class Stopped:
    """Processes that this one started, stopped while the block runs."""

    def __enter__(self) -> "Stopped":
        try:
            self.pids = [pid for pid in descendants(os.getpid()) if _signal(pid, signal.SIGSTOP)]
        except OSError:  # too many files may be open
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
