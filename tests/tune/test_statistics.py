"""Intervals that hold what they promise, by simulation with a fixed seed; the order of runs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.records.tune import Interval
from hotlap.tune.statistics import abba, half_width, ratio_interval

times = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
@pytest.mark.parametrize("ratio", [1.0, 1.25])
def test_the_interval_covers_the_true_ratio_95_times_in_100(pairs: int, ratio: float) -> None:
    draw = np.random.default_rng(1000 * pairs + int(100 * ratio))
    covered, of = 0, 2000
    for _ in range(of):
        before = 10.0 * ratio * np.exp(0.05 * draw.standard_normal(pairs))
        after = 10.0 * np.exp(0.05 * draw.standard_normal(pairs))
        _, interval = ratio_interval(list(before), list(after))
        covered += interval.low <= ratio <= interval.high
    assert 0.93 <= covered / of <= 0.97, "four standard errors"


def test_drift_that_both_runs_of_a_pair_share_cancels() -> None:
    drift = [1.0, 1.5, 2.5, 4.0]
    middle, interval = ratio_interval([12.0 * d for d in drift], [10.0 * d for d in drift])
    assert middle == pytest.approx(1.2) and interval.low == pytest.approx(1.2) == interval.high


def test_abba_cancels_a_linear_drift() -> None:
    """Of runs in ABBA order, each letter stands equally late on average."""
    for pairs in (2, 4, 8):
        order = abba(pairs)
        at = {letter: [i for i, found in enumerate(order) if found == letter] for letter in "AB"}
        assert sum(at["A"]) == sum(at["B"])


@given(st.integers(min_value=0, max_value=50))
def test_abba_is_made_of_pairs(pairs: int) -> None:
    order = abba(pairs)
    assert len(order) == 2 * pairs
    assert {order[i : i + 2] for i in range(0, len(order), 2)} <= {"AB", "BA"}
    assert "AAA" not in order and "BBB" not in order
    assert abba(3) == "ABBAAB"


@given(st.lists(st.tuples(times, times), min_size=2, max_size=10))
def test_properties_of_the_interval(pairs: list[tuple[float, float]]) -> None:
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    try:
        middle, interval = ratio_interval(before, after)
    except OverflowError:
        pytest.fail("an interval of wild times must not overflow")
    assert interval.low <= middle * (1 + 1e-9) and middle <= interval.high * (1 + 1e-9)
    turned, other = ratio_interval(after, before)
    assert turned == pytest.approx(1 / middle)
    if interval.low > 1e-300 and interval.high < 1e300:
        assert other.low == pytest.approx(1 / interval.high) and other.high == pytest.approx(1 / interval.low)


@pytest.mark.parametrize(("before", "after"), [([1.0], [1.0]), ([], []), ([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_has_no_interval(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError):
        ratio_interval(before, after)


def test_half_width() -> None:
    assert half_width(Interval(low=1.0, high=1.0)) == 0
    assert half_width(Interval(low=1 / 1.03, high=1.03)) == pytest.approx(0.03)
    assert half_width(Interval(low=2 / 1.1, high=2 * 1.1)) == pytest.approx(0.1)
    assert math.isfinite(half_width(Interval(low=1e-5, high=1e5)))
