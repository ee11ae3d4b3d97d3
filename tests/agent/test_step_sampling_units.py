"""Unsampled steps without a script: which updates are in which step is what it is where all steps are looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hotlap.agent import step_sampling as module
from hotlap.agent.core import Agent
from hotlap.agent.hooks.backward import MOST
from hotlap.agent.timeline import Segment, Stretch
from hotlap.records.session import Session


class Loop:
    """A loop of turns, each a forward, a backward and what its token says, as the hooks tell of it.

    A letter: that optimizer steps; a small one: a GradScaler skips its step; two: the first one's step holds the
    second's; with `!`: its step raises, and the script goes on. `-`: none steps. `+`: an optimizer is made. `?`: the
    closure of A holds many backwards.
    """

    def __init__(self, unsampled: bool) -> None:
        agent = self.agent = Agent(Session(folder="/nowhere", package="", every_step=not unsampled))
        self.now = self.depth = 0
        self.ends: list[int] = []
        self.unseen: list[int] = []
        self.skipped: list[int] = []
        self.keep = [Named() for _ in range(3)]
        for one in self.keep:
            agent.steps.optimizer_built(one)
        agent._look = lambda index, kind: None  # type: ignore[method-assign]
        agent.recorder.add, agent.recorder.add_unsampled = self.add, self.add_unsampled  # type: ignore[method-assign]
        agent.recorder.drain = lambda wait=False: None  # type: ignore[method-assign]
        agent.steps.on_stack = lambda: self.depth
        agent.timeline.clock = agent.step_sampling.clock = lambda: self.now
        agent.timeline.begin()
        self.problems: list[Any] = []
        agent.guard.report = lambda *problem: self.problems.append(problem)

    def add(self, segment: Segment) -> None:
        self.agent.recorder.index += 1
        self._ended(segment.begun_ns, segment.end_ns, segment.unsampled)
        if segment.skipped:
            self.skipped.append(segment.end_ns)

    def add_unsampled(self, stretch: Stretch) -> None:
        self.agent.recorder.index += len(stretch.ends)
        begun = stretch.begun_ns
        for at, (end, _) in enumerate(stretch.ends):
            self._ended(begun, end, True)
            if at in stretch.skipped:
                self.skipped.append(end)
            begun = end

    def _ended(self, begun: int, end: int, unsampled: bool) -> None:
        assert begun == (self.ends[-1] if self.ends else 0), "time in no step, or in two"
        self.ends.append(end)
        if unsampled:
            self.unseen.append(end)

    # what the hooks do

    def backward(self) -> None:
        steps = self.agent.steps
        if steps.unsampled and steps.backwards_since_step >= MOST:
            if self.depth:
                steps.backwards_since_step = 0
            else:
                self.agent.step_sampling.leave()
        if steps.unsampled:
            steps.backwards += 1
            steps.backwards_since_step += 1
            return
        steps.forward_begin(1, True, False, 1)
        steps.forward_end(True, None)
        steps.backward_begin()
        steps.backward_end()

    def update(self, names: str, raises: bool = False, backwards: int = 0) -> None:
        """The optimizer of the first name steps, and inside of it those of the others."""
        steps, key = self.agent.steps, ord(names[0])
        self.depth += 1
        if steps.unsampled != key and not (steps.unsampled and steps.nested and self.depth > 1):
            self.agent.step_sampling.leave(beginning=1) if steps.unsampled else None
            steps.optimizer_begin(key)
        for _ in range(backwards):
            self.backward()
        if names[1:]:
            self.update(names[1:])
        if not raises:
            if steps.unsampled == key:
                self.agent.step_sampling.lapped()
            elif steps.optimizer_end(key):
                steps.optimizer_boundary(key)
        self.depth -= 1

    def turn(self, token: str) -> None:
        self.backward()
        self.now += 1
        if token.isupper():
            self.update(token)
        elif token.islower():
            self.agent.step_sampling.skipped(ord(token.upper()))
        elif token == "+":
            self.keep.append(Named())
            self.agent.step_sampling.leave()
            self.agent.steps.optimizer_built(self.keep[-1])
        elif token == "?":
            self.update("A", backwards=100)
        elif token != "-":
            self.update(token[:-1], raises=True)

    def run(self, tokens: list[str]) -> "Loop":
        for token in tokens:
            self.turn(token)
        if self.agent.steps.unsampled:
            self.agent.step_sampling.close()
        self.agent.steps.finish()
        assert not self.problems
        return self


class Named:
    """What stands for an optimizer."""

    param_groups = ()


@contextmanager
def soon() -> Iterator[None]:
    """What comes after hundreds of steps comes after a few."""
    with patch.multiple(module, FIRST=3, OFTEN=4, SHORT_MS=0, VERY_SHORT_MS=0, HANDED_OVER=2, MOST_WAITING=4):
        yield


def both(tokens: list[str]) -> tuple[Loop, Loop]:
    with soon():
        return Loop(unsampled=False).run(tokens), Loop(unsampled=True).run(tokens)


CYCLES = [
    *(["A"], ["A", "B"], ["A", "A", "B"], ["A", "B", "B"], ["A"] * 5 + ["B"], ["A", "B", "C", "B"], ["-", "A", "B"]),
    *(["AB"], ["AA"], ["AA", "B"], ["AB", "C"], ["AB", "B"], ["A", "BA"], ["?"], ["?", "B"], ["-", "-", "A"]),
]
TOKENS = ["A", "B", "C", "a", "b", "AB", "BA", "A!", "B!", "-", "+", "?"]
"""A step that calls its own class's is not among them: one that does so does it from the first."""
LATER = [cycle for cycle in CYCLES if "AA" not in cycle]


@pytest.mark.parametrize("cycle", CYCLES, ids=" ".join)
def test_a_cycle_is_unsampled(cycle: list[str]) -> None:
    full, ran = both(cycle * 60)
    assert not full.unseen
    assert ran.ends == full.ends
    assert len(ran.unseen) > 30
    assert ran.agent.steps.optimizer_steps == full.agent.steps.optimizer_steps
    assert ran.agent.steps.backwards == full.agent.steps.backwards


def test_very_short_steps_are_known_sooner() -> None:
    short = Loop(unsampled=True).run(["A"] * 300)
    with patch.object(module, "VERY_SHORT_MS", 0):
        others = Loop(unsampled=True).run(["A"] * 300)
    first, later = (ran.ends.index(ran.unseen[0]) for ran in (short, others))
    assert module.SOON <= first < module.SOON + 3 and module.FIRST <= later < module.FIRST + 3


@given(st.sampled_from(CYCLES), st.lists(st.sampled_from(TOKENS), max_size=6), st.integers(0, 40), st.data())
@example(["A", "B"], ["B"], 31, None)
@example(["A", "A", "B"], ["B", "A"], 31, None)
@example(["A"], ["-"] * 70, 31, None)
@example(["A", "B"], ["b"], 31, None)
@example(["A", "B"], ["a", "C"], 31, None)
def test_whatever_turns_up_no_update_is_in_two_steps_or_none(
    cycle: list[str], others: list[str], at: int, data: Any
) -> None:
    then = data.draw(st.sampled_from(LATER)) if data else cycle
    full, ran = both((cycle * 40)[:at] + others + then * 20)
    assert ran.ends == full.ends
    assert ran.skipped == full.skipped
    assert ran.agent.steps.cycle == full.agent.steps.cycle
    assert ran.agent.steps.optimizer_steps == full.agent.steps.optimizer_steps
    assert ran.agent.steps.backwards == full.agent.steps.backwards
    assert not ran.agent.step_sampling.ends
