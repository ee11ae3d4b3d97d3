"""Memory and cost as what is made smaller, steps of another size, and commands that run out of memory by themselves."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine import FakeLever, Tune, Uses, factors, kept, made, run, starter, worths

from hotlap.experiment.evidence import Evidence
from hotlap.records.errors import CommandFailed, NothingMeasured, UsageError
from hotlap.records.ran_out import MemoryChange
from hotlap.records.tune import Trial
from hotlap.tune.objective import TuneRequest, costs, peak_bytes
from hotlap.tune.tune import check

MIB = 2**20


def saver(name: str, **more: Any) -> FakeLever:
    """In the order in which they are defined: `memory_order`."""
    order = {"allocator": 0, "cheap": 10, "checkpoint-blocks": 70, "activation-offload": 80, "dear": 90}.get(name, 100)
    return FakeLever(name, 0.0, saves_memory=True, memory_order=order, **more)


def trial(step_ms: float = 100.0, rows: float | None = 32.0, peak: int | None = None, rss: int | None = None) -> Trial:
    return Trial(
        id=0, purpose="", levers=(), folder="", outcome="measured", step_ms=step_ms, rows=rows,
        peak_memory_bytes=peak, peak_rss_bytes=rss,
    )  # fmt: skip


# memory


def peaks(**each: float) -> Callable[[Uses], float]:
    """MiB of a command of 1000, each lever a factor."""

    def peak_mib(uses: Uses) -> float:
        mib = 1000.0
        for name in uses:
            mib *= each.get(name, 1.0)
        return mib

    return peak_mib


def test_memory_is_made_smaller_within_the_slowdown(tune: Tune) -> None:
    levers = [saver("dear"), saver("cheap"), saver("idle"), FakeLever("fast", 0.9)]
    found, machine = tune(
        levers, factors(dear=1.3, cheap=1.05, fast=0.5), peak_mib=peaks(dear=0.3, cheap=0.7),
        objective="memory", slowdown=0.1,
    )  # fmt: skip
    assert kept(found) == ["cheap"] and found.proved.ratio == pytest.approx(1 / 1.05)
    assert found.memory == (1000 * MIB, 700 * MIB) and found.proved.how == "turns"
    assert found.dropped["fast"].why == "saves no memory" and "700 MiB" in "\n".join(machine.said)
    assert machine.log.index(("try cheap", ("cheap",))) < machine.log.index(("try dear", ("cheap", "dear")))


def test_of_one_that_saves_memory_and_is_too_slow_that_is_told(tune: Tune) -> None:
    """It saved 70%: 'slower' says what was wrong, 'no gain' would not."""
    found, _ = tune([saver("dear"), saver("idle")], factors(dear=1.3), peak_mib=peaks(dear=0.3), objective="memory")
    assert kept(found) == [] and "slower" in found.dropped["dear"].why and found.dropped["dear"].ratio < 1
    assert found.dropped["idle"].why == "no gain"


def test_the_slowdown_is_that_of_all_levers_together(tune: Tune) -> None:
    """Each is within 10%, both are not."""
    found, _ = tune(
        [saver("cheap"), saver("dear")], factors(cheap=1.08, dear=1.08), peak_mib=peaks(cheap=0.7, dear=0.7),
        objective="memory", slowdown=0.1,
    )  # fmt: skip
    assert kept(found) == ["cheap"] and found.memory == (1000 * MIB, 700 * MIB)


def test_a_larger_slowdown_allows_more(tune: Tune) -> None:
    levers = [saver("dear"), saver("cheap")]
    found, _ = tune(
        levers, factors(dear=1.3, cheap=1.05), peak_mib=peaks(dear=0.3, cheap=0.7),
        objective="memory", slowdown=0.5,
    )  # fmt: skip
    assert sorted(kept(found)) == ["cheap", "dear"] and found.memory[1] == pytest.approx(210 * MIB)


def test_one_that_is_worth_time_is_no_worthless_one_where_memory_counts(tune: Tune) -> None:
    """Each of two levers saves half of the memory for 5% of the time. Neither goes out since a step is shorter without
    it: their worth in time is not what they are there for."""
    found, _ = tune(
        [saver("cheap", switchable=True), saver("dear", switchable=True)], factors(dear=1.04, cheap=1.04),
        peak_mib=peaks(dear=0.5, cheap=0.5), objective="memory", slowdown=0.5,
    )  # fmt: skip
    assert sorted(kept(found)) == ["cheap", "dear"] and found.memory[1] == pytest.approx(250 * MIB)


def test_the_setting_that_saves_most_is_searched(tune: Tune) -> None:
    lever = saver("checkpoint-blocks", choices=tuple({"every": n} for n in (4, 2, 1)))
    found, _ = tune(
        [lever], lambda uses: 100.0,
        peak_mib=lambda uses: 1000.0 * (0.5 + uses["checkpoint-blocks"]["every"] / 10 if uses else 1.0),
        objective="memory",
    )  # fmt: skip
    assert [one.settings for one in found.state.kept()] == [{"every": 1}]


def test_what_saves_no_memory_from_fresh_starts_is_not_kept(tune: Tune) -> None:
    seen: list[int] = []

    def peak_mib(uses: Uses) -> float:
        seen.append("a" in uses)
        return 500.0 if "a" in uses and sum(seen) < 2 else 1000.0

    found, _ = tune([saver("a")], factors(), peak_mib=peak_mib, objective="memory")
    assert kept(found) == [] and found.proved is None and "less than 2% of memory" in found.proofs[0].why
    assert "memory" in found.dropped["a"].why, "it is no gain of memory that was looked for"


def test_memory_that_is_not_known_is_no_objective() -> None:
    assert peak_bytes(trial(peak=3, rss=5)) == 3 and peak_bytes(trial(rss=5)) == 5
    with pytest.raises(NothingMeasured, match="memory use is unknown"):
        peak_bytes(trial())


# cost, and steps of another size


def test_cost_is_time_by_the_price() -> None:
    told = costs(3.6, [trial(100.0)] * 3, [trial(50.0)] * 3, 2.0)
    assert told["cost_before"] == pytest.approx(3.6 / 3600 * 0.1 / 32 * 1e6)
    assert told["cost_after"] == pytest.approx(told["cost_before"] / 2) and told["cost_unit"] == "rows"
    steps = costs(3.6, [trial(100.0, rows=None)], [trial(50.0)], 2.0)
    assert steps["cost_unit"] == "steps" and steps["cost_before"] == pytest.approx(3.6 / 3600 * 0.1 * 1e6)
    assert costs(None, [trial()], [trial()], 1.0) == {}


def test_the_cost_of_a_recipe_stands_beside_that_of_the_bare_command(tune: Tune) -> None:
    found, _ = tune([FakeLever("a", 0.5)], factors(a=0.5), objective="cost", price=2.0)
    assert found.costs["cost_after"] == pytest.approx(found.costs["cost_before"] / 2) and kept(found) == ["a"]


def test_steps_that_hold_more_rows_are_compared_by_the_row(tune: Tune) -> None:
    """Twice the rows in 1.5 times the time; their losses say nothing, and are not compared."""
    lever = starter("batch-size", 0.5, risk="semantic", resizes_step=True)
    found, _ = tune(
        [lever], factors(**{"batch-size": 1.5}), allow=("semantic",), rows=lambda uses: 64.0 if uses else 32.0,
        evidence_of=lambda uses: Evidence(tuple((float(k),) for k in range(40))) if uses else Evidence(((1.0,),) * 40),
    )  # fmt: skip
    assert kept(found) == ["batch-size"] and found.proved.ratio == pytest.approx(2 / 1.5)
    assert worths(found) == pytest.approx({"batch-size": 2 / 1.5})
    assert found.proved.parity.level == "semantic" and "not compared" in found.proved.parity.why


# a command that runs out of memory


def out_of_memory_over(limit_mib: float, **each: float) -> dict[str, Any]:
    """A device of so many MiB, for a command that needs 1000."""
    needs = peaks(**each)

    def outcome(uses: Uses) -> tuple[str, str]:
        fits = needs(uses) <= limit_mib
        return ("measured", "") if fits else ("memory", "torch.OutOfMemoryError: CUDA out of memory")

    return {"outcome": outcome, "peak_mib": needs}


SAVERS = [saver("allocator"), saver("checkpoint-blocks"), saver("activation-offload"), FakeLever("fast", 0.5)]


def fitted(found: Any) -> list[str]:
    return [one.lever for one in found.fitted]


def test_levers_are_added_cheapest_first_until_it_fits(tune: Tune) -> None:
    found, machine = tune(
        SAVERS, factors(fast=0.5), **out_of_memory_over(600, **{"allocator": 0.95, "checkpoint-blocks": 0.5})
    )
    assert machine.starts("fit") == [("allocator",), ("allocator", "checkpoint-blocks"), ("checkpoint-blocks",)]
    assert fitted(found) == ["checkpoint-blocks"] and "fit  allocator is not needed" in machine.said
    assert kept(found) == ["fast"] and found.proved.ratio == pytest.approx(2.0)
    assert {*machine.starts("prove")} == {("checkpoint-blocks", "fast")}
    assert {*machine.starts("bare")} <= {("checkpoint-blocks",)}


@pytest.mark.parametrize(
    ("phase", "activations_mib", "order"),
    [
        ("forward", 900, ["checkpoint-blocks", "allocator"]),  # which alone gives enough
        ("forward", 100, ["allocator", "checkpoint-blocks"]),  # nothing does
    ],
)
def test_levers_that_give_enough_come_first(
    phase: str, activations_mib: int, order: list[str], tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (
        MemoryChange(
            what="", lever="checkpoint-blocks", gives_bytes=activations_mib << 20, enough=activations_mib > 500
        ),
    )
    monkeypatch.setattr("hotlap.tune.fit.every_change", lambda run, environment: (given, 500 << 20))
    savers = [saver("allocator", frees={"fragmentation": 1.0}), saver("checkpoint-blocks", frees={"activations": 0.8})]
    found, machine = tune(savers, factors(), **out_of_memory_over(600, **{"checkpoint-blocks": 0.5}))
    assert machine.starts("fit")[0] == (order[0],) and fitted(found) == ["checkpoint-blocks"]
    assert len(machine.starts("fit")) == (1 if activations_mib > 500 else 3)


def test_where_nothing_makes_it_fit_the_changes_are_told(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    half = MemoryChange(what="batches of 1/2 of the rows", gives_bytes=1 << 30, costs="other updates", enough=True)
    monkeypatch.setattr("hotlap.tune.fit.every_change", lambda run, environment: ((half,), 500 << 20))
    with pytest.raises(
        CommandFailed, match="What leaves more memory: batches of 1/2 of the rows: gives about 1 GiB, c"
    ):
        tune(SAVERS, factors(), **out_of_memory_over(1))


def test_what_is_written_at_a_proof_has_the_levers_without_which_it_does_not_run(tune: Tune, tmp_path: Path) -> None:
    """Else a recipe that was written before Ctrl-C, or before `kill -9`, runs out of memory."""
    more = out_of_memory_over(600, **{"checkpoint-blocks": 0.5})
    one, machine = made(tmp_path / "m", SAVERS, factors(fast=0.5), **more)
    written: list[list[str]] = []
    one.state.on_proof = lambda: written.append(fitted(one.found))
    run(one, machine)
    assert written == [["checkpoint-blocks"]]


def test_where_memory_holds_but_one_side_the_reason_is_told(tune: Tune) -> None:
    more = out_of_memory_over(600, **{"checkpoint-blocks": 0.5})
    found, machine = tune(SAVERS, factors(fast=0.5), room=1, **more)
    assert fitted(found) == ["checkpoint-blocks"] and kept(found) == ["fast"]
    assert found.proved.how == "one after another" and found.proved.ratio == pytest.approx(2.0)
    (said,) = machine.told("one after another")
    assert "memory" in said and "ends by itself" not in said


def test_two_that_are_both_needed_stay(tune: Tune) -> None:
    found, _ = tune(SAVERS, factors(), **out_of_memory_over(400, **{"allocator": 0.6, "checkpoint-blocks": 0.6}))
    assert fitted(found) == ["allocator", "checkpoint-blocks"]
    assert kept(found) == [] and found.baseline is not None


def test_a_stronger_setting_comes_before_another_lever(tune: Tune) -> None:
    lever = saver("checkpoint-blocks", choices=({"every": 4}, {"every": 1}))

    def outcome(uses: Uses) -> tuple[str, str]:
        return ("measured", "") if uses.get("checkpoint-blocks") == {"every": 1} else ("memory", "out of memory")

    found, _ = tune([saver("activation-offload"), lever], factors(), outcome=outcome)
    assert [(one.lever, one.settings) for one in found.fitted] == [("checkpoint-blocks", {"every": 1})]


def test_one_that_crashes_on_the_way_is_left_out(tune: Tune) -> None:
    def outcome(uses: Uses) -> tuple[str, str]:
        if "allocator" in uses:
            return "crashed", "no"
        return ("measured", "") if "checkpoint-blocks" in uses else ("memory", "out of memory")

    found, _ = tune(SAVERS, factors(), outcome=outcome)
    assert fitted(found) == ["checkpoint-blocks"] and "crashed" in found.dropped["allocator"].why


def test_what_the_kept_levers_make_needless_is_let_go(tune: Tune) -> None:
    """It computes everything twice, and bfloat16 alone would have made it fit."""
    levers = [saver("allocator"), FakeLever("half", 0.5), saver("checkpoint-blocks")]
    found, _ = tune(
        levers, factors(**{"half": 0.5, "checkpoint-blocks": 1.3}),
        **out_of_memory_over(600, **{"half": 0.5, "checkpoint-blocks": 0.5}),
    )  # fmt: skip
    assert kept(found) == ["half"] and found.fitted == []
    assert "fits without it, with the levers that were kept" in found.dropped["checkpoint-blocks"].why
    assert found.proved.ratio == pytest.approx(1.3 / 0.5), "against the command with checkpointing, which is what runs"


def test_what_was_let_go_is_back_where_that_is_not_proved(tune: Tune) -> None:
    """Else the recipe would hold less than the command needs to run."""
    levers = [FakeLever("half", 0.5), saver("checkpoint-blocks")]
    found, machine = tune(
        levers, factors(half=0.5), **out_of_memory_over(600, **{"half": 0.5, "checkpoint-blocks": 0.5}),
        luck=lambda side, uses: 1.9 if side.purpose == "prove" and "checkpoint-blocks" not in uses else 1.0,
    )  # fmt: skip
    assert machine.told("fits  without checkpoint-blocks too")
    assert kept(found) == ["half"] and fitted(found) == ["checkpoint-blocks"]
    assert "checkpoint-blocks" not in found.dropped, "it is in"


def test_a_command_that_nothing_makes_fit(tune: Tune) -> None:
    with pytest.raises(CommandFailed, match=r"OutOfMemory.*even with allocator, checkpoint-blocks, activation-offload"):
        tune(SAVERS, factors(), **out_of_memory_over(10.0))


def test_levers_left_out_by_hand_are_not_used_to_fit(tune: Tune) -> None:
    with pytest.raises(CommandFailed, match="no lever that saves memory can be used"):
        tune(SAVERS, factors(), only=("fast",), **out_of_memory_over(600, **{"checkpoint-blocks": 0.5}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objective": "cost"}, "needs --price"),
        ({"price": 0.0}, "not a price"),
        ({"price": float("nan")}, "not a price"),
        ({"slowdown": -0.1}, "not between 0 and 10"),
        ({"slowdown": float("inf")}, "not between 0 and 10"),
        ({"only": ("no-such",)}, "no lever 'no-such'"),
    ],
)
def test_requests_that_make_no_sense(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(TuneRequest(command=(sys.executable,), cwd=str(tmp_path), **changes))
