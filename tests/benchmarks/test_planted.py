"""Scripts with one known cause through `hotlap run --profile`: the verdict names its bound and where it is."""

from pathlib import Path
from typing import Any

import msgspec
import planted
import pytest

from agent.harness import Runner
from hotlap.cli.run import PROFILE_STEPS

STEPS = 6
SCRIPTS = sorted(path.stem for path in planted.SCRIPTS.glob("*.py"))


def check_right(said: Any, row: dict[str, Any]) -> None:
    assert row["bound_right"] and row["cause_right"], row
    assert row["line_right"] is True or said.place == "none", row


def test_the_verdict_names_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = planted.read(planted.SCRIPTS / "no_workers.py", "cpu")
    row = planted.run(said, "cpu", STEPS, tmp_path / "run")
    assert row["status"] == "run", row
    check_right(said, planted.judge_again(said, tmp_path / "run"))


@pytest.mark.parametrize("name", ["sample_loop", "fp32_matmuls", "healthy_attention"])
def test_the_verdict_of_what_the_agent_recorded(name: str, runner: Runner) -> None:
    """The same in a fork that has imported torch, judged by this process."""
    said = planted.read(planted.SCRIPTS / f"{name}.py", "cpu")
    command = (str(said.path), "--device", "cpu")
    ran = runner.forked(*command, steps=STEPS, least_steps=STEPS, profile_steps=PROFILE_STEPS)
    found = msgspec.to_builtins(runner.judged(ran, *command))
    assert ran.folder is not None
    check_right(said, planted.judged(said, found, (ran.folder / "rank-0" / "samples.json").is_file()))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_script_says_what_is_planted(device: str) -> None:
    assert len(SCRIPTS) >= 23
    for name in SCRIPTS:
        said = planted.read(planted.SCRIPTS / f"{name}.py", device)
        assert said.needs in {"cpu", "cuda", "ranks"}
        assert said.bound is None or said.bound in planted.BOUNDS
        assert (said.bound is None) == (said.cause is None)
        assert (said.line is None) == (said.place == "none") and (said.line is None) == name.startswith("healthy")
        if said.place == "function":
            assert said.function


def test_what_can_not_run_here_counts_nowhere() -> None:
    waits = planted.read(planted.SCRIPTS / "item_each_step.py", "cpu")
    assert planted.not_run(waits, "cpu", 0) == "needs cuda" and planted.not_run(waits, "cuda", 1) == ""
    ranks = planted.read(planted.SCRIPTS / "slow_rank.py", "cuda")
    assert planted.not_run(ranks, "cuda", 1) == "needs two GPUs" and planted.not_run(ranks, "cpu", 0) == ""
    rows = [
        {"status": "not run", "planted": {"bound": "sync", "place": "line"}},
        {"status": "failed", "planted": {"bound": "input", "place": "line"}},
        {
            "status": "run",
            "planted": {"bound": "input", "place": "line"},
            "found": "compute",
            "bound_right": False,
            "line_right": False,
        },
    ]
    found = planted.summary(rows)
    assert (found["scripts"], found["not_run"]) == (3, 1)
    assert found["bound_right"] == "0 of 2" and found["line_right"] == "0 of 1"
    assert found["confusion"] == {"input": {"failed": 1, "compute": 1}}


def test_a_place_is_right_only_where_it_is_planted() -> None:
    said = planted.read(planted.SCRIPTS / "fp32_matmuls.py", "cpu")
    where = {"file": f"/somewhere/{said.path.name}", "line": said.line, "function": "Wide.forward"}
    assert said.points_there(where, False) is True
    assert said.points_there({**where, "line": said.line + 1}, False) is False
    assert said.points_there({**where, "file": "/other.py"}, False) is False
    assert said.points_there(None, False) is False
    logs = planted.read(planted.SCRIPTS / "json_logging.py", "cpu")
    assert logs.points_there(None, False) is None and logs.points_there(None, True) is False


def test_a_healthy_script_that_is_blamed_for_something_else_is_wrong() -> None:
    healthy = planted.read(planted.SCRIPTS / "healthy_mlp.py", "cpu")
    compute = {"id": "compute", "bound": "compute", "share": 0.7}
    for other, right in ((0.1, True), (0.3, False)):
        findings = [compute, {"id": "host-code", "bound": "unknown", "share": other}]
        row = planted.judged(healthy, {"bound": "compute", "step_ms": 1.0, "findings": findings}, False)
        assert row["bound_right"] is right and row["line_right"] is None
