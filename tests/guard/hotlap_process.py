"""hotlap in a process of its own, and what it says there."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hotlap

SOURCE = Path(hotlap.__path__[0]).parent
Ended = subprocess.CompletedProcess[str]


def variables(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "300", **more}


def started(words: Sequence[str | Path], cwd: Path, **more: str) -> subprocess.Popen[str]:
    """hotlap with these words, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hotlap", *words], cwd=cwd, env=variables(**more), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(words: Sequence[str | Path], cwd: Path, **more: str) -> Ended:
    """How it ends."""
    process = started(words, cwd, **more)
    out, err = process.communicate(timeout=120)
    return Ended(words, process.returncode, out, err)


def refused(done: Ended, *says: str) -> None:
    """It could not be done, and one line says why."""
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("hotlap: ") and done.stderr.count("\n") == 1, done.stderr
    for text in says:
        assert text in done.stderr
