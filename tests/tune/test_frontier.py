"""Memory against time: what no other set of levers beats in both."""

from typing import Any

from machine import FakeLever, Tune, factors

from hotlap.records.run import Lever
from hotlap.records.tune import Trial
from hotlap.tune.frontier import frontier


def trial(number: int, step_ms: float, mib: int, *levers: str, **more: Any) -> Trial:
    uses = tuple(Lever(name=name) for name in levers)
    return Trial(**{
        "id": number, "purpose": "try", "levers": uses, "folder": "", "outcome": "measured", "step_ms": step_ms,
        "peak_memory_bytes": mib << 20, **more,
    })  # fmt: skip


def test_the_frontier_of_memory_against_time() -> None:
    known = {"half", "offload", "worse", "parts"}
    found = frontier(
        [
            trial(0, 10.0, 1000), trial(1, 12.0, 1000), trial(2, 14.0, 1000, "worse"), trial(3, 30.0, 200, "offload"),
            trial(4, 9.0, 600, "half"), trial(5, 5.0, 100, "smaller"), trial(6, 1.0, 1, "half", outcome="crashed"),
            trial(7, 12.0, 400, "parts"),
        ],
        known,
    )  # fmt: skip
    assert [([one.name for one in point.levers], point.step_ms, point.starts) for point in found] == [
        (["half"], 9.0, 1), (["parts"], 12.0, 1), (["offload"], 30.0, 1)
    ]  # fmt: skip


def test_a_step_of_other_rows_counts_by_its_rows() -> None:
    found = frontier([trial(0, 10.0, 1000, rows=32.0), trial(1, 6.0, 500, "parts", rows=16.0)], {"parts"})
    assert [point.step_ms for point in found] == [10.0, 12.0]
    assert frontier([], {"parts"}) == ()


def test_the_frontier_is_in_the_result(tune: Tune) -> None:
    more = {"objective": "memory", "slowdown": 0.3}

    def peak(uses: Any) -> float:
        return 500.0 if "offload" in uses else 1000.0

    _, machine = tune(
        [FakeLever("offload", 0.0, saves_memory=True, memory_order=80)], factors(offload=1.2), peak_mib=peak, **more
    )
    points = frontier(machine.done, {"offload"})
    assert [[one.name for one in point.levers] for point in points] == [[], ["offload"]]
