"""What a profiler starts in place of the user's command, and what starts the command: `python -I -S relay.py SOCKET`.

Profilers start the program themselves, take its output through their own, and end with an exit code of their own. So
the command is started by this, which hotlap talks to over a socket: it gets the command and hotlap's own stdin, stdout
and stderr, says the command's process id and how it ended, and passes signals on. Standard library only.

nsys starts it in a session of its own, which no terminal belongs to: there Ctrl-C, which hotlap passes on, is for all
that the command has started, as it would be at a terminal. ncu starts it in its own process group.

Without an answer from hotlap, which may have given up on the profiler and started the command itself, nothing is
started: the command never runs twice.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Final

CHUNK: Final = 1 << 16
STREAMS: Final = 3
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(path: str) -> int:
    """Run the command that hotlap tells. 0 however it ends: that is told to hotlap, and no business of the profiler."""
    with socket.socket(socket.AF_UNIX) as line, contextlib.suppress(OSError):
        line.connect(path)
        told = _told(line)
        if told is not None:
            _run(line, told)
    return 0


def _told(line: socket.socket) -> dict[str, Any] | None:
    """The command. hotlap's streams become our own, and so the command's."""
    text, streams, _, _ = socket.recv_fds(line, CHUNK, STREAMS)
    while text and not text.endswith(b"\n"):
        more = line.recv(CHUNK)
        if not more:
            return None
        text += more
    if not text or len(streams) != STREAMS:
        return None
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return dict(json.loads(text))


def _run(line: socket.socket, told: dict[str, Any]) -> None:
    joined = _as_hotlap(told)
    try:  # ncu follows processes by descriptors that they inherit
        process = subprocess.Popen(told["words"], executable=told["program"], cwd=told["cwd"], close_fds=False)
    except OSError as error:
        line.sendall(f"error {error.strerror or error}\n".encode())
        return
    line.sendall(f"pid {process.pid}\n".encode())
    threading.Thread(target=_pass_signals, args=(line, process, joined), daemon=True).start()
    line.sendall(f"end {process.wait()}\n".encode())


def _as_hotlap(told: dict[str, Any]) -> bool:
    """Go to hotlap's process group, where the terminal finds the command, and say whether that could be; signals are
    ignored only where hotlap ignores them."""
    joined = False
    with contextlib.suppress(OSError):
        os.setpgid(0, told["group"])
        joined = True
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in SIGNALS:  # what is handled here is the default again in the command; what is ignored stays so
        signal.signal(number, signal.SIG_IGN if number in told["ignored"] else lambda number, frame: None)
    return joined


def _pass_signals(line: socket.socket, process: "subprocess.Popen[bytes]", joined: bool) -> None:
    with contextlib.suppress(OSError):
        while numbers := line.recv(CHUNK):
            for number in numbers:
                if number == signal.SIGINT and not joined and os.getpgrp() == os.getpid():
                    os.killpg(0, number)
                else:
                    process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
