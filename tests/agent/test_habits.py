"""What a script does in each step that torch can be asked of, on real runs of one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.agent.habits import denormal_share, idle_rows, padding

from .harness import Runner, check_clean, check_same

WHATS = ["plain", "anomaly", "hooks", "iterators", "checkpoint", "sparse", "all-rows", "profiler", "tiny"]


@pytest.mark.parametrize("what", WHATS)
def test_a_habit_is_seen_where_it_is_and_nowhere_else(what: str, runner: Runner) -> None:
    ran, bare = runner.forked("habits.py", what), runner.bare("habits.py", what)
    check_clean(ran)
    check_same(ran, bare)
    facts = ran.facts
    (loader,), (root,), (optimizer,) = facts.loaders, facts.roots, facts.optimizers
    assert facts.switches == {"anomaly": ("detect_anomaly",), "profiler": ("profiler",)}.get(what, ())
    assert facts.denormal == (pytest.approx(1 / 3, abs=0.01) if what == "tiny" else 0)
    assert root.hooks == ((1, 20) if what == "hooks" else (0, 0))
    assert (loader.iterators >= 20) is (what == "iterators") or what == "all-rows"
    assert (loader.loop is not None and loader.loop[1] == 45) is (what == "iterators")
    assert bool(facts.recomputed) is (what == "checkpoint")
    assert (optimizer.idle > 0.9) is (what not in {"sparse", "all-rows"})
    assert optimizer.matrix == (() if what == "sparse" else (20_000, 4))


def parameter(gradient: Any, rows: int = 20_000) -> Any:
    return SimpleNamespace(grad=gradient, numel=lambda: rows * 4)


def test_only_dense_gradients_of_large_matrices_are_looked_at() -> None:
    dense = torch.zeros(20_000, 4)
    dense[:5000] = 1.0
    assert idle_rows([parameter(dense)]) == (pytest.approx(0.75, abs=0.01), (20_000, 4))
    assert idle_rows([parameter(dense), parameter(None)])[0] == pytest.approx(0.375, abs=0.01)
    few = torch.zeros(2_000_000, 2)
    few[7] = 1.0
    assert idle_rows([parameter(few)])[0] == 1.0, "none of those that are looked at"
    assert idle_rows([parameter(torch.zeros(20_000, 4))]) == (0.0, ()), "beside weights that begin at zero"
    for other in (None, dense.to_sparse(), dense[:100], dense.view(-1), dense.view(20_000, 2, 2)):
        assert idle_rows([parameter(other)]) == (0.0, ())
    assert idle_rows([]) == (0.0, ())


ROWS = torch.randint(5, 500, (8, 20))


def padded(lengths: list[int], value: float = 0, left: bool = False) -> Any:
    rows = ROWS.clone()
    for row, length in zip(rows, lengths, strict=True):
        row[: 20 - length] = value if left else row[: 20 - length]
        row[length:] = row[length:] if left else value
    return rows


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("value", [0, 1, 50_256])
def test_padding_at_either_end(left: bool, value: int) -> None:
    share, of_all = padding(padded([5, 10, 5, 5, 10, 10, 5, 10], value, left))
    assert (share, of_all) == (pytest.approx(1 - 7.5 / 20), pytest.approx(0.5))
    vectors = torch.randn(8, 20, 3) * (padded([5, 10, 5, 5, 10, 10, 5, 10], 0, left) != 0).unsqueeze(2)
    assert padding(vectors) == (pytest.approx(1 - 7.5 / 20), pytest.approx(0.5))


@pytest.mark.parametrize(
    "batch",
    [
        ROWS,
        ROWS.float(),
        padded([5] * 8, -100, left=True),
        torch.zeros(8, 20, dtype=torch.int64),
        torch.eye(20, dtype=torch.int64),
        torch.zeros(8, 3, 20, 20),
        torch.zeros(8),
        ROWS[:, :5],
        torch.zeros(0, 20, dtype=torch.int64),
        torch.randn(8, 20, 3),
    ],
    ids=lambda batch: f"{batch.dtype} {tuple(batch.shape)}",
)
def test_what_is_no_padding(batch: Any) -> None:
    assert padding(batch)[0] < 0.05


def test_denormal_numbers_are_those_that_a_tensor_holds() -> None:
    some = torch.ones(10_000)
    some[::4] = 1e-41
    some[1::4] = 0.0
    assert denormal_share([None, some.long(), some[:9], some]) == pytest.approx(1 / 3, abs=0.01)
    assert denormal_share([some.double() * 1e30]) == 0
    assert denormal_share([]) == 0
