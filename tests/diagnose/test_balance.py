"""The rank that the others wait for, from phases alone."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.diagnose.balance import late_rank, straggler, without_the_wait, without_waiting
from hotlap.records.diagnosis import Bound, Finding
from hotlap.records.run import Phases, Step


def step(number: int = 0, gpu: bool = False, **times: float) -> Step:
    wall = sum(times.values())
    device = {"gpu_phases": Phases(**times), "gpu_ms": wall} if gpu else {}
    return Step(
        step=number, time=float(number), wall_ms=wall, phases=Phases(**({"other": wall} if gpu else times)), **device
    )


def rank(count: int = 10, gpu: bool = False, **times: float) -> list[Step]:
    return [step(at, gpu, **times) for at in range(count)]


FAST = {"data": 2.0, "forward": 8.0, "backward": 90.0}


@pytest.mark.parametrize(("phase", "late"), [("data", 70.0), ("h2d", 68.0), ("forward", 76.0)])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_rank_with_more_work_of_its_own_is_named(phase: str, late: float, gpu: bool) -> None:
    slow = {"data": 2.0, "forward": 8.0, phase: late}
    slow["backward"] = 100 - sum(slow.values())
    found = straggler([rank(gpu=gpu, **FAST), rank(gpu=gpu, **slow), rank(gpu=gpu, **FAST)])
    assert found is not None and (found.index, found.phase) == (1, phase)
    assert found.ms == pytest.approx(68.0) and found.share == pytest.approx(0.68)


def test_no_rank_is_named_where_none_is_late() -> None:
    assert straggler([rank(**FAST)]) is None
    assert straggler([rank(**FAST), rank(**FAST)]) is None
    assert straggler([rank(**FAST), rank(data=11.0, forward=8.0, backward=81.0)]) is None  # 9% of the step
    assert straggler([rank(**FAST), []]) is None


def test_ranks_of_unequal_steps_do_not_wait_for_each_other() -> None:
    assert straggler([rank(**FAST), rank(data=70.0, forward=8.0, backward=40.0)]) is None


def test_another_rank_late_in_each_step_is_no_straggler() -> None:
    slow = {"data": 60.0, "forward": 8.0, "backward": 32.0}
    turns = [[step(at, **(slow if at % 3 == me else FAST)) for at in range(30)] for me in range(3)]
    assert straggler(turns) is None


@settings(max_examples=50)
@given(st.integers(2, 6), st.integers(0, 5), st.floats(15, 80), st.integers(0, 99))
def test_the_planted_rank_is_found_under_noise(world: int, which: int, late: float, seed: int) -> None:
    draw, which = random.Random(seed), which % world

    def times(mine: bool) -> dict[str, float]:
        data = 2 + draw.uniform(0, 2) + late * mine
        return {"data": data, "forward": 8.0, "backward": 100 - 8 - data}

    found = straggler([[step(at, **times(me == which)) for at in range(12)] for me in range(world)])
    assert found is not None and found.index == which
    assert found.ms == pytest.approx(late, abs=2.0)


def one(bound: Bound, share: float) -> Finding:
    return Finding(id=str(bound), bound=bound, share=share)


def test_what_the_straggler_explains_is_not_said_twice() -> None:
    late = straggler([rank(**FAST), rank(data=70.0, forward=8.0, backward=22.0)])
    assert late is not None
    waits = without_the_wait([one("input", 0.02), one("compute", 0.98)], late, mine=False)
    assert [found.share for found in waits] == pytest.approx([0.02, 0.30])
    itself = without_the_wait([one("input", 0.70), one("compute", 0.30)], late, mine=True)
    assert [found.share for found in itself] == pytest.approx([0.02, 0.30])
    said = late_rank(late, 1, None)
    assert (said.bound, said.cost_ms, said.share) == ("communication", pytest.approx(68.0), pytest.approx(0.68))
    assert "rank 1" in said.title and "data takes 70.0 ms there, on the others 2.00 ms" in said.evidence


def test_a_host_that_runs_ahead_of_its_waiting_device_is_in_step() -> None:
    """NCCL: the host of the rank that waits issues its steps at once; on the device they are as long as the others'."""
    ahead = [msgspec.structs.replace(one, wall_ms=2.0) for one in rank(gpu=True, **FAST)]
    slow = rank(gpu=True, data=70.0, forward=8.0, backward=22.0)
    found = straggler([ahead, slow])
    assert found is not None and (found.index, found.phase) == (1, "data")
    assert found.share == pytest.approx(0.68)


def test_device_time_that_another_rank_does_not_need_is_waiting() -> None:
    waits, works = Phases(forward=10.0, backward=80.0, optimizer=10.0), Phases(forward=10.0, backward=20.0, other=70.0)
    found = without_waiting([one("input", 0.1), one("compute", 0.8)], [waits, works])
    assert [(each.id, each.share) for each in found] == [("input", 0.1), ("compute", pytest.approx(0.24))]
    assert found[1].evidence.endswith("up to 70.0 ms of it is waiting for other ranks, one of which needs 30.0 ms")
    for device in ([works, waits], [waits, waits], [waits], [waits, None], []):
        assert [each.share for each in without_waiting([one("compute", 0.8)], device)] == [0.8]
