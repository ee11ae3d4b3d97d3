"""A command gets each signal once: from us, or as one of our process group."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from hotlap.launch import signals

PARENT = """
import os, subprocess, sys, threading
from hotlap.launch.supervise import exit_like, wait_in_foreground

threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.exit(exit_like(wait_in_foreground(subprocess.Popen([sys.executable, *sys.argv[1:]]))))
"""
COUNTS = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: print(signal.Signals(number).name, flush=True))
time.sleep(0.2)
print("up", flush=True)
end = time.monotonic() + float(sys.argv[1])
while (left := end - time.monotonic()) > 0:
    time.sleep(left)
"""
SAVES = """
import sys, time
time.sleep(0.2)
try:
    print("up", flush=True)
    time.sleep(20)
except KeyboardInterrupt:
    time.sleep(0.4)
    print("saved", flush=True)
    sys.exit(5)
"""


def sent(script: str, *numbers: int, group: bool, times: int = 1, gap_s: float = 0.3) -> tuple[Counter[str], int]:
    """What a script prints after signals to its parent alone, or to the group of both; and the exit code."""
    words = [sys.executable, "-c", PARENT, "-c", script, str(0.7 + gap_s * times)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "up\n"
        time.sleep(0.2)
        for _ in range(times):
            for number in numbers:
                (os.killpg if group else os.kill)(parent.pid, number)
            time.sleep(gap_s)
        said, _ = parent.communicate(timeout=60)
    return Counter(said.split()), parent.returncode


@pytest.mark.parametrize("group", [True, False], ids=["group", "alone"])
def test_each_of_several_signals_arrives_once(group: bool) -> None:
    assert sent(COUNTS, signal.SIGINT, group=group, times=3) == (Counter(SIGINT=3), 0)
    assert sent(COUNTS, signal.SIGUSR1, signal.SIGTERM, group=group) == (Counter(SIGUSR1=1, SIGTERM=1), 0)
    assert sent(COUNTS, signal.SIGHUP, group=group) == (Counter(SIGHUP=1), 0)


@pytest.mark.parametrize("group", [True, False], ids=["group", "alone"])
def test_a_script_that_saves_on_an_interruption_can_do_so(group: bool) -> None:
    assert sent(SAVES, signal.SIGINT, group=group) == (Counter(saved=1), 5)


def test_a_second_signal_right_after_the_first_is_not_kept_until_the_end() -> None:
    """Another thread took both, and the main one went on waiting: in four of nine runs."""
    for _ in range(5):
        said, _ = sent(COUNTS, signal.SIGTERM, signal.SIGINT, group=False, gap_s=0)
        assert said == Counter(SIGTERM=1, SIGINT=1)


@pytest.mark.parametrize("stdin", ["", " </dev/null"], ids=["terminal", "nothing"])
@pytest.mark.parametrize("witness", [True, False], ids=["witness", "none"])
def test_ctrl_c_at_the_terminal_arrives_once_whatever_stdin_is(stdin: str, witness: bool) -> None:
    parent = PARENT if witness else f"import hotlap.launch.signals as s\ns._blocked = lambda: None\n{PARENT}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(PYTHON=sys.executable, PARENT=parent, SAVES=SAVES)
        os.execvp("sh", ["sh", "-c", f'"$PYTHON" -c "$PARENT" -c "$SAVES"{stdin}; exit $?'])
    said = until(terminal, b"up")
    time.sleep(0.2)
    os.write(terminal, b"\x03")
    said += until(terminal, None)
    os.close(terminal)
    assert b"saved" in said and b"Traceback" not in said, said
    os.waitpid(pid, 0)


def until(terminal: int, word: bytes | None) -> bytes:
    """What comes from a terminal up to a word, or up to its end."""
    said, limit = b"", time.monotonic() + 30
    while (word is None or word not in said) and time.monotonic() < limit:
        try:
            ready = select.select([terminal], [], [], 1)[0]
            said += (part := os.read(terminal, 4096) if ready else b"")
        except OSError:  # Linux: all others have closed it
            break
        if ready and not part:
            break
    return said


def test_a_witness_tells_once_and_leaves_no_process() -> None:
    witness = signals.Witness()
    assert witness._process is not None
    first = witness._process.pid
    os.kill(first, signal.SIGUSR1)
    os.kill(first, signal.SIGUSR2)
    assert witness.had([signal.SIGUSR1]) == {signal.SIGUSR1}
    assert witness.had([signal.SIGUSR1]) == set() and witness._process.pid != first
    assert witness.had([signal.SIGUSR2]) == {signal.SIGUSR2}
    last = witness._process.pid
    witness.end()
    for pid in (first, last):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_without_a_program_for_it_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(signals, "_pending", lambda pid: pytest.fail("nothing to look at"))
    witness = signals.Witness()
    assert witness.had([signal.SIGINT]) is None
    witness.end()


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="planted"):
        signals.waited(lambda: int("planted"))
