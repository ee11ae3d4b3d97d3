"""`hotlap patch RUN` as a user types it, on recorded runs, and that a patched script prints what it printed before."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from waiting import marked, recorded

from agent.harness import Runner
from hotlap.cli.app import app
from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import read_record
from hotlap.records.patch import Patch

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total, losses, right = 0.0, [], 0
for step in range(120):
    x = torch.randn(4, 8)
    out = model(x)
    loss = nn.functional.mse_loss(out, x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()  # waits: item
    losses.append(loss.item())  # waits: item
    right += (out.round() == x[:, :1].round()).sum().item()  # waits: item
    if step % 20 == 0:
        print("mean", total / (step + 1), sum(losses[-20:]), losses[-1])
    print(f"step {step} loss {loss.item()!r}")  # waits: item
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # waits: synchronize
    if loss > 1e6:  # waits: bool
        break
print(total, right, f"{total:.3f}", max(losses))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return recorded(tmp_path / "run", script, list(marked(script)))


def hotlap(*words: str) -> Any:
    return CliRunner().invoke(app, ["patch", *words])


def printed(runner: Runner, script: Path) -> list[str]:
    ran = runner.bare(str(script))
    assert ran.code == 0, ran.output
    return ran.output.splitlines()


def test_a_patched_script_prints_the_same_numbers(run: Path, runner: Runner) -> None:
    script, bare = run.parent / "train.py", run.parent / "bare.py"
    bare.write_text(SCRIPT, encoding="utf-8")
    before = printed(runner, bare)
    diff = hotlap("run").stdout_bytes
    assert script.read_text(encoding="utf-8") == SCRIPT
    refused = hotlap("run", "--apply")
    assert isinstance(refused.exception, UsageError)
    assert hotlap("run", "--apply", "--force").exit_code == 0
    assert diff.count(b"\n+") - 1 == 7
    after = printed(runner, script)
    steps = [line for line in before if line.startswith("step")]
    assert [line for line in after if line.startswith("step")] == [steps[0], steps[50], steps[100]]
    assert [x for x in after if not x.startswith("step")] == [x for x in before if not x.startswith("step")]
    assert hotlap("run").stdout_bytes == b""


def test_the_screen_says_what_is_different_and_what_is_left(run: Path) -> None:
    said = hotlap("run")
    assert "+    losses.append(loss.detach().clone())" in said.stdout
    text = " ".join(said.stderr.split())
    assert "5 of 6 waits written as a diff: train.py (+" in text
    assert "train.py:15: total += loss.item()" in text
    assert "1 printed line in 50 steps instead of 50" in text
    assert "a change to review: `torch.cuda.synchronize()` is removed" in text
    assert "not written: what the script does next depends on the value by hand: decide on the device" in text


def test_the_record_has_every_finding(run: Path) -> None:
    assert hotlap("run", "--out", "kept", "--json").exit_code == 0
    record = read_record(run.parent / "kept/patch.json", Patch)
    assert (record.run, record.recipe, len(record.findings)) == ("run", "", 6)
    assert [bool(one.written) for one in record.findings] == [True] * 5 + [False]
    assert (run.parent / "kept/patch.diff").read_text(encoding="utf-8") == record.diff
    assert "float(total)" in (run.parent / "kept/source/train.py").read_text(encoding="utf-8")


def test_lines_of_libraries_and_unknown_lines_are_named(run: Path) -> None:
    document = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))
    first, second, *_ = document["findings"]
    first["where"]["file"] = "/usr/lib/python3/trainer.py"
    second["where"] = None
    document["findings"] = [first, second]
    (run / "diagnosis.json").write_text(json.dumps(document), encoding="utf-8")
    said = hotlap("run")
    assert said.stdout_bytes == b""
    text = " ".join(said.stderr.split())
    assert "none of 2 waits can be rewritten" in text
    assert "/usr/lib/python3/trainer.py:15" in text
    assert "the file is not one that this" in text
    assert "the run does not know the line" in text


def test_a_run_without_waits_says_where_they_come_from(run: Path) -> None:
    document = json.loads((run / "diagnosis.json").read_text(encoding="utf-8")) | {"findings": []}
    (run / "diagnosis.json").write_text(json.dumps(document), encoding="utf-8")
    said = hotlap("run")
    assert said.exit_code == 0
    assert "hotlap run --profile" in " ".join(said.stderr.split())


def test_what_a_run_has_not(run: Path) -> None:
    assert isinstance(hotlap("run", "--verify").exception, UsageError)
    (run / "run.json").unlink()
    assert isinstance(hotlap("run").exception, RecordError)  # then it is taken for the folder of a tune


def test_a_run_of_another_machine_and_a_file_that_changed(run: Path) -> None:
    document = json.loads((run / "run.json").read_text(encoding="utf-8"))
    document["cwd"], document["started"] = "/gone", 1.0
    (run / "run.json").write_text(json.dumps(document), encoding="utf-8")
    text = (run / "diagnosis.json").read_text(encoding="utf-8").replace(str(run.parent), "/gone")
    (run / "diagnosis.json").write_text(text, encoding="utf-8")
    said = hotlap("run", sys.executable, "train.py")
    assert "+    total += loss.detach().double()" in said.stdout
    assert "changed after the run" in " ".join(said.stderr.split())


def test_a_run_outside_of_the_current_folder_is_neither_shown_nor_changed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's folder may come from elsewhere, and name any folder and file."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    script = tmp_path / "train.py"
    document = json.loads((run / "run.json").read_text(encoding="utf-8"))
    absolute = {"cwd": str(here), "command": ["python", str(script)]}
    for named, outside in (({}, tmp_path), (absolute, script), ({"command": ["python", str(here / "x.py")]}, tmp_path)):
        (here / "x.py").write_text("import train", encoding="utf-8")
        (run / "run.json").write_text(json.dumps({**document, **named}), encoding="utf-8")
        for options in ((), ("--apply", "--force")):
            refused = hotlap(str(run), *options)
            assert isinstance(refused.exception, UsageError) and refused.stdout_bytes == b""
            assert f"{outside} lies outside of {here}" in str(refused.exception)
    assert script.read_text(encoding="utf-8") == SCRIPT


def test_a_command_that_is_given_is_looked_for_where_it_is_typed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    mine = here / "train.py"
    mine.write_text(SCRIPT, encoding="utf-8")
    assert hotlap(str(run), "--apply", "--force", "python", "train.py").exit_code == 0
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == SCRIPT != mine.read_text(encoding="utf-8")
