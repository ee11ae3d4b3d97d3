"""Small operations in Python loops: told by a line's calls a step, where the loop is one over values, not modules."""

from pathlib import Path

import pytest

from hotlap.diagnose.small_ops import INSTEAD, LOOKUPS, SINGLE, SMALL, small_ops
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.trace import HostTime, RankTrace, Window

MS = 1_000_000
MANY = SMALL.many
LOOPS = {
    "for row in range(n):\n            out[row] = x[row] @ w": True,
    "while left:\n            left -= int(x[left].sum())": True,
    "if n:\n            return torch.stack([x[row] @ w for row in range(n)])": True,
    "if n:\n            x = x @ w": False,
    "for block in self.blocks:\n            x = block(x)": False,
    "for at, block in enumerate(self.blocks):\n            x = block(x) + at": False,
    "for at in range(n):\n            x = self.blocks[at](x)": False,
    "if n:\n            return [block(x) for block in self.blocks]": False,
}
COMPUTE = Finding(id="compute", bound="compute", share=0.8, levers=("bf16-autocast", "compile", "fused-optimizer"))


def told(
    place: Place,
    calls: int = MANY,
    ns: int = 9 * MS,
    findings: tuple[Finding, ...] = (COMPUTE,),
    name: str = "aten::mul",
    device: str = "cpu",
    *more: HostTime,
) -> list[Finding]:
    """Of two steps, in which ops at the line take 9 of 10 ms."""
    rows = (
        HostTime(name=name, ns=ns, total_ns=ns, count=2 * calls, where=place),
        HostTime(name="aten::mm", ns=10 * MS - ns, total_ns=10 * MS, count=2),
        HostTime(name="hotlap:forward", ns=0, total_ns=0, count=2, where=place),
        *more,
    )
    window = Window(start_ns=0, end_ns=20 * MS, found_by="ProfilerStep", steps=((0, 10 * MS), (10 * MS, 20 * MS)))
    rank = RankTrace(source="t", rank=0, device_name=device, events=0, window=window, step_ms=10.0, model=rows)
    return list(small_ops(rank, findings))


def model(folder: Path, body: str, function: str = "forward") -> Place:
    file = folder / "model.py"
    file.write_text(f"class Net:\n    def {function}(self, x, w, n):\n        {body}\n        return x\n")
    return Place(file=str(file), line=4, function=f"Net.{function}")


@pytest.mark.parametrize(("body", "one_by_one"), LOOPS.items())
def test_a_loop_over_values_is_told_and_one_over_modules_is_not(tmp_path: Path, body: str, one_by_one: bool) -> None:
    found = told(model(tmp_path, body))
    assert bool(found) == one_by_one
    for one in found:
        assert (one.id, one.bound, one.named, one.levers) == ("small-ops", "launch", True, ("compile",))
        assert one.share == pytest.approx(0.8 * 0.9) and f"{MANY} calls of aten::mul a" in one.evidence
        assert "7.20 ms a step" in one.evidence
        assert one.where is not None and one.where.line == 4 and one.instead == INSTEAD


def test_what_is_too_little_is_not_told(tmp_path: Path) -> None:
    place = model(tmp_path, next(iter(LOOPS)))
    assert told(place, calls=MANY - 1) == [] and told(place, ns=MS) == []
    assert told(place, findings=()) == [], "nothing that says that the model takes long"
    assert told(Place(file="gone.py", line=4)) == []


def test_views_are_no_operations_to_count(tmp_path: Path) -> None:
    """DA-RNN: `157 calls of aten::as_strided a step`."""
    place = model(tmp_path, next(iter(LOOPS)))
    views = HostTime(name="aten::as_strided", ns=9, total_ns=9, count=9 * MANY, where=place)
    (found,) = told(place, MANY, 9 * MS, (COMPUTE,), "aten::mul", "cpu", views)
    assert f"{MANY} calls of aten::mul a" in found.evidence


def test_the_loop_that_trains_is_no_loop_of_the_model(tmp_path: Path) -> None:
    assert told(model(tmp_path, "for x in w:\n            n(x).backward()", "main")) == []


@pytest.mark.parametrize(
    "body",
    [
        "if n:\n            x = torch.cat([row[at] for row, at in zip(x, n)])",
        "for row in x:\n            out += row[0]",
    ],
)
def test_parts_that_are_taken_one_by_one_are_a_cause_of_their_own(tmp_path: Path, body: str) -> None:
    """With what their backward does: zeros of the whole, the part in it, and sums of these."""
    place = model(tmp_path, body)
    for name in ("aten::select", "autograd::engine::evaluate_function: SelectBackward0", "aten::_local_scalar_dense"):
        (found,) = told(place, ns=2 * MS, name=name)
        assert (found.id, found.title, found.bound) == (SINGLE.id, SINGLE.title, "launch")
        assert found.share == pytest.approx(0.8 * 0.2) and "`x.gather(" in found.instead
        assert found.levers == ("compile",), "neither bits nor an optimizer's kernel make an index cheaper"
    assert told(place, ns=MS, name="aten::mul") == [], "of other operations twice as much is asked"
    assert told(place, ns=MS // 2, name="aten::select") == []
    on_device = told(place, name="aten::select", device="H100")
    assert [one.id for one in on_device] == ["small-ops"], "a device that computes does not wait for an index"


@pytest.mark.parametrize(
    ("body", "one_by_one"),
    [
        ("if n:\n            return [table(x[:, at]) for at, table in enumerate(self.tables)]", True),
        ("for at, name in enumerate(w):\n            out.append(self.tables[name](x[:, at]))", True),
        ("if n:\n            return self.table(x)", False),
    ],
)
def test_lookups_in_a_loop_are_told_over_modules_too(tmp_path: Path, body: str, one_by_one: bool) -> None:
    place = model(tmp_path, body)
    found = told(place, calls=LOOKUPS.many, ns=2 * MS, name="aten::embedding")
    assert [one.id for one in found] == ([LOOKUPS.id] if one_by_one else [])
    for one in found:
        assert "16 calls of aten::embedding a step" in one.evidence and "offsets" in one.instead
    assert told(place, calls=LOOKUPS.many - 1, name="aten::embedding") == []
    assert told(place, calls=LOOKUPS.many, ns=MS // 2, name="aten::embedding") == []
