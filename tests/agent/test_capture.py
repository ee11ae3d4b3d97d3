"""The window of a profiler in front of the command, on a device that is not there."""

import json
from typing import Any

import pytest

from hotlap.agent import profile as profile_module
from hotlap.records.files import read_record
from hotlap.records.profilers import Capture

from .harness import Ran, Runner, check_clean, check_lines, check_same

DEVICE = """
import sys
from types import SimpleNamespace
import hotlap.agent.capture as capture

def told(what):
    sys._hotlap_agent.append("told.jsonl", repr(what).replace("'", '"') + "\\n")

capture.torch = SimpleNamespace(cuda=SimpleNamespace(
    is_initialized=lambda: True,
    synchronize=lambda: told("synchronize"),
    profiler=SimpleNamespace(start=lambda: told("start"), stop=lambda: told("stop")),
    nvtx=SimpleNamespace(range_push=told, range_pop=lambda: told("pop")),
))
"""
BROKEN = (
    DEVICE
    + """
def broken():
    raise RuntimeError("cudaProfilerStart")
capture.torch.cuda.profiler.start = broken
"""
)
STEPS = 3


def capture_of(ran: Ran) -> Capture:
    return read_record(ran.ranks[0].path / "capture.json", Capture)


def told(ran: Ran) -> list[str]:
    return [json.loads(line) for line in (ran.ranks[0].path / "told.jsonl").read_text().splitlines()]


def captured(runner: Runner, *words: str, **settings: Any) -> Ran:
    """A run in front of which nsys is said to be."""
    return runner.forked("profiled.py", *words, capture="nsys", capture_steps=STEPS, **settings)


def test_steady_steps_lie_between_start_and_stop(runner: Runner) -> None:
    ran = captured(runner, "plain", "6", before=DEVICE)
    check_same(ran, runner.bare("profiled.py", "plain", "6"))
    check_clean(ran)
    check_lines(ran.folder)
    found = capture_of(ran)
    assert found == Capture(tool="nsys", first_step=found.first_step, steps=STEPS, wanted=STEPS)
    assert found.first_step is not None and found.first_step >= 20
    calls = told(ran)
    assert calls[0] == "start" and calls[-2:] == ["synchronize", "stop"]
    steps = [f"ProfilerStep#{found.first_step + at}" for at in range(STEPS)]
    assert [name for name in calls if name.startswith("ProfilerStep")] == steps
    assert calls.count("hotlap:forward") == STEPS
    opened = sum(name.startswith(("ProfilerStep", "hotlap:")) for name in calls)
    assert calls.count("pop") == opened
    marked = [step.step for step in ran.steps if step.probe]  # the last is the one in which the recording ends
    assert marked == [found.first_step + at for at in range(STEPS + 1)]
    assert not (ran.ranks[0].path / "profile.json").exists()


def test_the_run_goes_on_to_its_steps_after_the_window(runner: Runner) -> None:
    ran = captured(runner, "plain", "60", steps=12, before=DEVICE)
    assert ran.code == 0 and capture_of(ran).steps == STEPS
    assert sum(not step.probe for step in ran.steps) >= 12


@pytest.mark.parametrize("hook", [profile_module.LABEL])
def test_an_error_of_its_own_ends_the_recording(hook: str, runner: Runner) -> None:
    ran = captured(runner, "plain", "6", before=DEVICE, fail_in=hook)
    check_same(ran, runner.bare("profiled.py", "plain", "6"))
    assert {problem.where for problem in ran.problems} == {hook}
    if (ran.ranks[0].path / "told.jsonl").exists():
        assert told(ran)[-1] == "stop"


def test_a_device_that_refuses(runner: Runner) -> None:
    ran = captured(runner, "plain", "6", before=BROKEN)
    check_same(ran, runner.bare("profiled.py", "plain", "6"))
    assert [problem.where for problem in ran.problems] == [profile_module.WINDOW]


def test_without_a_device_there_is_nothing_to_record(runner: Runner) -> None:
    ran = captured(runner, "plain", "6")
    check_clean(ran)
    assert capture_of(ran).note == "the command used no GPU"
    assert not (ran.ranks[0].path / "told.jsonl").exists()


def test_of_many_ranks_the_first_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.agent.capture import _first_of_machine

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [_first_of_machine(rank) for rank in (0, 1)] == [True, False]
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert _first_of_machine(8)
