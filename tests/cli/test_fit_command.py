"""`hotlap fit` through the real process boundary, on small scripts on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forking import hotlap_forked

from hotlap.records.files import read_record
from hotlap.records.fit import Fit

SCRIPT = """
import argparse, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--limit", type=int, default=1 << 30)
parser.add_argument("--unused", type=int)
args = parser.parse_args()
if args.batch_size > args.limit:
    raise torch.OutOfMemoryError("CUDA out of memory (a limit of the test)")
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(200 * args.batch_size, 64))
for (x,) in torch.utils.data.DataLoader(data, batch_size=args.batch_size):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(SCRIPT)
    return tmp_path


def fit(cwd: Path, options: str, command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = hotlap_forked(["fit", *options.split(), sys.executable, "t.py", *command.split()], cwd, ENVIRONMENT)
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_larger_batch_takes_what_was_predicted(script: Path) -> None:
    options = "--json --flag batch_size --measure {} --values 1024 --out {}"
    told = document(fit(script, options.format("64,128,256", "a"), "--batch-size 64"))
    true = document(fit(script, options.format("1024", "b"), "--batch-size 64"))
    guess = next(one["peak"] for one in told["values"] if one["value"] == 1024)
    (run,) = true["runs"]
    assert told["shape"] == "linear" and told["device"] == "cpu"
    assert guess["likely"] == pytest.approx(run["peak_bytes"], rel=0.03)
    assert guess["low"] <= run["peak_bytes"] <= guess["high"]
    kept = read_record(script / "a" / "fit.json", Fit)
    assert [one.value for one in kept.runs] == [64, 128, 256] and all(one.step_ms for one in kept.runs)


def test_the_screen_says_that_it_is_of_a_cpu_and_an_option_without_effect_is_told(script: Path) -> None:
    done = fit(script, "--flag unused --card H100-80GB --measure 1,2,4", "--batch-size 16 --unused 1")
    assert "tensors fit" in done.stdout and "of a run on the CPU" in done.stdout
    assert "either it has no effect" in " ".join(done.stdout.split())


def test_memory_that_runs_out_is_a_limit(script: Path) -> None:
    done = fit(script, "--json --flag batch-size --budget 2m", "--batch-size 32 --limit 40")
    found = document(done)
    outcomes = {run["value"]: run["outcome"] for run in found["runs"]}
    assert outcomes[32] == "measured" and outcomes[64] == "memory"
    assert found["device_card"]["at_most"] == 63


@pytest.mark.parametrize(
    ("options", "command", "code", "says"),
    [
        ("", "--batch-size 8", 125, "--flag is missing"),
        ("--flag lr", "--batch-size 8", 125, "lr does not stand in the command"),
        ("--flag batch-size --values 0", "--batch-size 8", 125, "--values '0'"),
        ("--flag batch-size --card H100", "--batch-size 8", 125, "may be H100 SXM, H100 PCIe, H100 NVL"),
        ("--flag batch-size --card X1", "--batch-size 8", 125, "is none of"),
        ("--flag batch-size", "--batch-size 8 --nonsense", 123, "the command fails with --batch-size 8"),
        ("--flag batch-size", "--batch-size 8 --limit 0", 123, "runs out of memory with --batch-size 1 too"),
    ],
)
def test_what_can_not_be_told_says_why(script: Path, options: str, command: str, code: int, says: str) -> None:
    assert says in fit(script, options, command, code).stderr


def test_ctrl_c_ends_it_with_what_is_known(script: Path) -> None:
    words = [sys.executable, "-m", "hotlap", "fit", "--json", "--flag", "batch-size", "--out", "f", sys.executable]
    process = subprocess.Popen(
        [*words, "t.py", "--batch-size", "16"], cwd=script, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    limit = time.monotonic() + 120
    while "a step" not in (line := process.stderr.readline()) and line and time.monotonic() < limit:
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out.splitlines()[-1])
    assert found["why_incomplete"] == "interrupted" and len(found["runs"]) >= 1
