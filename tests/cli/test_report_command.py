"""`hotlap report` at the process boundary."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forking import hotlap_forked

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


def test_nothing_else_is_written_over(folder: Path) -> None:
    (folder / "report.html").write_text("<!doctype html>\nmine")
    done = report(folder)
    assert done.returncode == 125 and "not a page of hotlap's" in done.stderr
    assert (folder / "report.html").read_text() == "<!doctype html>\nmine"


def test_what_is_not_there(tmp_path: Path) -> None:
    done = report(tmp_path / "nowhere")
    assert done.returncode == 125 and "is not there" in done.stderr
