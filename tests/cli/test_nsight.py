"""`hotlap run --with nsys|ncu`, by fakes on PATH that start the command and write files as the real ones do."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forking import hotlap_beside, with_programs
from test_other_profilers import write_export

from hotlap.launch.nsight import LAUNCHES

START = (
    'while test "$1" != "${1#-}" -o "$1" = profile; do '
    "case $1 in --*=*|--csv|profile) shift;; *) shift 2;; esac; done\n"
)
"""Past the options: nsys' hold a `=`, ncu's are followed by a value."""
NSYS = f"""#!/bin/sh
echo "profiling: $*"
case $1 in
profile)
  for word; do case $word in --output=*) out=${{word#--output=}}; esac; done
  {START}  setsid -w "$@" | cat
  echo "Generated: $out.nsys-rep"; : >"$out.nsys-rep"; exit 3;;
export)
  for word; do case $word in --output=*) cp export.sqlite "${{word#--output=}}"; esac; done;;
esac
"""
TABLE = (
    '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed",'
    '"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"\n"","","ns","%","%"\n'
    '"0","void gemm[red]<(int)4>(int)","2,000,000","80.5","20"\n'
)
NCU = f"""#!/bin/sh
echo "==PROF== Connected to process 1 $*"
{START}"$@"
cat <<'END'
{TABLE}END
exit 1
"""
REFUSED = f"""#!/bin/sh
{START}"$@"
echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters" >&2
"""
OLD = "#!/bin/sh\necho \"unrecognised option '--capture-range-end=stop'\" >&2\nexit 1\n"
SILENT = f"#!/bin/sh\n{START}\"$@\"\necho 'The target application terminated. No reports were generated'\n"
BEGUN_S = 0.5
"""For hotlap to pass signals on: the command speaks a moment earlier."""
ALONE = SILENT.replace('"$@"', 'setsid -w "$@"')


def run(cwd: Path, tool: str, script: str, **fakes: str) -> tuple[int, str, str]:
    return hotlap_beside("run", "--with", tool, "--out", "run", "sh", "-c", script, cwd=cwd, **fakes)


def test_nsys_records_and_output_and_exit_code_stay_the_commands(tmp_path: Path) -> None:
    write_export(tmp_path / "export.sqlite")
    code, out, said = run(tmp_path, "nsys", "echo mine; exit 7", nsys=NSYS)
    assert (code, out) == (7, "mine\n")
    assert "exit code 7" in said and "gemm" in said and "step 1" in said
    told = (tmp_path / "run" / "nsys.txt").read_text()
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop --kill=none" in told
    assert "mine" not in told
    assert "2 steps by annotation" in hotlap_beside("trace", "run", cwd=tmp_path)[1]


def test_ncu_measures_kernels(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, "ncu", "echo mine; echo its own error >&2; exit 7", ncu=NCU)
    assert (code, out) == (7, "mine\n")
    assert "its own error" in said and "gemm[red]" in said and "compute" in said and "80%" in said
    assert said.startswith(f"hotlap: ncu measures up to {LAUNCHES} kernel launches of 1 steady step, about")
    assert "1 kernel launch measured\n" in said
    table = (tmp_path / "run" / "ncu.csv").read_text()
    assert "--profile-from-start off" in table and "--launch-count" in table and "mine" not in table
    for command in ("show", "trace"):
        assert "gemm[red]" in hotlap_beside(command, "run", cwd=tmp_path)[1], command


def test_a_limit_of_launches_that_was_reached_is_told(tmp_path: Path) -> None:
    """And so it is by `show`. Of a table of the user's own nothing is known of a limit."""
    (row,) = TABLE.splitlines(keepends=True)[2:]
    full = NCU.replace(row, row * LAUNCHES)
    said = run(tmp_path, "ncu", "echo mine", ncu=full)[2]
    reached = f"{LAUNCHES} kernel launches measured, the most that hotlap asks ncu for; later ones are missing"
    assert reached in " ".join(said.split())
    assert reached in " ".join(hotlap_beside("show", "run", cwd=tmp_path)[1].split())
    told = " ".join(hotlap_beside("trace", "--ncu", "run/ncu.csv", cwd=tmp_path)[1].split())
    assert f"{LAUNCHES} kernel launches measured percent of" in told
    assert f"--launch-count {LAUNCHES} " in (tmp_path / "run" / "ncu.csv").read_text()


def test_nsys_says_nothing_before_the_command_does(tmp_path: Path) -> None:
    write_export(tmp_path / "export.sqlite")
    assert not run(tmp_path, "nsys", "echo mine", nsys=NSYS)[2].startswith("hotlap:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_signal_that_ended_the_command_stays_its_own(number: signal.Signals, tmp_path: Path) -> None:
    code, _, said = run(tmp_path, "ncu", f"kill -{number} $$", ncu=NCU)
    assert code == -number
    assert number.name in said and "gemm" in said


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        (OLD, "unrecognised option '--capture-range-end=stop'"),
        ("not a program", "the command ran without it"),
        (SILENT, "No reports"),
        (NSYS.replace("cp export.sqlite", "exit 4;"), "its export failed (exit code 4)"),
    ],
)
def test_an_nsys_that_fails_says_so_and_the_command_runs_once(fake: str, why: str, tmp_path: Path) -> None:
    code, out, said = run(tmp_path, "nsys", "echo mine; exit 7", nsys=fake)
    assert (code, out) == (7, "mine\n")
    assert "nsys recorded nothing" in said
    assert why in " ".join(said.split())


def test_counters_that_may_not_be_read(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, "ncu", "echo mine", ncu=REFUSED)
    assert (code, out) == (0, "mine\n")
    assert "may not read the device's counters" in " ".join(said.split())


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--with", "nsys"), 127, "not found on PATH"),
        (("--with", "ncu", "--profile"), 125, "two runs"),
        (("--with", "ncu", "--profile-memory"), 125, "go with --profile"),
    ],
)
def test_what_can_not_be(words: tuple[str, ...], code: int, why: str, tmp_path: Path) -> None:
    fakes = {"ncu": NCU} if "ncu" in words else {}
    found = hotlap_beside("run", *words, "--out", "run", "sh", "-c", "echo never", **fakes, cwd=tmp_path)
    assert found[0] == code and why in found[2] and found[1] == ""
    assert not (tmp_path / "run").exists()


def test_a_command_that_can_not_be_started_ends_as_without(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    code, _, said = hotlap_beside("run", "--with", "ncu", "--out", "run", "./script", ncu=NCU, cwd=tmp_path)
    assert code == 126 and "script" in said and "No such file" in said


def read_until(terminal: int, text: bytes, limit_s: float = 20.0) -> bytes:
    """What a terminal shows up to a text."""
    shown, deadline = b"", time.monotonic() + limit_s
    while text not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the other side is gone
                break
    assert text in shown, shown
    return shown


@pytest.mark.parametrize(("tool", "fake"), [("ncu", NCU), ("nsys", ALONE)])
def test_at_a_terminal_the_command_has_its_keys(tool: str, fake: str, tmp_path: Path) -> None:
    """It reads what is typed, and Ctrl-C is for it alone: the profiler writes what it has all the same. nsys starts it
    in a session that no terminal belongs to, and there all that the command started gets Ctrl-C too."""
    script = "trap 'echo caught; exit 9' INT; echo ready; read line; echo got $line; sleep 20"
    words = [sys.executable, "-m", "hotlap", "run", "--with", tool, "--out", "run", "sh", "-c", script]
    variables = with_programs(tmp_path, **{tool: fake})
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, words, variables)
    try:
        read_until(terminal, b"ready")
        os.write(terminal, b"typed\n")
        read_until(terminal, b"got typed")
        time.sleep(BEGUN_S)
        os.write(terminal, b"\x03")
        read_until(terminal, b"gemm" if tool == "ncu" else b"No reports")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9


def test_a_signal_to_hotlap_reaches_the_command(tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "hotlap", "run", "--with", "ncu", "--out", "run", "sh", "-c", script]
    variables = with_programs(tmp_path, ncu=NCU)
    with subprocess.Popen(
        words, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(BEGUN_S)
        process.terminate()
        out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (9, b"caught\n")
    assert b"gemm" in said
