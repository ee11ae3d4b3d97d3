"""`hotlap` in processes of their own, forked from one that has imported it: see `forking_server.py`."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).with_name("forking_server.py")


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """One for all tests of this process; it ends with it, at the end of its input."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)


def hotlap_forked(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """How hotlap ends with these arguments, as `subprocess.run` tells it."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said = {name: str(Path(folder) / name) for name in ("stdout", "stderr")}
        request = {"words": list(words), "cwd": str(cwd), "environment": dict(environment), **said}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = (Path(path).read_text(errors="replace") for path in said.values())
        return subprocess.CompletedProcess(["hotlap", *words], code, *texts)
