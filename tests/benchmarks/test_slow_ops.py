"""`benchmarks/slow_ops.py` says what it measured."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def slow_ops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slow_ops

    return slow_ops


def test_every_form_of_an_op_has_a_row(
    slow_ops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "slow-ops.json"
    monkeypatch.setattr(sys, "argv", ["slow_ops.py", "--tiny", "--only", "index", "--out", str(out)])
    slow_ops.main()
    found: dict[str, Any] = json.loads(out.read_bytes())
    forms = {row["form"] for row in found["rows"] if row["op"] == "index_put accumulate"}
    assert forms == {"library", "copy", "embedding_dense_backward", "index_add", "one-hot product"}
    for row in found["rows"]:
        assert row["ms"] > 0 and row["least_ms"] <= row["ms"] <= row["most_ms"]
    assert max(error["rms"] for error in found["errors"]) < 0.01 and found["left_out"] == []
    assert "index_put accumulate" in capsys.readouterr().out


def test_cases_that_the_time_does_not_suffice_for_are_named(slow_ops: ModuleType) -> None:
    rows, left_out = slow_ops.run(slow_ops.Machine("cpu", True), ["norm"], 0.0)
    assert rows == [] and [case.split()[0] for case in left_out] == ["layer_norm+backward"] * 3 + [
        "group_norm+backward"
    ]


def test_errors_count_what_is_not_finite_elsewhere(slow_ops: ModuleType) -> None:
    m, exact = slow_ops.Machine("cpu", True), torch.tensor([1.0, 2.0, torch.inf, torch.nan]).double()
    calls = {"library": exact.float, "worse": lambda: torch.tensor([1.0, 2.2, -torch.inf, 4.0])}
    slow_ops.add_errors(m, "op", "input", calls, exact)
    library, worse = m.errors
    assert (library["largest"], library["non_finite_elsewhere"]) == (0.0, 0)
    assert worse["non_finite_elsewhere"] == 2 and worse["largest"] == pytest.approx(0.1)
