"""A profiler in front of a command: one that hangs, before the command or after it; two that both would start it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.launch import front, nsight, relay
from hotlap.launch.front import Front, NotStarted, Relayed
from hotlap.records.errors import CommandNotFound, CommandNotRunnable

STUBBORN = "trap '' TERM; echo $$; while :; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "END_S", 0.1)


def start(fake: str, tmp_path: Path, command: list[str], start_s: float = 20.0) -> tuple[Front, Relayed]:
    made = Front(["/bin/sh", "-c", fake, "sh"])
    with (tmp_path / "said.txt").open("wb") as said:
        return made, made.start(command, command[0], tmp_path, os.environ, said, said, start_s)


def gone(path: Path) -> bool:
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
    return True


def test_one_that_never_starts_the_command_is_ended(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="had not started the command after 0 s"):
        start(STUBBORN, tmp_path, ["/bin/true"], 0.4)
    assert gone(tmp_path / "said.txt")


def test_one_that_never_ends_is_ended(tmp_path: Path) -> None:
    made, command = start(f'"$@"; {STUBBORN}', tmp_path, ["/bin/sh", "-c", "exit 5"])
    assert command.wait() == 5
    assert "as it still ran" in made.finish(0.4)
    assert gone(tmp_path / "said.txt")


def test_one_that_dies_leaves_the_command(tmp_path: Path) -> None:
    done = tmp_path / "done"
    _, command = start('"$@" & exit 1', tmp_path, ["/bin/sh", "-c", f"sleep 0.2; echo whole > {done}; exit 5"])
    assert command.wait() == 5
    assert done.read_text() == "whole\n"


def test_a_relay_that_is_killed_counts_as_a_kill(tmp_path: Path) -> None:
    _, command = start('"$@"', tmp_path, ["/bin/sh", "-c", "sleep 0.3; kill -KILL $PPID"])
    assert command.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        command.send_signal(signal.SIGTERM)


def test_a_relay_that_is_killed_early_is_no_reason_to_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "relay.py"
    silent.write_text(
        "import socket, sys\nline = socket.socket(socket.AF_UNIX)\nline.connect(sys.argv[1])\nline.recv(99999)\n"
    )
    monkeypatch.setattr(relay, "__file__", str(silent))
    with pytest.raises(CommandNotRunnable, match="was killed"):
        start('"$@"', tmp_path, ["/bin/true"])


def test_the_command_has_no_signals_but_ours(tmp_path: Path) -> None:
    """A profiler that ignores signals does not make the command ignore them."""
    _, command = start("trap '' TERM INT; \"$@\"", tmp_path, ["/bin/sh", "-c", "kill -TERM $$; exit 5"])
    assert command.wait() == -signal.SIGTERM


@pytest.mark.parametrize("answers", [False, True])
def test_a_relay_whom_nobody_tells_starts_nothing(answers: bool, tmp_path: Path) -> None:
    """hotlap gave up on the profiler, and has started the command itself."""
    path = str(tmp_path / "relay")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        if answers:
            listener.listen(1)
        words = [sys.executable, "-I", "-S", relay.__file__, path]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            if answers:
                listener.accept()[0].close()
            out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"")


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsight, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandNotFound, match="nsys was not found on PATH"):
        nsight.find("nsys")
    for version in ("2023.4.4", "2025.3.1"):
        tool = tmp_path / "opt/nvidia/nsight-systems" / version / "bin/nsys"
        tool.parent.mkdir(parents=True)
        tool.touch(0o755)
    assert nsight.find("nsys") == str(tool)


def test_why_there_is_nothing(tmp_path: Path) -> None:
    assert nsight.why_not(tmp_path, "ncu").startswith("see ")
    (tmp_path / "rank-0").mkdir()
    assert nsight.why_not(tmp_path, "ncu") == "the run ended before its steady steps"
    (tmp_path / "ncu.csv").write_text("==PROF== Connected\n==ERROR== The application returned an error code (9).\n")
    assert "returned an error code (9)" in nsight.why_not(tmp_path, "ncu")
    (tmp_path / "rank-0/capture.json").write_text('{"tool": "ncu", "note": "the command used no GPU"}')
    assert nsight.why_not(tmp_path, "ncu").startswith("the command used no GPU; ")
    (tmp_path / "ncu.txt").write_text("==ERROR== ERR_NVGPUCTRPERM - no\n")
    assert nsight.why_not(tmp_path, "ncu") == nsight.ALLOW


def test_a_stdin_that_is_closed_is_not_one_of_our_files(tmp_path: Path) -> None:
    """Python gives the lowest number that is free to the next file that it opens."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom hotlap.launch.front import Front\n"
        "os.close(0)\nsecret = open('secret', 'w+')\nassert secret.fileno() == 0\n"
        "command = Front(['/bin/sh', '-c', '\"$@\"', 'sh']).start(\n"
        "    ['/bin/sh', '-c', 'readlink /proc/self/fd/0 >found'], '/bin/sh', Path.cwd(), os.environ, None, None)\n"
        "sys.exit(command.wait())"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "found").read_text() == "/dev/null\n"
