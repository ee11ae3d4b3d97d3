"""The pytest plugin, in a pytest of its own; what `hotlap check` says is planted where it would take minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SPEED = """
import work

def test_function(hotlap_loop):
    hotlap_loop(work.busy)

def test_without():
    pass
"""
CHECK = """
import json, os, sys
open({log!r}, "a").write(json.dumps([sys.argv[1:], os.environ.get("PYTEST_ADDOPTS")]) + "\\n")
print({said!r})
sys.exit({code})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_speed.py").write_text(SPEED)
    (tmp_path / "work.py").write_text(
        "calls = []\n\ndef busy():\n    calls.append(1)\n    print('called', len(calls))\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    return tmp_path


def run(project: Path, *words: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join([path, environment.get("PYTHONPATH", "")])
    named = [] if _installed() else ["-p", "hotlap.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *named, "-rA", *words]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def _installed() -> bool:
    """Whether pytest finds the plugin by itself, as it does where hotlap was installed since it has one."""
    from importlib.metadata import entry_points

    return any(one.value == "hotlap.testing.plugin" for one in entry_points(group="pytest11"))


def fake_check(project: Path, document: dict[str, Any] | None, code: int) -> str:
    """A `python -m hotlap` that says this."""
    folder = project / "fake" / "hotlap"
    folder.mkdir(parents=True)
    said = json.dumps(document) if document is not None else ""
    (folder / "__init__.py").write_text(f"__path__.append({str(Path(__import__('hotlap').__file__).parent)!r})\n")
    (folder / "__main__.py").write_text(CHECK.format(log=str(project / "log"), said=said, code=code))
    return str(project / "fake")


def test_without_a_baseline_the_function_is_called_twice(project: Path) -> None:
    done = run(project)
    assert done.returncode == 0 and "called 2" in done.stdout and "called 3" not in done.stdout


@pytest.mark.parametrize(
    ("code", "words", "outcome"),
    [(0, (), "2 passed"), (1, (), "1 failed"), (2, (), "1 skipped"), (2, ("--hotlap-strict",), "1 failed")],
)
def test_what_a_check_says_is_the_outcome(project: Path, code: int, words: tuple[str, ...], outcome: str) -> None:
    cause = {"findings": [{"title": "the host waits", "where": {"file": "work.py"}}]}
    fake = fake_check(project, {"why": "step time +20%", "cause": cause}, code)
    done = run(project, "--hotlap", "main", *words, path=fake, PYTEST_ADDOPTS="-s")
    assert outcome in done.stdout, done.stdout + done.stderr
    assert ("hotlap: step time +20%" in done.stdout) == (code != 0)
    (told,) = (json.loads(line) for line in (project / "log").read_text().splitlines())
    given, addopts = told
    assert given[0] == "check" and "main.." in given and addopts == ""
    assert given[-1] == "test_speed.py::test_function" and "--hotlap-side" in given[given.index("--") :]


def test_a_check_that_comes_to_nothing_is_no_pass(project: Path) -> None:
    done = run(project, "--hotlap", "a..b", path=fake_check(project, None, 125))
    assert "1 failed" in done.stdout and "the check came to nothing" in done.stdout


def test_one_side_makes_steps_until_it_is_ended(project: Path, tmp_path: Path) -> None:
    """A function without an optimizer, under `hotlap run`."""
    named = [] if _installed() else ["-p", "hotlap.testing.plugin"]
    own = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *named,
        "-p",
        "no:cacheprovider",
        "--hotlap-side",
        "test_speed.py::test_function",
    ]
    command = [sys.executable, "-m", "hotlap", "run", "--json", "--steps", "20", "--out", str(tmp_path / "r"), *own]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["diagnosis"]["steady_steps"] >= 20, done.stderr[-2000:]
