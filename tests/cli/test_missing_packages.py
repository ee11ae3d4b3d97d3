"""A package that is missing, through the real process boundary: what can do without it does, all else says its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotlap

BLOCKS = """
import os, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == os.environ.get("MISSING"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
for step in range(100):
    model(torch.ones(2, 4)).square().mean().backward()
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
print("trained")
raise SystemExit(3)
"""
NEEDS = "reading traces needs polars, which is not installed: pip install polars"


def without(package: str, cwd: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """How hotlap ends in an environment that lacks a package."""
    (cwd / "blocks").mkdir(exist_ok=True)
    (cwd / "blocks" / "sitecustomize.py").write_text(BLOCKS)
    path = os.pathsep.join([str(cwd / "blocks"), str(Path(hotlap.__path__[0]).parent)])
    said = {
        "PYTHONPATH": path,
        "MISSING": package,
        "COLUMNS": "300",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *words], cwd=cwd, env={**os.environ, **said}, capture_output=True, text=True,
        timeout=200, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def check_line(ended: subprocess.CompletedProcess[str], line: str) -> None:
    """It ended as for bad use, with this one line."""
    assert (ended.returncode, ended.stdout, ended.stderr) == (125, "", f"hotlap: {line}\n")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A profiled run in an environment without polars: its folder, and how it ended."""
    here = tmp_path_factory.mktemp("missing")
    (here / "train.py").write_text(TRAIN)
    return here / "r", without("polars", here, "run", "--profile", "--out", "r", sys.executable, "train.py")


def test_a_run_has_its_verdict_without_the_profile(profiled: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ended = profiled
    assert (folder / "rank-0" / "trace.json.gz").exists()
    assert (ended.returncode, ended.stdout) == (3, "trained\n")
    assert ended.stderr.count(f"the profile can't be read: {NEEDS}") == 1 and "Traceback" not in ended.stderr
    diagnosis = json.loads((folder / "diagnosis.json").read_bytes())
    assert f"the profile can't be read: {NEEDS}" in diagnosis["unknown"] and diagnosis["step_ms"] > 0


@pytest.mark.parametrize("command", ["show", "advise", "report"])
def test_and_so_has_each_command_that_can_do_without(
    command: str, profiled: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    folder, _ = profiled
    ended = without("polars", folder.parent, command, folder)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
    said = (folder / "report.html").read_text() if command == "report" else ended.stdout
    assert NEEDS in said or command == "advise"


def test_others_end_with_one_line(profiled: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = profiled
    for words in (["trace", folder], ["trace", folder, "--sql", "select 1"], ["diff", folder, folder]):
        check_line(without("polars", folder.parent, *words), NEEDS)


def test_a_package_of_the_start_or_of_one_command_is_named_too(tmp_path: Path) -> None:
    check_line(
        without("numpy", tmp_path, "show", "nowhere"), "this needs numpy, which is not installed: pip install numpy"
    )
    wanted = "the report page needs jinja2, which is not installed: pip install jinja2"
    check_line(without("jinja2", tmp_path, "report", tmp_path), wanted)
    wanted = "a test of significance needs scipy, which is not installed: pip install scipy"
    check_line(without("scipy", tmp_path, "tune", "python", "train.py"), wanted)
