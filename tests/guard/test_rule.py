"""When a slowdown is shown, and when it is ruled out."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.experiment.statistics import Effect
from hotlap.guard.rule import STARTS, Told, as_interval, fraction, told, told_of_pairs

LIMIT = math.log1p(0.05)


def starts(*logs: float, error: float = 0.0) -> list[Effect]:
    return [Effect(log, error) for log in logs]


def test_starts_that_are_alike_rule_a_slowdown_out() -> None:
    assert told(starts(0.0, 0.001, 0.002), starts(0.001, 0.0, 0.003), LIMIT).call == "within"


def test_a_clear_slowdown_is_shown() -> None:
    found = told(starts(0.0, 0.001, 0.002), starts(0.06, 0.059, 0.061), LIMIT)
    assert found.call == "slower" and found.low < 0.059 < found.high


def test_a_clear_slowdown_of_less_than_is_allowed_is_none() -> None:
    assert told(starts(0.0, 0.001, 0.002), starts(0.03, 0.031, 0.032), LIMIT).call == "within"


def test_of_two_starts_each_nothing_is_shown_whatever_they_say() -> None:
    """Chance puts two above two in one of six."""
    assert told(starts(0.0, 0.0), starts(0.1, 0.1), LIMIT).call == "open"


def test_starts_of_two_kinds_do_not_show_a_slowdown() -> None:
    """One of the baseline is as slow as the new version's, which all are of the slow kind."""
    assert told(starts(0.0, 0.0, 0.0, 0.08), starts(0.08, 0.08, 0.08, 0.08), LIMIT).call == "open"


def test_what_turns_leave_open_is_not_told() -> None:
    quiet, noisy = (told(starts(0.0, 0.0, 0.0, error=e), starts(0.0, 0.0, 0.0, error=e), LIMIT) for e in (0.001, 0.05))
    assert (quiet.call, noisy.call) == ("within", "open")


def test_what_is_the_same_in_all_starts_needs_no_spread() -> None:
    assert told(starts(2, 2, 2), starts(3, 3, 3), 1.0).call == "slower"
    assert told(starts(2, 2, 2), starts(2, 2, 2), 1.0).call == "within"


def test_one_start_of_each_tells_nothing() -> None:
    found = told(starts(0.0), starts(0.5), LIMIT)
    assert found.call == "open" and as_interval(found, logs=True) is None


def test_pairs_show_a_slowdown_from_five_on() -> None:
    assert told_of_pairs([0.06, 0.061, 0.06, 0.059], LIMIT).call == "open"
    assert told_of_pairs([0.06, 0.061, 0.06, 0.059, 0.06], LIMIT).call == "slower"
    assert told_of_pairs([0.0, 0.001, -0.001], LIMIT).call == "within"


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=16),
    st.lists(st.floats(-1, 1), min_size=2, max_size=16),
    st.floats(1e-3, 1.0),
)
def test_it_is_the_same_whatever_the_order_and_the_unit(one: list[float], two: list[float], limit: float) -> None:
    found = told(starts(*one), starts(*two), limit)
    assert found.low <= found.change <= found.high
    again = told(starts(*reversed(one)), starts(*sorted(two)), limit)
    assert (again.call, again.change) == (found.call, pytest.approx(found.change, abs=1e-9))
    if found.call == "slower":
        assert found.change > 0 and found.change >= limit * 0.66
    if found.call == "within":
        assert found.change < limit


def test_a_change_as_a_fraction() -> None:
    assert fraction(math.log(1.05), logs=True) == pytest.approx(0.05)
    assert fraction(2.0, logs=False) == 2.0
    interval = as_interval(Told(0.0, math.log(0.9), math.log(1.1), "open"), logs=True)
    assert interval is not None and interval.low == pytest.approx(-0.1) and interval.high == pytest.approx(0.1)


def looks(chance: random.Random, spread: float, gain: float) -> str:
    base: list[Effect] = []
    head: list[Effect] = []
    for count in STARTS:
        while len(base) < count:
            base.append(Effect(chance.gauss(0, spread)))
            head.append(Effect(chance.gauss(gain, spread)))
        if (call := told(base, head, LIMIT).call) != "open":
            return call
    return "open"


@pytest.mark.parametrize("spread", [0.003, 0.02])
def test_of_no_change_hardly_any_look_shows_one_and_of_five_percent_most_do(spread: float) -> None:
    chance = random.Random(7)
    alike = [looks(chance, spread, 0.0) for _ in range(60)]
    slower = [looks(chance, spread, LIMIT) for _ in range(60)]
    assert alike.count("slower") <= 2 and alike.count("within") >= 55
    assert slower.count("slower") >= 50 and slower.count("within") <= 4
