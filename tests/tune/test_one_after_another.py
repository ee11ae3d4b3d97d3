"""Where two sides can't be alive at once: memory holds one, or the script ends by itself."""

from typing import Any

import pytest
from machine import BY_ITSELF, FakeLever, Tune, compiler, factors, kept, starter, worths

LEVERS = [FakeLever("a", 0.6), starter("s", 0.5), FakeLever("vain", 0.4), compiler()]
STEP = factors(a=0.7, s=0.6, compile=0.8)


@pytest.mark.parametrize("how", [{"room": 1}, {"length": 20}, {"length": 26}, {"length": 60}], ids=str)
def test_one_after_another(tune: Tune, how: dict[str, Any]) -> None:
    found, machine = tune(LEVERS, STEP, **how)
    (said,) = machine.told("one after another")
    if "room" in how:
        assert "memory" in said, said
    assert sorted(kept(found)) == ["a", "compile", "s"] and [*found.dropped] == ["vain"]
    assert found.proved.how == "one after another" and found.proved.ratio == pytest.approx(1 / 0.336)
    assert found.proved.interval.low > 1 and found.proved.starts >= 3 and found.proved.turns == 0
    assert not machine.alive()


@pytest.mark.parametrize("length", [30, 40, 55, 75, 100, 130, 200, 300, 500, 800, 1300])
def test_a_script_that_ends_whenever_it_does(tune: Tune, length: int) -> None:
    """In its first turns, while levers are switched, in a proof: no lever is blamed, and what helps is found."""
    found, _machine = tune(LEVERS, STEP, length=length)
    assert not [name for name, one in found.dropped.items() if BY_ITSELF in one.why], "no lever is at fault"
    assert sorted(kept(found)) == ["a", "compile", "s"] and [*found.dropped] == ["vain"]


@pytest.mark.parametrize("length", [26, None])
def test_turns_are_planned_by_what_they_took(length: int | None, tune: Tune) -> None:
    """Seen on a public script that ended in its first: all the budget was set aside for turns that never came."""
    found, _ = tune(LEVERS, STEP, **({"length": length} if length else {}))
    assert 0.5 < found.state.budget.turn_s < 1.5


@pytest.mark.parametrize("length", [55, 75, 100, 130])
def test_what_could_not_be_switched_in_time_is_tried_before_what_compiles(length: int, tune: Tune) -> None:
    """Seen on a public BERT of 100 steps: casts that won 2.4x "were not tried", as a compiler was tried first."""
    levers = [FakeLever("a", 0.6), FakeLever("vain", 0.5), FakeLever("b", 0.5), compiler("whole", costs_s=1000.0)]
    found, _ = tune(levers, factors(a=0.5, b=0.8), length=length, budget=500.0)
    assert sorted(kept(found)) == ["a", "b"] and "no gain" in found.dropped["vain"].why


def test_where_memory_holds_two(tune: Tune) -> None:
    found, machine = tune(LEVERS, STEP, room=2)
    assert sorted(kept(found)) == ["a", "compile", "s"] and found.proved.ratio == pytest.approx(1 / 0.336)
    assert found.proved.how == "one after another" and "several do not fit in memory" in machine.told("one after")[0]


def test_where_memory_holds_four(tune: Tune) -> None:
    """Of the bare command two, and two for the proof."""
    found, _machine = tune(LEVERS, STEP, room=4)
    assert sorted(kept(found)) == ["a", "compile", "s"] and found.proved.how == "turns"


def test_failed_proofs_do_not_fill_the_memory(tune: Tune) -> None:
    """Sides that nobody needs any more would be in the way of the next."""
    bad = lambda side, uses: 2.0 if side.purpose == "prove" and "bad" in uses and "a" not in uses else 1.0  # noqa: E731
    levers = [starter("bad", 0.9), compiler("a")]
    found, machine = tune(levers, factors(bad=0.5, a=0.5), room=6, luck=bad)
    assert kept(found)[-1] == "a" and found.proved.how == "turns", machine.said


def test_a_side_for_which_there_is_no_room_is_no_levers_fault(tune: Tune) -> None:
    found, _ = tune(
        [starter(name, 0.9 - at / 10) for at, name in enumerate("abcd")], factors(a=0.8, b=0.8, c=0.8, d=0.8), room=3
    )
    assert sorted(kept(found)) == list("abcd") and not found.dropped


@pytest.mark.parametrize("how", [{"room": 1}, {"length": 20}], ids=str)
def test_what_is_measured_of_two_runs_has_no_interval(tune: Tune, how: dict[str, Any]) -> None:
    found, _ = tune([starter("a", 0.6), starter("b", 0.5)], factors(a=0.7, b=0.7), **how)
    assert worths(found) == pytest.approx({"a": 1 / 0.7, "b": 1 / 0.7})
    assert all(one.worth.interval is None and one.worth.by == "one after another" for one in found.state.kept())


def test_the_bare_command_that_does_not_run_beside_itself(tune: Tune) -> None:
    """A port in use, say."""
    starts: list[int] = []

    def outcome(uses: Any) -> tuple[str, str]:
        starts.append(1)
        return ("crashed", "address in use") if len(starts) in {2, 3} else ("measured", "")

    found, machine = tune([FakeLever("a")], factors(a=0.5), outcome=outcome)
    assert kept(found) == ["a"] and found.proved.how == "one after another"
    assert "two runs at the same time failed: crashed: address in use" in machine.told("one after another")[0]


@pytest.mark.parametrize("crashes", range(1, 8))
def test_a_start_that_comes_to_nothing_by_chance_is_made_again(tune: Tune, crashes: int) -> None:
    """Seen: two processes that began in one second wanted a folder of one name."""
    starts: list[int] = []

    def outcome(uses: Any) -> tuple[str, str]:
        starts.append(1)
        return ("crashed", "it exists") if len(starts) == crashes else ("measured", "")

    found, _ = tune([FakeLever("a")], factors(a=0.5), outcome=outcome)
    assert kept(found) == ["a"] and found.proved.how == "turns"


def test_the_reference_that_ends_during_the_tune_is_replaced(tune: Tune) -> None:
    dead: list[int] = []

    def dies(uses: Any, turns: Any) -> str:
        return ""

    levers = [starter("a", 0.6), compiler()]
    found, _machine = tune(levers, factors(a=0.5, compile=0.5), dies=dies, length=220)
    assert sorted(kept(found)) == ["a", "compile"] and not dead
    assert found.proved.ratio == pytest.approx(4.0)


def test_noise_is_judged_by_pairs(tune: Tune) -> None:
    proved = [
        tune([starter("a")], factors(a=factor), room=1, process_sd=0.02, seed=seed, budget=1200.0)[0].proved is not None
        for factor in (1.0, 0.7)
        for seed in range(30)
    ]
    assert sum(proved[:30]) <= 1 and sum(proved[30:]) >= 28
