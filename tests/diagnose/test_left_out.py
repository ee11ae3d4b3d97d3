"""Logits that the loss leaves out."""

import pytest

from hotlap.diagnose.left_out import with_left_out
from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.profile import Lines
from made_runs import diagnosis_of


def verdict(share: float) -> Diagnosis:
    found = Finding(id="compute", bound="compute", share=share, evidence="x")
    return diagnosis_of(bound="compute", step_ms=50.0, findings=(found,))


def lines(*targets: tuple[int, int, str, float, int, float]) -> Lines:
    return Lines(steps=1, files=("train.py",), targets=targets)


def test_a_head_that_is_computed_for_masked_positions_is_named() -> None:
    said = lines((0, 9, "main", 0.1, 50_000, 0.7), (0, 46, "Bert.forward", 0.85, 30_000, 0.6))
    first, rest = with_left_out(verdict(0.8), said).findings
    assert (first.id, first.bound, first.named) == ("left-out-targets", "compute", True)
    assert first.share == pytest.approx(0.8 * 0.85 * 0.6) and first.cost_ms == pytest.approx(50 * 0.408)
    assert first.where == Place(file="train.py", line=46, function="Bert.forward")
    assert "85% of a step's targets" in first.evidence and "logits are 60%" in first.evidence
    assert rest.id == "compute"


@pytest.mark.parametrize(
    ("said", "computing"),
    [
        (lines(), 0.9),
        (lines((0, 46, "f", 0.85, 21, 0.6)), 0.9),  # few classes
        (lines((0, 46, "f", 0.2, 30_000, 0.6)), 0.9),  # few are left out
        (lines((0, 46, "f", 0.85, 30_000, 0.05)), 0.9),  # a small part of the model
        (lines((0, 46, "f", 0.85, 30_000, 0.6)), 0.05),  # the step does not compute
        (lines((3, 46, "f", 0.85, 30_000, 0.6)), 0.9),  # no such file
    ],
)
def test_else_the_verdict_stays(said: Lines, computing: float) -> None:
    assert with_left_out(verdict(computing), said) == verdict(computing)
