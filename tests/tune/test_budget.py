"""What a tune does with its time: shorter trials, what is tried when, confirmations that end early and go on later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import FakeLever, Machine, Tune, Uses, factors, kept, resumed, search, single, uses_of, with_noise

from hotlap.agent.stopper import Stopper
from hotlap.records import run as records
from hotlap.records.errors import NothingMeasured
from hotlap.records.session import FEWEST_STEPS, Session
from hotlap.records.steady import Steady
from hotlap.tune.budget import MARGIN, RUNS_AFTER_FIRST, Budget, BudgetSpent
from hotlap.tune.pairs import earlier_pairs
from hotlap.tune.state import Found

START_S, WARMUP_STEPS = 43.0, 5


def slow_to_start(step_ms: Callable[[Uses], float]) -> Callable[[str, Uses, int], float]:
    """As resnet50 on an H200 whose CPUs were busy: 43 s to the first step, then steps of 1.2 s."""
    return lambda purpose, uses, least: START_S + (WARMUP_STEPS + least) * step_ms(uses) / 1000


def loader(uses: Uses) -> float:
    return 200.0 if "workers" in uses else 1240.0


def slow_tune(tune: Tune, budget: float) -> tuple[Found, Machine]:
    return tune(
        [single("workers", 0.94), FakeLever("bf16", 0.3)], with_noise(loader, 0.05), wall_of=slow_to_start(loader),
        budget=budget,
    )  # fmt: skip


# shorter trials


def test_trials_are_shorter_where_they_would_take_too_large_a_part(tune: Tune) -> None:
    found, machine = slow_tune(tune, 420.0)
    assert machine.least_steps == FEWEST_STEPS
    assert "steps  a trial takes 74 s of the 420 s: the next ones measure 8 steady steps, not 20" in machine.said
    assert kept(found) == ["workers"] and found.gain and found.pairs >= 2
    assert machine.now - 1000.0 <= 420.0


def test_trials_are_as_long_as_ever_where_there_is_time(tune: Tune) -> None:
    _, machine = slow_tune(tune, 3600.0)
    assert machine.least_steps == 20 and not any(line.startswith("steps") for line in machine.said)


def test_only_the_first_baseline_ends_by_how_long_its_steps_are(tune: Tune) -> None:
    """Those after it are told how many steps to make."""
    _, machine = tune([FakeLever("a", 0.5)], factors(a=0.5), budget=600.0)
    assert machine.longs == [600.0 / 40, *[None] * (len(machine.done) - 1)]


@pytest.mark.parametrize(
    ("step_ms", "long_s", "made"), [(100.0, 15.0, 30), (1240.0, 15.0, 13), (1240.0, None, 20), (5000.0, 15.0, 8)]
)
def test_when_a_run_has_enough_steps(step_ms: float, long_s: float | None, made: int) -> None:
    """3 seconds, but 20 steps, or 8 that are long."""
    session = Session(folder="", package="", steps=400, seconds=3.0, least_steps=20, long_s=long_s)
    stopper = Stopper(session, None)  # type: ignore[arg-type]
    stopper.steady = Steady(0, settled=True)
    while not stopper._enough():
        stopper.step_done(step_ms, disturbed=False)
    assert len(stopper.walls) == made


@pytest.mark.parametrize(
    ("every", "long_s", "made", "passed"), [(2, 15.0, 8, 16), (2, None, 20, 40), (3, None, 20, 30), (1, 15.0, 13, 13)]
)
def test_steps_with_an_evaluation_are_not_among_them_unless_all_have_one(
    every: int, long_s: float | None, made: int, passed: int
) -> None:
    """Their time is: it is of the budget too."""
    session = Session(folder="", package="", steps=400, seconds=3.0, least_steps=20, long_s=long_s)
    stopper = Stopper(session, None)  # type: ignore[arg-type]
    stopper.steady = Steady(0, settled=True)
    while not stopper._enough():
        stopper.step_done(1240.0, disturbed=False, evaluating=len(stopper.walls) % every == 0)
    assert (len(stopper._counted()), len(stopper.walls)) == (made, passed)


def test_steps_of_a_model_that_ran_before_it_was_trained_are_not_among_them() -> None:
    stopper = Stopper(Session(folder="", package="", steps=8), None)  # type: ignore[arg-type]
    for kind in ["inference"] * 7 + ["train"] * 3:
        stopper.step_done(10.0, disturbed=False, kind=kind)
    assert len(stopper.walls) == 3


def test_trials_are_shorter_where_evaluations_take_a_part_of_them() -> None:
    budget = Budget(600.0, lambda: 0.0)
    asked = {"wall_s": 40.0, "step_s": 2.0, "made": 8, "most": 40, "seconds": 3.0}
    fits = [budget.least_steps(**asked, each_s=each_s) for each_s in (None, 2.0, 4.0)]  # type: ignore[arg-type]
    assert fits == [33, 33, 20]


@given(st.floats(1.0, 300.0), st.floats(0.01, 20.0), st.integers(8, 400), st.floats(10.0, 4000.0), st.floats(0.5, 10.0))
def test_steps_of_a_trial_are_few_only_where_they_must_be(
    wall_s: float, step_s: float, made: int, budget_s: float, seconds: float
) -> None:
    budget = Budget(budget_s, lambda: 0.0)
    least = budget.least_steps(wall_s, step_s, made, 20, seconds)
    assert FEWEST_STEPS <= least <= 20
    room_s = budget_s / (RUNS_AFTER_FIRST * MARGIN)
    if least == 20 and 20 * step_s > seconds + step_s:  # whole steps reach the seconds
        assert wall_s + (20 - made) * step_s <= room_s * (1 + 1e-9) + 1e-6
    elif least > FEWEST_STEPS and least * step_s > seconds + step_s:
        assert wall_s + (least - made) * step_s <= room_s + 1e-6


# no time is left unused


@pytest.mark.parametrize("budget", [250.0, 300.0, 350.0])
def test_a_gain_that_can_not_be_confirmed_in_time_is_found_and_said(tune: Tune, budget: float) -> None:
    """`--budget 300s` once tried nothing and left 150 s unused, since half was held back for nothing."""
    found, machine = slow_tune(tune, budget)
    assert machine.tries()[0] == "workers" and not found.gain and kept(found) == []
    assert machine.now - 1000.0 <= 1.05 * budget, "the budget holds"
    assert "resuming goes on" in found.not_done and "leave-one-out" in found.not_done
    assert found.dropped["workers"].why.startswith("not confirmed yet: ")
    assert any(line.startswith("open  all: not confirmed yet") for line in machine.said), "it is not dropped for good"
    if found.pairs:
        assert len(found.unproved) == found.pairs == 1 and found.unproved[0] == pytest.approx(6.2, rel=0.1)
        assert f"1 pair was not enough for an interval above 1: {found.unproved[0]:.2f}×" in found.not_done


def test_while_nothing_is_kept_levers_are_tried_to_the_end_of_the_budget(tune: Tune) -> None:
    levers = [single(name, 0.5) for name in "abcdefghijkl"]
    found, machine = tune(levers, factors(), budget=100.0)
    assert 80.0 <= machine.now - 1000.0 <= 100.0 and kept(found) == []
    assert found.not_done.startswith("the budget ended the search; not tried to the end: ")


def test_what_may_be_noise_is_looked_at_again_where_nothing_else_is_left_to_do(tune: Tune) -> None:
    """A second look and a confirmation do not fit; a look alone does, and resuming goes on from there."""
    bare = iter([100.0, 110.0])
    found, machine = tune([single("a", 0.8)], lambda uses: 94.0 if uses else next(bare, 105.0), budget=85.0)
    assert [trial.purpose for trial in machine.done[2:]][:4] == ["try a", "try a", "incumbent again", "try a again"]
    assert found.dropped["a"].why.startswith("not confirmed yet") and 60.0 <= machine.now - 1000.0 <= 85.0


def test_no_twin_is_run_beyond_the_budget(tune: Tune) -> None:
    from machine import LOSSES

    from hotlap.tune.evidence import Evidence

    def evidence(uses: Uses) -> Evidence:
        return Evidence(tuple((x * (1 + 0.04 * (n % 2)) if uses else x,) for n, (x,) in enumerate(LOSSES)))

    lever = single("a", 0.5, risk="numeric", tolerance=0.01)
    found, machine = tune([lever], factors(a=0.5), evidence_of=evidence, budget=35.0)
    assert machine.now - 1000.0 <= 35.0 and kept(found) == []
    assert found.not_done.startswith("no time was left to prove parity of a, which measured 2.00×")


def test_a_second_baseline_that_the_budget_ended_is_told_as_that(tune: Tune) -> None:
    runs: list[int] = []

    def outcome(uses: Uses) -> tuple[str, str]:
        runs.append(1)
        return ("measured", "") if len(runs) == 1 else ("timeout", "x")

    with pytest.raises(NothingMeasured, match="give a larger --budget"):
        tune([FakeLever("a", 0.5)], factors(), outcome=outcome, budget=15.0)


# confirmations that end early, and go on


def shaky(gains: list[float]) -> Callable[[Uses], float]:
    """A noisy machine, on which the lever is worth what is listed, trial by trial."""
    bare, worth = iter([100.0, 104.0]), iter(gains)
    return lambda uses: 100.0 / next(worth) if uses else next(bare, 100.0)


def twice(folder: Path, second: list[float], **changes: object) -> tuple[Found, Machine, Found, Machine]:
    levers = [FakeLever("a", 0.6), single("b", 0.5)]
    one, before = search(folder / "1", levers, shaky([2.67, 1.78, 2.62]), budget=78.0)
    two, after = search(folder / "2", levers, shaky(second), budget=100.0, **{**resumed(before), **changes})
    return one, before, two, after


def test_pairs_that_were_too_few_are_said_and_count_when_it_goes_on(tmp_path: Path) -> None:
    """resnet50 on an H100: two pairs, 1.78× and 2.62×, and five levers that were dropped for good."""
    one, _, two, after = twice(tmp_path, [2.2, 2.3, 2.1, 2.2, 2.3, 2.2])
    assert not one.gain and one.pairs == 2 and one.unproved == pytest.approx((1.78, 2.62))
    assert one.dropped["a"].why == (
        "not confirmed yet: 2 pairs were not enough for an interval above 1: 1.78× and 2.62×"
    )
    assert "resuming goes on with them" in one.not_done

    made = [trial for trial in after.done if trial.id not in after.recalled]
    assert {trial.purpose for trial in made} == {"confirm"}, "it goes straight to the confirmation"
    order = "".join("B" if trial.levers else "A" for trial in made)
    assert "ABBAABBA".startswith(order) and two.pairs == 2 + len(made) // 2
    assert two.gain and kept(two) == ["a"] and not two.unproved
    assert "2 of the confirmation's pairs are of an earlier session on this machine" in two.reused
    assert "b" in two.not_done, "b was not tried to its end"


def test_pairs_count_whatever_order_their_levers_are_named_in(tmp_path: Path) -> None:
    """A resumed tune predicts anew, and what it predicts may order a group in another way."""

    def session(folder: Path, ends: tuple[str, ...], gains: list[float], budget: float, **more: Any) -> Any:
        levers = [FakeLever(name, share) for name, share in zip(ends, (0.6, 0.5), strict=True)]
        return search(folder, levers, shaky(gains), budget=budget, **more)

    one, before = session(tmp_path / "1", ("a", "c"), [2.67, 1.78, 2.62], 78.0)
    assert not one.gain and one.pairs == 2
    tried = next(trial for trial in before.done if len(trial.levers) == 2)
    assert [lever.name for lever in tried.levers] == ["a", "c"]

    two, after = session(tmp_path / "2", ("c", "a"), [2.2, 2.3, 2.1, 2.2, 2.3, 2.2], 100.0, **resumed(before))
    made = [trial for trial in after.done if trial.id not in after.recalled]
    assert {trial.purpose for trial in made} == {"confirm"} and two.gain and two.pairs == 2 + len(made) // 2


def test_pairs_of_another_machine_do_not_count(tmp_path: Path) -> None:
    other = records.Environment(hotlap="0", python="3", os="", cpu="another", cores=4, memory_gib=8.0)
    levers = [FakeLever("a", 0.6)]
    _, before = search(tmp_path / "1", levers, shaky([2.67, 1.78, 2.62]), budget=78.0)
    machine = Machine(factors(), tmp_path / "2", confirmed=[t for t in before.done if t.purpose == "confirm"])
    a = [records.Lever(name="a", settings={})]
    assert len(earlier_pairs(machine, (), a)) == 2  # type: ignore[arg-type]
    run = records.Run(command=("x",), cwd="/", environment=other)
    (tmp_path / "2" / "run.json").write_bytes(msgspec.json.encode(run))
    assert earlier_pairs(machine, (), a) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sessions", "pairs"), [("ABBA", 2), ("ABB", 1), ("BBA", 1), ("AB B|A", 1), ("A|BA", 1), ("", 0), ("AA", 0)]
)
def test_pairs_are_neighbours_of_one_session(tmp_path: Path, sessions: str, pairs: int) -> None:
    machine = Machine(factors(a=0.5), tmp_path / "m")
    a = records.Lever(name="a", settings={})
    for letter in sessions.replace(" ", ""):
        if letter == "|":
            machine.session += 1
        else:
            machine.confirmed.append(machine.run("confirm", [a] if letter == "B" else []))
    found = earlier_pairs(machine, (), [a])  # type: ignore[arg-type]
    assert len(found) == pairs and all(not one.levers and two.levers for one, two in found)


def test_a_way_that_is_another_now_is_searched_anew(tmp_path: Path) -> None:
    """The trial that kept it is gone, so that nothing leads to what is to be confirmed."""
    levers = [FakeLever("a", 0.6)]
    _, before = search(tmp_path / "1", levers, shaky([2.67, 1.78, 2.62]), budget=78.0)
    settings = resumed(before)
    settings["earlier"] = [trial for trial in settings["earlier"] if not trial.purpose.startswith("try")]
    two, after = search(tmp_path / "2", levers, shaky([2.3] * 9), budget=400.0, **settings)
    assert after.tries() == ["a"] and two.gain and "2 of the confirmation's pairs" in two.reused[0]


def test_what_was_confirmed_is_searched_on(tmp_path: Path) -> None:
    levers = [single("a", 0.6), single("b", 0.5)]
    one, before = search(tmp_path / "1", levers, factors(a=0.5, b=0.5), budget=70.0)
    assert one.gain and kept(one) == ["a"] and one.not_done
    two, _ = search(tmp_path / "2", levers, factors(a=0.5, b=0.5), budget=400.0, **resumed(before, proved=True))
    assert kept(two) == ["a", "b"] and two.gain and not two.not_done


@pytest.mark.parametrize("budget", [44.0, 50.0, 56.0])
def test_a_machine_that_is_still_makes_pairs_that_can_go_on(tmp_path: Path, budget: float) -> None:
    """The baseline is no A where there is no time for the one that it has to agree with."""
    one, before = search(tmp_path / "1", [FakeLever("a", 0.6)], factors(a=0.5), budget=budget)
    order = "".join("B" if trial.levers else "A" for trial in before.done if trial.purpose == "confirm")
    assert order in ("", "AB") and not one.gain and "resuming goes on" in one.not_done
    two, after = search(tmp_path / "2", [FakeLever("a", 0.6)], factors(a=0.5), budget=100.0, **resumed(before))
    assert two.gain and {trial.purpose for trial in after.done if trial.id not in after.recalled} == {"confirm"}


# what is shown


def test_what_is_shown_is_of_the_runs_nearest_to_the_means(tune: Tune) -> None:
    """The diagnoses, whose phases stand beside the headline's times."""
    bare = iter([160.0, 150.0, 103.0, 100.0, 96.0, 100.0, 104.0, 99.0, 97.0, 101.0])
    fast = iter([80.0, 52.0, 50.5, 47.0, 51.0, 49.0, 50.0, 48.0, 52.0])
    found, machine = tune([FakeLever("a", 0.5)], lambda uses: next(fast) if uses else next(bare))
    made = [trial for trial in machine.done if trial.purpose == "confirm"]
    for diagnosis, mean_ms, with_it in ((found.baseline, found.before_ms, False), (found.tuned, found.after_ms, True)):
        assert diagnosis is not None and mean_ms is not None
        times = [trial.step_ms or 0.0 for trial in made if bool(uses_of(trial.levers)) == with_it]
        assert diagnosis.step_ms == min(times, key=lambda ms: abs(ms - mean_ms))


def test_one_pair_without_a_gain_has_no_interval_and_is_told(tmp_path: Path) -> None:
    """nanoGPT on a busy machine: `the 95% interval of the speed-up is none`."""
    levers = [FakeLever("a", 0.6), single("b", 0.5)]
    for budget in (55.0, 60.0, 65.0, 70.0):
        found, _ = search(tmp_path / f"{budget}", levers, shaky([2.67, *[0.9] * 8]), budget=budget)
        if found.pairs == 1:
            break
    assert found.pairs == 1 and not found.gain
    assert found.dropped["a"].why == "not confirmed: too few pairs for an interval: 0.90×"


# pairs that are held back


@pytest.mark.parametrize(
    ("noise", "speedup", "pairs"),
    [(0.001, 1.1, 2), (0.05, 1.1, 4), (0.05, 1.6, 2), (0.27, 5.0, 3), (0.27, 14.0, 2), (0.2, 1.3, 5), (0.3, 1.05, 3)],
)
def test_as_many_pairs_are_held_back_as_will_show_it(noise: float, speedup: float, pairs: int) -> None:
    """input_bound on an H200, 14 times as fast, once held back three of 50 s and tried nothing for the GPU. The demo on
    a busy machine had three pairs for 1.3 times: 1.10, 1.42 and 1.45 prove nothing."""
    budget = Budget(280.0, lambda: 0.0)
    assert budget.held_pairs() == 3, "while nothing is known"
    budget.noise = noise
    budget.baseline_took(25.0, 5.0)
    budget.best_took(18.0, 5.0, speedup)
    assert budget.held_pairs() == pairs
    assert budget.reserve() == pytest.approx(budget.pairs_s(pairs))


def test_less_is_held_back_while_what_may_win_much_more_is_tried() -> None:
    """A GAN on an H100: three pairs for 1.45 times left no time to try CUDA graphs, with which it was 4 times."""
    now = 0.0
    budget = Budget(285.0, lambda: now)
    budget.noise = 0.049
    budget.baseline_took(17.2, 8.0)
    compiled = records.Lever(name="compile", settings={"mode": "default"})
    budget.best_took(75.6, 68.0, 1.45, [compiled])
    assert (budget.held_pairs(), budget.held_pairs(1.95)) == (3, 2)
    now = 122.0
    budget.afford(likely=1.95)
    with pytest.raises(BudgetSpent):
        budget.afford(likely=1.05)
    assert budget.reserve(0.5) == budget.reserve(), "what may be slower needs no more"


def test_what_a_run_takes_when_it_is_compiled_again() -> None:
    """As on an H100: tiny_gpt's first trial took 51 s, the next one 27, and its runs afterwards 20 to 27."""
    budget = Budget(280.0, lambda: 0.0)
    budget.baseline_took(15.0, 3.0)
    compiled = records.Lever(name="compile", settings={"mode": "default"})
    budget.best_took(51.0, 39.0, 10.0, [compiled])
    assert budget.best_s == 24.0
    budget.best_took(27.0, 15.0, 11.0, [compiled, records.Lever(name="tf32", settings={})])
    assert budget.best_s == 24.0, "what was there already is not saved again"
    budget.best_took(20.0, 15.0, 12.0, [compiled])
    assert budget.best_s == 20.0
    loop = Budget(280.0, lambda: 0.0)
    loop.baseline_took(15.0, 3.0)
    loop.best_took(51.0, 39.0, 10.0, [records.Lever(name="kv-cache", settings={"compile": True})])
    assert loop.best_s == 33.0
