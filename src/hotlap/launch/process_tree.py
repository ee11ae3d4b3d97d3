"""Staying out of the way of the command that is watched.

A training on all cores waits at OpenMP's barriers for its slowest thread, and a neighbour that computes makes a
collation of 1.3 ms take 1050 (16 threads on 16 cores, an H100's host). A look at the command's own processes is cheap,
one at every process of the machine is not where there are thousands; the thread that looks gives way besides. On a host
of 200 processes neither could be told from no watcher at all.
"""

import contextlib
import os

import psutil

from hotlap.agent.process_tree import descendants


def give_way() -> None:
    """From now on the calling thread runs only where a core is idle (Linux's SCHED_IDLE; elsewhere nothing changes).

    Processes that it starts give way too, and without privileges it can't take that back: call it in a thread that
    starts none and ends.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def note_family(pid: int, family: dict[int, psutil.Process]) -> None:
    """Add what a process has started since to those that are known."""
    for child in descendants(pid):
        known = family.get(child)
        with contextlib.suppress(psutil.Error):
            if known is None or not known.is_running():  # another may have its number by now
                family[child] = psutil.Process(child)
