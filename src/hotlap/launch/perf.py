"""`perf stat` beside a command: attached to its process, never in front of it.

`perf stat CMD` says 0 where a signal ended CMD, and leaves it running when it is itself asked to end. Attached (`-p`),
it counts the command's threads and all that they start from then on, and the command stays our own child. Its first
milliseconds are not counted.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from hotlap.records.errors import CommandNotFound
from hotlap.runs.folder import RunFolder

from . import attached

PERF_FILE: Final = "perf.csv"
END_S: Final = 3.0


def find_perf() -> str:
    """Its path. Raises CommandNotFound."""
    found = shutil.which("perf")
    if found is None:
        raise CommandNotFound("--with perf: perf is not installed (package linux-tools or linux-perf)")
    return found


@contextlib.contextmanager
def counting(perf: str | None, pid: int, path: Path) -> Iterator[None]:
    """Count in the process until the block ends, into `path`; what perf complains of goes to `perf.txt` beside it.
    Nothing with `perf` None. Whatever becomes of perf, the block is left as it would be."""
    if perf is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            said: IO[bytes] | int = stack.enter_context(path.with_suffix(".txt").open("wb"))
        except OSError:  # a full disk
            said = subprocess.DEVNULL
        process = attached.started([perf, "stat", "-x,", "-o", str(path), "-p", str(pid)], said)
        try:
            yield
        finally:
            if process is not None:
                attached.end(process, END_S)
            attached.remove_empty(path.with_suffix(".txt"))


def why_not(folder: Path) -> str:
    """What perf said first, for a run without counters."""
    said = RunFolder(folder).text("perf.txt")
    return said[0][:200] if said else "the command ended before perf had started"
