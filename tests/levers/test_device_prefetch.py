"""`device-prefetch`: batches come in order and ahead of the step, and their thread keeps out of a step's beginning."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotlap.levers.device_prefetch import DEPTH, LATER, MOST_LATER_S, Prefetcher


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
