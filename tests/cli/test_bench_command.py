"""`hotlap bench` through the real process boundary, on small scripts on the CPU."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forking import hotlap_forked

from hotlap.records.files import read_record
from hotlap.records.suite import Suite

SCRIPT = """
import os, sys, torch
from torch import nn

assert os.environ["OF_THE_SUITE"] == "1"
torch.set_num_threads(1)
model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(10**5, 64))
for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
MEASURED = f"""
[good]
command = ["{sys.executable}", "t.py"]
cwd = "part"
steps = 20
variables = {{OF_THE_SUITE = "1"}}
"""
FAILING = f"""
[broken]
command = ["{sys.executable}", "-c", "raise ValueError('no data')"]
[gone]
command = "no-such-program --x"
[nowhere]
command = "sh -c true"
cwd = "no-such-folder"
"""
STUCK = f"""
[stuck]
command = ["{sys.executable}", "-c", "import time; time.sleep(600)"]
[last]
command = ["{sys.executable}", "t.py"]
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "CUDA_VISIBLE_DEVICES": ""}


def suite(folder: Path, text: str) -> Path:
    (folder / "part").mkdir()
    (folder / "part" / "t.py").write_text(SCRIPT)
    (folder / "suite.toml").write_text(text)
    return folder


def test_commands_run_in_turn_and_one_that_fails_is_a_row(tmp_path: Path) -> None:
    options = ("--repeat", "2", "--csv", "o.csv", "--out", "o", "--json", "suite.toml")
    done = hotlap_forked(["bench", *options], suite(tmp_path, FAILING + MEASURED), ENVIRONMENT)
    assert done.returncode == 123, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    found = read_record(tmp_path / "o" / "bench.json", Suite)
    assert json.loads(done.stdout.splitlines()[-1])["rows"][0]["name"] == "broken"
    broken, gone, nowhere, good = found.rows
    assert broken.outcome == "crashed" and "ValueError: no data" in broken.why and len(broken.starts) == 1
    assert gone.outcome == "not started" and "no-such-program" in gone.why
    assert nowhere.outcome == "not started" and "no such folder" in nowhere.why
    assert good.outcome == "measured" and len(good.starts) == 2
    for one in (good.step_ms, good.throughput, good.peak_bytes, good.startup_s):
        assert one is not None and 0 < one.low <= one.median <= one.high
    rows = list(csv.DictReader(io.StringIO((tmp_path / "o.csv").read_text())))
    assert [row["outcome"] for row in rows] == ["crashed", "not started", "not started", "measured"]
    assert good.step_ms is not None and float(rows[3]["step_ms"]) == good.step_ms.median
    again = hotlap_forked(["show", "o"], tmp_path, ENVIRONMENT)
    assert again.returncode == 0 and "ValueError: no data" in again.stdout and "good" in again.stdout


def test_ctrl_c_keeps_what_is_known(tmp_path: Path) -> None:
    suite(tmp_path, MEASURED + STUCK)
    command = [sys.executable, "-m", "hotlap", "bench", "--out", "o", "suite.toml"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        limit = time.monotonic() + 120
        while not (tmp_path / "o" / "stuck-1" / "output.txt").exists() and time.monotonic() < limit:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = read_record(tmp_path / "o" / "bench.json", Suite)
    assert [one.outcome for one in found.rows] == ["measured", "interrupted", "not run"]
    assert found.rows[0].step_ms is not None and not found.complete
    assert "interrupted" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--only", "nobody", "suite.toml"), "the suite has no nobody; it has good"),
        (("none.toml",), "none.toml"),
        (("--out", "part", "suite.toml"), "exists and was not overwritten"),
    ],
)
def test_what_can_t_be_done_is_said_before_anything_runs(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = hotlap_forked(["bench", *options], suite(tmp_path, MEASURED), ENVIRONMENT)
    assert done.returncode == 125 and said in done.stderr
    assert not (tmp_path / "hotlap-runs").exists()
