"""`hotlap tune` through the real process boundary: a whole tune, interruption and resuming, trials that go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
SLOW = str(SCRIPTS / "slow_loader.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def environment(cwd: Path) -> dict[str, str]:
    """With a cache of its own."""
    return {**ENVIRONMENT, "HOTLAP_CACHE": str(cwd / "cache")}


def hotlap(*arguments: str, cwd: Path, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotlap", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=timeout, check=False
    )


def tune(folder: Path, *options: str, script: tuple[str, ...] = (SLOW,)) -> subprocess.CompletedProcess[str]:
    return hotlap(
        "tune", "--json", "--steps", "16", "--out", str(folder / "t"), *options, sys.executable, *script, cwd=folder
    )


def document(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_whole_tune_and_its_recipe(tmp_path: Path) -> None:
    done = tune(tmp_path, "--budget", "200s", "--only", "loader-workers")
    assert done.returncode == 0, done.stderr[-3000:]
    found = document(done)
    assert found == json.loads((tmp_path / "t" / "tune.json").read_text())
    assert [kept["lever"] for kept in found["kept"]] == ["loader-workers"]
    assert found["gain"] and found["interval"]["low"] > 1 and found["pairs"] >= 2
    assert found["parity"]["ok"] and found["parity"]["level"] == "bitwise"
    assert found["baseline"]["bound"] == "input"
    left_out = {dropped["lever"]: dropped["why"] for dropped in found["dropped"]}
    assert left_out["compile"] == "left out by --only"
    assert left_out["tf32"]

    recipe = tmp_path / "t" / "recipe.toml"
    used = hotlap("run", "--json", "--steps", "20", "--recipe", str(recipe), sys.executable, SLOW, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    run = document(used)
    assert [lever["name"] for lever in run["run"]["levers"]] == ["loader-workers"]
    facts = json.loads((Path(tmp_path / run["folder"]) / "rank-0" / "facts.json").read_text())
    assert facts["loaders"][0]["workers"] >= 1

    again = hotlap("show", str(tmp_path / "t"), cwd=tmp_path)
    assert again.returncode == 0 and "loader-workers" in again.stdout


def test_interrupted_tune_keeps_what_is_known_and_resumes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hotlap",
        "tune",
        "--steps",
        "16",
        "--only",
        "loader-workers",
        "--out",
        "t",
        sys.executable,
        SLOW,
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    journal = tmp_path / "t" / "trials.jsonl"
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not (tmp_path / "t" / "trials" / "002").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    first = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert not first["complete"] and "interrupted" in first["why_incomplete"]
    before = [json.loads(line) for line in journal.read_text().splitlines()]

    done = hotlap("tune", "--json", "--budget", "200s", "--resume", "t", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    second = document(done)
    assert second["complete"]
    assert [trial["id"] for trial in second["trials"]][:2] == [before[0]["id"], before[1]["id"]]
    assert sum(trial["purpose"] == "baseline" for trial in second["trials"]) == 2


@pytest.mark.parametrize(("plant", "outcome"), [("crash-in-workers", "crashed"), ("hang-in-workers", "timeout")])
def test_a_trial_that_goes_wrong_is_recorded_and_the_tune_goes_on(tmp_path: Path, plant: str, outcome: str) -> None:
    done = tune(tmp_path, "--budget", "400s", "--only", "loader-workers", script=(SLOW, plant))
    assert done.returncode == 0, done.stderr[-3000:]
    found = document(done)
    assert not found["kept"] and not found["gain"] and found["speedup"] is None
    why = next(dropped["why"] for dropped in found["dropped"] if dropped["lever"] == "loader-workers")
    assert why.startswith(outcome)
    assert outcome in {trial["outcome"] for trial in found["trials"]}
    assert not (tmp_path / "t" / "recipe.toml").exists()


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    done = tune(tmp_path, "--budget", "30s", "--only", "tf32", script=(SLOW, "leave-child"))
    assert done.returncode == 0, done.stderr[-3000:]
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "987"]]
    assert not left


def test_a_command_that_fails_without_levers(tmp_path: Path) -> None:
    done = hotlap(
        "tune",
        "--out",
        str(tmp_path / "t"),
        sys.executable,
        "-c",
        "import torch; raise ValueError('own')",
        cwd=tmp_path,
    )
    assert done.returncode == 123
    assert "the command itself fails" in done.stderr and "ValueError: own" in done.stderr


def test_a_command_that_never_trains(tmp_path: Path) -> None:
    done = hotlap("tune", "--out", str(tmp_path / "t"), sys.executable, "-c", "import torch; print(1)", cwd=tmp_path)
    assert done.returncode == 122
    assert "no training step was seen" in done.stderr and "A step is" in done.stderr
