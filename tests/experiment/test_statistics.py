"""Ratios and their intervals: against brute force, by their properties, and by simulation with fixed seeds."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hotlap.experiment.statistics import (
    LEAST_GAIN,
    LOOKS,
    Effect,
    Ratio,
    between_processes,
    bounds,
    center,
    effects,
    half_width,
    of_pairs,
    within_process,
)
from hotlap.records.tune import Interval

logs = st.floats(min_value=-3.0, max_value=3.0).map(lambda x: round(x, 6))
some = st.lists(logs, min_size=1, max_size=12)
enough = st.lists(logs, min_size=6, max_size=14)
levels = st.sampled_from([0.5, 0.68, 0.8, 0.9, 0.95, 0.99])
processes = st.lists(logs, min_size=1, max_size=5)
pytestmark = pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's, of a side whose processes are all alike


def alike(values: list[float]) -> list[Effect]:
    return [Effect(value) for value in values]


# within a process


def brute_center(values: list[float]) -> float:
    return statistics.median([(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)])


def ranks_at_most(count: int, most: int) -> float:
    """P(W <= most), by going through all signs of the ranks."""
    signs = itertools.product((0, 1), repeat=count)
    return sum(sum(rank * sign for rank, sign in enumerate(one, 1)) <= most for one in signs) / 2**count


def brute_bounds(values: list[float], level: float) -> tuple[float, float]:
    """The centres that the signed-rank test does not reject, from enumeration of all signs."""
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    out = 0
    while ranks_at_most(len(values), out) <= (1 - level) / 2:
        out += 1
    return (means[out - 1], means[-out]) if out else (-math.inf, math.inf)


@given(some)
def test_the_center_is_the_median_of_the_means_of_two(values: list[float]) -> None:
    assert center(values) == pytest.approx(brute_center(values), abs=1e-12)


@settings(max_examples=40)
@given(st.lists(logs, min_size=1, max_size=10), levels)
def test_the_bounds_are_those_of_enumeration(values: list[float], level: float) -> None:
    assert bounds(values, level) == pytest.approx(brute_bounds(values, level), abs=1e-12)


@settings(max_examples=60)
@given(st.lists(logs, min_size=6, max_size=14, unique=True), st.floats(min_value=-3, max_value=3))
def test_a_center_is_within_where_the_signed_rank_test_does_not_reject_it(values: list[float], at: float) -> None:
    shifted = [value - at for value in values]
    low, high = bounds(values)
    sizes = [abs(one) for one in shifted]
    near = min(abs((a + b) / 2 - at) for a, b in itertools.combinations_with_replacement(values, 2))
    assume(near > 1e-9 and len({round(size, 12) for size in sizes}) == len(sizes) and min(sizes) > 0)
    accepted = stats.wilcoxon(shifted, method="exact").pvalue > 0.05
    assert (low < at < high) is bool(accepted)


@given(enough, levels)
def test_an_interval_holds_its_center_and_grows_with_the_level(values: list[float], level: float) -> None:
    low, high = bounds(values, level)
    assert low <= center(values) <= high
    wider = bounds(values, (1 + level) / 2)
    assert wider[0] <= low and wider[1] >= high


@given(enough, st.floats(min_value=-50, max_value=50), st.floats(min_value=0.01, max_value=100))
def test_a_shift_and_a_scale_of_the_logs_are_those_of_the_interval(
    values: list[float], shift: float, scale: float
) -> None:
    low, high = bounds(values)
    moved = [scale * value + shift for value in values]
    near = {"rel": 1e-9, "abs": 1e-9}
    assert center(moved) == pytest.approx(scale * center(values) + shift, **near)
    assert bounds(moved) == pytest.approx((scale * low + shift, scale * high + shift), **near)
    turned = [-value for value in values]
    assert center(turned) == pytest.approx(-center(values)) and bounds(turned) == pytest.approx((-high, -low))


@given(enough, st.randoms())
def test_the_order_of_cycles_says_nothing(values: list[float], draw: "object") -> None:
    mixed = list(values)
    draw.shuffle(mixed)  # type: ignore[attr-defined]
    assert within_process(mixed) == within_process(values)


def test_six_are_the_fewest_for_95_percent() -> None:
    assert within_process([0.1] * 5).interval is None
    assert within_process([0.1] * 6) == Ratio(math.exp(0.1), Interval(low=math.exp(0.1), high=math.exp(0.1)))
    assert bounds([0.1]) == (-math.inf, math.inf) and bounds([0.1, 0.2, 0.3], 0.7) == pytest.approx((0.1, 0.3))


@pytest.mark.parametrize("count", [6, 8, 10, 12])
@pytest.mark.parametrize("slow", [3.0, 100.0])
def test_one_slow_cycle_moves_nothing_far(count: int, slow: float) -> None:
    """From eight on it does not even widen the interval beyond the others' spread."""
    values = list(np.linspace(0.09, 0.11, count))
    found = within_process([*values[:-1], math.log(slow)])
    assert found.ratio == pytest.approx(math.exp(0.1), rel=0.01)
    assert found.interval is not None and found.interval.low > 1.08
    assert count < 8 or found.interval.high < slow


@pytest.mark.parametrize("count", [6, 12, 24])
@pytest.mark.parametrize("tails", [math.inf, 2.0])
def test_the_interval_of_cycles_covers_the_truth_95_times_in_100(count: int, tails: float) -> None:
    draw = np.random.default_rng(count)
    covered, of = 0, 1000
    for _ in range(of):
        noise = draw.standard_normal(count) if math.isinf(tails) else draw.standard_t(tails, count)
        found = within_process(list(math.log(1.25) + 0.05 * noise)).interval
        assert found is not None
        covered += found.low <= 1.25 <= found.high
    assert 0.93 <= covered / of <= 0.985, "the exact level lies just above 95%"


# between processes


def welchless(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """ms of one over the other with the pooled two-sample t interval, as scipy has it."""
    found = stats.ttest_ind(before, after, equal_var=True)
    interval = found.confidence_interval(0.95)
    return statistics.fmean(before) - statistics.fmean(after), float(interval.low), float(interval.high)


@given(processes, processes)
def test_processes_have_the_pooled_t_interval(before: list[float], after: list[float]) -> None:
    assume(len(before) + len(after) > 2 and len({*before, *after}) > 2)
    assume(statistics.pstdev(before) + statistics.pstdev(after) > 1e-3)
    found = between_processes(alike(before), alike(after))
    if len(before) == 1 or len(after) == 1:  # scipy has no such test; the formula has
        many, one = (after, before) if len(before) == 1 else (before, after)
        error = statistics.stdev(many) * math.sqrt(1 + 1 / len(many))
        middle = statistics.fmean(before) - statistics.fmean(after)
        half = float(stats.t.ppf(0.975, len(many) - 1)) * error
        expected = (middle, middle - half, middle + half)
        assert len(one) == 1
    else:
        expected = welchless(before, after)
    assert math.log(found.ratio) == pytest.approx(expected[0], abs=1e-9)
    assert found.interval is not None
    assert math.log(found.interval.low) == pytest.approx(expected[1], abs=1e-6)
    assert math.log(found.interval.high) == pytest.approx(expected[2], abs=1e-6)


@given(processes, processes, st.integers(min_value=0, max_value=3), st.booleans())
def test_a_gain_is_proved_by_a_one_sided_t_test_at_its_looks_level(
    before: list[float], after: list[float], look: int, first: bool
) -> None:
    """A first look that leaves some out has their levels too."""
    assume(len(before) > 1 and len(after) > 1)
    assume(statistics.pstdev(before) + statistics.pstdev(after) > 1e-3)
    found = between_processes(alike(before), alike(after), look, first=first)
    p = float(stats.ttest_ind(before, after, equal_var=True, alternative="greater").pvalue)
    level = sum(LOOKS[: look + 1]) if first else LOOKS[look]
    assume(abs(p - level) > 1e-9)
    assert found.proved is (p < level and found.ratio >= LEAST_GAIN)


def test_one_process_each_has_no_interval_and_proves_nothing() -> None:
    assert between_processes([Effect(1.0)], [Effect(0.0, 0.001)]) == Ratio(math.e, None, False)
    assert between_processes([Effect(1.0)], [Effect(0.0), Effect(0.0)]).interval is not None


def test_there_are_no_more_looks_and_they_sum_to_one_percent() -> None:
    assert math.fsum(LOOKS) == pytest.approx(0.01) and list(LOOKS) == sorted(LOOKS)
    sides = alike([0.5, 0.5001]), alike([0.0, 0.0001])
    assert between_processes(*sides, look=len(LOOKS) - 1).proved
    assert not between_processes(*sides, look=len(LOOKS)).proved


def test_less_than_two_percent_is_no_gain_however_sure() -> None:
    low, high = (alike([math.log(gain), math.log(gain) + 1e-9]) for gain in (1.019, 1.021))
    assert not between_processes(low, alike([0.0, 1e-9])).proved and between_processes(high, alike([0.0, 1e-9])).proved


@given(processes, processes)
def test_what_the_turns_leave_open_widens_what_processes_that_happen_to_agree_say(
    before: list[float], after: list[float]
) -> None:
    assume(len(before) + len(after) > 2)
    plain = between_processes(alike(before), alike(after)).interval
    wide = between_processes([Effect(x, 0.2) for x in before], [Effect(x, 0.2) for x in after]).interval
    assert plain is not None and wide is not None
    assert wide.low <= plain.low and wide.high >= plain.high
    free = len(before) + len(after) - 2
    least = float(stats.t.ppf(0.975, free)) * 0.2 * math.sqrt(1 / len(before) + 1 / len(after))
    assert math.log(wide.high / wide.low) / 2 >= least * (1 - 1e-9)


def test_equal_processes_prove_nothing_by_their_equality_where_turns_are_noisy() -> None:
    """Two starts each may agree by chance."""
    before, after = [Effect(0.0), Effect(0.0, 0.02)], [Effect(-0.03, 0.02), Effect(-0.03, 0.02)]
    assert not between_processes(before, after).proved
    assert between_processes(alike([0.0, 0.0]), alike([-0.03, -0.03])).proved


@given(processes, processes, st.floats(min_value=-2, max_value=2))
def test_the_reference_cancels_and_the_sides_are_symmetric(
    before: list[float], after: list[float], shift: float
) -> None:
    assume(len(before) + len(after) > 2)
    one = between_processes(alike(before), alike(after))
    moved = between_processes(alike([x + shift for x in before]), alike([x + shift for x in after]))
    turned = between_processes(alike(after), alike(before))
    assert one.interval is not None and moved.interval is not None and turned.interval is not None
    assert moved.ratio == pytest.approx(one.ratio) and turned.ratio == pytest.approx(1 / one.ratio)
    near = {"rel": 1e-6}
    assert (moved.interval.low, moved.interval.high) == pytest.approx((one.interval.low, one.interval.high), **near)
    assert (1 / turned.interval.high, 1 / turned.interval.low) == pytest.approx(
        (one.interval.low, one.interval.high), **near
    )


@pytest.mark.parametrize("starts", [2, 3, 5])
def test_the_interval_of_processes_covers_the_truth_95_times_in_100(starts: int) -> None:
    draw = np.random.default_rng(starts)
    covered, of = 0, 1000
    for _ in range(of):
        before = [Effect(float(x)) for x in 0.03 * draw.standard_normal(starts)]
        after = [Effect(float(x)) for x in 0.03 * draw.standard_normal(starts) - math.log(1.25)]
        found = between_processes(before, after).interval
        assert found is not None
        covered += found.low <= 1.25 <= found.high
    assert 0.93 <= covered / of <= 0.97, "three standard errors"


# the effects of processes


def relative(rounds: list[dict[int, float]], one: int, over: int) -> Effect:
    """The effect of one process over another's."""
    found = effects(rounds)
    return Effect(found[one].log - found[over].log, found[one].error)


def test_effects_are_told_from_what_the_machine_does_from_round_to_round() -> None:
    drift = [1.0, 3.0, 9.0, 2.0, 0.5, 7.0, 1.0, 1.0]
    rounds = [{3: 10.0 * d, 5: 12.0 * d, 8: 8.0 * d} for d in drift]
    assert set(effects(rounds)) == {3, 5, 8}
    assert relative(rounds, 5, 3).log == pytest.approx(math.log(1.2))
    assert relative(rounds, 8, 3).log == pytest.approx(math.log(0.8))
    assert relative(rounds, 5, 3).error == pytest.approx(0.0, abs=1e-12)


def test_processes_that_came_later_are_told_from_a_machine_that_became_slower() -> None:
    """One of each kind has turns beside them."""
    draw = np.random.default_rng(11)
    noise = lambda: math.exp(0.02 * draw.standard_normal())  # noqa: E731
    rounds = [{1: 10 * noise(), 2: 10 * noise(), 3: 8 * noise(), 4: 8 * noise()} for _ in range(16)]
    rounds += [{1: 30 * noise(), 3: 24 * noise(), 5: 30 * noise(), 6: 24 * noise()} for _ in range(16)]
    for slower in (1, 2, 5):
        for faster in (3, 4, 6):
            assert relative(rounds, faster, slower).log == pytest.approx(math.log(0.8), abs=0.03)


@pytest.mark.parametrize("pairs", [1, 2])
def test_late_processes_beside_as_many_of_those_before(pairs: int) -> None:
    """Two of the bare command for one of each kind that is new: half of each round's sides are in no round before."""
    draw = np.random.default_rng(5)
    noise = lambda: math.exp(0.02 * draw.standard_normal())  # noqa: E731
    rounds = [{**{n: 30 * noise() for n in range(4)}, **{n: 10 * noise() for n in range(4, 8)}} for _ in range(8)]
    for late in range(pairs):
        new = {10 + 2 * late: 30.0, 11 + 2 * late: 10.0}
        for _ in range(8):
            machine = math.exp(draw.standard_normal())
            rounds.append({n: ms * machine * noise() for n, ms in {0: 30.0, 1: 30.0, **new}.items()})
    for late in range(pairs):
        assert relative(rounds, 10 + 2 * late, 3).log == pytest.approx(0.0, abs=0.04)
        assert relative(rounds, 11 + 2 * late, 7).log == pytest.approx(0.0, abs=0.04)


@pytest.mark.parametrize("at", range(3))
def test_one_outlier_round_moves_no_effect(at: int) -> None:
    draw = np.random.default_rng(7)
    rounds = [{1: 10.0, 2: 12.0 * math.exp(0.01 * draw.standard_normal())} for _ in range(10)]
    clean = relative(rounds, 2, 1)
    rounds[at] = {1: rounds[at][1], 2: 50 * rounds[at][2]} if at else {1: 50 * rounds[at][1], 2: rounds[at][2]}
    found = relative(rounds, 2, 1)
    assert found.log == pytest.approx(clean.log, abs=0.01) and found.error < 3 * clean.error < 0.05


def test_the_error_is_what_turns_leave_open() -> None:
    """One standard error: it shrinks with the rounds, and holds the truth 68 times in 100."""
    draw = np.random.default_rng(3)
    made = {count: [] for count in (8, 32)}  # type: ignore[var-annotated]
    held = 0
    for count, errors in made.items():
        for _ in range(300):
            noise = 0.05 * draw.standard_normal((count, 4))
            found = effects([dict(enumerate(np.exp(turns).tolist())) for turns in noise])
            errors.append(found[0].error)
            held += abs(found[0].log) <= found[0].error
    assert statistics.fmean(made[8]) == pytest.approx(0.05 / math.sqrt(8), rel=0.3)
    assert statistics.fmean(made[32]) == pytest.approx(0.05 / math.sqrt(32), rel=0.2)
    assert 0.6 < held / 600 < 0.8


def test_a_process_that_had_one_turn() -> None:
    rounds = [{1: 1.0, 2: 2.0}, {1: 3.0, 2: 6.0}, {1: 2.0, 2: 4.0, 3: 2.0}]
    assert relative(rounds, 2, 1).log == pytest.approx(math.log(2.0))
    assert relative(rounds, 3, 1).log == pytest.approx(0.0)
    assert effects(rounds)[3].error == 0.0, "one turn leaves no spread to tell an error by"
    assert effects([]) == {}


# one after another


@given(st.lists(logs, min_size=2, max_size=10))
def test_pairs_have_students_interval(values: list[float]) -> None:
    assume(statistics.pstdev(values) > 1e-3)
    found = of_pairs(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert math.log(found.ratio) == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.interval is not None
    assert math.log(found.interval.low) == pytest.approx(float(expected.low), abs=1e-6)
    assert math.log(found.interval.high) == pytest.approx(float(expected.high), abs=1e-6)


@given(st.lists(logs, min_size=3, max_size=6), st.integers(min_value=0, max_value=3))
def test_pairs_prove_by_the_same_rule(values: list[float], look: int) -> None:
    assume(statistics.pstdev(values) > 1e-3)
    p = float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    assume(abs(p - LOOKS[look]) > 1e-9)
    found = of_pairs(values, look)
    assert found.proved is (p < LOOKS[look] and found.ratio >= LEAST_GAIN)


def test_one_pair_has_no_interval() -> None:
    assert of_pairs([0.3]) == Ratio(math.exp(0.3), None, False)
    drift = of_pairs([math.log(12.0 * d / (10.0 * d)) for d in (1.0, 1.5, 2.5)])
    assert drift.interval is not None and drift.interval.low == pytest.approx(1.2) == drift.interval.high
    assert drift.proved


# widths


def test_half_width() -> None:
    assert half_width(Interval(low=1.0, high=1.0)) == 0
    assert half_width(Interval(low=1 / 1.03, high=1.03)) == pytest.approx(0.03)
    assert half_width(Interval(low=2 / 1.1, high=2 * 1.1)) == pytest.approx(0.1)
    assert math.isfinite(half_width(Interval(low=1e-5, high=1e5)))


def test_a_last_look_has_what_the_others_leave_for_large_gains_alone() -> None:
    """The demo beside a busy core: 3.55x (2.73-4.62) by two starts of each."""
    sides = [Effect(math.log(3.55), 0.061), Effect(math.log(3.55), 0.061)], [Effect(0.0, 0.061), Effect(0.0, 0.061)]
    found = between_processes(*sides)
    assert not found.proved and found.interval is not None and 2.7 < found.interval.low < 2.8
    assert between_processes(*sides, last=True).proved
    assert not between_processes(*sides, look=len(LOOKS), last=True).proved, "nothing is left"
    small = [Effect(math.log(1.1), 0.01)] * 2, [Effect(0.0, 0.01)] * 2
    assert not between_processes(*small, last=True).proved
    assert of_pairs([1.2, 1.25, 1.22], last=True).proved
