"""What a command starts ends with it, also what it started just before it ended, in a session of its own."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from hotlap.launch.supervise import interrupted_after, wait_apart

TRIAL = """
import subprocess, sys
from hotlap.launch.supervise import adopt_orphans, wait_apart

adopt_orphans()
ours = subprocess.Popen(["sleep", sys.argv[1] + "1"])
left = f"setsid bash -c 'setsid sleep {sys.argv[1]} & exec sleep {sys.argv[1]}' & sleep 0.05; exit 3"
ended = wait_apart(lambda: subprocess.Popen(["bash", "-c", left], start_new_session=True), 60)
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
        wait_apart(start, 60)
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
