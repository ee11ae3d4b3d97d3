"""`hotlap trace` and `hotlap diff` through the real process boundary."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forking import hotlap_forked

DATA = Path(__file__).parents[1] / "trace" / "data"
RANKS = DATA / "ranks"


def hotlap(*arguments: str, cwd: Path, code: int = 0, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """fresh: in an interpreter of its own."""
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "HOTLAP_CACHE": str(cwd / "cache")}
    if fresh:
        done = subprocess.run(
            [sys.executable, "-m", "hotlap", *arguments],
            cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    else:
        done = hotlap_forked(arguments, cwd, environment)
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def test_ranks_of_a_folder_on_one_screen_and_as_a_document(tmp_path: Path) -> None:
    screen = hotlap("trace", str(RANKS), cwd=tmp_path, fresh=True).stdout
    assert "rank 3 of 4" in screen and "the other ranks wait for rank 3" in screen
    assert "the device waits for the next batch" in screen
    document = json.loads(hotlap("trace", "--json", "--no-what-if", str(RANKS), cwd=tmp_path).stdout)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 2, 3]
    assert document["balance"]["straggler"] == 3
    assert document["replay"] is None
    for rank in document["ranks"]:
        for one in rank["breakdown"]:
            parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
            assert sum(one[part] for part in parts) == one["span_ns"]


def test_a_trace_without_steps_or_devices_is_read_too(tmp_path: Path) -> None:
    screen = hotlap("trace", str(DATA / "cpu.json"), cwd=tmp_path).stdout
    assert "no steps found" in screen and "aten::" in screen


def test_top_bounds_the_tables(tmp_path: Path) -> None:
    few = hotlap("trace", "--top", "1", str(RANKS / "straggler_rank0.json.gz"), cwd=tmp_path).stdout
    many = hotlap("trace", "--top", "20", str(RANKS / "straggler_rank0.json.gz"), cwd=tmp_path).stdout
    assert len(few.splitlines()) < len(many.splitlines()) and "--top shows them" in few


def test_sql_as_a_table_and_as_lines(tmp_path: Path) -> None:
    path = str(RANKS / "straggler_rank3.json.gz")
    query = "select cat, count(*) as n from device group by cat order by n desc"
    assert "kernel" in hotlap("trace", path, "--sql", query, cwd=tmp_path).stdout
    rows = [
        json.loads(line) for line in hotlap("trace", path, "--json", "--sql", query, cwd=tmp_path).stdout.splitlines()
    ]
    assert rows[0]["n"] >= rows[-1]["n"] and {"cat", "n"} == set(rows[0])
    refused = hotlap("trace", path, "--sql", "select x from device", cwd=tmp_path, code=125)
    assert "docs/trace.md" in refused.stderr


def test_diff(tmp_path: Path) -> None:
    one, other = (str(RANKS / f"straggler_rank{rank}.json.gz") for rank in (0, 3))
    assert "a step" in hotlap("diff", one, other, cwd=tmp_path, fresh=True).stdout
    forth, back = (
        json.loads(hotlap("diff", "--json", *pair, cwd=tmp_path).stdout) for pair in ((one, other), (other, one))
    )
    assert forth["step"]["before_ms"] == back["step"]["after_ms"]
    total = forth["work"]["after_ms"] - forth["work"]["before_ms"]
    assert sum(row["after_ms"] - row["before_ms"] for row in forth["kernels"]) == pytest.approx(total)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.json", b"", "is empty"),
        ("junk.json", bytes(range(256)) * 12, "not a trace"),
        ("other.json", b'{"a": [1, 2]}', 'no "traceEvents"'),
        ("none.json", b'{"traceEvents": []}', "no events"),
        ("torn.json.gz", gzip.compress(b'{"a":' * 1000)[:20], "not a trace"),
    ],
    ids=["empty", "junk", "other", "none", "torn"],
)
def test_files_that_are_no_trace_end_in_a_clear_error(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    done = hotlap("trace", name, cwd=tmp_path, code=125)
    said = " ".join(done.stderr.split())
    assert name in said and says in said and done.stdout == ""


def test_the_same_rank_twice_is_refused(tmp_path: Path) -> None:
    path = str(RANKS / "straggler_rank0.json.gz")
    assert "rank 0" in hotlap("trace", path, path, cwd=tmp_path, code=125).stderr


def test_what_is_hostile_in_names_does_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\\u001b[2J[red]x[/red]" + "n" * 5000
    event = {"ph": "X", "cat": "cpu_op", "name": "NAME", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event]}).replace("NAME", evil))
    screen = hotlap("trace", "t.json", cwd=tmp_path).stdout
    assert "\x1b" not in screen and "[red]x[/red]" in screen and "n" * 200 not in screen


def test_a_torn_trace_is_read_and_what_was_lost_is_said(tmp_path: Path) -> None:
    text = (DATA / "eager.json").read_bytes()
    (tmp_path / "torn.json").write_bytes(text[: len(text) * 2 // 3])
    screen = hotlap("trace", "torn.json", cwd=tmp_path).stdout
    assert "could not be read" in screen and "ends within its events" in screen
