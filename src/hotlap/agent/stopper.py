"""Ends a run after its steady steps, on every rank at the same step, and makes sure that it ends."""

import os
import threading
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch

from hotlap.records.session import Session
from hotlap.records.steady import AGREE, Steady, counted, least_tail, own_pace, steady_start

from .compiled import end_compile_workers
from .guard import Stop
from .recorder import restarts
from .torch_internals import default_store
from .turnstile import Turnstile

if TYPE_CHECKING:
    from .interface import Agent

AHEAD = 3
"""Steps between the decision and the stop in distributed runs: ranks are at most one collective apart."""
ASK_EVERY = 4
"""Steps between two questions to the store, which take 70 us each on one host."""
MOST_DRAINING = 4.0
"""Times the seconds of steps that a run is to measure."""
QUIET_STEPS, QUIET_S, LEAST_QUIET = 20, 10.0, 5
"""Undisturbed steady steps before a profile's windows in a run without `--steps`: so many, or seconds of them, but
never fewer than the last."""


class Agreed:
    """A step that all ranks know, chosen by rank 0 and told through the job's own store, which any two of its machines
    share. Ranks without a process group wait for no other, and choose for themselves."""

    def __init__(self, name: str) -> None:
        self.key = f"hotlap/{restarts()}/{name}"
        self.at: int | None = None

    def step(self, index: int, ready: Callable[[], bool]) -> int | None:
        """The step, None while it is not chosen. Alone, a process takes the one at which it is ready."""
        if self.at is not None:
            return self.at
        store, rank = _ranks()
        if store is None:
            self.at = index if ready() else None
        elif rank == 0:
            if ready():
                self.at = (index // ASK_EVERY + 1) * ASK_EVERY + AHEAD
                store.set(self.key, str(self.at))
        elif index % ASK_EVERY == 0 and store.check([self.key]):
            self.at = int(store.get(self.key))
        return self.at


def _ranks() -> tuple[Any, int]:
    """The store of the process group, and which rank this is of it; None where there is no other rank."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if alone or torch.distributed.get_world_size() == 1:
        return None, 0
    return default_store(), torch.distributed.get_rank()


class Stopper:
    """Counts the steady steps that the diagnosis will rest on; raises Stop in the user's loop when there are enough."""

    def __init__(self, session: Session, agent: "Agent") -> None:
        self.session = session
        self.agent = agent
        self.wanted = session.steps is not None or session.windows
        self.walls: list[float] = []
        self.disturbed: list[bool] = []
        self.evaluating: list[bool] = []
        self.starved: list[bool] = []
        self.any_starved = self.draining = False
        self.inferring = False
        self.steady: Steady | None = None
        self.in_flight = 0
        self.there: list[int | None] = []
        """At each step's end, batches of workers that nobody took yet."""
        self.stopped = False
        self.raised = 0
        self.at, self.profile_at = Agreed("stop"), Agreed("profile")
        self.turnstile = Turnstile(session.turns, agent) if session.turns else None
        self.stands_after = session.first_steps
        """So many steps, where it still has to stand after the first ones; 0 where it has."""

    def begin_anew(self) -> None:
        """Forget the steps so far: they are of a parent process, or of a model that was run before it is trained."""
        self.walls.clear()
        self.disturbed.clear()
        self.evaluating.clear()
        self.starved.clear()
        self.any_starved = False
        self.there.clear()
        self.steady = None
        self.stands_after = self.session.first_steps

    def step_done(
        self,
        wall_ms: float,
        disturbed: bool,
        evaluating: bool = False,
        kind: str = "train",
        starved: bool = False,
        there: int | None = None,
    ) -> None:
        """Called after each step. evaluating: an evaluation ran inside. starved: as in `records.run.Step`. there:
        batches of workers that nobody took yet."""
        if not self.wanted:
            return
        if self.inferring and kind == "train":
            self.begin_anew()
        self.inferring = kind != "train"
        self.walls.append(wall_ms)
        self.disturbed.append(disturbed)
        self.evaluating.append(evaluating)
        self.starved.append(starved)
        self.any_starved |= starved
        self.there.append(there)

    def look(self, index: int, kind: str) -> None:
        """Called after some steps, all of those that are not short; raises Stop at the end."""
        if not self.wanted:
            return
        if self.turnstile is not None and 0 < self.stands_after <= len(self.walls):
            self.stands_after = 0
            self.turnstile.after_first_steps()
        if self.steady is None:
            self.in_flight = self.agent.script.in_flight(self.agent.steps.infers)
            self.steady = steady_start(self.walls, self.disturbed, self.in_flight)
        if self.session.windows and not self._profiled(index):
            return
        if self.session.steps is None:
            self.wanted = False
            return
        at = self.at.step(index, self._enough)
        if at is not None and index >= at:
            self.draining = self.draining or (self.steady is not None and self._draining(self.steady))
            more = self.turnstile.wait(index, kind) if self.turnstile is not None else None
            if more is None:
                self.stop(kind)
            self.at.at = index + (more or 0)

    def _profiled(self, index: int) -> bool:
        """Whether the windows of a profiled run are over. They begin when the times that will be quoted were taken."""
        agent = self.agent
        at = self.profile_at.step(index, self._measured)
        return at is not None and index >= at and agent.profile.boundary()

    def _measured(self) -> bool:
        """Whether enough undisturbed steps came before the windows."""
        if self.session.steps is not None:
            return self._enough()
        steady = self._counted()
        return len(steady) >= QUIET_STEPS or (len(steady) >= LEAST_QUIET and sum(steady) / 1000 >= QUIET_S)

    def _counted(self) -> list[float]:
        """Ms of the steady steps that numbers will rest on."""
        if self.steady is None:
            return []
        start = self._start(self.steady)  # all that are counted here were looked at: `StepSampling.allowed`
        return list(compress(self.walls[start:], counted(self.disturbed[start:], self.evaluating[start:])))

    def _start(self, steady: Steady) -> int:
        if not self.any_starved:  # what is asked after each step is not to look at all that were
            return steady.start
        return own_pace(self.walls, self.disturbed, self.starved, steady.start, self.in_flight)

    def _draining(self, steady: Steady) -> bool:
        """Whether the loop has taken batches faster than workers made them, and has not used up those that were there:
        it would then be said to be faster than it can go on. That ends after five steps for each that was there."""
        there = self.there[steady.start :]
        if not there or not there[0] or there[-1] is None:
            return False
        tail = least_tail(self.in_flight)
        if any(self.starved[steady.start : len(self.starved) - tail]):
            return False
        steps = len(there) - 1
        return steps > AGREE * (steps - (there[0] - there[-1]))

    def _waits(self, steady: Steady) -> bool:
        """Whether to wait for the end of that: where a run has seconds, for so many of them at most."""
        seconds = self.session.seconds
        if seconds is not None and sum(self.walls[steady.start :]) / 1000 > MOST_DRAINING * seconds:
            return False
        return self._draining(steady)

    def _enough(self) -> bool:
        if self.steady is None or self._waits(self.steady):
            return False
        steady = self._counted()
        if len(steady) >= (self.session.steps or 0):
            return True
        seconds = self.session.seconds
        return seconds is not None and sum(steady) / 1000 >= seconds and len(steady) >= self.session.least_steps

    def stop(self, kind: str) -> None:
        """Write everything, arm the hard end, and raise Stop. The third time, where the script has caught it twice,
        the process is ended hard at once: what it has not written out by then is lost."""
        if not self.stopped:
            self.stopped = True
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.agent.recorder.drain(wait=True)
            self.agent.write_facts(kind, stopped=True)
            end_compile_workers()
            timer = threading.Timer(self.session.grace_s, os._exit, args=(self.session.hard_code,))
            timer.daemon = True
            timer.start()
        self.raised += 1
        if self.raised > 2:
            os._exit(self.session.hard_code)
        raise Stop(0)
