"""What a loop logs in each step, where no look tells a line."""

from pathlib import Path

import pytest

from hotlap.diagnose.in_the_loop import with_lines
from hotlap.records.diagnosis import Finding, Place
from made_runs import diagnosis_of

OWN = Finding(id="host-code", bound="unknown", share=0.3, evidence="0.17 ms of host time a step", instead="generic")
LOOP = """
def main():
    for step in range(9):
        if step % 50 == 0:
            torch.save(model, "m.pt")
        loss = model(x)
        loss.backward()
        writer.add_scalar("loss", loss, step)
        {more}
        optimizer.step()
    writer.add_scalar("end", 1, 9)
"""


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ("pass", "line 8:"),
        ('writer.add_scalar("rate", 1, step)', "line 8, 9:"),
        ('torch.save(model, "last.pt")', ""),  # which of the two is not known
    ],
)
def test_it_is_told_without_a_figure(more: str, lines: str, tmp_path: Path) -> None:
    """Three looks at steps of 0.7 ms named no line, of 0.17 ms by `add_scalar` in each."""
    (file := tmp_path / "train.py").write_text(LOOP.format(more=more))
    called = [Place(file=str(file), line=6, function="main")]
    (found,) = with_lines(diagnosis_of(bound="unknown", findings=(OWN,)), called).findings
    assert (found.where is not None) is bool(lines) and found.share == OWN.share and not found.named
    if lines:
        assert found.where == Place(file=str(file), line=8, function="main")
        assert f"in each step, at {lines} values are logged" in found.evidence and "add_scalar" in found.instead


def test_else_the_verdict_stays(tmp_path: Path) -> None:
    (file := tmp_path / "train.py").write_text(LOOP.format(more="pass").replace("writer.add_scalar", "keep"))
    for line in (6, 2):
        before = diagnosis_of(bound="unknown", findings=(OWN,))
        assert with_lines(before, [Place(file=str(file), line=line, function="main")]) == before
