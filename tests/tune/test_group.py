"""Several levers in one live process, and the search for settings that are numbers."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import FakeLever, Tune, compiler, factors, kept, starter, worths

from hotlap.tune.starts import next_variant

FIVE = [FakeLever(name, share) for name, share in (("a", 0.5), ("b", 0.4), ("c", 0.3), ("d", 0.2), ("e", 0.1))]
ALL = {"a": 0.5, "b": 0.8, "c": 0.9, "d": 0.9, "e": 0.95}


def test_many_levers_cost_one_start(tune: Tune) -> None:
    """The bare command twice, its second process is the one in which they are switched; then a proof."""
    found, machine = tune(FIVE, factors(**ALL))
    assert sorted(kept(found)) == list("abcde") and len(found.proofs) == 1
    assert [what for what, _ in machine.log if what not in {"switch", "written"}] == [
        "baseline", "baseline", "prove", "prove", "bare",
    ]  # fmt: skip
    assert worths(found) == pytest.approx({name: 1 / factor for name, factor in ALL.items()})
    assert all(one.worth.by == "switching" for one in found.state.kept())


def test_they_go_in_one_on_top_of_the_other(tune: Tune) -> None:
    _, machine = tune(FIVE, factors(**ALL))
    switched = [names for what, names in machine.log if what == "switch"]
    assert switched[:5] == [tuple("abcde"[:at]) for at in range(1, 6)]


def test_passengers_and_brakes_are_taken_out(tune: Tune) -> None:
    found, _ = tune(FIVE, factors(a=0.4, c=1.02, d=0.9))
    assert sorted(kept(found)) == ["a", "d"] and found.proved.ratio == pytest.approx(1 / 0.36)
    assert found.dropped["b"].why == "no gain beside the others" and found.dropped["b"].ratio == pytest.approx(1.0)
    assert found.dropped["c"].why == "slower beside the others" and found.dropped["c"].interval.high < 1


def test_one_slow_cycle_moves_nothing(tune: Tune) -> None:
    turns: list[int] = []

    def hiccup(side: Any, uses: Any) -> float:
        turns.append(1)
        return 20.0 if len(turns) in {25, 60} else 1.0

    found, _ = tune(FIVE[:2], factors(a=0.5, b=0.9), luck=hiccup)
    assert worths(found) == pytest.approx({"a": 2.0, "b": 1 / 0.9}, rel=0.01)


def test_what_comes_from_a_first_call_is_not_counted(tune: Tune) -> None:
    """To compile takes long, once for each set of levers."""
    compile_s = lambda uses: 25.0 * len(uses) if "compile" in uses else 0.0  # noqa: E731
    found, _machine = tune([compiler(), FakeLever("a")], factors(compile=0.5, a=0.9), compile_s=compile_s)
    assert worths(found) == pytest.approx({"a": 1 / 0.9, "compile": 2.0})
    assert found.break_even is not None and found.break_even > 300


def test_levers_that_can_not_be_together_are_not(tune: Tune) -> None:
    found, machine = tune([FakeLever("a", 0.5), FakeLever("b", 0.4, excludes=("a",))], factors(a=0.5, b=0.6))
    assert not [names for what, names in machine.log if {"a", "b"} <= {*names}] and kept(found) == ["a"]


def test_beside_a_graph_nothing_is_switched(tune: Tune) -> None:
    """What it has recorded is fixed."""
    graphs = FakeLever("graphs", 0.5, stage="graphs", switchable=False)
    late = FakeLever("late", 0.4, stage="graphs")
    found, machine = tune([graphs, late, FakeLever("a", 0.3)], factors(graphs=0.5, late=0.8, a=0.8))
    assert sorted(kept(found)) == ["a", "graphs", "late"] and machine.starts("try late") == [("a", "graphs", "late")]
    begins = machine.log.index(("try graphs", ("a", "graphs")))
    assert not [names for what, names in machine.log[begins:] if what == "switch" and "graphs" in names]
    assert all(one.worth.by == "turns" for one in found.state.kept())


@pytest.mark.parametrize("seed", range(8))
def test_two_that_do_the_same_are_not_both_lost(tune: Tune, seed: int) -> None:
    """Each beside the other is worth nothing, a little less or a little more by chance."""
    step = lambda uses: 50.0 if {"tf32", "bf16"} & uses.keys() else 100.0  # noqa: E731
    found, _ = tune([FakeLever("tf32"), FakeLever("bf16")], step, seed=seed, turn_sd=0.01)
    assert found.proved is not None and found.proved.ratio == pytest.approx(2.0, rel=0.05)
    assert kept(found)


def test_a_lever_that_was_slower_before_the_compiler_is_tried_again_beside_it(tune: Tune) -> None:
    """Casts are kernels of their own until something is compiled."""

    def step(uses: Any) -> float:
        if "compile" not in uses:
            return 105.0 if "bf16" in uses else 100.0
        return 30.0 if "bf16" in uses else 50.0

    found, _ = tune([FakeLever("bf16"), compiler()], step)
    assert sorted(kept(found)) == ["bf16", "compile"] and found.proved.ratio == pytest.approx(1 / 0.3)


def test_a_start_fails_twice_and_the_lever_is_given_up(tune: Tune) -> None:
    lever = starter("modes", 0.5, tuple({"mode": n} for n in range(4)))
    found, machine = tune([lever], factors(), outcome=lambda uses: ("crashed", "no") if uses else ("measured", ""))
    assert len(machine.starts("try modes")) == 2 and found.dropped["modes"].why == "crashed: no"


# numbers


def climb(values: dict[int, float], listed: list[int]) -> tuple[list[int], int]:
    """The numbers that are tried, and the best of them."""
    variants = [{"n": n, "pin": True} for n in listed]
    measured: dict[int, float] = {}
    while (at := next_variant(variants, measured, search=True)) is not None and len(measured) < 12:
        measured[at] = values[listed[at]]
    return [listed[at] for at in measured], listed[max(measured, key=lambda at: measured[at])]


def test_the_search_goes_up_while_it_gains_and_stops_where_it_is_flat() -> None:
    values = {1: 1.2, 2: 1.5, 4: 2.0, 8: 2.01, 16: 1.9}
    assert climb(values, [2, 4, 8, 16, 1]) == ([2, 4, 8], 8)


def test_the_search_goes_down_where_more_is_worse() -> None:
    assert climb({1: 1.1, 2: 1.9, 4: 1.5, 8: 1.2}, [4, 8, 2, 1]) == ([4, 8, 2, 1], 2)


def test_settings_that_fail_give_way_to_the_next_of_the_list() -> None:
    assert climb({2: 0.0, 4: 1.5, 8: 1.4}, [2, 4, 8])[1] == 4


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True), st.integers(1, 64), st.integers(5, 60))
def test_no_number_is_tried_twice_and_the_first_is_no_better(listed: list[int], peak: int, slope: int) -> None:
    values = {n: 3.0 * math.exp(-slope / 10 * abs(math.log2(n / peak)) - abs(n - peak) * 0.03) + 1.1 for n in listed}
    tried, best = climb(values, listed)
    assert len(tried) == len(set(tried)) <= len(listed)
    assert values[best] >= values[listed[0]]


def test_a_lever_whose_settings_are_no_number_stops_at_the_first_that_works() -> None:
    variants = [{"mode": "wild"}, {"mode": "tame"}]
    assert next_variant(variants, {}, search=False) == 0
    assert next_variant(variants, {0: 0.0}, search=False) == 1
    assert next_variant(variants, {0: 1.5}, search=False) is None
    assert next_variant(variants, {0: 0.0, 1: 0.0}, search=False) is None
