"""Levers put in commands that only infer, in a process: what the script prints stays, and the lever takes hold."""

import json
from typing import Any

import pytest

from hotlap.records.session import LeverUse

from .harness import Runner, check_clean

WORKERS = {"workers": 1, "prefetch": 2, "pin_memory": False, "persistent": True}


def in_use(ran: Any) -> list[str]:
    path = ran.folder / "rank-0" / "levers.jsonl"
    return [json.loads(line)["lever"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_workers_of_a_loader_without_gradients(runner: Runner, mode: str) -> None:
    bare = runner.bare("inference.py", mode, "loader")
    uses = (LeverUse("loader-workers", {**WORKERS, "inference": True}),)
    ran = runner.forked("inference.py", mode, "loader", levers=uses, probe_steps=4)
    check_clean(ran)
    assert ran.output == bare.output
    assert [(loader.workers, loader.training) for loader in ran.facts.loaders] == [(1, False)]
    assert ran.facts.in_flight == 2 and in_use(ran) == ["loader-workers"]
    lines = (ran.folder / "rank-0" / "probe.jsonl").read_text().splitlines()  # type: ignore[operator]
    assert sum(json.loads(line)["what"] == "batch" for line in lines) >= 4, "evidence of the samples"


def test_evaluation_loaders_of_a_training_command_stay_as_they_are(runner: Runner) -> None:
    ran = runner.forked("evaluation.py", "loader", levers=(LeverUse("loader-workers", WORKERS),))
    check_clean(ran)
    assert sorted((one.training, one.workers) for one in ran.facts.loaders) == [(False, 0), (True, 1)]
    assert ran.facts.feeding is not None and ran.facts.feeding.training
    assert in_use(ran) == ["loader-workers"], "it acted before the first step"


def test_a_lever_of_the_model(runner: Runner) -> None:
    ran = runner.forked("inference.py", "no_grad", "loader", levers=(LeverUse("bf16-autocast", {}),))
    check_clean(ran)
    assert in_use(ran) == ["bf16-autocast"] and ran.code == 0


@pytest.mark.parametrize(("how", "grows"), [("whole", True), ("cached", False)])
def test_a_sequence_that_goes_through_whole_for_each_token_is_told(runner: Runner, how: str, grows: bool) -> None:
    ran = runner.forked("generates.py", how)
    check_clean(ran)
    (root,) = ran.facts.roots
    assert root.shapes > 4 and (root.grows > 0.8) is grows
