"""Where a training process stands still at the end of a step until it is its turn (`experiment.side` gives the turns).

One Unix socket a command, one JSON line each way. The agent says that it has arrived, `{"rank", "world", "pid",
"step"}`, with all steps so far on disk and the device idle. First with step 0, before its first step or, where these
compile, after them (`Session.first_steps`): it is told `{"run": 0}`, to go on to where it is at its pace. Later it is
told `{"run": K}`, to make K more steps, with `"levers": [[name, settings], ...]` where other levers are to be in from
here on, or `{"end": true}`. A socket that is closed at the other end means the same. Loader workers, and whatever else
the process started, stand still with it.
"""

import contextlib
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import torch

from .process_tree import Stopped

if TYPE_CHECKING:
    from .interface import Agent

MOST_LINE = 1 << 20


class Turnstile:
    """One process's. path: of the socket, "" where nobody takes turns."""

    def __init__(self, path: str, agent: "Agent") -> None:
        self.path, self.agent = path, agent
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self._read = b""
        self._arrived = False

    def before_loop(self) -> None:
        """Stand still where the loop begins: sides start at once, and warm up one after another."""
        self._arrive(0)

    def after_first_steps(self) -> None:
        """The same where they have been made: they compile, which several sides do at once."""
        self._settle()
        with Stopped():
            self._arrive(0)
        self._begin_again()

    def wait(self, step: int, kind: str) -> int | None:
        """Stand still; returns how many steps to make before it arrives here again, None where the run is to end.

        step: how many were made. Raises nothing but what the levers that are switched raise outside of their guard.
        """
        agent = self.agent
        self._settle()
        if not self._arrived:  # they take a millisecond and more
            self._arrived = True
            agent.write_facts(kind, stopped=True)
        with Stopped():
            order = self._arrive(step)
        steps = order.get("run")
        if not isinstance(steps, int) or steps < 1:
            self._close()
            return None
        levers = order.get("levers")
        if levers is not None:
            agent.seams.put_in({str(name): dict(settings) for name, settings in levers})
        self._begin_again()
        return steps

    def _begin_again(self) -> None:
        """No time has passed for the step that begins; it is the turn's first, which is not counted."""
        agent = self.agent
        segment = agent.timeline.segment
        segment.probe = True
        if not segment.cuts:
            segment.begun_ns = time.perf_counter_ns()
        recorder = agent.recorder
        recorder.previous_event, recorder.host_anchor = agent.marks.mark(), None

    def _settle(self) -> None:
        """All that was begun is done, and on disk."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.agent.recorder.drain(wait=True)

    def _arrive(self, step: int) -> dict[str, Any]:
        """Say that we are here, and wait for what comes of it; {} where nobody is there any more."""
        arrival = {"rank": self.agent.rank, "world": self.agent.world, "pid": os.getpid(), "step": step}
        try:
            if self._socket is None or self._pid != os.getpid():
                self._pid, self._read = os.getpid(), b""
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.connect(self.path)
            self._socket.sendall(json.dumps(arrival).encode() + b"\n")
            while b"\n" not in self._read:
                more = self._socket.recv(65536)
                if not more or len(self._read) > MOST_LINE:
                    return {}
                self._read += more
            line, _, self._read = self._read.partition(b"\n")
            order = json.loads(line)
        except (OSError, ValueError):
            return {}
        return order if isinstance(order, dict) else {}

    def _close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
