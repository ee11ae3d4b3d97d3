"""Samples of a thread's lines: what they are booked to."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.agent.lines import calls
from hotlap.agent.samples import INTERVAL_S, Samples, Used, _counts, _stack
from hotlap.agent.timeline import Timeline
from hotlap.agent.torch_internals import TAKES_OVER
from hotlap.records.phases import BACKWARD, DATA, FORWARD, OPTIMIZER

GET_TIMER_SLACK = 30


def test_time_is_not_booked_to_the_next_line_that_lets_the_lock_go(tmp_path: Path) -> None:
    """Of some tries, since a write may wait for a crowded machine."""
    before = sys.getswitchinterval()
    handle = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    booked = [_busy_and_writing(handle) for _ in range(5)]
    os.close(handle)
    assert any(busy > writing for busy, writing in booked), booked
    assert sys.getswitchinterval() == before


def test_a_loop_in_python_is_seen_beside_short_operations_that_let_the_lock_go() -> None:
    """The loop takes nine tenths. Of some tries, as above."""
    before, x = ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0), torch.randn(30, 30)
    assert max(_share_of_the_loop(x) for _ in range(5)) > 0.3
    assert ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0) == before > 1


def _share_of_the_loop(x: torch.Tensor) -> float:
    def loop() -> int:
        total = 0
        for number in range(800):
            total += number * number
        return total

    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    with samples.watching():
        while samples.looks < 40:
            loop()
            torch.sin(x)
    return sum(ns for key, ns in samples.ns.items() if key[3].endswith("loop")) / sum(samples.ns.values())


def test_a_stack_is_that_which_frames_tell() -> None:
    def inner() -> tuple[list[Any], list[Any]]:
        return _stack(threading.get_ident())[0], list(calls(sys._getframe()))

    found, known = inner()
    assert found[0][0] is _stack.__code__ and found[1][0] is known[0][0] and found[2:] == known[1:]
    assert _stack(-1)[0] == []


def _as_long_as(seconds: float) -> int:
    """To which number adding up takes about so long on this machine, now."""
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        sum(range(60_000))
        took.append(time.perf_counter() - begun)
    return int(60_000 * seconds / min(took))


def _busy_and_writing(handle: int) -> tuple[int, int]:
    """Ns that are booked to each."""

    def busy() -> int:
        return sum(range(number))  # keeps the interpreter's lock

    number = _as_long_as(0.0035)  # of the usual switch interval of 5 ms, and many of the short one
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))

    def work() -> None:
        while samples.looks < 40:
            busy()
            os.write(handle, b"x")

    with samples.watching():
        work()
    by_function: dict[str, int] = {}
    for (_, _, _, function, _), ns in samples.ns.items():
        name = function.rsplit(".", 1)[-1]
        by_function[name] = by_function.get(name, 0) + ns
    return by_function.get("busy", 0), by_function.get("work", 0)


def test_a_thread_stands_where_it_sleeps_and_not_where_it_computes() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))

    def sleeps() -> None:
        time.sleep(0.01)

    def computes() -> None:
        sum(range(100_000))

    def stands() -> set[str]:
        return {function.rsplit(".", 1)[-1] for *_, function, _, _ in samples.document()["stood"]}

    limit, found = time.monotonic() + 60, set[str]()
    with samples.watching():
        while found != {"sleeps"} and time.monotonic() < limit:  # where cores are taken, a few looks say otherwise
            for _ in range(30):
                sleeps()
                computes()
            found = stands()
    assert found == {"sleeps"}


def test_hotlaps_own_work_is_nobodys_line() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    agent = Path(sys.modules[Samples.__module__].__file__ or "").parent
    source = "def spin(done):\n    while not done():\n        sum(range(10_000))\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, str(agent / "core.py"), "exec"), namespace)
    with samples.watching():
        namespace["spin"](lambda: samples.looks >= 10)
    assert samples.document()["own_ms"] > 0
    assert samples.looks >= 10


WALKED = """
import gc, threading, time
from hotlap.agent.samples import Samples

def pause(phase, info):  # as any finalizer may: the interpreter's lock is let go
    if threading.current_thread().name == "hotlap-samples":
        time.sleep(0.0005)

def deep(n):
    return deep(n - 1) if n else time.sleep(0)

def wide(n):  # what lies where frames were
    a = b = c = d = e = f = g = h = i = j = k = l = m = o = p = q = r = s = t = u = v = w = x = y = z = {}
    return wide(n - 1) if n else time.sleep(0.001)

samples = Samples(threading.get_ident(), lambda: "other", lambda act: act())
gc.callbacks.append(pause)
gc.set_threshold(5)
with samples.watching():
    while samples.looks < 200 and any(one.name == "hotlap-samples" for one in threading.enumerate()):
        deep(50), wide(20)
print(samples.looks >= 200, gc.isenabled())
"""


def test_a_collection_does_not_take_the_frames_away_that_are_followed() -> None:
    """In Python 3.11 it runs while the frames' objects are made: the looking thread, or the process, crashed."""
    ran = subprocess.run([sys.executable, "-c", WALKED], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["True", "True"], "")


@pytest.mark.parametrize(("phase", "told"), [("data", True), ("forward", False)])
def test_a_thread_that_takes_tensors_over_while_a_batch_is_waited_for(phase: str, told: bool) -> None:
    samples = Samples(threading.get_ident(), lambda: phase, lambda act, *args: act(*args))
    namespace: dict[str, Any] = {}
    exec(compile("def rebuild(ended):\n    ended.wait()\n", TAKES_OVER, "exec"), namespace)
    ended = threading.Event()
    pins = threading.Thread(target=namespace["rebuild"], args=(ended,))
    pins.start()
    with samples.watching():
        while samples.looks < 10:
            time.sleep(0.002)
    ended.set()
    pins.join()
    document = samples.document()
    assert TAKES_OVER and (document["taking_over_ms"] > 0) is told
    assert document["taking_over_ms"] <= sum(row[5] for row in document["lines"])


def test_collections_that_the_script_switched_off_stay_off() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    gc.disable()
    try:
        with samples.watching():
            while samples.looks < 5:
                time.sleep(0.002)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_other_threads_of_python_are_told_with_what_they_ran() -> None:
    ended = threading.Event()

    def spins() -> None:
        while not ended.is_set():
            pass

    def waits() -> None:
        ended.wait()

    threads = [threading.Thread(target=one) for one in (spins, waits)]
    for one in threads:
        one.start()
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    try:
        with samples.watching():
            while samples.looks < 20:
                time.sleep(0.002)
    finally:
        ended.set()
        for one in threads:
            one.join()
    beside = {function.rsplit(".", 1)[-1]: ran for _, _, function, ran in samples.document()["beside"]}
    assert set(beside) == {"spins", "waits"}
    assert 0 <= beside["waits"] < beside["spins"]


def test_all_frames_of_the_user_s_are_kept() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))

    def spin() -> Iterator[int]:
        while samples.looks < 10:
            yield sum(range(1000))

    with samples.watching():
        for _ in spin():
            pass
    document = samples.document()
    assert sum(row[3] for row in document["paths"]) == pytest.approx(sum(row[5] for row in document["lines"]))
    functions = {tuple(one[2].split(".")[-1] for one in path) for _, path, _, _ in document["paths"]}
    assert any(of[-2:] == ("test_all_frames_of_the_user_s_are_kept", "spin") for of in functions)


def test_looks_keep_no_object_of_the_loop() -> None:
    """Not on a circle either: a forked worker that collects it may free pinned memory, which CUDA ends it for."""
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))

    class Batch:
        """Stands for a tensor of the loop's."""

    def loop() -> "weakref.ref[Batch]":
        batch = Batch()
        looks = samples.looks + 3
        while samples.looks < looks:
            sum(range(1000))
        return weakref.ref(batch)

    gc.collect()
    gc.disable()
    try:
        with samples.watching():
            seen = [loop() for _ in range(5)]
        assert [one() for one in seen] == [None] * 5
    finally:
        gc.enable()


def test_the_phase_of_a_look_is_that_of_its_stack() -> None:
    """An update was seen in the backward, and what makes a batch: the loop went on between the two."""
    timeline = Timeline(time.perf_counter_ns, None)
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args), timeline)
    x = torch.randn(40, 40)

    def computes() -> None:
        for _ in range(20):
            torch.sin(x)

    def updates() -> None:
        for _ in range(20):
            torch.cos(x)

    with samples.watching():
        while samples.looks < 60:
            for phase, act in ((BACKWARD, computes), (OPTIMIZER, updates)):
                timeline.enter(phase)
                act()
                timeline.leave()
    seen = {(key[0], key[3].rpartition(".")[2]) for key in samples.ns}
    assert {one for one in seen if one[1] in {"computes", "updates"}} == {
        ("backward", "computes"),
        ("optimizer", "updates"),
    }


@pytest.mark.parametrize(
    ("then", "phase"),
    [(BACKWARD, "forward"), (FORWARD, "other"), (DATA, "other"), (OPTIMIZER, "other"), (None, "other")],
)
def test_a_look_after_a_forward_is_the_forward_s_where_a_backward_follows(then: int | None, phase: str) -> None:
    timeline = Timeline(time.perf_counter_ns, None)
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args), timeline)
    timeline.enter(FORWARD)
    timeline.leave(gap=True)
    _, samples._phase = _stack(-1, timeline)
    samples._count(list(calls(sys._getframe())), 2_000_000)
    samples._settle()
    assert not samples.ns, "nothing follows yet"
    if then is not None:
        timeline.enter(then)
        samples._settle()
        assert samples.ns
    assert [row[0] for row in samples.document()["lines"]] == [phase]


MS = 1_000_000


@pytest.mark.parametrize(
    ("ns", "thread", "own", "counts"),
    [
        (2 * MS, (2 * MS, 0), (0, 0), (2 * MS, 0)),  # it ran
        (12 * MS, (2 * MS, 10 * MS), (0, 0), (2 * MS, 0)),  # it waited for a core
        (12 * MS, (12 * MS, 0), (0, 10 * MS), (2 * MS, 0)),  # it ran while the looking thread waited: who knows where
        (12 * MS, (1 * MS, 0), (0, 11 * MS), (1 * MS, 1 * MS)),  # it may have waited for that one's lock
        (50 * MS, (50 * MS, 0), (0, 0), (50 * MS, 0)),  # it kept the lock
        (50 * MS, (0, 0), (0, 0), (0, 50 * MS)),  # it slept
        (12 * MS, None, (0, 0), None),
        (12 * MS, (12 * MS, 0), None, None),
    ],
)
def test_what_a_look_counts_for(ns: int, thread: Used, own: Used, counts: Used) -> None:
    assert INTERVAL_S == 0.002
    assert _counts(ns, ((0, 0), (0, 0)), (thread, own)) == counts


def test_looks_of_which_one_is_most_are_as_sure_as_few() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    stack = list(calls(sys._getframe()))
    for _ in range(4):
        samples._count(stack, 2 * MS)
    assert samples.document()["equal_looks"]["other"] == pytest.approx(4.0)
    samples._count(stack, 92 * MS)
    assert samples.document()["equal_looks"]["other"] == pytest.approx(100**2 / (4 * 4 + 92**2))


def test_a_wait_for_a_core_that_is_counted_late_is_no_sleep() -> None:
    """The system counts a wait when it is over: a metric on a loaded machine was told to sleep."""
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    one, other = [(_busy_and_writing.__code__, 1)], [(_as_long_as.__code__, 1)]
    samples._count(one, 26 * MS, (0, 26 * MS))
    samples._count(other, 50 * MS, (0, 50 * MS))
    samples.idle_ns = 76 * MS
    assert sum(row[-1] for row in samples.document()["stood"]) == pytest.approx(76.0)
    samples.idle_ns = 0  # all of it was waits, as the counter says in the end
    assert samples.document()["stood"] == []
