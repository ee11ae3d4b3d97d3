"""Where the time of a search through a list is booked, and what is said of it."""

from pathlib import Path

import msgspec
import pytest

from hotlap.diagnose.sampled import with_samples
from hotlap.diagnose.searches import booked, search_at
from hotlap.records.diagnosis import Diagnosis, Finding, Place, Spread
from hotlap.records.profile import Samples
from hotlap.records.run import Phases

SAMPLER = """def batch(self, size):
    for _ in range(size):
        u = draw(self.users)
        while True:
            j = draw(self.n)
            if j in self.pos[u]:
                continue
            break
        out.append(j)
    while j in self.pos[u]:
        j = draw(self.n)
    return torch.tensor(out)
def others(self, rows):
    known = [row for row in rows if row in self.seen]
    n = float(known in self.seen)
    for row in rows:
        if row in self.seen:
            n += 1
    return n
"""


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (6, {4, 5, 7, 9}),
        (10, {10, 11, 12}),
        (14, {14}),  # a comprehension jumps back
        (15, {15}),  # a call around it
        (17, {16, 17, 18}),
    ],
)
def test_it_is_booked_where_python_lets_others_look_next(tmp_path: Path, line: int, where: set[int]) -> None:
    (tmp_path / "a.py").write_text(SAMPLER)
    assert booked(Place(file=str(tmp_path / "a.py"), line=line)) == where


@pytest.mark.parametrize(
    ("line", "took_us", "told"),
    [
        (9, 3.0, True),
        (9, 0.2, False),  # a few entries
        (5, 3.0, False),  # what is called there may be it
        (5, 30.0, True),
        (3, 30.0, False),
    ],
)
def test_where_it_takes_longer_than_the_next_call(tmp_path: Path, line: int, took_us: float, told: bool) -> None:
    file = tmp_path / "a.py"
    file.write_text(SAMPLER)
    searched = ((str(file), 6, "self.pos[u]", 400, took_us),)
    assert (search_at(Place(file=str(file), line=line), searched) is not None) is told


@pytest.mark.parametrize("inside", ["", "random.Random.randrange"])
def test_the_search_is_told_with_its_share(tmp_path: Path, inside: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(SAMPLER)
    lines = (("other", 0, 9, "batch", inside, 60.0), ("other", -1, 0, "", "wait", 40.0))
    seen = Samples(steps=3, looks=100, files=(str(file),), lines=lines)
    seen = msgspec.structs.replace(seen, searched=((str(file), 6, "self.pos[u]", 400, 3.0),))
    before = Finding(id="host-code", bound="unknown", share=0.5, where=None, evidence="x")
    of = {"mode": "train", "bound": "unknown", "step_ms": 1.0, "phases": Phases(), "findings": (before,)}
    found = with_samples(Diagnosis(spread=Spread(p10=1, p50=1, p90=1), **of), seen).findings[0]  # type: ignore[arg-type]
    if inside:
        assert "list" not in found.title
        return
    assert found.named and found.title == "a list is searched from its beginning" and found.share == pytest.approx(0.3)
    assert found.where is not None and found.where.line == 6 and "in place of `... in self.pos[u]`" in found.instead
    assert "60% of it from there to the next call" in found.evidence and "400 entries" in found.evidence
