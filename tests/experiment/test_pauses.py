"""Where a command evaluates, and turns that are placed around it."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.experiment.pauses import LEAST_S, Pauses
from hotlap.experiment.side import Bench
from hotlap.records.run import Phases, Step


def step(number: int, wall_ms: float, **more: Any) -> Step:
    return Step(step=number, time=0.0, wall_ms=wall_ms, phases=Phases(), **more)


def test_what_takes_long_is_learnt_once() -> None:
    pauses = Pauses()
    pauses.learn([step(9, 30.0), step(10, 1000 * LEAST_S, evaluation=True, probe=True), step(11, 1e4)], 30.0)
    pauses.learn([step(10, 9000.0, evaluation=True)], 30.0)
    assert pauses.seconds == {10: LEAST_S, 11: 10.0} and pauses.longest_s == 10.0
    assert pauses.total_s == LEAST_S + 10.0 + 9.0 and pauses.period == 1


@pytest.mark.parametrize("more", [{"probe": True}, {"compiles": 1}])
def test_what_hotlap_or_the_compiler_did_is_none(more: Any) -> None:
    pauses = Pauses()
    pauses.learn([step(9, 1e5, **more)], 30.0)
    assert pauses.room(0) is None and pauses.longest_s == 0.0


def test_a_step_that_is_long_itself_is_none() -> None:
    pauses = Pauses()
    pauses.learn([step(9, 3000.0)], 1000.0)
    assert pauses.room(0) is None


@pytest.mark.parametrize(
    ("known", "done", "room"),
    [
        ({1000}, 0, 999), ({1000}, 999, 0), ({1000}, 1000, 999), ({1000}, 2500, 499),
        ({0}, 0, None), ({0}, 40, None), ({0, 500}, 40, 459), ({0, 500}, 500, 499),
        ({100, 600}, 50, 49), ({100, 600}, 100, 499), ({100, 600}, 600, 499), ({100, 600}, 1700, 399),
    ],
)  # fmt: skip
def test_the_next_one(known: set[int], done: int, room: int | None) -> None:
    pauses = Pauses()
    pauses.seconds = dict.fromkeys(known, 5.0)
    assert pauses.room(done) == room


class Placing:
    """What of a bench places turns."""

    placed, turn_steps, placeable, pauses_s = Bench.placed, Bench.turn_steps, Bench.placeable, Bench.pauses_s

    def __init__(self, known: int | None) -> None:
        self.pauses, self.shuffle = Pauses(), Random(1)
        if known:
            self.pauses.seconds[known] = 20.0


def side(done: int, step_ms: float = 3.0) -> Any:
    return SimpleNamespace(gate=SimpleNamespace(step=done), step_ms=step_ms, least_steps=1)


def test_turns_are_shorter_where_so_many_of_them_come_before_it() -> None:
    near: Any = Placing(1000)
    for _ in range(20):
        done = 400
        for turns in range(8, 0, -1):
            done += near.turn_steps(side(done), turns) + 1
        assert 900 < done < 1000


@pytest.mark.parametrize(("known", "done", "turns"), [(None, 0, 8), (5000, 0, 8), (1000, 900, 8), (1000, 999, 1)])
def test_turns_are_as_ever_where_none_is_near_or_it_can_not_be_helped(known: int, done: int, turns: int) -> None:
    bench: Any = Placing(known)
    assert 167 <= bench.turn_steps(side(done), turns) <= 167 * 1.25 + 1
    assert bench.placeable(side(done), turns) is (done < 900) and bench.placeable(side(done), 8, pause=True)
    assert bench.pauses_s([side(done), side(0)], turns) == (20.0 if done >= 900 else 0.0)


def test_where_they_come_too_often_turns_hold_them() -> None:
    bench: Any = Placing(100)
    assert bench.turn_steps(side(0), 8) >= 167 and bench.pauses_s([side(90)], 8) == 0.0
