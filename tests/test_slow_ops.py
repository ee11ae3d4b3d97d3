"""The candidates of `benchmarks/slow_ops.py` compute what the library does, and the benchmark says what it measured."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FORMS = ("two-level", "row by row", "product", "product TF32")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scans

    return scans


@pytest.fixture
def small(scans: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Chunks of 4 and tiles of 2, so that short inputs have many."""
    monkeypatch.setattr(scans, "_chunk", lambda length: 4)
    monkeypatch.setattr(scans, "TILE", 2)
    monkeypatch.setattr(scans, "NARROW", 3)
    return scans


def never(x: Tensor) -> Tensor:
    raise AssertionError("not for this input")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "dim"),
    [
        (lambda: torch.randn(3, 9001), 1),
        (lambda: torch.randn(3, 9000)[:, ::2], -1),
        (lambda: torch.randn(5000, 3).t(), 1),
        (lambda: torch.randn(5000, 3), 0),
        (lambda: torch.randn(5000, 40), -2),
        (lambda: torch.randn(2, 3000, 2), 1),
        (lambda: torch.randn(7), 0),
        (lambda: torch.randn(()), -1),
    ],
)
def test_sums_are_the_librarys(
    scans: ModuleType, form: str, dtype: torch.dtype, make: Callable[[], Tensor], dim: int
) -> None:
    torch.manual_seed(0)
    x = make().to(dtype)
    got, library = scans.cumsum(x, dim, form=scans.forms(torch.empty(0))[form]), torch.cumsum(x, dim)
    assert (got.shape, got.stride(), got.dtype) == (library.shape, library.stride(), library.dtype)
    allowed = 16 * torch.finfo(dtype).eps * float(library.abs().max())
    torch.testing.assert_close(got, library, rtol=0, atol=allowed)


def test_a_result_type_that_is_asked_for(scans: ModuleType) -> None:
    x = torch.randn(2, 5000).bfloat16()
    got = scans.cumsum(x, 1, form=scans.two_level, dtype=torch.float32)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.cumsum(x, 1, dtype=torch.float32), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6),
        torch.ones(6, dtype=torch.bool),
        torch.ones(6, dtype=torch.complex64),
        torch.empty(0),
        torch.empty(3, 0),
    ],
)
def test_other_inputs_are_the_librarys(scans: ModuleType, x: Tensor) -> None:
    got = scans.cumsum(x, 0, form=never)
    assert got.dtype == torch.cumsum(x, 0).dtype
    assert torch.equal(got, torch.cumsum(x, 0))


def test_out_and_errors_are_the_librarys(scans: ModuleType) -> None:
    x, out = torch.randn(6), torch.empty(6)
    assert scans.cumsum(x, 0, form=never, out=out) is out
    assert torch.equal(out, x.cumsum(0))
    with pytest.raises(IndexError, match="Dimension out of range"):
        scans.cumsum(x, 1, form=never)


def test_transforms_of_functions_are_the_librarys(scans: ModuleType) -> None:
    x = torch.randn(3, 6)
    rows = torch.func.vmap(lambda row: scans.cumsum(row, 0, form=never))(x)
    assert torch.equal(rows, x.cumsum(1))
    _, tangent = torch.func.jvp(lambda a: scans.cumsum(a, 1, form=never), (x,), (x,))
    assert torch.equal(tangent, x.cumsum(1))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_and_those_of_gradients(small: ModuleType, form: str) -> None:
    call = small.forms(torch.empty(0))[form]
    for shape, dim in (((1, 35), 1), ((9, 4), 0)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a, dim=dim: small.cumsum(a, dim, form=call), x)
        assert torch.autograd.gradgradcheck(lambda a, dim=dim: small.cumsum(a, dim, form=call), x)


@pytest.mark.parametrize("form", ["two-level", "row by row"])
def test_what_is_not_finite_stays_where_it_was(scans: ModuleType, form: str) -> None:
    x = torch.randn(4, 6000)
    x[0, 4000], x[1, 100], x[1, 5000], x[2, 3000] = torch.nan, torch.inf, -torch.inf, -torch.inf
    got, library = scans.cumsum(x, 1, form=scans.forms(torch.empty(0))[form]), x.cumsum(1)
    assert torch.equal(got.isnan(), library.isnan())
    assert torch.equal(got.isinf(), library.isinf())
    assert torch.equal(got[got.isinf()], library[library.isinf()])


def test_a_product_spreads_what_is_not_finite(scans: ModuleType) -> None:
    """Why `by_product` can't take the library's place unseen: the errors that the benchmark prints show it."""
    x = torch.ones(1, 2048)
    x[0, 1000] = torch.inf
    got = scans.cumsum(x, 1, form=scans.by_product)
    assert not got[0, 999].isfinite() and x.cumsum(1)[0, 999].isfinite()


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


def test_the_lever_is_measured_on_masks_of_tokens(slow_ops: ModuleType) -> None:
    m = slow_ops.Machine("cpu", True)
    rows, left_out = slow_ops.run(m, ["tokens"], 60.0)
    assert {row["form"] for row in rows} == {"library", "copy", "lever"} and not left_out
    whole = [error for error in m.errors if "float" not in error["of"]]
    assert len(whole) >= 32 and not any(error["largest"] for error in whole)


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
