"""The exit code of `hotlap run` is the command's, whatever happens to hotlap once the command has ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forking import hotlap_forked

BREAKS = """
from hotlap.cli import run

def fails(*_):
    raise {error}

run.report = fails
"""


def ran(folder: Path, error: str, code: str) -> subprocess.CompletedProcess[str]:
    words = ["run", "--out", "r", sys.executable, "-c", code]
    return hotlap_forked(words, folder, before=BREAKS.format(error=error))


@pytest.mark.parametrize("error", ["MemoryError()", "ValueError('own')", "KeyboardInterrupt()", "OSError('full')"])
@pytest.mark.parametrize("code", [0, 7])
def test_a_report_that_fails_leaves_the_exit_code(tmp_path: Path, error: str, code: int) -> None:
    found = ran(tmp_path, error, f"print('trained'); raise SystemExit({code})")
    assert found.returncode == code and found.stdout == "trained\n"
    assert error.partition("(")[0] in found.stderr or "full" in found.stderr


WAITING = """
from hotlap.launch import run, signals, supervise, telemetry

def fails(*_, **__):
    raise {error}

{where} = fails
"""


@pytest.mark.parametrize("error", ["MemoryError()", "ValueError('own')", "KeyboardInterrupt()", "OSError('full')"])
@pytest.mark.parametrize("where", ["run.versions_of", "signals.Witness.end", "telemetry.sampling", "supervise.waited"])
def test_what_fails_while_the_command_runs_or_has_just_ended_leaves_it_too(
    tmp_path: Path, where: str, error: str
) -> None:
    """Its exit code was replaced by hotlap's; and a command that still ran was left alone."""
    code = "import time; time.sleep(0.5); print('trained'); raise SystemExit(7)"
    words = ["run", "--out", "r", sys.executable, "-c", code]
    found = hotlap_forked(words, tmp_path, before=WAITING.format(error=error, where=where))
    assert (found.returncode, found.stdout) == (7, "trained\n"), found.stderr


NO_THREADS = """
import threading

def fails(*_, **__):
    raise RuntimeError("can't start new thread")

threading.Thread.start = fails
"""


def test_a_command_runs_where_hotlap_can_have_no_threads(tmp_path: Path) -> None:
    words = ["run", "--out", "r", sys.executable, "-c", "raise SystemExit(7)"]
    found = hotlap_forked(words, tmp_path, before=NO_THREADS)
    assert found.returncode == 7 and "Traceback" not in found.stderr


def test_and_the_signal_that_ended_it(tmp_path: Path) -> None:
    found = ran(tmp_path, "MemoryError()", "import os; os.kill(os.getpid(), 15)")
    assert found.returncode == -signal.SIGTERM
