"""The lines that a loader's worker is at, in a profiled run."""

import pytest

from hotlap.agent.hooks.loader import WORKER

from .harness import Ran, Runner, check_same


def sampled(ran: Ran) -> None:
    (one,) = ran.ranks[0].workers
    assert one.dataset == "Packed" and one.looks >= 10
    phase, file, line, function, _, took_ms = one.lines[0]
    assert phase == "data" and one.files[file].endswith("slow_workers.py") and took_ms > 0
    assert function.startswith("Packed.__getitem__") and line == 27
    assert one.ran_ms > one.handed_over_ms > 0, "of a batch that is one tensor"
    facts = ran.ranks[0].facts
    assert facts is not None and [loader.batch_tensors for loader in facts.loaders] == [1]
    assert not any("main" in row[3] for row in one.lines), "below the worker's loop are the parent's frames"


@pytest.mark.parametrize("kind", ["plain", "keep"])
def test_the_first_worker_is_sampled_once(kind: str, runner: Runner) -> None:
    ran = runner.untouched("slow_workers.py", kind, profile_steps=1)
    sampled(ran)


def test_a_wait_in_the_user_s_code_is_no_wait_for_what_to_do(runner: Runner) -> None:
    """As of an answer of a Manager's: the lines told of what came after it alone."""
    (one,) = runner.forked("slow_workers.py", "waits", profile_steps=1).ranks[0].workers
    assert one.lines[0][1:3] == (0, 26) and one.lines[0][4].startswith("threading.")
    assert not any(file < 0 and inside.startswith("multiprocessing.") for _, file, _, _, inside, _ in one.lines)


def test_a_run_without_a_profile_samples_none(runner: Runner) -> None:
    bare, ran = runner.bare("slow_workers.py", "plain"), runner.forked("slow_workers.py", "plain")
    check_same(ran, bare)
    assert ran.ranks[0].workers == []


def test_spawned_workers_are_sampled_too(runner: Runner) -> None:
    """Their target is still found by its name. What they send has no order, so losses alone are compared."""
    ran = runner.forked("slow_workers.py", "spawn", profile_steps=1)
    assert ran.code == 0 and ran.losses == runner.bare("slow_workers.py", "spawn").losses and len(ran.losses) == 16


@pytest.mark.parametrize("end", ["raises", "exits"])
def test_a_worker_that_fails_fails_as_without_hotlap(end: str, runner: Runner) -> None:
    bare, ran = runner.bare("slow_workers.py", end), runner.forked("slow_workers.py", end, profile_steps=1)
    assert (bare.code, ran.code) == (1, 1) and ran.losses == bare.losses
    said = "ValueError: planted" if end == "raises" else "exited unexpectedly with exit code 3"
    assert said.split(maxsplit=1)[0] in bare.output and said.split(maxsplit=1)[0] in ran.output


def test_an_error_in_it_ends_that_part_alone(runner: Runner) -> None:
    bare = runner.bare("slow_workers.py", "plain")
    ran = runner.forked("slow_workers.py", "plain", profile_steps=1, fail_in=WORKER)
    check_same(ran, bare)
    assert ran.ranks[0].workers == [] and len(ran.steps) == 16
    assert {problem.where for problem in ran.problems} <= {WORKER}
