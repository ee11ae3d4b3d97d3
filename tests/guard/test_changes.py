"""Change points, drift and red flags of series whose truth is known."""

import math
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_history import MACHINE, commit_of, entries, entry, noisy, stepped

from hotlap.guard.changes import split, trend
from hotlap.guard.flags import flags
from hotlap.guard.history import Filter, open_history
from hotlap.guard.report import of_series, report
from hotlap.records.history import Entry, Series, Trend
from hotlap.records.run import Phases, Versions

SERIES = Series(id=1, kind="run", project="p", command="c", levers="[]", host="h", device="d", last=0.0)


def test_a_change_is_found_at_its_commit() -> None:
    found = trend("step", [*reversed(entries(noisy(stepped((30, 10.0), (12, 12.0)))))])
    (change,) = found.changes
    assert (change.at, change.commit_before, change.commit_after) == (30, commit_of(29), commit_of(30))
    assert change.ratio == pytest.approx(1.2, abs=0.02) and change.p < 1e-9
    first, last = found.segments
    assert (first.first, first.last, last.first, last.last) == (0, 29, 30, 41)
    assert last.low < 12 < last.high and last.high - last.low < 0.3
    assert found.drift is None and found.commits == tuple(map(commit_of, range(42)))


def test_up_and_down_again_are_two() -> None:
    assert split(noisy(stepped((20, 10.0), (20, 13.0), (20, 10.0)))) == [20, 40]


@pytest.mark.parametrize("values", [[], [5.0], [5.0] * 40, stepped((3, 1.0)), [0.0] * 30])
def test_nothing_in_what_is_too_short_or_the_same(values: list[float]) -> None:
    found = trend("step", entries(values))
    assert found.changes == () and found.drift is None and len(found.segments) == bool(values)


def test_the_same_value_then_another() -> None:
    assert split(stepped((10, 1.0), (10, 2.0))) == [10]
    assert split(stepped((10, 0.0), (10, 2.0))) == [10]  # memory that was not measured, say


def test_one_slow_run_is_no_change_three_are() -> None:
    for late, told in ((1, []), (2, []), (3, [30]), (5, [30])):
        assert split(noisy(stepped((30, 10.0), (late, 13.0)))) == told
    assert split(noisy(stepped((20, 10.0), (2, 20.0), (20, 10.0)))) == []


def test_the_threshold() -> None:
    values = noisy(stepped((30, 10.0), (30, 10.35)), 0.002)
    assert split(values, 0.05) == [] and split(values, 0.02) == [30]


def test_more_runs_than_a_window() -> None:
    assert split(noisy(stepped((230, 10.0), (170, 11.0)))) == [230]


def test_alarms_without_a_change_are_rare() -> None:
    """`benchmarks/history.py rates` has the rates; these are its first series."""
    plain = [split(noisy([10.0] * 60, 0.03, seed)) for seed in range(100)]
    assert sum(map(bool, plain)) <= 1


def test_slow_drift_is_no_step() -> None:
    found = trend("step", entries(noisy(10 * np.exp(np.linspace(0, math.log(1.2), 60)))))
    assert found.changes == () and found.drift is not None
    assert found.drift.low < 1.2 ** (1 / 59) < found.drift.high
    assert found.drift.total == pytest.approx(1.2, abs=0.02) and found.drift.commits == 60
    small = trend("step", entries(noisy(10 * np.exp(np.linspace(0, math.log(1.04), 80)))))
    assert small.changes == () and small.drift is not None and small.drift.total < 1.05
    assert trend("step", entries(noisy([10.0] * 60))).drift is None


def test_drift_is_over_commits_not_runs() -> None:
    one = [msgspec.structs.replace(made, commit=commit_of(1)) for made in entries(list(np.linspace(10, 10.4, 30)))]
    assert trend("step", one).drift is None


def test_runs_without_the_measure_are_passed_over() -> None:
    made = [*entries(noisy(stepped((10, 10.0), (10, 12.0)))), entry(50, None), entry(51, math.nan)]
    assert len(trend("step", made).values) == 20
    assert trend("startup", made).values == () and trend("memory", made).segments == ()


def test_what_else_changed_is_told(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        told = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(tmp_path), *words]
        return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for number in range(12):
        git("commit", "-q", "--allow-empty", "-m", f"change {number}")
        commits.append(git("rev-parse", "HEAD"))
    newer = Versions(python="3.11", torch="2.14")
    made = [
        entry(
            number, value, commit=commits[number if number < 6 else number + 2], commit_time=None,
            environment=msgspec.structs.replace(MACHINE, driver="580" if number < 6 else "590"),
            **({} if number < 6 else {"versions": newer}),
        )
        for number, value in enumerate(noisy(stepped((6, 10.0), (4, 14.0))))
    ]  # fmt: skip
    (change,) = trend("step", made, here=tmp_path).changes
    assert [one.split(" ", 1)[1] for one in change.commits] == ["change 8", "change 7", "change 6"]
    assert [(one.what, one.before, one.after) for one in change.also] == [
        ("driver", "580", "590"),
        ("torch", "2.13", "2.14"),
    ]
    (unknown,) = trend("step", made, here=tmp_path.parent).changes
    assert unknown.commits == ()


def flagged(made: list[Entry]) -> dict[str, str]:
    return {one.rule: one.text for one in of_series(SERIES, made).flags}


def test_flags() -> None:
    assert flagged(entries(noisy([10.0] * 40))) == {}
    assert flagged(entries(noisy(stepped((30, 10.0), (6, 12.0))))) == {
        "grown": f"a step: 1.20× since {commit_of(30)[:10]}"
    }
    assert flagged(entries(noisy(stepped((30, 10.0), (6, 8.0))))) == {}  # faster is no alarm
    assert flagged(entries(noisy(stepped((30, 10.0), (40, 12.0))))) == {}  # nor what everybody has got used to
    drifts = flagged(entries(noisy(10 * np.exp(np.linspace(0, 0.1, 60)))))
    assert [*drifts] == ["drifting"] and "over 60 commits" in drifts["drifting"]
    more = [
        msgspec.structs.replace(one, peak_bytes=2.0**30 * (1 + (at > 20)))
        for at, one in enumerate(entries(noisy([10.0] * 30)))
    ]
    assert flagged(more) == {"grown": f"peak memory: 2.00× since {commit_of(21)[:10]}"}
    data = [
        msgspec.structs.replace(one, phases=Phases(data=1.0 + 3 * (at > 20)))
        for at, one in enumerate(entries(noisy([10.0] * 30)))
    ]
    assert flagged(data) == {"grown": f"waiting for data: 4.00× since {commit_of(21)[:10]}"}


def test_flags_of_how_runs_end() -> None:
    made = entries(noisy([10.0] * 12))
    failed = [*made[:-2], *(msgspec.structs.replace(one, status="failed", step_ms=None) for one in made[-2:])]
    assert flagged(failed) == {"failing": "the last 2 runs failed; the one before did not"}
    assert flagged([*made[:-1], failed[-1]]) == {}
    assert flagged([msgspec.structs.replace(one, status="failed") for one in made]) == {}  # it never worked
    wide = [*made[:-3], *(msgspec.structs.replace(one, p90_ms=20.0) for one in made[-3:])]
    assert [*flagged(wide)] == ["unsteady"]
    bounds = [msgspec.structs.replace(one, bound="compute" if at < 9 else "input") for at, one in enumerate(made)]
    assert flagged(bounds) == {"rebound": "input-bound in the last 3 runs, compute-bound before"}


def test_a_rule_sees_nothing_in_nothing() -> None:
    empty = Trend(measure="step", ids=(), times=(), values=(), commits=())
    assert flags({"step": empty}, []) == [] == flags({}, [entry(0, None)])


def test_a_report_has_each_series(where: str) -> None:
    with open_history(where, make=True) as history:
        for number, value in enumerate(noisy(stepped((20, 10.0), (5, 12.0)))):
            history.add(entry(number, value, host="one"))
            history.add(entry(number + 1000, 10.0, host="two"))
            history.add(entry(number + 2000, value, kind="tune"))
        found = report(history, Filter(project="p"), ["step"])
        assert [one.series.host for one in found.series] == ["two", "one"]
        assert [len(one.trends[0].changes) for one in found.series] == [0, 1]
        late = report(history, Filter(project="p", host="one", since=entry(20).started), ["step"])
        assert [one.trends[0].changes for one in late.series] == [()] and len(late.series[0].trends[0].values) == 5
        assert report(history, Filter(project="none"), ["step"]).series == ()
