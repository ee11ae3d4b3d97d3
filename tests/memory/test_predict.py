"""What is predicted of points is what the law behind them gives, or a range that holds it."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.memory.moments import most
from hotlap.memory.predict import FARTHEST, PEAK, RESERVED, RESIDENT, TIME, Above, Curve, Highest
from hotlap.records.fit import Moments, Range

MIB = float(1 << 20)
sizes = st.floats(0.0, 1e5)
"""MiB."""
owns = st.sampled_from([2, 4, 12, 64, 1000])
fars = st.floats(1.01, 8.0)


def points(
    own: int, law: Callable[[float], float], far: bool = False, noise: tuple[float, ...] = (0, 0, 0, 0)
) -> Curve:
    values = [own // 2, own, 2 * own, 8 * own][: 4 if far else 3]
    return Curve({one: law(one) * (1 + off) for one, off in zip(values, noise, strict=False)}, PEAK)


def within(found: Range | None, true: float, slack: float = 1e-6) -> bool:
    return (
        found is not None
        and found.low <= true * (1 + slack)
        and (found.high is None or true <= found.high * (1 + slack))
    )


@given(owns, st.floats(1.0, 1e5), st.floats(1.0, 1e4), fars)
def test_a_line_is_met(own: int, base: float, each: float, far: float) -> None:
    def law(value: float) -> float:
        return MIB * (base + each * value)

    curve, at = points(own, law), int(2 * own * far)
    found = curve.at(at)
    if curve.shape == "flat":
        assert within(found, law(at), slack=PEAK.flat)
        return
    assert curve.shape == "linear" and curve.settled
    assert found is not None and found.likely == pytest.approx(law(at), rel=1e-6)
    assert within(found, law(at))


@given(owns, st.floats(1.0, 1e3), st.floats(1.0, 1e4), fars, st.tuples(*[st.floats(-5e-4, 5e-4)] * 3))
def test_noise_widens_the_range_until_it_holds_the_line(
    own: int, base: float, each: float, far: float, noise: tuple[float, ...]
) -> None:
    def law(value: float) -> float:
        return MIB * (base + each * value)

    curve, at = points(own, law, noise=noise), int(2 * own * far)
    assert within(curve.at(at), law(at), slack=2e-3)


@given(owns, sizes, sizes, st.floats(1e-3, 10.0), fars)
def test_a_parabola_is_told_by_a_fourth_point_and_held_without(
    own: int, base: float, each: float, squared: float, far: float
) -> None:
    def law(value: float) -> float:
        return MIB * (1 + base + each * value + squared * value**2)

    at = int(2 * own * far)
    assert within(points(own, law).at(at), law(at))
    curve, beyond = points(own, law, far=True), int(8 * own * far)
    assert within(curve.at(beyond), law(beyond))
    if curve.shape == "quadratic":
        found = curve.at(beyond)
        assert found is not None and found.likely == pytest.approx(law(beyond), rel=1e-4)


def test_attention_s_square_is_seen() -> None:
    curve = points(64, lambda length: MIB * (500 + 2 * length + 0.05 * length**2), far=True)
    found = curve.at(1024)
    assert curve.shape == "quadratic" and found is not None
    assert found.likely == pytest.approx(MIB * (500 + 2048 + 0.05 * 1024**2), rel=1e-6)
    assert found.high is not None and found.high / found.low < 1.03


@given(owns, st.floats(10.0, 1e5), st.floats(0.0, 1e4), st.floats(0.1, 1e4), fars)
def test_what_is_flat_at_first_is_never_more_than_the_range(
    own: int, update: float, base: float, each: float, far: float
) -> None:
    """The update's own peak hides what grows with the batch."""

    def law(value: float) -> float:
        return MIB * max(update, base + each * value)

    for curve in (points(own, law), points(own, law, far=True)):
        at = int(curve.last * far)
        assert within(curve.at(at), law(at), slack=PEAK.flat)


def test_a_peak_that_is_flat_until_the_last_point_says_at_least() -> None:
    curve = points(16, lambda value: MIB * max(100, 60 + 2 * value))
    found = curve.at(128)
    assert curve.shape == "unclear" and not curve.settled
    assert found is not None and found.likely is None and found.high is not None
    assert found.low <= 316 * MIB <= found.high
    bent = Curve({8: 100.0, 16: 100.0, 32: 124.0, 64: 188.0, 128: 316.0}, PEAK)
    assert bent.shape == "bent"
    found = bent.at(256)
    assert found is not None and found.likely == pytest.approx(572.0)
    between = bent.at(24)
    assert between is not None and between.low == pytest.approx(108.0) and between.high == pytest.approx(112.0)


def test_an_option_without_effect_says_at_least_what_was_seen() -> None:
    curve = points(16, lambda value: 100 * MIB)
    assert curve.shape == "flat"
    found = curve.at(64)
    assert found is not None and found.high is None and found.low == pytest.approx(100 * MIB, rel=PEAK.flat)
    assert curve.largest(99 * MIB) == (0, 7)  # less than 8 was not measured
    assert curve.largest(200 * MIB) == (32, None)


def test_memory_that_falls_with_the_option_is_no_more_than_at_the_last() -> None:
    curve = Curve({1: 800.0, 2: 450.0, 4: 275.0}, PEAK)
    found = curve.at(8)
    assert curve.shape == "falling" and found is not None and found.low == 0 and found.high is not None
    assert found.high >= 187.5


@pytest.mark.parametrize("noise", [PEAK, RESERVED, RESIDENT, TIME])
def test_what_was_measured_is_given_as_measured(noise: tuple[float, float, float]) -> None:
    measured = {8: 10.0, 16: 35.0, 32: 36.0, 64: 200.0}
    curve = Curve(measured, noise)  # type: ignore[arg-type]
    assert all(curve.at(at) == Range(low=y, likely=y, high=y) for at, y in measured.items())


def test_few_points_say_at_least_or_nothing() -> None:
    assert Curve({}, PEAK).at(8) is None
    one = Curve({8: 100.0}, PEAK)
    assert one.at(16) == Range(low=100 * (1 - PEAK.floor)) and one.at(4) == Range(low=0.0, high=100.0)
    two = Curve({8: 100.0, 16: 150.0}, PEAK)
    found = two.at(64)
    assert found is not None and found.high is None and 430 < found.low <= 450
    assert two.shape == "unknown" and two.largest(120.0) == (11, 15)


def test_what_begins_to_rise_at_the_last_point_was_not_predicted() -> None:
    """Near it is not the same: the rise there is 0.5%, and twice the value takes 1.8 times as much."""
    curve = Curve({2: 25.9e9, 4: 25.9e9, 8: 25.9e9, 32: 26.04e9}, PEAK)
    found = curve.at(64)
    assert not curve.settled and within(found, 47.9e9)


def test_far_beyond_the_points_only_at_least_is_said() -> None:
    curve = points(16, lambda value: MIB * (10 + value))
    near, far = curve.at(FARTHEST * 32), curve.at(FARTHEST * 32 + 1)
    assert near is not None and near.high is not None
    assert far is not None and far.high is None and far.likely is None
    assert curve.largest(math.inf) == (FARTHEST * 32, None)


@given(owns, st.floats(1.0, 1e4), st.floats(1.0, 1e3), st.floats(1.0, 40.0))
def test_the_largest_that_fits_lies_between_both_answers(own: int, base: float, each: float, times: float) -> None:
    curve = points(own, lambda value: MIB * (base + each * value))
    limit = MIB * (base + each * own * times)
    true = int((limit / MIB - base) / each + 1e-9)
    sure, possible = curve.largest(limit)
    assert sure is not None and sure <= true
    assert possible is None or possible >= true
    # Where the option takes next to nothing, 1% for each doubling is more than it ever takes, and no limit is known.
    if curve.shape == "linear" and true < 4 * own and 20 * each * own >= base:
        assert possible is not None and possible - sure <= 0.1 * own + 1 + 0.1 * base / each


def test_a_concave_series_is_bounded_by_what_was_seen() -> None:
    """As where a kernel with a smaller workspace is chosen from some size on."""
    curve = Curve({8: 100.0, 16: 200.0, 32: 300.0}, PEAK)
    found = curve.at(64)
    assert curve.shape == "unclear" and found is not None and found.likely is None
    assert found.low <= 400 <= (found.high or 0)


@given(owns, st.lists(st.tuples(sizes.map(lambda size: 1 + size), sizes, st.just(0.01)), min_size=1, max_size=6), fars)
def test_the_largest_of_moments_is_held_wherever_the_largest_changes(
    own: int, laws: list[tuple[float, float, float]], far: float
) -> None:
    def law(value: float) -> dict[str, Moments]:
        return {"forward": Moments(9, tuple(int(MIB * (a + b * value + c * value**2)) for a, b, c in laws))}

    values = (own // 2, own, 2 * own)
    peaks = {value: float(most(law(value))) for value in values}
    curve = Highest(peaks, PEAK, moments={value: law(value) for value in values})
    at = int(2 * own * far)
    assert within(curve.at(at), float(most(law(at))), slack=PEAK.flat)


def test_a_moment_that_becomes_the_largest_beyond_the_runs_is_foreseen() -> None:
    def law(value: int, count: int = 9) -> dict[str, Moments]:
        sizes = int(MIB) * (50 + value), int(MIB) * (10 + 2 * value)
        return {"backward": Moments(count, sizes), "optimizer": Moments(count, (1,))}

    values = (4, 8, 16)
    peaks = {value: float(most(law(value))) for value in values}
    found = Highest(peaks, PEAK, moments={value: law(value) for value in values}).at(128)
    alone = Curve(peaks, PEAK).at(128)
    assert found is not None and found.likely == pytest.approx(266 * MIB)
    assert alone is not None and alone.likely == pytest.approx(178 * MIB)
    small = {value: {"optimizer": Moments(9, (1,))} for value in values}
    others = {4: law(4), 8: {"backward": law(8)["backward"]}, 16: law(16)}
    for other in ({}, small, others, {value: law(value, value) for value in values}):
        assert Highest(peaks, PEAK, moments=other).at(128) == alone


def test_a_process_lies_above_its_tensors_by_what_it_did_in_the_runs() -> None:
    below = Curve({4: 10 * MIB, 8: 12 * MIB, 16: 16 * MIB}, PEAK)
    resident = {4: 321 * MIB, 8: 323 * MIB, 16: 326 * MIB}
    assert Curve(resident, RESIDENT).shape == "flat"
    found = Above(resident, RESIDENT, below=below).at(1 << 7)
    assert found is not None and found.likely == pytest.approx(383 * MIB, rel=0.05)
    assert found.low <= 383 * MIB <= (found.high or 0) <= 460 * MIB
    other = {4: 321 * MIB, 8: 423 * MIB, 16: 626 * MIB}
    assert Above(other, RESIDENT, below=below).at(64) == Curve(other, RESIDENT).at(64)
    assert Above(resident, RESIDENT).at(64) == Curve(resident, RESIDENT).at(64)


@given(st.dictionaries(st.integers(1, 10**6), st.floats(0.0, 1e14), max_size=6), st.integers(1, 10**8))
def test_any_points_give_an_ordered_range(measured: dict[int, float], value: int) -> None:
    for noise in (PEAK, RESERVED, RESIDENT, TIME):
        found = Curve(measured, noise).at(value)
        assert found is None or (found.low >= 0 and math.isfinite(found.low))
        if found is not None and found.high is not None:
            assert found.low <= found.high
            assert found.likely is None or (found.low <= found.likely * (1 + 1e-9) and found.likely <= found.high)
