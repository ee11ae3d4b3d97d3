"""`hotlap check` through the real process boundary, on commits of a small script."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from forking import hotlap_forked

from hotlap.records.check import Check
from hotlap.records.files import read_record

SCRIPT = """
import sys, time, torch
from torch import nn
import part

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(10**4, 8, 16, generator=torch.Generator().manual_seed(1))
for x in data[: int(sys.argv[1])]:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    part.wait()
    loss.backward()
    optimizer.step()
print("accuracy", 0.5)
"""
WAITS = "import time\n\ndef wait():\n    time.sleep({})\n"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "CUDA_VISIBLE_DEVICES": ""}
SECONDS = 0.01, 0.03
"""A step of each: what a shared machine does to them is less than what they differ by."""


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commits: first, broken, slow."""
    folder = tmp_path_factory.mktemp("project")
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*-out\n__pycache__\n")
    commits = ("first", SCRIPT, SECONDS[0]), ("broken", "raise SystemExit(3)", SECONDS[0]), ("slow", SCRIPT, SECONDS[1])
    for subject, script, wait in commits:
        (folder / "t.py").write_text(script)
        (folder / "part.py").write_text(WAITS.format(wait))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", subject)
        git(folder, "tag", subject)
    return folder


def check(project: Path, *words: str, code: int | None = 0, steps: int = 10_000) -> subprocess.CompletedProcess[str]:
    done = hotlap_forked(["check", *words, sys.executable, "t.py", str(steps)], project, ENVIRONMENT)
    assert "Traceback" not in done.stderr
    assert code is None or done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(git(project, "worktree", "list").splitlines()) == 1 and git(project, "status", "--porcelain") == ""
    return done


def test_a_slow_commit_fails_with_its_cause(project: Path) -> None:
    options = "--budget 5m --comment c-out --junit j-out --out slow-out --json first..slow --"
    done = check(project, *options.split(), code=1)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["verdict"] == "fail" and told["why"].startswith("step time +") and len(told["attempts"]) == 2
    assert told["parity"]["level"] == "bitwise"
    assert told["cause"]["phase"] == "forward"
    places = [(one.get("where") or {}).get("file", "") for one in told["cause"]["findings"]]
    assert "part.py" in places or "t.py" in places, told["cause"]
    assert read_record(project / "slow-out" / "check.json", Check).verdict == "fail"
    assert "hotlap check: FAIL" in (project / "c-out").read_text()
    assert ElementTree.parse(project / "j-out").getroot().get("failures") == "1"


def test_what_is_no_slower_does_not_fail_and_a_target_is_read(project: Path) -> None:
    """The source tree as it is, which is another commit's by now. Short runs end by themselves before they can take
    turns, so they are compared one after another."""
    words = "--budget 60s --slowdown 0.9 --target accuracy>=0.4 --out same-out --json"
    done = check(project, *words.split(), "slow..", "--", code=None, steps=40)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["verdict"] != "fail" and done.returncode == {"pass": 0, "inconclusive": 2}[told["verdict"]]
    assert told["target"]["value"] == 0.5 and told["head"]["name"] == "the source tree"
    assert {one["how"] for one in told["attempts"]} == {"one after another"} and told["notes"]


def test_a_version_that_does_not_run_is_named(project: Path) -> None:
    done = check(project, "--out", "broken-out", "first..broken", "--", code=123)
    assert "new version (broken) does not run: crashed: exit code 3" in done.stderr


def test_another_command_is_a_baseline_and_short_time_tells_nothing(project: Path) -> None:
    words = "--budget", "5s", "--baseline", f"{sys.executable} t.py 9999", "--json", "--out", "command-out"
    told = json.loads(check(project, *words, code=2).stdout.splitlines()[-1])
    assert told["base"]["command"][-1] == "9999" and told["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["first..slow", "--"], "no command"),
        (["python", "t.py"], "nothing to compare with"),
        (["first", "--", "python", "t.py"], "is no range of commits"),
        (["first..nothing", "--", "python", "t.py"], "git knows no commit 'nothing'"),
        (["--bisect", "--baseline", "python x.py", "python", "t.py"], "--bisect needs commits"),
        (["--slowdown", "0", "first..", "--", "python", "t.py"], "--slowdown 0.0 is not between"),
        (["--baseline", "nobody-has-this x", "python", "t.py"], "nobody-has-this"),
        (["--baseline", "missing.toml", "python", "t.py"], "missing.toml"),
    ],
)
def test_what_can_not_be_done_is_said(project: Path, words: list[str], said: str) -> None:
    done = hotlap_forked(["check", *words], project, ENVIRONMENT)
    assert done.returncode in {125, 127} and said in done.stderr and "Traceback" not in done.stderr


def test_after_ctrl_c_nothing_is_left(project: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "hotlap",
        "check",
        "--out",
        "c-c-out",
        "first..slow",
        "--",
        sys.executable,
        "t.py",
        "9999",
    ]
    process = subprocess.Popen(words, cwd=project, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    limit = time.monotonic() + 60
    while not list((project / "c-c-out" / "trials").glob("*/rank-0/steps.jsonl")) and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.communicate()
    kept = read_record(project / "c-c-out" / "check.json", Check)
    assert kept.verdict == "inconclusive" and kept.notes == ("interrupted",) and len(kept.trials) <= 2
    assert len(git(project, "worktree", "list").splitlines()) == 1
