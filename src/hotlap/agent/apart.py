"""Runs a piece of work in a forked child, so that nothing it does is seen in this process: draws, files, counters."""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .core import Agent

MOST_ANSWER = 4000


def apart(agent: "Agent", work: Callable[[], str], seconds: float) -> str | None:
    """What `work` returns in a forked child; None where it failed or took longer. Linux only. Raises OSError."""
    answer, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            agent.guard.on = False
            _silence()
            torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
            os.write(told, b"+" + work().encode("utf-8", "replace")[:MOST_ANSWER])
            code = 0
        finally:
            os._exit(code)
    os.close(told)
    try:
        said = _read(answer, time.monotonic() + seconds)
    finally:
        os.close(answer)
        _end(child)
    return said[1:].decode("utf-8", "replace") if said[:1] == b"+" else None


def _silence() -> None:
    """What the work prints is not the user's to see: it was not their loop that asked."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = sys.stderr = open(nowhere, "w", encoding="utf-8")  # noqa: SIM115 - until the child ends
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _read(pipe: int, deadline: float) -> bytes:
    """All that comes before the pipe is closed; empty where that takes too long."""
    said = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        piece = os.read(pipe, 4096)
        if not piece:
            return said
        said += piece
    return b""


def _end(child: int) -> None:
    """The child has answered or is late: either way it goes, and its end is waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # a handler of the script's was quicker
        os.waitpid(child, 0)
