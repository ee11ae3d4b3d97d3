"""What a script does in each step that torch can be asked of, on real runs of one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.agent.habits import idle_rows

from .harness import Runner, check_clean, check_same

WHATS = ["plain", "anomaly", "hooks", "iterators", "checkpoint", "sparse", "all-rows"]


@pytest.mark.parametrize("what", WHATS)
def test_a_habit_is_seen_where_it_is_and_nowhere_else(what: str, runner: Runner) -> None:
    ran, bare = runner.forked("habits.py", what), runner.bare("habits.py", what)
    check_clean(ran)
    check_same(ran, bare)
    facts = ran.facts
    (loader,), (root,), (optimizer,) = facts.loaders, facts.roots, facts.optimizers
    assert facts.switches == (("detect_anomaly",) if what == "anomaly" else ())
    assert root.hooks == ((1, 20) if what == "hooks" else (0, 0))
    assert (loader.iterators >= 20) is (what == "iterators") or what == "all-rows"
    assert (loader.loop is not None and loader.loop[1] == 37) is (what == "iterators")
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
