"""What of a script computes its loss."""

from pathlib import Path

import pytest

from hotlap.diagnose.of_the_loss import AND_LOSS, makes_loss, with_loss
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Lines
from made_runs import diagnosis_of

SCRIPT = """
def contrastive(z, y):
    same = y[:, None] == y
    return (z @ z.T)[same].mean()
def main():
    for x, y in batches:
        y = y.float()
        z = model(x)
        right = (z > 0).eq(y).sum()
        kept = z / 0.1
        loss = contrastive(kept, y)
        (loss * 2).backward()
def loss_of(x, y):
    z = model(x)
    value = (z - y).abs()
    return value.mean()
def inline(x, y):
    return contrastive(model(scaled(x)), y)
"""
CALLED = [(8, "main"), (14, "loss_of")]
INLINE = [(18, "inline")]


@pytest.mark.parametrize(("function", "loss"), [("contrastive", True), ("scaled", False), ("forward", False)])
def test_a_loss_may_be_given_the_output_at_once(function: str, loss: bool, tmp_path: Path) -> None:
    (file := tmp_path / "train.py").write_text(SCRIPT)
    called = [Place(file=str(file), line=at, function=of) for at, of in INLINE]
    place = Place(file=str(file), line=3, function=function)
    assert makes_loss(place, Place(file=str(file), line=12, function="main"), called) is loss


@pytest.mark.parametrize(
    ("line", "function", "loss"),
    [
        (3, "contrastive", True), (10, "main", True), (11, "main", True), (15, "loss_of", True), (16, "loss_of", True),
        (7, "main", False), (8, "main", False), (9, "main", False), (14, "loss_of", False), (3, "other", False),
    ],
)  # fmt: skip
def test_what_leads_from_the_output_to_the_backward_is_the_loss(
    line: int, function: str, loss: bool, tmp_path: Path
) -> None:
    """Log-probabilities of 192 steps were told as code of the loop, to be computed every n steps."""
    (file := tmp_path / "train.py").write_text(SCRIPT)
    at = Place(file=str(file), line=line, function=function)
    findings = (
        Finding(id="host-code", bound="unknown", share=0.4, title="code of the loop", where=at, instead="log less"),
        Finding(id="compute", bound="compute", share=0.5, title="computing Net", where=at),
    )
    lines = Lines(files=(str(file),), places={"backward": (0, 12, "main")})
    called = [Place(file=str(file), line=at, function=of) for at, of in CALLED]
    told = {one.id: one for one in with_loss(diagnosis_of(bound="compute", findings=findings), lines, called).findings}
    assert told["compute"].title.endswith(AND_LOSS) is loss
    assert ("makes the loss" in told["host-code"].title) is loss is ("log less" not in told["host-code"].instead)
    before = diagnosis_of(bound="compute", findings=findings)
    assert with_loss(before, Lines(), called) == before
