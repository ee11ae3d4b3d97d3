"""What a command starts ends with it, also what it started just before it ended, in a session of its own."""

import os
import subprocess
import sys

import psutil

TRIAL = """
import subprocess, sys
from hotlap.launch.supervise import adopt_orphans, wait_apart

adopt_orphans()
ours = subprocess.Popen(["sleep", sys.argv[1] + "1"])
left = f"setsid bash -c 'setsid sleep {sys.argv[1]} & exec sleep {sys.argv[1]}' & sleep 0.05; exit 3"
ended = wait_apart(subprocess.Popen(["bash", "-c", left], start_new_session=True), 60)
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
