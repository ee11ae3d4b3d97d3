"""Weights that are cast again: told where autocast is entered, with the time of copies at the lines that cast."""

import pytest

from hotlap.diagnose.known_ops import known_ops
from hotlap.diagnose.recasts import BY_AUTOCAST, BY_ITSELF, LEAST, Recast, again, of_lines
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Lines
from hotlap.records.trace import HostTime, OpRoofline, RankTrace, Window

MS = 1_000_000
WHERE = Place(file="model.py", line=3, function="Block.forward")
LINES = Lines(
    files=("model.py",),
    recasts=(
        (0, 7, "Block.forward", 16, 0.9, ((0, 3, "Block.forward"),)),
        (0, 8, "Block.forward", 4, 0.5, ((0, 3, "Block.forward"),)),
        (0, 9, "main", 2, 0.5, ()),
    ),
)


def copies(line: int, ns: int, op: str = "aten::copy_") -> OpRoofline:
    at = Place(file="model.py", line=line, function="Block.forward")
    return OpRoofline(
        op=op, shape="", dtype="fp32", ns=ns, count=9, flops=0, bytes=9, limit="bandwidth", of_peak=0.4, where=at
    )


def test_copies_of_all_lines_are_told_where_autocast_is_entered() -> None:
    rows = copies(7, 10 * MS), copies(8, 4 * MS), copies(7, 50 * MS, "aten::mm"), copies(99, 50 * MS)
    (found,) = again(rows, list(of_lines(LINES)), 0.01 / MS, 200.0, 1.0)
    assert (found.id, found.bound, found.where, found.title) == (
        "weights-cast-again", "bandwidth", WHERE, BY_AUTOCAST.title
    )  # fmt: skip
    assert found.share == pytest.approx(0.01 * (9 + 2)) and found.cost_ms == pytest.approx(22)
    assert (
        found.evidence.startswith("each 16 times before the backward") and "around the whole forward" in found.instead
    )


def test_what_autocast_does_not_keep_is_told_where_it_is_cast() -> None:
    (found,) = again([copies(9, 20 * MS)], list(of_lines(LINES)), 0.01 / MS, 200.0, 1.0)
    assert found.where == Place(file="model.py", line=9, function="main")
    assert found.title == BY_ITSELF.title and "frozen" in found.instead


def test_little_is_not_told() -> None:
    of = list(of_lines(LINES))
    assert list(again([copies(9, 9 * MS)], of, 0.01 / MS, 200.0, 1.0)) == [] and LEAST > 0.01 * 9 * 0.5
    assert list(of_lines(Lines(recasts=LINES.recasts))) == [], "files that are not named"


def test_what_they_take_leaves_less_to_the_rest() -> None:
    rows = tuple(
        HostTime(name=name, ns=ns, total_ns=ns, count=9, where=WHERE)
        for name, ns in (("aten::copy_", 5 * MS), ("aten::mm", 5 * MS))
    )
    window = Window(start_ns=0, end_ns=10 * MS, found_by="ProfilerStep", steps=((0, 10 * MS),))
    rank = RankTrace(source="t", rank=0, device_name="cpu", events=0, window=window, step_ms=10.0, model=rows)
    compute = Finding(id="compute", bound="compute", share=0.8)
    cast = Recast(("model.py", 3), 8, 0.75, WHERE, BY_AUTOCAST)
    found, rest = known_ops(rank, (compute,), 10.0, recast=[cast])
    assert found.id == "weights-cast-again" and found.share == pytest.approx(0.8 * 0.5 * 0.75)
    assert rest.share == pytest.approx(0.8 - found.share)
