"""`hotlap history` on the command line: what it shows, what it refuses, and that nobody else pays for it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.guard.history import open_history
from hotlap.records.history import Entry
from hotlap.records.run import Environment, Phases, Versions

DAY = 86400.0


def entry(number: int, step_ms: float, **fields: object) -> Entry:
    """A run a day, each of its own commit."""
    began = 1_790_000_000.0 + number * DAY
    machine = Environment(hotlap="0", python="3.11", os="Linux", host="one", cpu="x", cores=8, memory_gib=32.0)
    known = {
        "key": f"{number:032x}", "kind": "run", "project": "p", "command": ("python", "train.py"), "host": "one",
        "device": "x", "started": began, "cwd": "/w", "commit": f"{number:08x}" * 5, "commit_time": began,
        "dirty": False, "status": "finished", "exit_code": 0, "step_ms": step_ms, "p10_ms": step_ms, "p90_ms": step_ms,
        "steps": 50,
        "phases": Phases(data=1.0), "peak_bytes": 2.0**30, "bound": "compute", "folder": f"/w/r{number}",
        "environment": machine, "versions": Versions(python="3.11", torch="2.13"),
    }  # fmt: skip
    return Entry(**{**known, **fields})  # type: ignore[arg-type]


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A command that got slower with its 21st commit, and a run of another project and machine."""
    where = str(tmp_path / "h.db")
    with open_history(where, make=True) as history:
        for number in range(26):
            history.add(entry(number, (10 if number < 20 else 12) + number % 3 * 0.01))
        history.add(entry(30, 5.0, project="q", host="two", status="failed", command=("python", "[red]other.py")))
    return where


def test_the_last_runs(printed: Callable[..., str], db: str) -> None:
    shown = printed("history", "--db", db, "--project", "p", "--last", "3")
    assert shown.split("\n")[0].split() == ["run", "began", "commit", "a", "step", "memory", "bound", "host", "command"]
    assert "12.0 ms" in shown and "1.00 GiB" in shown and "0000001900" in shown and f"3 runs of {db}" in shown
    everything = printed("history", "--db", db, "--all")
    assert "[red]other.py" in everything and "two" in everything
    assert f"no such run in {db}" in printed("history", "--db", db)  # of the project here
    assert f"1 run of {db}" in printed("history", "--db", db, "--all", "--commit", "00000007")
    assert f"1 run of {db}" in printed("history", "--db", db, "--all", "--host", "two")
    assert f"20 runs of {db}" in printed("history", "--db", db, "--all", "--since", "2020-01-01")
    found = json.loads(printed("history", "--db", db, "--all", "--json", "--last", "2"))
    assert [one["project"] for one in found["runs"]] == ["q", "p"] and found["history"] == db


def test_what_changed(printed: Callable[..., str], db: str) -> None:
    shown = " ".join(printed("history", "changes", "--db", db, "--project", "p").split())
    assert "flag a step: 1.20× since 0000001400" in shown
    assert "10.0 ms → 12.0 ms (1.20×) · between 0000001300 and 0000001400" in shown
    assert "6 runs of 26, since the last change" in shown and "memory 1.00 GiB" in shown
    assert "too few to tell a change" in printed("history", "changes", "--db", db, "--project", "q")
    assert "→" not in printed("history", "changes", "--db", db, "--project", "p", "--threshold", "0.5")
    found = json.loads(printed("history", "changes", "--db", db, "--project", "p", "--json"))
    (series,) = found["series"]
    (change,) = series["trends"][0]["changes"]
    assert change["at"] == 20 and change["commit_after"] == "00000014" * 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "lately"], "is not a time; write 12h, 30d, 8w or 2026-11-01"),
        (["--commit", "main"], "is not the beginning of a commit"),
        (["--all", "--project", "p"], "--project or --all, not both"),
        (["--db", "mysql://h/d"], "a history is kept in SQLite (a file) or PostgreSQL"),
        (["--last", "0"], "--last"),
        (["nonsense"], "No such command"),
        (["add"], "Missing argument"),
    ],
)
def test_what_is_refused(hotlap: Callable[..., tuple[int, str, str]], db: str, words: list[str], says: str) -> None:
    own = ["--db", db] if "--db" not in words and words != ["add"] else []
    code, out, err = hotlap("history", *own, *words)
    assert (code, out) == (125, "") and says in " ".join(err.split())


def test_what_can_not_be_added_is_said_and_the_rest_is_added(
    hotlap: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    code, out, err = hotlap("history", "add", "--db", tmp_path / "h.db", tmp_path / "broken", tmp_path / "none")
    assert code == 125 and out == "" and err.count("hotlap: ") == 2 and "run.json is not a run record" in err


def test_without_apache_otava(
    hotlap: Callable[..., tuple[int, str, str]], db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "otava", None)
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    code, _, err = hotlap("history", "changes", "--db", db, "--project", "p")
    assert code == 125 and "change points need apache-otava: pip install --no-deps apache-otava" in " ".join(
        err.split()
    )


def test_other_commands_do_not_load_it() -> None:
    """Neither do these modules as they are imported."""
    code = (
        "import sys; import hotlap.cli.app, hotlap.cli.history, hotlap.cli.serve, hotlap.cli.run\n"
        "print([name for name in sys.modules if name.partition('.')[0] in "
        "{'sqlalchemy', 'alembic', 'fastapi', 'uvicorn', 'starlette', 'psycopg', 'otava', 'pydantic'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
