"""Whatever happens as runs are added, through the real process boundary: what was told to be added is there whole, what
was not can be added later, and the job's own exit code stands."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hotlap_process import SOURCE, ended, refused, started, variables
from made_history import run_folder
from postgres_server import Server

from hotlap.guard.history import Filter, open_history

LOOP = """
import sys, torch
model = torch.nn.Linear(4, 1)
for step in range(60):
    model(torch.ones(2, 4)).square().mean().backward()
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
raise SystemExit(7)
"""


def folders(path: Path, count: int, first: int = 0) -> list[Path]:
    """Folders of runs, one a day."""
    return [run_folder(path / f"r{number}", number) for number in range(first, first + count)]


def days(where: str) -> list[int]:
    """The days of the runs in a history, each of which can be read."""
    with open_history(where) as history:
        return sorted(int(Path(one.folder).name[1:]) for one in history.entries(Filter()))


def test_machines_write_at_once(where: str, tmp_path: Path) -> None:
    made = folders(tmp_path, 30)
    shares = [made[:20], made[10:], made[5:25]]  # most of them twice; one of the three makes the tables
    writers = [started(["history", "add", "--db", where, *share], tmp_path) for share in shares]
    said = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], said
    assert days(where) == [*range(30)]
    assert sum(out.count("added") for out, _ in said) == 30


def told(process: subprocess.Popen[str], count: int) -> list[int]:
    """The days of the first runs that it says are added."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split("/r")[-1]) for _ in range(count)]


@pytest.mark.parametrize("count", [3, 17])
def test_killed_while_it_adds(where: str, count: int, tmp_path: Path) -> None:
    made = folders(tmp_path, 60)
    process = started(["history", "add", "--db", where, *made], tmp_path, PYTHONUNBUFFERED="1")
    before = told(process, count)
    process.kill()
    rest, _ = process.communicate()
    before += [int(line.split("/r")[-1]) for line in rest.splitlines() if line.endswith(tuple("0123456789"))]
    after = days(where)
    assert {*before} <= {*after} and len(after) - len(before) <= 1  # one may be on disk and not told
    assert ended(["history", "add", "--db", where, *made], tmp_path).returncode == 0
    assert days(where) == [*range(60)]
    if "://" not in where:
        with sqlite3.connect(where) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_the_server_goes_away_while_runs_are_added(server: Server, tmp_path: Path) -> None:
    where, made = server.database(), folders(tmp_path, 60)
    process = started(["history", "add", "--db", where, *made], tmp_path, PYTHONUNBUFFERED="1")
    before = told(process, 5)
    server.stop()
    try:
        rest, err = process.communicate(timeout=120)
        before += [int(line.split("/r")[-1]) for line in rest.splitlines()]
        assert process.returncode == 125 and err.startswith(f"hotlap: cannot write to the history at {where}")
        refused(ended(["history", "--db", where], tmp_path), f"cannot read the history at {where}")
        run_ended(tmp_path, where, f"not added to the history: cannot read the history at {where}")
    finally:
        server.start()
    assert {*before} <= {*days(where)}
    assert ended(["history", "add", "--db", where, *made], tmp_path).returncode == 0
    assert days(where) == [*range(60)]


def run_ended(cwd: Path, where: str, *says: str) -> None:
    """A job under `hotlap run` that is to be remembered ends as it would alone, and its folder is whole."""
    (cwd / "loop.py").write_text(LOOP)
    out = cwd / f"job{len([*cwd.glob('job*')])}"
    done = ended(["run", "--out", out, sys.executable, "loop.py"], cwd, HOTLAP_DB=where, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 7 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "history" in line] or [""]
    for text in says:
        assert text in line
    assert bool(says) == bool(line)
    assert not says or line.endswith(f"Later: hotlap history add {out}")
    assert (out / "diagnosis.json").is_file()


def test_a_run_adds_itself_where_that_is_asked_for(where: str, tmp_path: Path) -> None:
    run_ended(tmp_path, where)
    with open_history(where) as history:
        (one,) = history.entries(Filter())
    assert (one.exit_code, one.status, one.folder) == (7, "failed", str(tmp_path / "job0"))
    assert one.step_ms and one.project == tmp_path.name and one.host == os.uname().nodename
    assert one.startup_s and one.wall_s and 0 < one.startup_s < one.wall_s
    again = ended(["history", "add", "--db", where, tmp_path / "job0"], tmp_path)
    assert again.stdout == f"known  {tmp_path / 'job0'}\n"


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Path]:
    """A history whose file was overwritten in the middle."""
    path = tmp_path / "broken.db"
    with open_history(str(path), make=True):
        pass
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 8000)
    whole = path.read_bytes()
    yield path
    assert path.read_bytes() == whole


def test_a_damaged_file(broken: Path, tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    says = "The file is damaged, or no history; it was not changed. Move it away, or give another --db"
    refused(ended(["history", "--db", broken], tmp_path), f"cannot read the history at {broken}: ", says)
    refused(ended(["history", "add", "--db", broken, folder], tmp_path), says)
    run_ended(tmp_path, str(broken), "not added to the history", says)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but text that is longer than a header " * 10)
    refused(ended(["history", "--db", "text.db"], tmp_path), "file is not a database", "it was not changed")
    assert (tmp_path / "text.db").read_text().startswith("no database")


def test_a_full_disk(tmp_path: Path) -> None:
    made = folders(tmp_path, 60)
    (tmp_path / "disk").mkdir()
    add = [sys.executable, "-m", "hotlap", "history", "add", "--db", "disk/h.db", *map(str, made)]
    script = (
        'mount -t tmpfs -o size=320k none disk || exit 9; "$@" >added 2>said; echo $? >code; cp disk/h.db* out/; '
        'mount -o remount,size=10m disk || exit 9; "$@" >again; echo $? >>code'
    )
    (tmp_path / "out").mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", script, "sh", *add]
    if (
        shutil.which("unshare") is None
        or subprocess.run(mounted, cwd=tmp_path, env=variables(), check=False).returncode
    ):
        pytest.skip("no small disk can be mounted here")
    assert (tmp_path / "code").read_text().split() == ["125", "0"]
    assert "cannot write to the history at" in (said := (tmp_path / "said").read_text()) and said.count("\n") == 1
    assert "full" in said
    before = [int(line.split("/r")[-1]) for line in (tmp_path / "added").read_text().splitlines()]
    assert 0 < len(before) < 60
    assert days(str(tmp_path / "out" / "h.db")) == sorted(before)
    again = (tmp_path / "again").read_text()
    assert (again.count("known"), again.count("added")) == (len(before), 60 - len(before))


def test_a_writer_that_holds_the_file(tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    path = tmp_path / "h.db"
    with open_history(str(path), make=True):
        pass
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin immediate")
    process = started(["history", "add", "--db", path, folder], tmp_path)
    reads = ended(["history", "--db", path], tmp_path)  # readers do not wait
    assert reads.returncode == 0 and "no such run" in reads.stdout
    assert process.poll() is None
    holder.execute("commit")
    holder.close()
    assert process.wait(60) == 0 and days(str(path)) == [0]


def test_interrupted_while_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with open_history(str(path), make=True):
        pass
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin immediate")
    process = started(["history", "add", "--db", path, *folders(tmp_path, 1)], tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(4)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    holder.close()
    assert days(str(path)) == []


def test_missing_packages_are_named(tmp_path: Path) -> None:
    (tmp_path / "sqlalchemy.py").write_text("raise ModuleNotFoundError('no', name='sqlalchemy')")
    (folder,) = folders(tmp_path, 1)
    path = os.pathsep.join([str(tmp_path), str(SOURCE)])
    needs = "the history needs sqlalchemy, which is not installed: pip install 'hotlap[history]'"
    for words in (["history"], ["history", "add", folder], ["history", "changes"]):
        refused(ended(words, tmp_path, PYTHONPATH=path), needs)


NEXT = '''"""A migration that comes after."""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "r002", "r001"
def upgrade():
    op.add_column("hotlap_runs", sa.Column("note", sa.Text))
    op.execute("update hotlap_runs set note = 'old'")
'''


def test_an_old_schema_is_migrated_and_a_newer_one_refused(where: str, tmp_path: Path) -> None:
    """The hotlap of here is the old one: beside a copy of it that has one migration more."""
    made = folders(tmp_path, 4)
    assert ended(["history", "add", "--db", where, *made[:3]], tmp_path).returncode == 0
    newer = tmp_path / "newer"
    shutil.copytree(SOURCE / "hotlap", newer / "hotlap", ignore=shutil.ignore_patterns("__pycache__"))
    guard = newer / "hotlap" / "guard"
    (guard / "migrations" / "versions" / "r002_note.py").write_text(NEXT)
    tables = guard / "tables.py"
    tables.write_text(tables.read_text().replace('HEAD: Final = "r001"', 'HEAD: Final = "r002"'))
    later = [started(["history", "add", "--db", where, made[3]], tmp_path, PYTHONPATH=str(newer)) for _ in range(2)]
    said = [one.communicate(timeout=120) for one in later]
    assert [one.returncode for one in later] == [0, 0], said
    newest = "made by a newer hotlap (schema r002; this one knows up to r001): upgrade hotlap, or give another --db"
    refused(ended(["history", "--db", where], tmp_path), newest)
    refused(ended(["history", "add", "--db", where, made[0]], tmp_path), newest)
    listed = ended(["history", "--db", where, "--all", "--json"], tmp_path, PYTHONPATH=str(newer))
    assert sorted(Path(one["folder"]).name for one in json.loads(listed.stdout)["runs"]) == ["r0", "r1", "r2", "r3"]
