"""The exit code of `hotlap run` is the command's, whatever happens to hotlap once the command has ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BREAKS = """
import sys
from hotlap.cli import main, run

def fails(*_):
    raise {error}

run.report = fails
main()
"""


def ran(folder: Path, error: str, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", BREAKS.format(error=error), "run", "--out", "r", sys.executable, "-c", code]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("error", ["MemoryError()", "ValueError('own')", "KeyboardInterrupt()", "OSError('full')"])
@pytest.mark.parametrize("code", [0, 7])
def test_a_report_that_fails_leaves_the_exit_code(tmp_path: Path, error: str, code: int) -> None:
    found = ran(tmp_path, error, f"print('trained'); raise SystemExit({code})")
    assert found.returncode == code and found.stdout == "trained\n"
    assert error.partition("(")[0] in found.stderr or "full" in found.stderr


def test_and_the_signal_that_ended_it(tmp_path: Path) -> None:
    found = ran(tmp_path, "MemoryError()", "import os; os.kill(os.getpid(), 15)")
    assert found.returncode == -signal.SIGTERM
