"""What a command starts ends with it, also what it started just before it ended, in a session of its own."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hotlap.launch.supervise import Supervised, interrupted_after

TRIAL = """
import subprocess, sys, time
from hotlap.launch.supervise import Supervised, adopt_orphans

adopt_orphans()
ours = subprocess.Popen(["sleep", sys.argv[1] + "1"])
left = f"setsid bash -c 'setsid sleep {sys.argv[1]} & exec sleep {sys.argv[1]}' & sleep 0.05; exit 3"
command = Supervised(lambda: subprocess.Popen(["bash", "-c", left], start_new_session=True))
while not command.over():
    time.sleep(0.05)
ended = command.end()
print(ended.code, ours.poll())
ours.kill()
"""


def test_what_is_left_between_two_looks_is_ended_and_what_is_ours_is_not() -> None:
    seconds = str(10**6 + os.getpid())
    done = subprocess.run(
        [sys.executable, "-c", TRIAL, seconds], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3", "None"], done.stderr
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]


def test_an_interruption_while_it_starts_ends_it() -> None:
    """Seen once in a tune whose trial was interrupted as it began: its processes went on."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    with pytest.raises(KeyboardInterrupt):
        Supervised(start)
    assert started[0].returncode == -signal.SIGTERM


def test_an_interruption_of_what_fails_to_start_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), interrupted_after():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("planted")


def test_what_fails_to_start_tells_why_and_interruptions_work_after_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="planted"), interrupted_after():
        raise ValueError("planted")
    assert signal.getsignal(signal.SIGINT) is before


TWO = """
import subprocess, sys, time
from hotlap.launch.supervise import Supervised, adopt_orphans

adopt_orphans()
seconds, first_left, ends_first = sys.argv[1:]
LEAVES = f"setsid bash -c 'sleep {seconds} & sleep 0.05' & sleep 0.2; exec sleep 1000"
sides = {}
for name in "ab":
    text = LEAVES if name == first_left else "exec sleep 1000"
    begin = ["bash", "-c", text]
    quiet = subprocess.DEVNULL
    sides[name] = Supervised(
        lambda begin=begin: subprocess.Popen(begin, start_new_session=True, stdout=quiet, stderr=quiet)
    )
    time.sleep(0.4)
sides.pop(ends_first).end()
(left,) = sides.values()
print(left.process.poll(), left.over())
left.end()
"""


@pytest.mark.parametrize("leaves", ["a", "b"])
@pytest.mark.parametrize("ends_first", ["a", "b"])
def test_of_two_at_once_one_ends_and_the_other_goes_on_and_nothing_is_left(leaves: str, ends_first: str) -> None:
    """What one left behind is ended with the last of them, whichever began first."""
    seconds = str(10**6 + 7 * os.getpid() + 2 * (leaves == "a") + (ends_first == "a"))
    done = subprocess.run(
        [sys.executable, "-c", TWO, seconds, leaves, ends_first],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]
    for process in left:
        process.kill()
    assert done.stdout.split() == ["None", "False"], done.stderr
    assert not left


def test_that_one_ends_does_not_lose_how_another_ended() -> None:
    """A side that crashed was taken for one that came to its end: its exit code was collected as an orphan's."""
    one = Supervised(lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True))
    other = Supervised(lambda: subprocess.Popen(["bash", "-c", "exit 3"], start_new_session=True))
    limit = time.monotonic() + 10
    while psutil.Process(other.process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < limit:
        time.sleep(0.02)
    assert one.end().signal == signal.SIGTERM
    assert other.over() and other.end().code == 3


def test_what_stands_still_ends_at_once_too() -> None:
    """Loader workers of a side that waits for its turn are stopped: SIGTERM comes to them when they go on."""
    text = "sleep 1000 & kill -STOP $!; wait"
    one = Supervised(lambda: subprocess.Popen(["bash", "-c", text], start_new_session=True))
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        family = psutil.Process(one.process.pid).children()
        if family and family[0].status() == psutil.STATUS_STOPPED:
            break
        time.sleep(0.02)
    begun = time.monotonic()
    assert one.end().signal == signal.SIGTERM
    assert time.monotonic() - begun < 3
    assert not family[0].is_running() or family[0].status() == psutil.STATUS_ZOMBIE, "it may be init's to collect"


SPINS = """
import subprocess, sys, threading
spin = "while True: pass"
subprocess.Popen([sys.executable, "-S", "-c", spin])
threading.Thread(target=exec, args=(spin,), daemon=True).start()
exec(spin)
"""


def states(family: list[psutil.Process], wanted: bool) -> bool:
    """Whether all come to stand still (wanted), or to run, within a few seconds."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        if all((one.status() == psutil.STATUS_STOPPED) is wanted for one in family):
            return True
        time.sleep(0.02)
    return False


def spinning() -> tuple[Supervised, list[psutil.Process]]:
    one = Supervised(lambda: subprocess.Popen([sys.executable, "-S", "-c", SPINS], start_new_session=True))
    limit = time.monotonic() + 20
    while one.busy_threads() < 3 and time.monotonic() < limit:
        time.sleep(0.6)
        one.over()
    parent = psutil.Process(one.process.pid)
    return one, [parent, *parent.children()]


def test_it_stands_still_with_all_it_started_and_goes_on() -> None:
    one, family = spinning()
    try:
        assert len(family) == 2 and not one.stands_still
        one.stand_still()
        assert one.stands_still and states(family, True)
        one.busy_threads()
        time.sleep(0.3)
        assert one.busy_threads() == 0
        one.go_on()
        assert not one.stands_still and states(family, False)
    finally:
        one.stand_still()
        assert one.end().signal == signal.SIGTERM
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family)


def test_what_stands_still_goes_on_when_we_are_killed() -> None:
    """Nobody would know of it: it would hold its memory, and the device's, until the machine is switched off."""
    text = (
        "import subprocess, sys, time\nfrom hotlap.launch.supervise import Supervised\n"
        "one = Supervised(lambda: subprocess.Popen(['sleep', '1000'], start_new_session=True))\n"
        "one.stand_still()\nprint(one.process.pid, flush=True)\ntime.sleep(1000)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    left = psutil.Process(int(ours.stdout.readline()))
    try:
        assert states([left], True)
        ours.kill()
        assert states([left], False)
    finally:
        left.kill()
        ours.wait()
