"""Backwards that go on into graphs of steps before."""

from pathlib import Path

import pytest

from hotlap.diagnose.older_graphs import with_older
from hotlap.diagnose.statements import kept_at
from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.profile import Lines
from hotlap.records.run import Phases
from made_runs import diagnosis_of

GROWN = Finding(id="steps-grow", bound="unknown", share=0.3, evidence="20 ms at first, 60 ms later", named=True)
SCRIPT = """
center = 0.9 * center + 0.1 * new
total += loss
loss = (out - center).square()
"""


def verdict(*findings: Finding) -> Diagnosis:
    return diagnosis_of(bound="compute", step_ms=50.0, findings=findings, phases=Phases(forward=10.0, backward=40.0))


def lines(file: Path, part: float, at: int = 0) -> Lines:
    return Lines(steps=1, files=(str(file),), older=((at, 2, "main", 80, part, at, 2, "main"),))


def test_it_is_told_with_what_would_not_keep_the_graph_and_in_place_of_what_only_says_that_steps_grow(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "train.py").write_text(SCRIPT)
    (found,) = with_older(verdict(GROWN), lines(file, 0.8)).findings
    assert (found.id, found.share, found.cost_ms) == ("graph-grows", pytest.approx(0.64), pytest.approx(32.0))
    assert found.where == Place(file=str(file), line=2, function="main")
    assert found.evidence.startswith("80 of 100 nodes") and found.evidence.endswith(GROWN.evidence)
    assert "`center = 0.9 * center.detach() + 0.1 * new`" in found.instead
    assert kept_at(Place(file=str(file), line=3)) == "total = total.detach() + loss"
    assert kept_at(Place(file=str(file), line=4)) == "state = state.detach()"


def test_a_graph_that_is_there_before_but_does_not_grow_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    for said in (lines(file, 0.6), lines(file, 0.8, at=3), Lines()):
        assert with_older(verdict(GROWN), said) == verdict(GROWN)
