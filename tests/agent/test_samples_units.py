"""Samples of a thread's lines: what they are booked to."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hotlap.agent.samples import Samples


def test_time_is_not_booked_to_the_next_line_that_lets_the_lock_go(tmp_path: Path) -> None:
    """Of some tries, since a write may wait for a crowded machine."""
    before = sys.getswitchinterval()
    handle = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    booked = [_busy_and_writing(handle) for _ in range(5)]
    os.close(handle)
    assert any(busy > writing for busy, writing in booked), booked
    assert sys.getswitchinterval() == before


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


def test_hotlaps_own_work_is_nobodys_line() -> None:
    samples = Samples(threading.get_ident(), lambda: "other", lambda act, *args: act(*args))
    agent = Path(sys.modules[Samples.__module__].__file__ or "").parent
    source = "def spin(done):\n    while not done():\n        pass\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, str(agent / "core.py"), "exec"), namespace)
    with samples.watching():
        namespace["spin"](lambda: samples.looks >= 10)
    assert samples.document()["own_ms"] > 0
    assert samples.looks >= 10
