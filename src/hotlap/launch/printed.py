"""What a command in the foreground prints, passed on as it comes, and kept with its times."""

import contextlib
import os
import select
import threading
import time
from pathlib import Path
from typing import Final

from hotlap.records.errors import unable
from hotlap.records.files import to_json
from hotlap.records.mlperf import PrintedLine

CHUNK: Final = 1 << 16
LONGEST: Final = 2000
"""Characters of a line."""
MOST_BYTES: Final = 64 << 20
"""Of the file; what is printed later is passed on only."""
REST_S: Final = 5.0
"""For the rest of the output once the command has ended: what it started may hold the pipe open."""
VARIABLES: Final = {"PYTHONUNBUFFERED": "1"}
"""A command's Python holds lines back where it does not write to a terminal."""


class Printed:
    """Two pipes for a command's stdout and stderr. Raises RecordError where the file can't be written."""

    def __init__(self, path: Path) -> None:
        with unable(f"write {path}"):
            self._file = path.open("wb", buffering=0)
        self._bytes, self._lock = 0, threading.Lock()
        pipes = os.pipe(), os.pipe()
        self.streams = pipes[0][1], pipes[1][1]
        """For the command: its stdout and stderr."""
        self._threads = [
            threading.Thread(target=self._pass_on, args=(pipe[0], to), daemon=True)
            for to, pipe in enumerate(pipes, start=1)
        ]

    def begun(self) -> None:
        """The command has them, or could not be started."""
        for stream in self.streams:
            os.close(stream)
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Once the command has ended: wait for the rest of what it printed."""
        for thread in self._threads:
            thread.join(REST_S)

    def _pass_on(self, source: int, to: int) -> None:
        """From a pipe to our own stream; where nobody reads that any more, the command hears of it as it would."""
        rest = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(source, CHUNK):
                _write(to, chunk)
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                self._keep(lines)
                rest = rest[: 4 * LONGEST]
            self._keep([rest])
        os.close(source)

    def _keep(self, lines: list[bytes]) -> None:
        now = time.time()
        texts = (line.decode("utf-8", "replace")[:LONGEST] for line in lines if line.strip())
        data = b"".join(to_json(PrintedLine(time=now, text=text)) + b"\n" for text in texts)
        with self._lock, contextlib.suppress(OSError):  # a full disk must not end the command's output
            self._bytes += len(data)
            if self._bytes <= MOST_BYTES:
                self._file.write(data)


def _write(to: int, data: bytes) -> None:
    """All of it. Raises OSError."""
    while data:
        try:
            data = data[os.write(to, data) :]
        except BlockingIOError:
            select.select([], [to], [])
