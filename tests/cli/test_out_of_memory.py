"""`hotlap run` of commands that end for lack of memory: their own traceback and exit code, then the screen."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "agent" / "scripts" / "lacks.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140", "CUDA_VISIBLE_DEVICES": ""}


def hotlap(folder: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    start = ("-c", f"{before}\nfrom hotlap.cli import main\nmain()")
    return subprocess.run(
        [sys.executable, *start, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_traceback_and_then_the_screen(tmp_path: Path) -> None:
    done = hotlap(tmp_path, "run", "--json", "--out", "r", sys.executable, str(SCRIPT), "forward")
    assert done.returncode == 1 and done.stdout.startswith("loss ")
    trace, told = done.stderr.index("DefaultCPUAllocator"), done.stderr.index("memory ran out (host): 16 GiB")
    assert trace < told and "in the forward of step 4" in done.stderr[told:]
    assert "in Net.forward" in done.stderr[told:] and "batches of 1/" in done.stderr[told:]
    assert "fix the command's own error" not in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].endswith("lacks.py forward")
    document = json.loads(done.stdout.splitlines()[-1])["ran_out"]
    assert (document["asked_bytes"], document["step"], document["killed"]) == (1 << 34, 4, False)
    again = hotlap(tmp_path, "show", "r")
    assert "memory ran out (host): 16 GiB" in again.stdout and "hotlap tune --objective memory" in again.stdout


def test_a_record_that_can_not_be_read(tmp_path: Path) -> None:
    hotlap(tmp_path, "run", "--out", "r", sys.executable, str(SCRIPT), "loop")
    (tmp_path / "r" / "rank-0" / "memory-oom.json").write_text('{"when": "oom", "device": 3}')
    done = hotlap(tmp_path, "show", "r")
    assert "how memory ran out can't be read" in done.stderr and "Traceback" not in done.stderr


KILLS = """
from hotlap.launch import cgroups
told = iter([3, 4])
cgroups.oom_kills = lambda: next(told)
cgroups.memory_limit = lambda: 1 << 30
"""


def test_a_kill_that_the_kernel_counted(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = hotlap(tmp_path, "run", "--out", "r", sys.executable, "-c", code, before=KILLS)
    assert done.returncode == -signal.SIGKILL
    assert "host memory ran out: the kernel killed a process of the command" in done.stderr
    told = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (told["oom_kills"], told["memory_limit_bytes"]) == (1, 1 << 30)


def test_a_kill_by_somebody_else(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = hotlap(tmp_path, "run", "--out", "r", sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL and "memory ran out" not in done.stderr
