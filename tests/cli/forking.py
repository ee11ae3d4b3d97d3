"""`hotlap` in processes of their own, forked from one that has imported it: see `forking_server.py`."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TOOLS = ("sh", "sleep", "cat", "cp", "kill", "setsid", "test", "wc")
"""Of the system, which commands of tests call."""
SERVER = Path(__file__).with_name("forking_server.py")


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """One for all tests of this process; it ends with it, at the end of its input."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)


def hotlap_forked(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str] = os.environ, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """How hotlap ends with these arguments, as `subprocess.run` tells it. `before` is run first."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said = {name: str(Path(folder) / name) for name in ("stdout", "stderr")}
        request = {"words": list(words), "cwd": str(cwd), "environment": dict(environment), "before": before, **said}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = (Path(path).read_text(errors="replace") for path in said.values())
        return subprocess.CompletedProcess(["hotlap", *words], code, *texts)


def with_programs(cwd: Path, **programs: str) -> dict[str, str]:
    """Variables whose PATH has these programs and a few tools, in a folder of `cwd`."""
    folder = cwd / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for tool in TOOLS:
        if (found := shutil.which(tool)) and not (folder / tool).exists():
            (folder / tool).symlink_to(found)
    return {**os.environ, "PATH": str(folder), "COLUMNS": "120", "TERM": "dumb"}


def hotlap_beside(*words: str, cwd: Path, **programs: str) -> tuple[int, str, str]:
    """How hotlap ends where only these programs can be found: its code, and what it printed."""
    done = hotlap_forked(words, cwd, with_programs(cwd, **programs))
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr
