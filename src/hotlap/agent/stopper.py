"""Ends a run after its steady steps, on every rank at the same step, and makes sure that it ends."""

import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from hotlap.records.session import STOP_FILE, Session
from hotlap.records.steady import Steady, steady_start

from .guard import Stop

if TYPE_CHECKING:
    from .core import Agent

GRACE_S = 20.0
"""Seconds a process may take to end after the stop before it is ended hard."""
AHEAD = 3
"""Steps between the decision and the stop in distributed runs: ranks are at most one collective apart."""


class Stopper:
    """Counts steady steps; raises Stop in the user's loop when there are enough."""

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.session = session
        self.agent = agent
        self.wanted = session.steps is not None or bool(session.profile_steps)
        self.walls: list[float] = []
        self.disturbed: list[bool] = []
        self.steady: Steady | None = None
        self.stopped = False
        self.raised = 0
        self.at: int | None = None
        self.profile_from: int | None = None

    def step_done(self, wall_ms: float, disturbed: bool) -> None:
        """Called after each step."""
        if self.wanted:
            self.walls.append(wall_ms)
            self.disturbed.append(disturbed)

    def look(self, index: int, kind: str) -> None:
        """Called after some steps, all of those that are not short; raises Stop at the end."""
        if not self.wanted:
            return
        if self.steady is None:
            self.steady = steady_start(self.walls, self.disturbed, self.agent.script.in_flight)
        if self.session.profile_steps and not self._profiled(index):
            return
        if self.session.steps is None:
            return
        if self.agent.world == 1:
            if self._enough():
                self.stop(kind)
            return
        path = os.path.join(self.session.folder, STOP_FILE)
        if self.at is None and self.agent.rank == 0 and self._enough():
            self.at = index + AHEAD
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                file.write(str(self.at))
            os.replace(f"{path}.part", path)
        elif self.at is None and self.agent.rank != 0 and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.at = int(file.read())
        if self.at is not None and index >= self.at:
            self.stop(kind)

    def _enough(self) -> bool:
        if self.steady is None:
            return False
        start = self.steady.start
        steady = [w for w, d in zip(self.walls[start:], self.disturbed[start:], strict=True) if not d]
        if len(steady) >= (self.session.steps or 0):
            return True
        return self.session.seconds is not None and (
            len(steady) >= self.session.least_steps and sum(steady) / 1000 >= self.session.seconds
        )

    def stop(self, kind: str) -> None:
        """Write everything, arm the hard end, and raise Stop. The third time the process is ended at once."""
        if not self.stopped:
            self.stopped = True
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.agent.recorder.drain(wait=True)
            self.agent.write_facts(kind, stopped=True)
            timer = threading.Timer(GRACE_S, os._exit, args=(0,))
            timer.daemon = True
            timer.start()
        self.raised += 1
        if self.raised > 2:
            os._exit(0)
        raise Stop(0)

    def _profiled(self, index: int) -> bool:
        """Record a window of torch.profiler over `profile_steps` steady steps, once. Returns whether it is over."""
        agent: Any = self.agent
        if self.profile_from is None:
            if self.steady is None:
                return False
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self.profile_from = index
            agent.profiler = torch.profiler.profile(activities=activities, record_shapes=True)
            agent.profiler.__enter__()
            return False
        if agent.profiler is not None and index >= self.profile_from + self.session.profile_steps:
            profiler, agent.profiler = agent.profiler, None
            profiler.__exit__(None, None, None)
            profiler.export_chrome_trace(f"{agent.folder().path}/trace.json.gz")
        return agent.profiler is None
