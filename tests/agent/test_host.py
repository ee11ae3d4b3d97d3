"""What the loop costs the host is told of its steps alone."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hotlap.agent import host
from hotlap.agent.host import SURE, WARM_STEPS, Cost, Counts, Host

from .harness import Runner, check_clean
from .test_step_sampling import SOON

PAGES, STEPS, EVALUATION = 300, 150, 30 * 300
"""Of `pages.py`: page faults of a step, how many steps, and page faults of an evaluation."""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted as Linux does")
@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("argv", ["", "forwards=300", "after=5", "every=7", "forwards=300 every=50 after=5"])
def test_page_faults_are_those_of_training_steps(argv: str, every_step: bool, runner: Runner) -> None:
    """Not of forwards before them, of evaluations among them, or of what comes after the last."""
    ran = runner.forked("pages.py", *argv.split(), before="" if every_step else SOON, every_step=every_step)
    check_clean(ran)
    assert ran.code == 0
    found = ran.facts.host
    assert found is not None
    assert 0 < found.steps <= STEPS - WARM_STEPS
    assert PAGES <= found.faults < 1.5 * PAGES
    assert found.own_faults is not None and found.own_faults == pytest.approx(found.faults, rel=0.2)
    assert found.fault_us and found.grown < PAGES / 2, "all of it is given back"


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted as Linux does")
def test_an_evaluation_in_each_step_is_part_of_the_loop(runner: Runner) -> None:
    """As it is for the step's time."""
    ran = runner.forked("pages.py", "every=1")
    check_clean(ran)
    assert ran.code == 0
    found = ran.facts.host
    assert found is not None
    assert PAGES + EVALUATION <= found.faults < 1.2 * (PAGES + EVALUATION)


def test_time_in_which_the_training_thread_does_not_run() -> None:
    begun, now = (Host(lambda at=at: at, lambda: 2_000_000)._now() for at in (10_000_000, 16_000_000))
    found = Cost.between(3, begun, now, thread=1).facts()
    assert found is not None and found["stood_ms"] == 2.0


# which steps are counted, and when the counters are read


class Counted:
    """Counters of which each step takes one page fault and 1 ms, each reading 1 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mallocs = self.faults = self.ms = self.readings = 0
        self.host = Host(lambda: self.ms * 1_000_000, lambda: self.readings * 1_000_000)
        monkeypatch.setattr(self.host, "_now", self.now)

    def now(self) -> Counts:
        self.readings += 1
        self.ms += 1
        return Counts({}, faults=self.faults, mallocs=self.mallocs)

    def steps(self, count: int, kind: str = "train", faults: int = 1, ms: int = 1, **flags: bool) -> None:
        """Steps that are looked at."""
        for _ in range(count):
            self.faults += faults
            self.ms += ms
            told = {"evaluated": False, "disturbed": False, **flags}
            self.host.passed(1, kind, **told)
            self.host.look(told["evaluated"])

    def told(self) -> tuple[Any, Any]:
        found = self.host.cost.facts()
        return (None, None) if found is None else (found["steps"], found["faults"])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    yield Counted(monkeypatch)


def test_nothing_is_told_of_a_loop_that_is_not_warm(counted: Counted) -> None:
    counted.steps(WARM_STEPS, faults=99)
    assert counted.told() == (None, None)
    counted.steps(SURE[0] - WARM_STEPS)
    assert counted.told() == (SURE[0] - WARM_STEPS, 1.0)


def test_a_training_begins_anew_what_forwards_before_it_were_counted(counted: Counted) -> None:
    counted.steps(50, "inference", faults=7)
    assert counted.told()[1] == 7.0
    counted.steps(1)
    assert counted.told() == (None, None)
    counted.steps(SURE[0] - 1)
    assert counted.told() == (SURE[0] - WARM_STEPS, 1.0)


def test_memory_is_asked_of_the_driver_by_training_steps(counted: Counted) -> None:
    """Not by evaluations, forwards before the loop, or what comes after it: it was a finding of loops without any."""
    counted.mallocs = 50
    counted.steps(30, "inference")
    counted.steps(SURE[0])
    assert counted.host.cost.sums.mallocs == 0
    counted.mallocs += 3
    counted.steps(1, ms=2 * host.COSTS)
    counted.mallocs += 9
    counted.steps(1, ms=2 * host.COSTS, evaluated=True)
    counted.mallocs += 90
    assert (counted.host.cost.sums.mallocs, counted.host.cost.steps) == (3, SURE[0] - WARM_STEPS + 1)


def test_what_the_allocator_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Host()._now().mallocs == 0, "without a device"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "memory_stats_as_nested_dict", lambda: {"num_device_alloc": 7, "num_alloc_retries": 2}
    )
    assert (Host()._now().mallocs, Host()._now().retries) == (7, 2)


def test_short_steps_are_read_at_rarely(counted: Counted) -> None:
    """After a reading that took 1 ms none comes for a second, but at the first few."""
    counted.steps(SURE[-1])
    assert counted.readings == 1 + len(SURE)
    counted.steps(host.COSTS - 1)
    assert counted.readings == 1 + len(SURE)
    counted.steps(1)
    assert counted.readings == 2 + len(SURE)


@pytest.mark.parametrize("flag", ["evaluated", "disturbed"])
def test_what_is_not_a_plain_step_is_left_out_with_those_up_to_the_next_reading(flag: str, counted: Counted) -> None:
    counted.steps(SURE[-1])
    before = counted.told()
    counted.steps(1, faults=1000, ms=2 * host.COSTS, **{flag: True})
    assert counted.told() == before
    counted.steps(1)  # the next one is read at too, for there may be another evaluation before it is time to
    assert counted.told() == (before[0] + 1, 1.0)


def test_evaluations_that_come_often_do_not_make_readings_come_often(counted: Counted) -> None:
    counted.steps(SURE[-1])
    before = counted.readings
    counted.steps(4 * host.COSTS, evaluated=True)
    assert counted.readings - before <= 2 * 4


def test_unsampled_steps_count(counted: Counted) -> None:
    counted.steps(SURE[-1])
    before = counted.told()[0]
    counted.faults += 32
    counted.host.passed(32, "train", evaluated=False, disturbed=False)
    counted.steps(1, ms=2 * host.COSTS)
    assert counted.told() == (before + 33, 1.0)
    counted.host.passed(32, "train", evaluated=True, disturbed=False)
    counted.steps(1, faults=1000, ms=2 * host.COSTS)
    assert counted.told() == (before + 33, 1.0)


def test_nothing_is_counted_from_a_profile_on(counted: Counted) -> None:
    counted.steps(SURE[-1])
    before = counted.told()
    counted.host.close()
    counted.steps(9, faults=1000, ms=2 * host.COSTS)
    assert counted.told() == before


@pytest.mark.parametrize(("evaluations", "faults"), [(2, 1.0), (9, 1 + 10 * 9 / 11)])
def test_evaluations_are_counted_where_most_steps_hold_one(evaluations: int, faults: float, counted: Counted) -> None:
    counted.steps(WARM_STEPS - 1)
    for at in range(11):  # the first one is where reading begins
        held = 0 < at <= evaluations
        counted.steps(1, faults=11 if held else 1, ms=2 * host.COSTS, evaluated=held)
    counted.steps(1, ms=2 * host.COSTS)
    found = counted.host.cost.facts()
    assert found is not None
    assert found["faults"] == pytest.approx(faults)
