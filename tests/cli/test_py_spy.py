"""`hotlap run --with py-spy`: a fake on PATH for what may become of it, and the real one where it is installed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forking import hotlap_beside

from hotlap.launch import py_spy
from hotlap.records.errors import CommandNotFound

STACK = 'process {pid}:\\"train\\";thread ({pid}): MainThread;<module> (/w/train.py:9);relu (/x/site-packages/f.py:1)'
ENDS = "py-spy> Wrote raw flamegraph data to 'x'. Samples: 7 Errors: 2"
FAKE = f"""#!/bin/sh
test "$1 $2" = "record --pid" && kill -0 "$3" || exit 9
pid=$3
while test "$1" != --output; do shift; done
trap 'printf "{STACK.format(pid="%s")} 7\\n" $pid $pid >"$2"; echo "{ENDS}"; exit 0' INT
: >ready
while :; do sleep 0.05; done
"""
REFUSED = """#!/bin/sh
echo $1 >>tries
test $1 = dump && printf 'Error: Failed to get it\n\nCaused by:\n    0: Permission denied (os error 13)\n' >&2 ||
  echo 'Error: No python processes found in process 1 or any of its subprocesses' >&2
exit 1
"""
NO_PYTHON = f"""#!/bin/sh
test $1 = dump && exit 1
echo $1 >>tries
test "$(wc -l <tries)" -gt 1 || {{ echo 'Error: No python processes found in process 1' >&2; exit 1; }}
{FAKE.removeprefix("#!/bin/sh")}"""
FULL = """#!/bin/sh
while test "$1" != --output; do shift; done
printf 'process 1:\\"torn' >"$2"; echo 'Error: No space left on device (os error 28)' >&2
exit 1
"""
EMPTY = """#!/bin/sh
while test "$1" != --output; do shift; done
: >"$2"
"""
READY = "n=0; while test ! -e ready && test $n -lt 400; do sleep 0.05; n=$((n + 1)); done; "
WORK = "import time; end = time.time() + {}\nwhile time.time() < end: sum(range(1000))\n"


def beside(command: str, cwd: Path, fake: str) -> tuple[int, str, str]:
    return hotlap_beside("run", "--with", "py-spy", "--out", "run", "sh", "-c", command, cwd=cwd, **{"py-spy": fake})


def test_lines_stand_below_the_verdict_and_in_show_and_trace(tmp_path: Path) -> None:
    code, out, said = beside(f"{READY} echo mine; exit 7", tmp_path, FAKE)
    assert (code, out) == (7, "mine\n")
    assert "/w/train.py:9 in <module>" in said and "relu (f.py)" in said
    assert "7 samples of the main thread" in said and "2 samples failed" in said
    assert not (tmp_path / "run" / "py-spy.raw.part").exists()
    assert "relu (f.py)" in hotlap_beside("show", "run", cwd=tmp_path)[1]
    assert "relu (f.py)" in hotlap_beside("trace", "run", cwd=tmp_path)[1]
    document = json.loads(hotlap_beside("trace", "--json", "run", cwd=tmp_path)[1])
    assert document["py_spy"]["lines"][0]["where"]["file"] == "/w/train.py"


def test_the_signal_that_ended_the_command_stays_its_own(tmp_path: Path) -> None:
    code, _, said = beside(f"{READY} kill -TERM $$", tmp_path, FAKE)
    assert code == -signal.SIGTERM and "relu (f.py)" in said


def test_one_that_is_killed_leaves_the_command_alone_and_is_not_started_again(tmp_path: Path) -> None:
    fake = "#!/bin/sh\necho $1 >>tries\nkill -9 $$\n"
    code, out, said = beside("sleep 2; echo mine; exit 7", tmp_path, fake)
    assert (code, out) == (7, "mine\n")
    assert "py-spy saw nothing: py-spy was ended by signal 9" in said
    assert (tmp_path / "tries").read_text() == "record\n"


def test_one_that_may_not_look_says_what_to_allow(tmp_path: Path) -> None:
    code, out, said = beside("sleep 2; echo mine; exit 7", tmp_path, REFUSED)
    assert (code, out) == (7, "mine\n")
    assert (
        "py-spy saw nothing: Permission denied (os error 13); run hotlap as root" in said and "CAP_SYS_PTRACE" in said
    )
    assert (tmp_path / "tries").read_text() == "record\ndump\n"


def test_python_that_begins_later_is_looked_at(tmp_path: Path) -> None:
    code, _, said = beside(READY, tmp_path, NO_PYTHON)
    assert code == 0 and "relu (f.py)" in said


@pytest.mark.parametrize(
    ("fake", "why"), [(FULL, "No space left"), (EMPTY, "the command ended"), ("not a program", "the command ended")]
)
def test_one_that_does_not_work_changes_nothing(fake: str, why: str, tmp_path: Path) -> None:
    code, out, said = beside("sleep 0.3; echo mine; exit 7", tmp_path, fake)
    assert (code, out) == (7, "mine\n")
    assert f"py-spy saw nothing: {why}" in said
    assert not list((tmp_path / "run").glob("py-spy.raw*"))


def test_ctrl_c_ends_one_that_is_still_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\ntrap '' INT\n: >$(dirname $0)/ready\nwhile :; do sleep 0.05; done\n")
    fake.chmod(0o755)
    joined: list[object] = []
    join = py_spy._Watch.join

    def interrupted(watch: py_spy._Watch, timeout: float | None = None) -> None:
        joined.append(watch.process)
        if len(joined) == 1:
            raise KeyboardInterrupt
        join(watch, timeout)

    monkeypatch.setattr(py_spy._Watch, "join", interrupted)
    with py_spy.looking(str(fake), os.getpid(), tmp_path):
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
    assert isinstance(joined[0], subprocess.Popen) and joined[0].returncode == -signal.SIGKILL
    assert "ended by signal 9" in py_spy.why_not(tmp_path)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy.shutil, "which", lambda *given, **named: None)
    with pytest.raises(CommandNotFound, match="pip install py-spy"):
        py_spy.find_py_spy()
    assert CommandNotFound.exit_code == 127


@pytest.mark.parametrize(
    ("scope", "capabilities", "why"),
    [
        ("1", "0000000000000000", "ptrace_scope is 1: set it to 0"),
        ("1", "000001ffffffffff", "No python"),
        ("3", "000001ffffffffff", "ptrace_scope is 3"),
        ("0", "0000000000000000", "No python"),
    ],
)
def test_what_the_kernel_forbids_is_told(
    scope: str, capabilities: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "py-spy.txt").write_text("Error: No python processes found in process 1\n\nStack backtrace:\n 0: x\n")
    for name, text in (("YAMA", f"{scope}\n"), ("STATUS", f"Name:\tx\nCapEff:\t{capabilities}\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(py_spy, name, tmp_path / name)
    told = py_spy.why_not(tmp_path)
    assert told.startswith("No python processes found") and why in told
    assert ("ptrace_scope" in told) == ("ptrace_scope" in why)


def _may_look() -> bool:
    """Whether the real one is here and may read a process that is not its child."""
    program = shutil.which("py-spy", path=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    if program is None:
        return False
    with subprocess.Popen([sys.executable, "-c", WORK.format(30)]) as process:
        time.sleep(0.5)
        words = [program, "dump", "--nonblocking", "--pid", str(process.pid)]
        tries = (subprocess.run(words, capture_output=True, check=False).returncode for _ in range(3))
        may = 0 in tries
        process.kill()
    return may


@pytest.mark.skipif(sys.platform != "linux", reason="py-spy needs root elsewhere")
def test_the_real_one(tmp_path: Path) -> None:
    if not _may_look():
        pytest.skip("py-spy is not installed, or may not read another process")
    (tmp_path / "work.py").write_text(f"{WORK.format(3)}print('mine')\nraise SystemExit(7)\n")
    words = ("run", "--with", "py-spy", "--out", "run", "sh", "-c", f"{sys.executable} work.py; exit $?")
    code, out, said = hotlap_beside(*words, cwd=tmp_path)
    assert (code, out) == (7, "mine\n")
    assert "work.py:2 in <module>" in said and "of the main thread" in said
