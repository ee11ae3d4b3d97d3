"""Lists that a function searches, read from a frame of another thread."""

import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from hotlap.agent.searched import Searched

TRAIN = {7: list(range(300))}


class Tricky:
    """Reading it by ordinary means runs code."""

    asked = 0

    def __init__(self) -> None:
        self.pos = defaultdict(list, {3: [*range(50)], 4: [*range(80)]})
        self.words = ("a",) * 40

    @property
    def made(self) -> list[int]:
        Tricky.asked += 1
        return [1] * 90

    def __getitem__(self, key: int) -> list[int]:
        Tricky.asked += 1
        return [1] * 90


TRICKY = Tricky()


def read(act: Callable[[Callable[[], None]], object]) -> Searched:
    """What is read of a function as another thread is in it, by no code of its own. It calls what it is given, which
    waits."""
    searched, there, done = Searched(), threading.Event(), threading.Event()

    def stop() -> None:
        there.set()
        done.wait(10)

    def run() -> None:
        act(stop)

    thread = threading.Thread(target=run)
    thread.start()
    assert there.wait(10) and thread.ident is not None
    frame: Any = sys._current_frames()[thread.ident]
    while frame.f_code is not act.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    usual, sys._current_frames = sys._current_frames, lambda at={thread.ident: frame}: at
    Tricky.asked = 0
    try:
        searched.look(thread.ident, act.__code__)  # type: ignore[attr-defined]
        assert Tricky.asked == 0
    finally:
        del frame
        sys._current_frames = usual
        done.set()
        thread.join()
    return searched


def test_names_attributes_and_items_are_read() -> None:
    def act(stop: Callable[[], None]) -> bool:
        it, u, rows = Tricky(), 4, [[1], [2.0] * 60]
        stop()
        return (0 in it.pos[u]) or 1 in rows[1] or "b" not in it.words or 5 in it.pos.get(3, ()) or 5 in TRAIN[7]

    found = {one[0]: one[1] for one in read(act).found.values()}
    assert len(found) == 1, "of a line the longest"
    assert found == {"TRAIN[7]": 300}


@pytest.mark.parametrize(
    "act",
    [
        lambda stop, it=TRICKY: (stop(), 1 in it.made),
        lambda stop, it=TRICKY: (stop(), 1 in it[3]),
        lambda stop, it=TRICKY: (stop(), 1 in it.pos[5]),  # a defaultdict would make it
        lambda stop, it={1, 2}: (stop(), 1 in it),
        lambda stop, it={1: 2}: (stop(), 1 in it),
        lambda stop, it=[]: (stop(), 1 in it),
        lambda stop, it=[TRICKY]: (stop(), 1 in it),  # its `__eq__` may be anything
        lambda stop, it=[1, 2]: (stop(), locals(), 1 in it),  # who asks has the dict
    ],
)
def test_what_may_run_code_is_not(act: Callable[[Callable[[], None]], object]) -> None:
    assert not read(act).found


def test_variables_are_not_kept_alive() -> None:
    gone = []

    def act(stop: Callable[[], None]) -> None:
        it, known = Tricky(), [1] * 99
        gone.append(weakref.ref(it))
        _ = 2 in known
        stop()
        del it
        gone.append(gone[0]() is None)

    assert [one[:2] for one in read(act).found.values()] == [("known", 99)]
    assert gone[1] is True
