"""Processes that are forked from one that has begun."""

import sys

import pytest

from .harness import Runner, check_same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


@pytest.mark.parametrize(("kind", "steps"), [("infers", [20, 80, 90]), ("tries", [80, 90]), ("trains", [12])])
def test_children_of_a_process_that_has_not_trained_are_ranks(kind: str, steps: list[int], runner: Runner) -> None:
    ran = runner.untouched("children.py", kind)
    found = [[step.kind for step in rank.steps] for rank in ran.ranks]
    assert [len(kinds) for kinds in found] == steps
    assert {kind for kinds in found[-2:] for kind in kinds} == {"train"}


def test_an_error_in_the_hook(runner: Runner) -> None:
    bare, ran = runner.bare("children.py", "tries"), runner.forked("children.py", "tries", fail_in="fork")
    check_same(ran, bare)
    assert [problem.where for problem in ran.problems] == ["fork", "fork"]
    assert ran.steps == []
