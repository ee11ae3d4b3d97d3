"""What other profilers wrote, through the real process boundary; and `perf` beside a command, by a fake on PATH."""

import json
import signal
import sqlite3
from pathlib import Path

import pytest
from forking import hotlap_beside

COUNTERS = "9.50,msec,task-clock,1,100.00,1.250,CPUs utilized\n30,,context-switches,1,100.00,,\n"
PERF = f"""#!/bin/sh
test "$1 $2 $3" = "stat -x, -o" && test "$5" = -p && kill -0 "$6" || exit 9
trap 'printf "{COUNTERS}" >"$out"; exit 0' INT
out=$4
: >"$out.ready"
while :; do sleep 0.05; done
"""
REFUSED = "#!/bin/sh\necho 'Access to performance monitoring is limited.' >&2\nexit 255\n"
READY = 'n=0; while test ! -e "run/perf.csv.ready" && test $n -lt 200; do sleep 0.05; n=$((n + 1)); done; '
NCU = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","gemm[red]\x1b[31m","2,000,000"\n'


def write_export(path: Path) -> None:
    """Two steps, each a kernel and a wait for it."""
    with sqlite3.connect(path) as database:
        database.executescript("""
            create table StringIds (id integer primary key, value text);
            insert into StringIds values (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'cudaDeviceSynchronize_v3020');
            create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int);
            insert into NVTX_EVENTS values (0, 9000, 59, 'step 1', 16777217), (9000, 18000, 59, 'step 2', 16777217);
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, globalTid int, correlationId int, nameId int);
            create table CUPTI_ACTIVITY_KIND_KERNEL (
                start int, end int, deviceId int, streamId int, correlationId int, globalPid int, demangledName int
            );
        """)
        for begin, number in ((0, 1), (9000, 3)):
            calls = [
                (begin + 100, begin + 200, 16777217, number, 2),
                (begin + 300, begin + 8000, 16777217, number + 1, 3),
            ]
            database.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)", calls)
            work = (begin + 400, begin + 7900, 0, 7, number, 16777216, 1)
            database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?)", work)
    database.close()


def test_an_export_of_nsys_and_counters_on_one_screen_and_in_the_document(tmp_path: Path) -> None:
    write_export(tmp_path / "report.sqlite")
    (tmp_path / "ncu.csv").write_text(NCU)
    (tmp_path / "perf.csv").write_text(COUNTERS)
    files = ("report.sqlite", "--ncu", "ncu.csv", "--perf", "perf.csv")
    code, screen, _ = hotlap_beside("trace", *files, cwd=tmp_path)
    assert code == 0
    assert "report.sqlite" in screen and "2 steps by annotation" in screen and "cudaDeviceSynchronize" in screen
    assert "gemm[red]" in screen and "\x1b" not in screen and "2.00 ms" in screen
    assert "context switches" in screen
    document = json.loads(hotlap_beside("trace", "--json", *files, cwd=tmp_path)[1])
    assert document["ncu"][0]["ns"] == 2e6
    assert document["perf"]["counters"]["context-switches"] == 30
    assert document["ranks"][0]["breakdown"][0]["compute_ns"] == 15_000
    rows = hotlap_beside("trace", "report.sqlite", "--json", "--sql", "select count(*) as n from device", cwd=tmp_path)[
        1
    ]
    assert json.loads(rows)["n"] == 2
    code, _, said = hotlap_beside("open", "report.sqlite", cwd=tmp_path)
    assert code == 125 and "Nsight Systems" in said


def test_counters_without_a_trace_and_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "perf.csv").write_text(COUNTERS)
    assert "processors busy" in hotlap_beside("trace", "--perf", "perf.csv", cwd=tmp_path)[1]
    code, _, said = hotlap_beside("trace", cwd=tmp_path)
    assert code == 125 and "no trace given" in said


def test_perf_counts_beside_the_command(tmp_path: Path) -> None:
    code, out, said = hotlap_beside(
        "run", "--with", "perf", "--out", "run", "sh", "-c", f"{READY} echo mine; exit 7", cwd=tmp_path, perf=PERF
    )
    assert (code, out) == (7, "mine\n")
    assert "processors busy" in said and "1.25" in said
    assert (tmp_path / "run" / "perf.csv").read_text() == COUNTERS
    assert not (tmp_path / "run" / "perf.txt").exists()


def test_the_signal_that_ended_the_command_stays_its_own(tmp_path: Path) -> None:
    words = ("run", "--with", "perf", "--out", "run", "sh", "-c", f"{READY} kill -TERM $$")
    code, _, said = hotlap_beside(*words, cwd=tmp_path, perf=PERF)
    assert code == -signal.SIGTERM
    assert "SIGTERM" in said and "processors busy" in said


@pytest.mark.parametrize("perf", [REFUSED, "not a program"])
def test_a_perf_that_may_not_count_changes_nothing(perf: str, tmp_path: Path) -> None:
    words = ("run", "--with", "perf", "--out", "run", "sh", "-c", "sleep 0.2; echo mine; exit 7")
    code, out, said = hotlap_beside(*words, cwd=tmp_path, perf=perf)
    assert (code, out) == (7, "mine\n")
    assert "perf counted nothing" in said
    assert ("monitoring is limited" in said) == (perf is REFUSED)


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [("perf", 127, "not installed"), ("gdb", 125, "can be perf, py-spy, nsys or ncu")],
)
def test_what_can_not_be_run_beside_a_command(program: str, code: int, why: str, tmp_path: Path) -> None:
    found = hotlap_beside("run", "--with", program, "--out", "run", "sh", "-c", "echo never", cwd=tmp_path)
    assert found[0] == code and why in found[2] and found[1] == ""
    assert not (tmp_path / "run").exists()
