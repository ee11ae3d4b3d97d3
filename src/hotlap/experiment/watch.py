"""A trial as it runs: which of its levers left themselves out, and whether going on would say nothing new."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple, Protocol

import msgspec

from hotlap.levers import variables_of
from hotlap.records.errors import AgentError
from hotlap.records.run import Lever, Step
from hotlap.runs.folder import RankFolder, RunFolder

OUT_OF_MEMORY: Final = ("OutOfMemoryError", "out of memory", "Cannot allocate memory", "MemoryError")
SLOW_STEPS: Final = 5
"""In a row, none of which compiled anything or was probed, and each too slow for the trial to be worth going on."""
LOOK_S: Final = 0.3


def lacks_memory(said: str) -> bool:
    """Whether an error says so: alone, without other sides on the card, it may have enough."""
    return any(word in said for word in OUT_OF_MEMORY)


class Listener(Protocol):
    """Who is told of progress (a screen, or nobody)."""

    def trial(self, purpose: str, levers: str) -> None:
        """A side starts."""

    def step(self, done: int, of: int | None = None) -> None:
        """A side has made this many steps."""

    def result(self, text: str) -> None:
        """Something is known."""


class Refusal(Exception):
    """A lever could not be put in, so that the rest of the trial would say nothing of it."""


class TooSlow(Exception):
    """The steps are so slow that more of them would say nothing new. step_ms: their mean."""

    def __init__(self, step_ms: float) -> None:
        self.step_ms = step_ms


class Spare(NamedTuple):
    """Levers that a trial can do without, and how many of them at once."""

    levers: frozenset[str]
    most: int


NONE: Final = Spare(frozenset(), 0)


class Out(NamedTuple):
    """Of a lever that is not in: why, and whether it was at first."""

    why: str
    was_in: bool


def spared(levers: Sequence[Lever], trying: Sequence[str]) -> Spare:
    """Of the levers that a trial is about (trying), those without which it stands for the rest: they set nothing before
    the process starts. One at least has to be in."""
    able = (lever.name for lever in levers if lever.name in trying and not variables_of((lever,)))
    return Spare(frozenset(able), len(trying) - 1)


def left_out(folder: Path, spare: Spare) -> dict[str, Out]:
    """Of the levers that may, those that left themselves out in every rank, or found nothing to change there, and why;
    none where too many did."""
    ranks = [_said(rank, spare) for rank in RunFolder(folder).ranks]
    return {name: why for name, why in ranks[0].items() if all(name in rank for rank in ranks)} if ranks else {}


def _said(rank: RankFolder, spare: Spare) -> dict[str, Out]:
    lines = rank.levers
    took = {line.lever for line in lines if line.left_out is None and line.nothing is None}
    whys = {line.lever: Out(line.nothing, False) for line in lines if line.nothing and line.lever not in took}
    given_up = [line for line in lines if line.left_out is not None and not lacks_memory(line.left_out)]
    whys |= {line.lever: Out(line.left_out or "", True) for line in given_up}
    found = {name: why for name, why in whys.items() if name in spare.levers}
    return found if len(found) <= spare.most else {}


class Watch:
    """Looks at a side while it starts: counts steps, and ends it where going on would say nothing new.

    spare: see `spared`. slow_ms: a step that takes longer is too slow. Raises AgentError where the agent can't start,
    Refusal, TooSlow.
    """

    def __init__(self, folder: Path, listener: Listener, spare: Spare, slow_ms: float | None) -> None:
        self.run, self.listener = RunFolder(folder), listener
        self.rank = self.run.rank(0)
        self.spare, self.slow_ms = spare, slow_ms
        self.next = 0.0
        self.at = self.steps = 0
        self.slow: list[float] = []

    def __call__(self) -> None:
        """Look, at most once in LOOK_S. Raises as the class says."""
        if (failure := self.run.agent_error) is not None:
            raise AgentError(f"hotlap's agent can't start in this command: {failure}")
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + LOOK_S
        named = {problem.lever for problem in self.rank.problems if problem.lever}
        if named and named - _said(self.rank, self.spare).keys():
            raise Refusal
        self.count()

    def count(self) -> None:
        """Tell of the steps since the last look."""
        lines, self.at = self.rank.new_steps(self.at)
        if not self.at:
            return
        self.steps += len(lines)
        self.listener.step(self.steps)
        if self.slow_ms is not None:
            for line in lines:
                # What a side writes is checked when it is read.
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    self._pace(msgspec.json.decode(line, type=Step), self.slow_ms)

    def _pace(self, step: Step, slow_ms: float) -> None:
        slow = step.wall_ms > slow_ms and not (step.compiles or step.probe)
        self.slow = [*self.slow, step.wall_ms] if slow and math.isfinite(step.wall_ms) else []
        if len(self.slow) >= SLOW_STEPS:
            raise TooSlow(fmean(self.slow))
