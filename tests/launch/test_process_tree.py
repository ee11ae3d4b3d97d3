"""The thread that watches gives way, and what it looks at is the command's family alone."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from hotlap.agent import process_tree
from hotlap.agent.process_tree import descendants
from hotlap.launch.process_tree import give_way

TREE = """
import subprocess, sys, threading
child = "import time; print('up', flush=True); time.sleep(60)"
def start():
    made.append(subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE))
    made[-1].stdout.readline()
    over.wait()
made, over = [], threading.Event()
threading.Thread(target=start, daemon=True).start()
start_here = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
start_here.stdout.readline()
while not made: pass
print(start_here.pid, made[0].pid, flush=True)
sys.stdin.read()
for one in (start_here, *made): one.kill()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has it")
def test_only_the_thread_gives_way() -> None:
    policies: list[int] = []

    def work() -> None:
        give_way()
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_IDLE]
    ask = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
    of_child = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert int(of_child) == os.SCHED_OTHER == os.sched_getscheduler(0)


def test_what_can_not_give_way_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    give_way()
    monkeypatch.delattr(os, "sched_setscheduler")
    give_way()


@pytest.mark.parametrize("tells", [None, False])
def test_the_family_is_what_every_thread_started(tells: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel tells it here, and by what each process says of itself."""
    if tells is not None:
        monkeypatch.setattr(process_tree, "_told", lambda: False)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TREE], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout and process.stdin
        expected = set(map(int, process.stdout.readline().split()))
        assert len(expected) == 2 and set(descendants(process.pid)) == expected
        assert {child.pid for child in psutil.Process(process.pid).children(recursive=True)} == expected
        assert expected < set(descendants(os.getpid()))
        process.stdin.close()
    assert descendants(process.pid) == []


@pytest.mark.parametrize("tells", [True, False])
def test_what_a_process_started_stands_still_with_it(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers would fill their queues meanwhile."""
    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        seen = psutil.Process(process.pid)
        if not tells:
            monkeypatch.setattr(process_tree, "_told", lambda: False)
        with process_tree.Stopped() as stopped:
            assert process.pid in stopped.pids
            deadline = time.monotonic() + 10
            while seen.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
                time.sleep(0.01)
            assert seen.status() == psutil.STATUS_STOPPED
        process.communicate(b"\n", timeout=30)
        assert process.returncode == 0
