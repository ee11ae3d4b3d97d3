"""`hotlap report` at the process boundary."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from forking import hotlap_forked

from hotlap.records.files import write_record
from hotlap.records.profile import Samples
from hotlap.records.run import Phases, Step
from hotlap.report.page import PLOTLY_FILE
from made_runs import FACTS, folder_of

STEPS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run."""
    phases = Phases(data=6.0, forward=2.0, backward=2.0)
    steps = [Step(step=n, time=float(n), wall_ms=10.0, phases=phases, loss=1.0 / (n + 1)) for n in range(STEPS)]
    return folder_of(tmp_path / "run", (steps, FACTS), cwd=str(tmp_path))


def report(*words: object) -> subprocess.CompletedProcess[str]:
    return hotlap_forked(["report", *map(str, words)], Path.cwd())


def test_page_of_a_run(folder: Path) -> None:
    command = [sys.executable, "-m", "hotlap", "report", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, str(folder / "report.html")), done.stderr
    html = (folder / "report.html").read_text("utf-8")
    data = re.search(r'id="hotlap-data">(.*?)</script>', html, re.S)
    assert data is not None
    assert json.loads(data[1])["steps"]["ranks"][0]["ms"] == [10.0] * STEPS
    assert report(folder).returncode == 0  # its own page is written over


def test_shared_script(folder: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        assert report(folder, "--shared-js", "--out", tmp_path / "pages" / name).returncode == 0
    found = {path.name: path.stat().st_size for path in (tmp_path / "pages").iterdir()}
    assert set(found) == {"a.html", "b.html", PLOTLY_FILE}
    assert found["a.html"] < 200_000


def sampled_at(folder: Path, script: Path, line: int) -> Path:
    """A run most of whose time was seen at a line of a script."""
    steps = [Step(step=n, time=float(n), wall_ms=10.0, phases=Phases(other=9.0, forward=1.0)) for n in range(STEPS)]
    facts = msgspec.structs.replace(FACTS, argv=(str(script),))
    made = folder_of(folder, (steps, facts), cwd=str(script.parent))
    rows = (("other", 0, line, "", "", 90.0),)
    write_record(made / "rank-0" / "samples.json", Samples(steps=10, looks=90, files=(str(script),), lines=rows))
    return made


QUOTED = """
import torch
rows_of_another_project = [[1.0]] * 9
for step in range(9):
    x = torch.tensor(rows_of_another_project)
"""


@pytest.mark.parametrize("inside", [True, False])
def test_no_source_outside_of_the_current_folder_is_quoted(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's folder may come from elsewhere, and name any file; what is told of it is handed on."""
    (tmp_path / "project").mkdir()
    script = tmp_path / "project" / "train.py"
    script.write_text(QUOTED)
    folder = sampled_at(tmp_path / "run", script, 5)
    monkeypatch.chdir(script.parent if inside else folder)
    quoted = []
    for words in (
        ["report"],
        ["report", "--no-source"],
        ["show"],
        ["show", "--json"],
        ["advise"],
        ["advise", "--json"],
    ):
        done = hotlap_forked([*words, str(folder)], Path.cwd())
        assert done.returncode == 0, done.stderr
        told = (folder / "report.html").read_text("utf-8") if "report" in words else done.stdout
        quoted.append("rows_of_another_project" in "".join(told.split()))
    assert quoted == [inside] * 6


def test_nothing_else_is_written_over(folder: Path) -> None:
    (folder / "report.html").write_text("<!doctype html>\nmine")
    done = report(folder)
    assert done.returncode == 125 and "not a page of hotlap's" in done.stderr
    assert (folder / "report.html").read_text() == "<!doctype html>\nmine"


def test_what_is_not_there(tmp_path: Path) -> None:
    done = report(tmp_path / "nowhere")
    assert done.returncode == 125 and "is not there" in done.stderr
