"""Staying out of the way of the command that is watched.

A training on all cores waits at OpenMP's barriers for its slowest thread, and a neighbour that computes makes a
collation of 1.3 ms take 1050 (16 threads on 16 cores, an H100's host). A look at the command's own processes is cheap,
one at every process of the machine is not where there are thousands; the thread that looks gives way besides. On a host
of 200 processes neither could be told from no watcher at all.
"""

import contextlib
import os
import threading

import psutil


def give_way() -> None:
    """From now on the calling thread runs only where a core is idle (Linux's SCHED_IDLE; elsewhere nothing changes).

    Processes that it starts give way too, and without privileges it can't take that back: call it in a thread that
    starts none and ends.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started.

    From `/proc/PID/task/*/children` (Linux with CONFIG_PROC_CHILDREN), which costs as many reads as the family has
    threads; psutil reads a file of every process of the machine, which it is left to do elsewhere.
    """
    found: list[int] = []
    left = [pid]
    try:
        while left:
            children = _children(left.pop())
            found += children
            left += children
    except NotImplementedError:
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


def children(pid: int) -> list[int]:
    """Processes that a process started, or that came to it when theirs ended."""
    try:
        return _children(pid)
    except NotImplementedError:
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
    return []


def _children(pid: int) -> list[int]:
    """Raises NotImplementedError where the kernel does not tell."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - read for each process, every half second
    except OSError:
        if not os.path.isdir("/proc/self/task"):  # noqa: PTH112
            raise NotImplementedError from None
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
        except OSError:
            if not _tells_children():
                raise NotImplementedError from None
    return found


def _tells_children() -> bool:
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")  # noqa: PTH110
