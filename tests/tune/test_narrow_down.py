"""What is proved with a wide interval gets more starts, where there is time."""

from typing import Any

import pytest
from machine import FakeLever, FakeSide, Tune, Uses, compiler, factors, kept, starter

from hotlap.experiment.evidence import Evidence
from hotlap.experiment.statistics import half_width

WIDE: dict[str, Any] = {"process_sd": 0.06, "budget": 3000.0, "seed": 5}
LEVERS = [FakeLever("a", 0.8)]
STEP = factors(a=0.3)
SAME, OTHER = (tuple((start - 0.01 * n,) for n in range(40)) for start in (2.0, 3.0))


def with_levers(machine: Any) -> list[FakeSide]:
    return [side for side in machine.sides if side.purpose == "prove"]


def test_a_wide_interval_is_narrowed_by_more_starts_of_the_same_comparison(tune: Tune) -> None:
    found, machine = tune(LEVERS, STEP, **WIDE)
    (proof,) = found.proofs
    assert proof is found.proved and proof.starts == len(with_levers(machine)) > 2
    first = [line for line in machine.told("proved") if "2 starts" in line]
    assert len(first) == 1 and f"{proof.starts} starts" in machine.told("proved")[-1]
    assert proof.before_ms / proof.after_ms == proof.ratio
    assert half_width(proof.interval) <= 0.05 or proof.starts == 8


@pytest.mark.parametrize("cores", [4, 16])
def test_starts_that_narrow_it_come_on_both_sides(tune: Tune, cores: int) -> None:
    """Of few of the bare command the interval would stay wide; those that were added end after their turns."""
    found, machine = tune(LEVERS, STEP, cores=cores, **WIDE)
    first = found.proofs[0]
    assert first.starts > 4 and first.bare_starts > 4
    alive = [side for side in machine.sides if side.alive]
    assert len(alive) <= 4 + 1, "the bare command's of the first looks, and the best set's"


def test_a_narrow_one_gets_none(tune: Tune) -> None:
    found, machine = tune(LEVERS, STEP, budget=3000.0)
    assert found.proved.starts == len(with_levers(machine)) == 2


def test_a_pace_that_changed_while_it_was_proved_is_not_the_gain(tune: Tune) -> None:
    """Seen beside other work: turns of a minute told 92 times, with an interval from 70 on; those before it 16."""
    proving: list[int] = []

    def luck(side: FakeSide, uses: Uses) -> float:
        proving.extend([side.number] * (side.purpose == "prove"))
        return 5.0 if proving and not uses else 1.0

    found, _ = tune(LEVERS, factors(a=0.2), luck=luck, budget=200.0)
    (proof,) = found.proofs
    before, then = proof.paces
    assert then == pytest.approx(5 * before, rel=0.1)
    assert proof.ratio == proof.interval.low == pytest.approx(5.0, rel=0.1) and proof.interval.high > 20
    assert proof.before_ms == pytest.approx(before, rel=0.1)


def test_a_long_search_leaves_time_for_it(tune: Tune) -> None:
    """Levers that win nothing would take all of it."""
    vain = [starter(f"vain{number}", 0.5, stage="graphs") for number in range(40)]
    found, _ = tune([*LEVERS, *vain], STEP, **{**WIDE, "budget": 400.0})
    assert found.proved.starts > 2
    assert found.not_done[0].startswith("the budget ended the search; not tried: ")


def test_without_time_the_first_proof_stands(tune: Tune) -> None:
    found, machine = tune(LEVERS, STEP, **{**WIDE, "budget": 75.0})
    assert found.proved.starts == len(with_levers(machine)) == 2


def test_what_more_starts_contradict_is_not_proved_any_more(tune: Tune) -> None:
    luck = lambda side, uses: 9.0 if side.purpose == "prove" and side is not first_two(side) else 1.0  # noqa: E731
    numbers: list[int] = []

    def first_two(side: FakeSide) -> FakeSide | None:
        if side.number not in numbers:
            numbers.append(side.number)
        return side if side.number in numbers[:2] else None

    found, machine = tune(LEVERS, STEP, luck=luck, **WIDE)
    (proof,) = found.proofs
    assert found.proved is None and not proof.proved and proof.starts > 2 and kept(found) == []
    assert found.unproved.levers == proof.levers and found.unproved.ratio == proof.ratio
    assert machine.told("open")[-1].startswith("open  a  ")


def test_what_learns_something_else_in_a_later_start_is_no_recipe(tune: Tune) -> None:
    """Parity is judged on every start."""
    judged: list[bool] = []

    def evidence(uses: Uses) -> Evidence:
        judged.append(bool(uses))
        return Evidence(OTHER if uses and sum(judged) > 2 else SAME)

    found, _ = tune(LEVERS, STEP, evidence_of=evidence, **WIDE)
    assert found.proved is None and found.unproved is None and not any(proof.proved for proof in found.proofs)
    assert "one more start did not confirm it: parity" in found.dropped["a"].why


def test_a_later_start_that_crashes_is_told(tune: Tune) -> None:
    starts: list[Uses] = []

    def outcome(uses: Uses) -> tuple[str, str]:
        starts.append(uses) if uses else None
        return ("crashed", "ValueError: now and then") if len(starts) > 2 and uses else ("measured", "")

    found, _ = tune(LEVERS, STEP, outcome=outcome, **WIDE)
    assert found.proved is not None and found.proved.starts == 2
    assert found.not_done == ["one more start with the levers failed: crashed: ValueError: now and then"]


def test_the_proof_that_stands_is_the_one_that_gets_them(tune: Tune) -> None:
    """Though a later one, of a larger set, came to nothing."""
    worse = lambda side, uses: 6.0 if any(use.name == "b" for use in side.requested) else 1.0  # noqa: E731
    found, _ = tune([*LEVERS, compiler("b")], factors(a=0.3, b=0.5), luck=worse, **WIDE)
    first, later = found.proofs[0], found.proofs[-1]
    assert first is found.proved and first.starts > 2 and [use.name for use in first.levers] == ["a"]
    assert later is not first and not later.proved and kept(found) == ["a"]
