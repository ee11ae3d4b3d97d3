"""Rounds of turns and blocks of switched levers, on a bench that is played."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.experiment import switching as blocks
from hotlap.experiment import turns as module
from hotlap.experiment.switching import CYCLES, LEAST_BLOCK, SETTLING, SideLost, Switching
from hotlap.experiment.turns import LEAST_ROUNDS, ROUNDS, take_turns
from hotlap.records.run import Lever

TF32, BF16 = Lever(name="tf32"), Lever(name="bf16-autocast", settings={"x": 1})


@dataclass(eq=False)
class Side:
    number: int
    step_ms: float = 10.0
    least_steps: int = 1
    measured: Any = field(default_factory=lambda: SimpleNamespace(levers=(TF32,), ended="signal 11"))


class Bench:
    """Its clock runs in turns only. ms: of a step, from side, levers, and how many turns there were."""

    def __init__(self, ms: Any, turn_s: float = 0.5, rows: Any = lambda side: 4.0, lasts: float = math.inf) -> None:
        self.ms, self.turn_s, self.rows, self.lasts = ms, turn_s, rows, lasts
        self.shuffle = Random(3)
        self.listener = SimpleNamespace(step=lambda *_: None)
        self.now, self.order = 0.0, []
        self.blocks: list[int] = []
        self.paused_s: Callable[[int], float] = lambda turns: 0.0
        self.asked: list[tuple[int | None, dict[str, Any] | None]] = []

    def monotonic(self) -> float:
        return self.now

    def turn_steps(self, side: Side, turns: int) -> None:
        return None

    def pauses_s(self, sides: list[Side], turns: int) -> float:
        return self.paused_s(len(self.order)) * len(sides)

    def placed(self, side: Side, wanted: int, turns: int) -> int:
        self.blocks.append(turns)
        return wanted

    def turn(self, side: Side, steps: int | None = None, levers: Any = None, timeout_s: float | None = None) -> Any:
        self.now += self.turn_s
        self.order.append(side.number)
        self.asked.append((steps, levers))
        if len(self.order) > self.lasts:
            return None
        return SimpleNamespace(step_ms=self.ms(side, levers, len(self.order)), rows=self.rows(side))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    """That of the last bench in this list."""
    benches: list[Bench] = []
    time = SimpleNamespace(monotonic=lambda: benches[-1].now)
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(blocks, "time", time)
    return benches


def taken(bench: Bench, clock: list[Bench], **more: Any) -> list[dict[int, float]]:
    clock.append(bench)
    return take_turns(bench, [Side(1), Side(2), Side(3)], **more)  # type: ignore[arg-type, list-item]


def by_number(side: Side, *_: Any) -> float:
    return 10.0 * side.number


def test_each_side_has_one_turn_a_round_in_an_order_drawn_anew(clock: list[Bench]) -> None:
    bench = Bench(by_number)
    assert taken(bench, clock) == [{1: 10.0, 2: 20.0, 3: 30.0}] * ROUNDS
    orders = [tuple(bench.order[at : at + 3]) for at in range(0, len(bench.order), 3)]
    assert all(sorted(order) == [1, 2, 3] for order in orders) and len(set(orders)) >= 4
    assert len({order[0] for order in orders}) == 3


def test_turns_end_when_it_is_enough_or_late_but_not_before_the_fewest(clock: list[Bench]) -> None:
    assert len(taken(Bench(by_number), clock, enough=lambda found: len(found) == 2)) == 2
    assert len(taken(Bench(by_number), clock, seconds=5.0)) == LEAST_ROUNDS
    assert len(taken(Bench(by_number, turn_s=3.0), clock, seconds=10.0)) == 4, "three times as long"
    assert len(taken(Bench(by_number), clock, seconds=15.0)) == 11


def test_a_side_that_ends_ends_the_turns_with_what_is_known(clock: list[Bench]) -> None:
    assert len(taken(Bench(by_number, lasts=10), clock)) == 3


def test_rounds_in_which_one_says_nothing_are_left_out_and_end(clock: list[Bench]) -> None:
    """All steps of a turn were compiled, say."""
    bench = Bench(lambda side, levers, count: None if side.number == 2 and count <= 9 else 10.0)
    assert len(taken(bench, clock)) == ROUNDS and len(bench.order) == 3 * (ROUNDS + 3)
    never = Bench(lambda side, *_: None if side.number == 2 else 10.0)
    assert taken(never, clock, seconds=9.0) == [] and never.now < 2 * 9.0 + 3


@pytest.mark.parametrize(("turns", "rounds"), [(0, LEAST_ROUNDS), (9, LEAST_ROUNDS), (21, 7), (99, ROUNDS)])
def test_turns_end_before_sides_evaluate_where_the_fewest_were_made(
    turns: int, rounds: int, clock: list[Bench]
) -> None:
    bench = Bench(by_number)
    bench.paused_s = lambda made: 20.0 if made >= turns else 0.0
    assert len(taken(bench, clock)) == rounds


def test_turns_end_where_evaluations_take_more_than_is_left(clock: list[Bench]) -> None:
    bench = Bench(by_number)
    bench.paused_s = lambda made: 20.0 if made else 0.0
    assert len(taken(bench, clock, seconds=30.0, most_s=40.0)) == 1
    bench.paused_s = lambda made: 20.0
    assert (
        taken(bench, clock, seconds=30.0, most_s=40.0) == [] and len(taken(bench, clock, seconds=90.0)) == LEAST_ROUNDS
    )


def test_per_row(clock: list[Bench]) -> None:
    bench = Bench(by_number, rows=lambda side: 2.0 * side.number)
    assert taken(bench, clock, per_row=True)[0] == {1: 5.0, 2: 5.0, 3: 5.0}
    assert taken(Bench(by_number, rows=lambda side: None), clock, per_row=True, seconds=3.0) == []


# switching


def switching(bench: Bench, clock: list[Bench]) -> Switching:
    clock.append(bench)
    made = Switching(bench, Side(7))  # type: ignore[arg-type]
    made.known[BF16.name] = BF16
    return made


def half(side: Side, levers: dict[str, Any], count: int) -> float:
    """Drift that all share, and a lever that halves a step."""
    return 10.0 * (1 + 0.01 * count) * (0.5 if BF16.name in levers else 1.0)


def test_blocks_tell_what_a_lever_is_worth(clock: list[Bench]) -> None:
    bench = Bench(half)
    made = switching(bench, clock)
    variants = [(), (BF16.name,), (TF32.name,)]
    made.measure(variants, seconds=1e6)
    assert len(made.cycles) == CYCLES[1]
    ratio = made.ratio((), (BF16.name,))
    assert ratio is not None and ratio.interval is not None and ratio.interval.low < 2.0 < ratio.interval.high
    assert ratio.ratio == pytest.approx(2.0, rel=0.02)
    assert made.ratio((), ("other",)) is None
    assert {tuple(levers) for _, levers in bench.asked} == set(variants)  # type: ignore[arg-type]
    assert all(levers in ({}, {BF16.name: {"x": 1}}, {TF32.name: {}}) for _, levers in bench.asked)
    assert bench.blocks[:4] == [18, 17, 16, 15] and bench.blocks[18:] == [3, 2, 1] * (CYCLES[1] - 6), "before a pause"
    first = [steps for steps, _ in bench.asked[:3]]
    assert first == [SETTLING[0]] * 3, "a variant that is new has a block that says nothing"
    assert all(LEAST_BLOCK <= (steps or 0) <= 76 for steps, _ in bench.asked[3:])


def test_cycles_end_when_it_is_decided_or_late_and_not_before_the_fewest(clock: list[Bench]) -> None:
    made = switching(Bench(half), clock)
    made.measure([(), (BF16.name,)], decided=lambda so_far: True)
    assert len(made.cycles) == CYCLES[0]
    made.measure([(), (BF16.name,)], seconds=0.1)
    assert len(made.cycles) == CYCLES[0], "those of before are gone"
    made.measure([(), (BF16.name,)], decided=lambda so_far: len(so_far.cycles) == 9)
    assert len(made.cycles) == 9
    silent = switching(Bench(lambda side, levers, count: None if levers else 10.0), clock)
    silent.measure([(), (BF16.name,)], seconds=3.0)
    assert silent.cycles == [] and silent.ratio((), (BF16.name,)) is None


def test_a_side_that_is_lost_says_whether_it_came_to_its_end(clock: list[Bench]) -> None:
    with pytest.raises(SideLost) as lost:
        switching(Bench(half, lasts=1), clock).measure([(), (BF16.name,)])
    assert not lost.value.by_itself


def test_settling_waits_for_a_pace(clock: list[Bench]) -> None:
    slow_at_first = Bench(lambda side, levers, count: max(10.0, 5000.0 / 4**count))
    assert switching(slow_at_first, clock).settle((BF16.name,), 60.0) == 10.0
    assert len(slow_at_first.order) == 6
    falling = Bench(lambda side, levers, count: 1000.0 / 2**count, turn_s=3.0)
    assert switching(falling, clock).settle((BF16.name,), 10.0) == pytest.approx(1000.0 / 2**4) and falling.now == 12.0
    slow = Bench(lambda side, levers, count: 2000.0 / 2**count, turn_s=10.0)
    assert switching(slow, clock).settle((BF16.name,), 12.0) == pytest.approx(1000.0) and slow.now == 10.0, "too little"
    assert switching(Bench(lambda *_: None), clock).settle((), 2.0) is None
