"""`hotlap tune` through the real process boundary: whole tunes, ends of all kinds, resuming, starts that go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from hotlap.records.files import read_recipe, read_record
from hotlap.records.tune import Tune

SCRIPTS = Path(__file__).parent / "scripts"
SLOW = str(SCRIPTS / "slow_loader.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
WORKERS = ("--only", "loader-workers")
QUICK = """
from hotlap.cli import main
from hotlap.experiment import side
from hotlap.tune import budget, comparison, prove, starts
from hotlap.tune.state import State

side.TURN_S = budget.TURN_S = 0.13
comparison.ROUNDS, starts.ROUNDS = (6, 6, 8), (6, 12)
prove.narrow_down = lambda state, comparison: None
timeout = State.timeout

def sooner(self, levers):
    hangs = "hang-in-workers" in self.bench.plan.command and any(lever.name == "loader-workers" for lever in levers)
    return 8.0 if hangs else timeout(self, levers)

State.timeout = sooner
main()
"""
"""hotlap, but that turns are shorter and fewer, that nothing is proved once more, and that starts of workers that hang
count as hung after 8 seconds."""


def environment(cwd: Path) -> dict[str, str]:
    """With a cache of its own."""
    return {**ENVIRONMENT, "HOTLAP_CACHE": str(cwd / "cache")}


def hotlap(
    *arguments: str, cwd: Path, timeout: float = 200, program: tuple[str, ...] = ("-c", QUICK)
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


def begin(folder: Path, *script: str) -> subprocess.Popen[bytes]:
    """A tune of the workers of a script."""
    options = ("--steps", "16", *WORKERS, "--out", "t")
    return subprocess.Popen(
        [sys.executable, "-c", QUICK, "tune", *options, sys.executable, *(script or (SLOW,))],
        cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait(process: subprocess.Popen[bytes], until: Callable[[], bool], within_s: float = 120.0) -> None:
    """Until something has come about in a tune."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit and not until():
        assert process.poll() is None, process.stdout.read()  # type: ignore[union-attr]
        time.sleep(0.02)
    assert until()


def running(word: str) -> list[int]:
    """Processes that have this among their words, and are no zombies."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and word in (process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def ended(word: str, within_s: float = 20.0) -> bool:
    """Whether all of them come to their end."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit and running(word):
        time.sleep(0.1)
    return not running(word)


def test_a_whole_tune_and_its_recipe(tmp_path: Path) -> None:
    done = tune(tmp_path, "--budget", "200s", *WORKERS, script=(SLOW, word := f"whole-{os.getpid()}"))
    assert done.returncode == 0, done.stderr[-3000:]
    found = document(done)
    assert found == json.loads((tmp_path / "t" / "tune.json").read_text())
    assert [kept["lever"] for kept in found["kept"]] == ["loader-workers"]
    assert found["gain"] and found["interval"]["low"] > 1 and found["speedup"] > 1.3
    assert found["starts"] >= 2 and found["turns"] >= 6 and found["how"] == "turns"
    assert found["proofs"][0]["proved"] and found["proofs"][0]["bare_starts"] >= 2
    assert found["kept"][0]["worth"]["by"] == "turns" and found["kept"][0]["worth"]["interval"]["low"] > 1
    assert found["parity"]["ok"] and found["parity"]["level"] == "bitwise"
    assert found["baseline"]["bound"] == "input" and found["complete"] and found["unproved"] is None
    left_out = {dropped["lever"]: dropped["why"] for dropped in found["dropped"]}
    assert left_out["compile"] == "left out by --only"
    journal = [json.loads(line) for line in (tmp_path / "t" / "turns.jsonl").read_text().splitlines()]
    assert {turn["side"] for turn in journal} <= {trial["id"] for trial in found["trials"]} and len(journal) > 30
    assert not running(word), "no process is left behind"

    recipe = tmp_path / "t" / "recipe.toml"
    used = hotlap("run", "--json", "--steps", "20", "--recipe", str(recipe), sys.executable, SLOW, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    run = document(used)
    assert [lever["name"] for lever in run["run"]["levers"]] == ["loader-workers"]
    facts = json.loads((Path(tmp_path / run["folder"]) / "rank-0" / "facts.json").read_text())
    assert facts["loaders"][0]["workers"] >= 1

    again = hotlap("show", str(tmp_path / "t"), cwd=tmp_path)
    assert again.returncode == 0 and "loader-workers" in again.stdout


def test_two_ranks_under_torchrun_have_a_proved_recipe(tmp_path: Path) -> None:
    """Over gloo: each side is a job of two ranks, all of which stand still while another has its turn. Ctrl-C ends it
    once the recipe is there."""
    word = f"ranks-{os.getpid()}"
    process = begin(tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", "2", SLOW, "ranks", word)
    wait(process, (tmp_path / "t" / "recipe.toml").exists, 300.0)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    found = read_record(tmp_path / "t" / "tune.json", Tune)
    assert [one.lever for one in found.kept] == ["loader-workers"] and found.gain
    assert not found.complete and found.why_incomplete is not None and found.why_incomplete.startswith("interrupted")
    assert found.how == "turns" and found.starts >= 2 and found.interval is not None and found.interval.low > 1
    assert found.parity is not None and found.parity.ok and found.parity.level == "bitwise"
    proved = [trial.folder for trial in found.trials if trial.purpose == "prove"]
    for folder in proved:
        for rank in (0, 1):
            facts = json.loads((tmp_path / "t" / folder / f"rank-{rank}" / "facts.json").read_text())
            assert facts["world"] == 2 and facts["loaders"][0]["workers"] >= 1
    assert len(proved) >= 2 and ended(word), running(word)


def test_what_was_proved_stands_where_the_tune_is_killed(tmp_path: Path) -> None:
    """It ends as soon as its first proof is on disk, and none of its processes outlives it; Ctrl-C as of two ranks."""
    word = f"proof-{os.getpid()}"
    process = begin(tmp_path, SLOW, word)
    wait(process, (tmp_path / "t" / "tune.json").exists)
    process.send_signal(signal.SIGKILL)
    output = process.communicate(timeout=60)[0].decode()
    found = read_record(tmp_path / "t" / "tune.json", Tune)
    recipe = [lever.name for lever in read_recipe(tmp_path / "t" / "recipe.toml").lever]
    assert [one.lever for one in found.kept] == recipe == ["loader-workers"]
    assert found.gain and not found.complete and found.speedup is not None
    assert process.returncode == -signal.SIGKILL, output
    assert found.why_incomplete == "not ended yet"
    assert ended(word), running(word)


def check_nothing_kept(folder: Path, found: dict[str, Any], outcome: str) -> None:
    """Starts with workers ended so, which the tune says, and it made no recipe."""
    assert not found["kept"] and not found["gain"] and found["speedup"] is None
    why = next(dropped["why"] for dropped in found["dropped"] if dropped["lever"] == "loader-workers")
    assert why.startswith(outcome)
    assert outcome in {trial["outcome"] for trial in found["trials"]}
    assert not (folder / "t" / "recipe.toml").exists()


def test_an_interrupted_tune_of_starts_that_crash_goes_on(tmp_path: Path) -> None:
    """Of a command that leaves processes behind: it is interrupted in its first start with workers, then resumed."""
    left = str(10**6 + os.getpid())
    """Seconds that these would sleep, and nobody else's."""
    process = begin(tmp_path, SLOW, "crash-in-workers", "leave-children", left)
    wait(process, (tmp_path / "t" / "trials" / "002").exists)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    first = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert not first["complete"] and "interrupted" in first["why_incomplete"]
    assert not first["gain"] and not first["kept"] and first["baseline"]["bound"] == "input"

    done = hotlap("tune", "--json", "--budget", "200s", "--resume", "t", "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    second = document(done)
    assert second["complete"] and second["wall_s"] > first["wall_s"]
    ids = [trial["id"] for trial in second["trials"]]
    assert len(set(ids)) == len(ids) and min(ids) > max(trial["id"] for trial in first["trials"])
    check_nothing_kept(tmp_path, second, "crashed")
    assert ended(left), "processes that the command left behind"


def test_a_start_that_hangs_is_recorded_and_the_tune_goes_on(tmp_path: Path) -> None:
    script = (SLOW, "hang-in-workers", word := f"hang-{os.getpid()}")
    done = tune(tmp_path, "--budget", "400s", *WORKERS, script=script)
    assert done.returncode == 0, done.stderr[-3000:]
    check_nothing_kept(tmp_path, document(done), "timeout")
    assert not running(word)


def test_a_command_that_runs_out_of_memory_is_told_what_it_costs_to_fit(tmp_path: Path) -> None:
    words = ("--budget", "400s", "--only", "checkpoint-blocks")
    done = tune(tmp_path, *words, script=(str(SCRIPTS / "hungry.py"),))
    assert done.returncode == 0, done.stderr[-3000:]
    found = document(done)
    assert [(one["lever"], one["settings"]) for one in found["fitted"]] == [("checkpoint-blocks", {"every": 2})]
    told = found["reference"]
    assert (told["parts"], [one["name"] for one in told["levers"]]) == (2, ["checkpoint-blocks"])
    assert told["parity"]["ok"] and told["parity"]["level"] == "bitwise" and told["parity"]["samples"]
    assert told["time_ratio"] > 0 and told["memory_before_bytes"] > 0 and told["memory_after_bytes"] > 0
    assert told["turns"] >= 6 and told["interval"]["low"] <= told["time_ratio"] <= told["interval"]["high"]
    assert {trial["rows"] for trial in found["trials"] if trial["purpose"] == "reference"} == {32.0}
    shown = hotlap("show", str(tmp_path / "t"), cwd=tmp_path)
    assert "with 1/2 of the batch" in shown.stdout and "of the time" in shown.stdout


def test_a_command_that_fails_without_levers(tmp_path: Path) -> None:
    code = "import torch; raise ValueError('own')"
    done = hotlap("tune", "--out", str(tmp_path / "t"), sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 123
    assert "the command itself fails" in done.stderr and "ValueError: own" in done.stderr


def test_a_command_that_never_trains(tmp_path: Path) -> None:
    done = hotlap("tune", "--out", str(tmp_path / "t"), sys.executable, "-c", "import torch; print(1)", cwd=tmp_path)
    assert done.returncode == 122
    assert "no training step was seen" in done.stderr and "A step is" in done.stderr
