"""The simulation of `hotlap check` asks the rule itself, and the quick tables in it say what scipy says."""

import random

import check_rates as rates
import pytest
from scipy import stats

STEADY = "starts differ by 0.3%"


@pytest.mark.parametrize(("gain", "wanted"), [(0.0, ("pass", 3)), (0.1, ("fail", 6))])
def test_steady_starts_are_told_from_the_first_look(gain: float, wanted: tuple[str, int]) -> None:
    chance = random.Random(1)
    assert {rates.check(chance, rates.REGIMES[STEADY], gain) for _ in range(3)} == {wanted}


def test_what_is_not_told_by_the_last_look_is_no_verdict() -> None:
    found = [rates.check(random.Random(seed), rates.REGIMES["two kinds, 10% apart"], 0.05, most=4) for seed in range(8)]
    assert found.count(("inconclusive", 4)) > 4


def test_quick_tables_change_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks() -> list[tuple[str, int]]:
        chance = random.Random(3)
        return [rates.check(chance, rates.REGIMES["two kinds, 4% apart"], 0.05) for _ in range(10)]

    by_scipy = checks()
    monkeypatch.setattr(stats.t, "ppf", stats.t.ppf)
    monkeypatch.setattr(stats, "mannwhitneyu", stats.mannwhitneyu)
    rates.quicker()
    assert checks() == by_scipy and len({verdict for verdict, _ in by_scipy}) > 1
