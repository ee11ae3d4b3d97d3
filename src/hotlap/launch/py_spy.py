"""`py-spy record` beside a command: attached to its process, and to the Python processes that it starts.

`--nonblocking`: the command is never stopped, py-spy reads its memory while it runs; a look at a stack that changes
meanwhile fails, or is of two moments. `--idle`: a thread that waits is seen too, so that the main thread's samples are
of its whole time. No `--gil`, which would leave out all that torch does without the interpreter's lock, and no
`--native`, which has to stop the command. py-spy ends when no Python process is left, or none has begun: as long as the
command runs it is started again.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from hotlap.records.errors import CommandNotFound
from hotlap.records.profilers import PY_SPY_FILE, PY_SPY_RATE, PY_SPY_SAID
from hotlap.runs.folder import RunFolder

from . import attached

END_S: Final = 10.0
"""Writing its file took 0.03 s after 15 s of looks; a long job has more places."""
AGAIN_S: Final = 1.0
POLL_S: Final = 0.1
ASK_S: Final = 10.0
OWN: Final = "hotlap: "
"""Begins what hotlap itself adds to what py-spy said."""
LARGEST: Final = 1 << 16
REFUSED: Final = re.compile(r"permission denied|not permitted", re.I)
CAUSE: Final = re.compile(r"^\s*(\d+: |Error: )?")
YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
STATUS: Final = Path("/proc/self/status")
SYS_PTRACE: Final = 1 << 19
ALLOW: Final = "run hotlap as root, or in a container with CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"


def find_py_spy() -> str:
    """Its path: on PATH, or beside the Python that runs hotlap. Raises CommandNotFound."""
    found = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if found is None:
        raise CommandNotFound("--with py-spy: py-spy is not installed (pip install py-spy)")
    return found


@contextlib.contextmanager
def looking(program: str | None, pid: int, folder: Path) -> Iterator[None]:
    """Look at the process until the block ends, into PY_SPY_FILE; what py-spy says goes to PY_SPY_SAID beside it.
    Nothing with `program` None. Whatever becomes of py-spy, the block is left as it would be."""
    if program is None:
        yield
        return
    watch = _Watch(program, pid, folder)
    watch.start()
    try:
        yield
    finally:
        watch.finish()


class _Watch(threading.Thread):
    """Keeps py-spy running while the command does."""

    def __init__(self, program: str, pid: int, folder: Path) -> None:
        super().__init__(name="hotlap-py-spy", daemon=True)
        self.program, self.pid = program, pid
        self.file, self.said, self.part = folder / PY_SPY_FILE, folder / PY_SPY_SAID, folder / f"{PY_SPY_FILE}.part"
        self.ended = threading.Event()
        self.process: attached.Profiler | None = None

    def finish(self) -> None:
        """The command has ended. Ctrl-C ends what py-spy still writes."""
        self.ended.set()
        try:
            self.join()
        except KeyboardInterrupt:
            if self.process is not None:
                self.process.kill()
            self.join()

    def run(self) -> None:
        """Once, and again for as long as that can be of use."""
        with contextlib.ExitStack() as stack:
            try:
                said = stack.enter_context(self.said.open("ab", buffering=0))
            except OSError:  # a full disk
                said = None
            while self._once(said) and not self.ended.wait(AGAIN_S):
                pass
        attached.remove_empty(self.said)

    def _once(self, said: FileIO | None) -> bool:
        """Whether to try again. Beyond LARGEST, what is said where nothing was seen is not kept."""
        before = said.seek(0, os.SEEK_END) if said else 0
        self.process = process = attached.started(self._words(), said or subprocess.DEVNULL)
        if process is None:
            return False
        while process.poll() is None and not self.ended.wait(POLL_S):
            pass
        attached.end(process, END_S)
        seen, by = self._gather(whole=process.returncode == 0), -process.returncode
        if by == signal.SIGKILL or (by > 0 and not self.ended.is_set()):
            _note(said, f"py-spy was ended by signal {by}, before it wrote what it had seen")
            return False
        if self.ended.is_set() or (not seen and self._refused(said)):
            return False
        if said and not seen and before > LARGEST:
            with contextlib.suppress(OSError):
                said.truncate(before)
        return True

    def _gather(self, whole: bool) -> bool:
        """Whether it wrote what it saw; that is added to what earlier ones wrote. What is not whole takes no space."""
        try:
            whole = whole and self.part.stat().st_size > 0
            if whole and not self.file.exists():
                self.part.rename(self.file)
            elif whole:
                with self.part.open("rb") as part, self.file.open("ab") as file:
                    shutil.copyfileobj(part, file)
        except OSError:
            whole = False
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        return whole

    def _refused(self, said: FileIO | None) -> bool:
        """Whether it may not look at the command. With --subprocesses it says the same where there is no Python."""
        words = [self.program, "dump", "--nonblocking", "--pid", str(self.pid)]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=ASK_S,
                start_new_session=True, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        why = next((line for line in done.stderr.decode(errors="replace").splitlines() if REFUSED.search(line)), "")
        if why:
            _note(said, CAUSE.sub("", why))
        return bool(why)

    def _words(self) -> list[str]:
        return [
            self.program, "record", "--pid", str(self.pid), "--subprocesses", "--threads", "--idle", "--nonblocking",
            "--full-filenames", "--format", "raw", "--rate", str(PY_SPY_RATE), "--output", str(self.part),
        ]  # fmt: skip


def _note(said: FileIO | None, what: str) -> None:
    with contextlib.suppress(OSError):
        if said:
            said.write(f"{OWN}{what}\n".encode())


def why_not(folder: Path) -> str:
    """Why a run has nothing of py-spy: in its words, and what to allow."""
    lines = RunFolder(folder).text(PY_SPY_SAID, LARGEST)
    said = [line.removeprefix("Error: ") for line in lines if line.startswith((OWN, "Error: "))]
    last = said[-1].removeprefix(OWN)[:200] if said else "the command ended before py-spy had started"
    allow = _to_allow(any(map(REFUSED.search, said))) if said else ""
    return f"{last}; {allow}" if allow else last


def _to_allow(refused: bool) -> str:
    """What lets py-spy read the command's memory; "" where nothing speaks against that it may."""
    try:
        scope = int(YAMA.read_text(encoding="ascii"))
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", STATUS.read_text(encoding="ascii"), re.M)
        may = found is not None and bool(int(found[1], 16) & SYS_PTRACE)
    except (OSError, ValueError):  # not Linux, or a kernel without it
        scope, may = 0, False
    if scope == 3 or (scope and not may):
        return f"kernel.yama.ptrace_scope is {scope}: {'0 allows it' if scope == 3 else f'set it to 0, or {ALLOW}'}"
    return ALLOW if refused else ""
