"""`device-prefetch`: batches come in order and ahead of the step, and their thread keeps out of a step's beginning."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.harness import Runner, check_same
from hotlap.agent.process_tree import Stopped
from hotlap.levers.device_prefetch import DEPTH, LATER, MOST_LATER_S, Prefetcher
from hotlap.records.run import Lever


class Copies:
    """Of a device that is none."""

    def __init__(self) -> None:
        self.sent, self.arrived = [], []  # type: ignore[var-annotated]
        self.changed = threading.Condition()
        self.thread: int | None = None

    def begin(self) -> None:
        self.thread = threading.get_ident()

    def send(self, batch: Any) -> tuple[Any, Any]:
        assert threading.get_ident() == self.thread
        with self.changed:
            self.sent.append(batch)
            self.changed.notify_all()
        return ("there", batch), batch

    def arrive(self, batch: Any, there: Any) -> None:
        assert batch == ("there", there) and threading.get_ident() != self.thread
        self.arrived.append(there)

    def until(self, sent: int) -> None:
        """Waits for so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sent) >= sent, timeout=20)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Prefetcher, Copies, Clock]]]:
    made: list[Prefetcher] = []

    def start(batches: Callable[[], Any]) -> tuple[Prefetcher, Copies, Clock]:
        copies, clock = Copies(), Clock()
        made.append(Prefetcher(batches, copies, clock))
        return made[-1], copies, clock

    yield start
    for prefetcher in made:
        prefetcher.stop()
        assert not prefetcher.thread.is_alive()


Start = Callable[..., tuple[Prefetcher, Copies, Clock]]


def test_batches_come_in_order_and_no_more_than_so_many_ahead(started: Start) -> None:
    prefetcher, copies, clock = started(itertools.count().__next__)
    for number in range(20):
        copies.until(number + DEPTH)
        assert len(copies.sent) == number + DEPTH, "one for each that was taken"
        clock.now += 1e-4
        assert prefetcher.next() == ("there", number)
    assert copies.arrived == list(range(20))


def test_none_is_made_while_the_process_stands_still_for_its_turn(started: Start) -> None:
    """Else it comes to each turn with batches that no turn has paid for."""
    prefetcher, copies, _ = started(itertools.count().__next__)
    copies.until(DEPTH)
    with Stopped():
        prefetcher.next()
        time.sleep(0.3)
        assert len(copies.sent) == DEPTH
    copies.until(DEPTH + 1)


def test_the_end_and_errors_are_the_training_threads(started: Start) -> None:
    prefetcher, _, _ = started(iter([7, 8]).__next__)
    assert [prefetcher.next()[1], prefetcher.next()[1]] == [7, 8]
    for _ in range(2):
        with pytest.raises(StopIteration):
            prefetcher.next()

    def fails() -> Any:
        raise OSError("the disk is gone")

    prefetcher, _, _ = started(fails)
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.next()


@pytest.mark.parametrize(("step_s", "rest_s"), [(0.01, 0.01 * LATER), (10.0, MOST_LATER_S)])
def test_the_thread_rests_at_the_beginning_of_a_step(step_s: float, rest_s: float, started: Start) -> None:
    prefetcher, copies, clock = started(itertools.count().__next__)
    rested: list[float] = []
    wait = prefetcher.stopping.wait
    prefetcher.stopping.wait = lambda seconds=None: rested.append(seconds) or wait(0)  # type: ignore[method-assign,func-returns-value]
    for number in range(6):
        copies.until(number + DEPTH)
        clock.now += step_s
        prefetcher.next()
    copies.until(6 + DEPTH)
    assert len(rested) == 6 and rested[2:] == pytest.approx([rest_s] * 4)


def test_it_does_not_rest_while_a_step_waits_for_its_batch(started: Start) -> None:
    given = threading.Semaphore(0)
    numbers = itertools.count()

    def slow() -> int:
        assert given.acquire(timeout=20)
        return next(numbers)

    prefetcher, copies, clock = started(slow)
    rested: list[float] = []
    prefetcher.stopping.wait = lambda seconds=None: bool(rested.append(seconds))  # type: ignore[method-assign,func-returns-value]
    for number in range(8):
        clock.now += 1.0
        given.release()
        copies.until(number + 1)
        prefetcher.next()
    assert not rested
    given.release(2 * DEPTH)  # it has not to wait any more to be ended


def test_a_thread_that_has_no_room_is_ended(started: Start) -> None:
    prefetcher, copies, _ = started(itertools.count().__next__)
    copies.until(DEPTH)
    prefetcher.stop()
    assert not prefetcher.thread.is_alive() and len(copies.sent) == DEPTH


OFF = """
import sys
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(index))

loader = torch.utils.data.DataLoader(Rows(), 4, num_workers=2, persistent_workers=sys.argv[1] == "persistent")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for epoch in range(4):
    for at, batch in enumerate(loader):
        print(epoch, at, batch[:, 0].tolist())
        model(batch).sum().backward()
        optimizer.step()
        if (epoch, at) == (1, 5) and hasattr(sys, "_hotlap_agent"):
            sys._hotlap_agent.guard.failed("a test", RuntimeError("as where the disk is full"))
        if (epoch, at) == (2, 7):
            break
"""
PLANTED = str(Path(__file__).parents[1] / "experiment" / "planted" / "sitecustomize.py")


@pytest.mark.parametrize("workers", ["persistent", "of an epoch"])
def test_no_batch_is_lost_where_hotlap_switches_itself_off(workers: str, runner: Runner, tmp_path: Path) -> None:
    """An epoch that is under way then, one that is broken off later, and one after it."""
    (tmp_path / "off.py").write_text(OFF)
    argv = (str(tmp_path / "off.py"), workers)
    before = f"exec(open({PLANTED!r}).read(), {{'__file__': {PLANTED!r}}})"
    ran = runner.forked(*argv, before=before, levers=(Lever(name="planted", settings={"what": "ahead"}),))
    check_same(ran, runner.bare(*argv))
    assert [problem.what for problem in ran.problems] == ["RuntimeError: as where the disk is full"]
    assert ran.output.count("\n") == 16 * 3 + 8
