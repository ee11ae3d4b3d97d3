"""`hotlap tune` through the real process boundary: a whole tune, interruption and resuming, trials that go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
SLOW = str(SCRIPTS / "slow_loader.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def environment(cwd: Path) -> dict[str, str]:
    """With a cache of its own."""
    return {**ENVIRONMENT, "HOTLAP_CACHE": str(cwd / "cache")}


def hotlap(
    *arguments: str, cwd: Path, timeout: float = 200, program: tuple[str, ...] = ("-m", "hotlap")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def tune(
    folder: Path, *options: str, script: tuple[str, ...] = (SLOW,), **more: Any
) -> subprocess.CompletedProcess[str]:
    words = ("tune", "--json", "--steps", "16", "--out", str(folder / "t"), *options, sys.executable, *script)
    return hotlap(*words, cwd=folder, **more)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
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


class Resumed(NamedTuple):
    """A tune of a command that leaves processes behind, whose trials with workers crash: interrupted, then resumed."""

    folder: Path
    code: int
    output: str
    first: dict[str, Any]
    journal: list[dict[str, Any]]
    """Of the interrupted tune, as `first`."""
    done: subprocess.CompletedProcess[str]
    left: str
    """Seconds that the processes would have slept, and nobody else's."""

    @property
    def second(self) -> dict[str, Any]:
        assert self.done.returncode == 0, self.done.stderr[-3000:]
        return document(self.done)


def interrupted(folder: Path, *script: str) -> tuple[int, str]:
    """Begin a tune and interrupt it in its first trial with a lever: its exit code, and what it said."""
    options = ("--steps", "16", "--only", "loader-workers", "--out", "t")
    process = subprocess.Popen(
        [sys.executable, "-m", "hotlap", "tune", *options, sys.executable, *script],
        cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not (folder / "t" / "trials" / "002").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    return process.returncode, output


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    folder = tmp_path_factory.mktemp("resumed")
    left = str(10**6 + os.getpid())
    code, output = interrupted(folder, SLOW, "crash-in-workers", "leave-children", left)
    first = json.loads((folder / "t" / "tune.json").read_text())
    journal = [json.loads(line) for line in (folder / "t" / "trials.jsonl").read_text().splitlines()]
    done = hotlap("tune", "--json", "--budget", "200s", "--resume", "t", cwd=folder)
    return Resumed(folder, code, output, first, journal, done, left)


def test_an_interrupted_tune_keeps_what_is_known(resumed: Resumed) -> None:
    assert resumed.code == 130, resumed.output
    assert not resumed.first["complete"] and "interrupted" in resumed.first["why_incomplete"]


def test_a_resumed_tune_goes_on_where_it_was(resumed: Resumed) -> None:
    second = resumed.second
    assert second["complete"]
    assert [trial["id"] for trial in second["trials"]][:2] == [trial["id"] for trial in resumed.journal[:2]]
    assert sum(trial["purpose"] == "baseline" for trial in second["trials"]) == 2
    assert second["wall_s"] > sum(trial["wall_s"] for trial in second["trials"]), "with what was taken over"


def check_nothing_kept(folder: Path, found: dict[str, Any], outcome: str) -> None:
    """Trials with workers ended so, which the tune says, and it made no recipe."""
    assert not found["kept"] and not found["gain"] and found["speedup"] is None
    why = next(dropped["why"] for dropped in found["dropped"] if dropped["lever"] == "loader-workers")
    assert why.startswith(outcome)
    assert outcome in {trial["outcome"] for trial in found["trials"]}
    assert not (folder / "t" / "recipe.toml").exists()


def test_a_trial_that_crashes_is_recorded_and_the_tune_goes_on(resumed: Resumed) -> None:
    check_nothing_kept(resumed.folder, resumed.second, "crashed")


def test_no_process_is_left_behind(resumed: Resumed) -> None:
    assert resumed.done.returncode == 0
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", resumed.left]]
    assert not left


IMPATIENT = """
from hotlap.cli import main
from hotlap.tune import budget
from hotlap.tune.budget import Budget

patience = Budget.patience

def sooner(self, levers):
    levers = list(levers)
    return 8.0 if any(lever.name == "loader-workers" for lever in levers) else patience(self, levers)

Budget.patience = sooner
budget.LEAST_TIMEOUT_S = 8.0
main()
"""
"""hotlap, but that trials with workers count as hung after 8 seconds; those without may take as long as ever."""


def test_a_trial_that_hangs_is_recorded_and_the_tune_goes_on(tmp_path: Path) -> None:
    words = ("--budget", "400s", "--only", "loader-workers")
    done = tune(tmp_path, *words, script=(SLOW, "hang-in-workers"), program=("-c", IMPATIENT))
    assert done.returncode == 0, done.stderr[-3000:]
    check_nothing_kept(tmp_path, document(done), "timeout")


TWO_PAIRS = """
from hotlap.cli import main
from hotlap.tune import reference

reference.MOST_PAIRS = 2
main()
"""
"""hotlap, but that what levers cost is told by two pairs, however far these lie apart."""


def test_a_command_that_runs_out_of_memory_is_told_what_it_costs_to_fit(tmp_path: Path) -> None:
    words = ("--budget", "400s", "--only", "checkpoint-blocks")
    done = tune(tmp_path, *words, script=(str(SCRIPTS / "hungry.py"),), program=("-c", TWO_PAIRS))
    assert done.returncode == 0, done.stderr[-3000:]
    found = document(done)
    assert [(one["lever"], one["settings"]) for one in found["fitted"]] == [("checkpoint-blocks", {"every": 2})]
    told = found["reference"]
    assert (told["parts"], told["pairs"], [one["name"] for one in told["levers"]]) == (2, 2, ["checkpoint-blocks"])
    assert told["parity"]["ok"] and told["parity"]["level"] == "bitwise" and told["parity"]["samples"]
    assert told["time_ratio"] > 0 and told["memory_before_bytes"] > 0 and told["memory_after_bytes"] > 0
    assert {trial["rows"] for trial in found["trials"] if trial["purpose"] == "reference"} == {32.0}
    shown = hotlap("show", str(tmp_path / "t"), cwd=tmp_path)
    assert "both with 1/2 of the batch" in shown.stdout and "of the time" in shown.stdout


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
