"""`hotlap patch` as a user types it, and that a patched script learns what the bare one does."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.harness import Runner
from hotlap.cli.app import app
from hotlap.experiment import side
from hotlap.experiment.side import Bench
from hotlap.records.errors import UsageError
from hotlap.records.files import read_record
from hotlap.records.patch import Patch
from hotlap.records.tune import Outcome, Trial

SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[2]))
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
"""
RECIPE = """\
format = 1
hotlap = "0"
command = ["PYTHON", "train.py", "--lr", "0.01"]
[[lever]]
name = "fused-optimizer"
risk = "numeric"
[[lever]]
name = "loader-workers"
settings = {workers = 1, prefetch = 2, pin_memory = false, persistent = true}
[[lever]]
name = "host-allocator"
settings = {allocator = "glibc"}
[environment]
device = "cpu"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "r.toml").write_text(RECIPE.replace("PYTHON", sys.executable))
    return tmp_path


def hotlap(*words: str) -> Any:
    return CliRunner().invoke(app, ["patch", *words])


def losses(runner: Runner, script: Path) -> list[float]:
    """What a script prints."""
    ran = runner.bare(str(script), "--lr", "0.01")
    assert ran.code == 0, ran.output
    return [float(line) for line in ran.output.split()]


def test_diff_then_apply_then_nothing_left(project: Path, runner: Runner) -> None:
    bare = project / "bare.py"
    bare.write_text(SCRIPT)
    record = json.loads(hotlap("r.toml", "--json").stdout)
    assert [item["lever"] for item in record["written"]] == ["loader-workers", "fused-optimizer", "host-allocator"]
    assert record["launch"][0].startswith("MALLOC_")
    refused = hotlap("r.toml", "--apply")
    assert isinstance(refused.exception, UsageError)
    assert "--force" in str(refused.exception)
    assert (project / "train.py").read_text() == SCRIPT
    assert hotlap("--force", "r.toml", "--apply", "python", "train.py", "--out").exit_code == 0
    assert "num_workers=1" in (project / "train.py").read_text()
    before, after = (losses(runner, script) for script in (bare, project / "train.py"))
    assert len(after) == 8
    assert after == pytest.approx(before, rel=1e-4)
    assert hotlap("r.toml").stdout_bytes == b""
    again = json.loads(hotlap("r.toml", "--json").stdout)
    assert [item["already"] for item in again["written"]] == [True, True, False], "variables go with the command"


@pytest.mark.parametrize("linked", [False, True], ids=["named", "linked"])
def test_a_recipe_s_files_outside_of_the_current_folder_are_left(
    project: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """A recipe may come from elsewhere, and name any file; a command that the user gives is the user's word."""
    here = project / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    script = project / "train.py"
    (here / "linked.py").symlink_to(script)
    recipe = RECIPE.replace("PYTHON", "python").replace('"train.py"', '"linked.py"' if linked else f'"{script}"')
    (here / "r.toml").write_text(recipe)
    for options in ((), ("--apply", "--force"), ("--verify", "--yes")):
        refused = hotlap("r.toml", *options)
        assert isinstance(refused.exception, UsageError) and refused.stdout_bytes == b""
        assert f"{script} lies outside of {here}" in str(refused.exception)
        assert "give the command after the recipe" in str(refused.exception)
    assert script.read_text() == SCRIPT
    assert hotlap("r.toml", "--apply", "--force", "python", str(script)).exit_code == 0
    assert "fused=True" in script.read_text()


def test_folder_and_diff_file(project: Path) -> None:
    assert hotlap("r.toml", "--out", "kept", "--diff", "x.diff", "python", "train.py", "--json").stdout_bytes == b""
    kept = project / "kept"
    assert (kept / "patch.diff").read_bytes() == (project / "x.diff").read_bytes() != b""
    assert "fused=True" in (kept / "source/train.py").read_text()
    assert read_record(kept / "patch.json", Patch).command == ("python", "train.py", "--json")
    assert (project / "train.py").read_text() == SCRIPT


class Started:
    """A side that nothing runs."""

    alive = False

    def __init__(self, number: int, where: str, outcome: Outcome, ready: bool) -> None:
        self.number, self.where, self.ready = number, where, ready
        ms = 20.0 if where == "copy" else 10.0
        self.measured = Trial(id=number, purpose=where, levers=(), folder=".", outcome=outcome, step_ms=ms)


@pytest.fixture
def started(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Sides that `verify` starts; those of the patched source take twice as long."""
    made: list[Started] = []

    def start(self: Bench, purpose: str, levers: Any, special: Any, command: Any = None, cwd: Any = None) -> Started:
        if cwd is not None:
            assert "fused=True" in (cwd / "train.py").read_text() and command[:2] == ("env", "MALLOC_MMAP_MAX_=0")
        outcome: Outcome = "memory" if len(made) == 4 and self.plan.folder.name == "big" else "measured"
        where = "copy" if cwd else f"user's with {len(levers)}"
        made.append(Started(len(made), where, outcome, self.plan.folder.name != "short"))
        return made[-1]

    def turns(bench: Bench, sides: list[Started], seconds: float) -> list[dict[int, float]]:
        ms = {side.number: 20.0 if side.where == "copy" else 10.0 for side in sides}
        return [{at: time * (1 + turn / 1e4) for at, time in ms.items()} for turn in range(16)]

    monkeypatch.setattr(Bench, "start", start)
    monkeypatch.setattr(Bench, "ready", lambda *_: None)
    monkeypatch.setattr("hotlap.patch.verify.take_turns", turns)
    monkeypatch.setattr("hotlap.patch.verify._Verification._parity", lambda *_: None)
    return made


def test_verifying_compares_the_recipe_with_the_patched_source(project: Path, started: list[Started]) -> None:
    assert hotlap("r.toml", "--verify", "--yes", "--out", "v").exit_code == 0
    found = read_record(project / "v/patch.json", Patch).verification
    assert found is not None
    assert (found.ratio, found.turns, found.same_speed) == (pytest.approx(0.5), 16, False)
    assert [side.where for side in started] == ["user's with 0", "user's with 3", "copy"] * 2
    assert isinstance(hotlap("r.toml", "--budget", "5m").exception, UsageError)
    assert isinstance(hotlap("r.toml", "--verify", "--budget", "soon").exception, UsageError)


def test_a_recipe_s_command_runs_only_where_it_is_confirmed(project: Path, started: list[Started]) -> None:
    """It may come from elsewhere."""
    refused = hotlap("r.toml", "--verify", "--out", "no").exception
    assert isinstance(refused, UsageError) and "--yes" in str(refused) and not started
    other = hotlap("r.toml", "--verify", "--out", "other", "python", "train.py", "--more").exception
    assert not isinstance(other, UsageError) or "another command" not in str(other)


def test_verifying_says_that_memory_does_not_hold_all(project: Path, started: list[Started]) -> None:
    assert hotlap("r.toml", "--verify", "--yes", "--out", "big").exit_code == 0
    found = read_record(project / "big/patch.json", Patch).verification
    assert found is not None and found.ratio is None
    assert "the recipe was not measured: it does not fit in memory together with the others" in found.why


def test_verifying_compares_whole_runs_of_a_command_that_ends_by_itself(project: Path, started: list[Started]) -> None:
    assert hotlap("r.toml", "--verify", "--yes", "--out", "short").exit_code == 0
    found = read_record(project / "short/patch.json", Patch).verification
    assert found is not None and (found.ratio, found.turns) == (pytest.approx(0.5), 0)


def test_verifying_runs_the_recipe_and_the_patched_source(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing faked but one start of each and short turns: of the bare command, the recipe, the patched copy."""
    monkeypatch.setattr("hotlap.patch.verify.STARTS", 1)
    monkeypatch.setattr(side, "TURN_S", 0.05)
    monkeypatch.setattr("hotlap.patch.verify.LEAST_S", 4.0)
    loader = "DataLoader(data, batch_size=8, shuffle=True)"
    (project / "train.py").write_text(SCRIPT.replace(loader, f"(pair for _ in range(50_000) for pair in {loader})"))
    workers = RECIPE.index('[[lever]]\nname = "loader-workers"')
    recipe = RECIPE[:workers] + RECIPE[RECIPE.index('[[lever]]\nname = "host-allocator"') :]
    (project / "r.toml").write_text(recipe.replace("PYTHON", sys.executable))
    assert hotlap("r.toml", "--verify", "--yes", "--budget", "1s", "--out", "v").exit_code == 0
    found = read_record(project / "v/patch.json", Patch).verification
    assert found is not None and found.parity is not None and found.ratio is not None, found
    assert found.parity.ok and found.parity.steps >= 20
    assert found.turns >= 6
    made = [json.loads(line) for line in (project / "v/trials.jsonl").read_text().splitlines()]
    assert {trial["purpose"] for trial in made} >= {"bare command", "recipe", "patched"}
