"""What `tests/agent/test_units.py` leaves open of the rule for steady state: its edges, and that it holds online."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.records.steady import (
    GIVE_UP,
    WINDOW,
    WINDOW_LONG,
    Steady,
    counted,
    least_tail,
    own_pace,
    steady_start,
    window_of,
)

NEEDED = 2 * WINDOW + WINDOW % 2
"""Steps that two windows take, the second of which begins an even number of steps after the first."""


def start(walls: list[float], disturbed: Collection[int] = (), in_flight: int = 0) -> Steady | None:
    return steady_start(walls, [at in disturbed for at in range(len(walls))], in_flight)


def test_a_constant_series_is_steady_from_its_second_step_on() -> None:
    assert start([10.0] * (1 + NEEDED)) == Steady(1, True)
    assert start([10.0] * NEEDED) is None
    assert start([]) is None


def test_two_medians_agree_within_a_quarter_either_way() -> None:
    for second, agree in ((12.5, True), (8.0, True), (12.6, False), (7.9, False)):
        found = start([99.0] + [10.0] * WINDOW + [second] * (NEEDED - WINDOW))
        assert (found == Steady(1, True)) is agree, second


@pytest.mark.parametrize("each", [2, 3, 4])
def test_work_in_every_few_steps_does_not_hide_a_steady_state(each: int) -> None:
    """A checkpoint in every second step: medians over five steps were of the slow ones and of the others in turns."""
    walls = [30.0 if at % each == 0 else 10.0 for at in range(40)]
    assert start(walls) == Steady(1, True)


def test_a_drifting_start_is_warm_up() -> None:
    drift = [100 * 0.7**at for at in range(8)]
    found = start(drift + [10.0] * 30)
    assert found is not None
    assert found.settled
    assert found.start > 2
    assert max((drift + [10.0] * 30)[found.start + WINDOW :]) <= 12.5


def test_one_slow_step_does_not_move_the_start() -> None:
    walls = [10.0] * 30
    walls[4] = 500.0
    assert start(walls) == Steady(1, True)


def test_steps_of_seconds_need_fewer_of_them() -> None:
    assert window_of([1000.0] * 3) == WINDOW_LONG
    assert window_of([999.0] * 9) == window_of([]) == WINDOW
    assert start([2000.0] * (1 + 2 * WINDOW_LONG)) == Steady(1, True)
    assert start([2000.0] * 2 * WINDOW_LONG) is None


def test_compiling_to_the_end_is_never_steady() -> None:
    walls = [10.0] * (GIVE_UP + 4 * WINDOW)
    assert start(walls, set(range(0, len(walls), WINDOW))) is None


def test_what_was_in_flight_is_left_out_up_to_a_limit() -> None:
    walls = [10.0] * (GIVE_UP // 2 + NEEDED)
    assert start(walls, in_flight=10**6) == Steady(GIVE_UP // 2, True)
    assert start(walls, in_flight=-3) == Steady(1, True)


@given(st.lists(st.floats(1.0, 999.0), max_size=90), st.data())
def test_the_agent_while_it_runs_and_the_reader_afterwards_find_the_same(
    walls: list[float], data: st.DataObject
) -> None:
    disturbed = data.draw(st.sets(st.integers(0, 89), max_size=6))
    online = [found for end in range(len(walls) + 1) if (found := start(walls[:end], disturbed)) is not None]
    assert len(set(online)) <= 1
    assert start(walls, disturbed) == (online[0] if online else None)


def burst(workers: int, step: float, making: float) -> list[float]:
    """A turn of workers that deliver together: one wait, then steps from what is there."""
    return [making - (workers - 1) * step, *[step] * (workers - 1)]


def test_steps_from_batches_that_were_there_are_left_out() -> None:
    """Seen of 16 workers with four batches each: 42 steps of 7 ms before the first wait, 23 ms a step from then on."""
    turns = burst(16, 7.0, 340.0) * 5
    walls = [900.0] + [7.0] * 73 + turns
    starved = [wall > 100 for wall in walls]
    found = own_pace(walls, [False] * len(walls), starved, 30, in_flight=64)
    assert found == 75 and walls[74] == turns[0]
    for end in (74, 75, 75 + least_tail(64) - 1):
        assert own_pace(walls[:end], [False] * end, starved, 30, 64) == 30, "too few steps show the workers' pace"


def test_a_loop_that_its_workers_keep_up_with_keeps_all_its_steps() -> None:
    walls = [10.0] * 100
    for late in ((), (50,), (30, 60), range(30, 100)):
        assert own_pace(walls, [False] * 100, [at in late for at in range(100)], 30, in_flight=8) == 30
    walls[80] = 5000.0  # it compiled
    assert own_pace(walls, [at == 80 for at in range(100)], [at == 50 for at in range(100)], 30, 8) == 30


@given(st.lists(st.tuples(st.floats(0.01, 1e4), st.booleans(), st.booleans()), max_size=90), st.integers(0, 90))
def test_the_own_pace_begins_at_the_start_or_after_the_first_starved_step(
    steps: list[tuple[float, bool, bool]], begins: int
) -> None:
    walls, disturbed, starved = [[step[at] for step in steps] for at in range(3)]
    found = own_pace(walls, disturbed, starved, begins, 4)
    assert found == begins or (starved[found - 1] and not any(starved[begins : found - 1]) and found < len(walls))


def test_stalls_at_its_begin_are_warm_up() -> None:
    """Two of five steps do not move a median; seen on a machine whose memory grew while the first batches were made."""
    found = start([8145.0, 2056.0, 975.0, 1081.0, 418.0, 584.0, *[36.0] * 20])
    assert found == Steady(6, True)


def test_a_stall_between_steady_steps_stays() -> None:
    """It is a part of the loop as far as anyone knows."""
    assert start([50.0, 10.0, 10.0, 400.0, *[10.0] * 20]) == Steady(1, True)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans())))
def test_no_step_counts_that_was_disturbed_and_a_calm_one_without_an_evaluation_always_does(
    steps: list[tuple[bool, bool, bool]],
) -> None:
    disturbed, evaluating, looked_at = ([one[at] for one in steps] for at in range(3))
    found = counted(disturbed, evaluating, looked_at)
    assert len(found) == len(steps)
    assert not any(counts and d for counts, d in zip(found, disturbed, strict=True))
    assert all(counts or d or e for counts, d, e in zip(found, disturbed, evaluating, strict=True))
    assert counted(disturbed, evaluating) == counted(disturbed, evaluating, [True] * len(steps))


def test_steps_with_an_evaluation_count_where_they_are_most() -> None:
    calm = [False] * 6
    assert counted(calm[:3], [True, False, False]) == [False, True, True]
    assert counted(calm, [True, True, True, True, False, False]) == [True] * 6
    first_two = [True, True, False, False, False, False]
    assert counted(calm, first_two, looked_at=first_two) == [True] * 6


@given(st.integers(2, 40), st.booleans())
def test_where_an_evaluation_is_in_every_second_step_the_others_count_wherever_they_begin(
    count: int, first: bool
) -> None:
    """Else one trial would be timed with evaluations, and another without."""
    evaluating = [(at % 2 == 0) is first for at in range(count)]
    assert counted([False] * count, evaluating) == [not e for e in evaluating]
