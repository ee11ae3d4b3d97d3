"""What a run tells of waits that lie inside of phases: gradients of other ranks, workers that start anew.

That the times which DDP takes itself are told, `test_spawned_ranks` shows.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.agent.facts import Model, exchange
from hotlap.records.run import ExchangeFacts

from .harness import Runner, check_clean


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({}, {}),
        ({"iteration": 2}, {}),
        (
            {"iteration": 2, "avg_backward_comm_time": 5_000_000, "avg_backward_compute_time": 2_000_000},
            {
                "backwards": 4.0,
                "compute_ms": 2.0,
                "exchange_ms": 5.0,
                "hidden_ms": 0.0,
                "searches": False,
                "unused": 0,
            },
        ),
    ],
)
def test_what_is_not_told_is_not_known(
    told: dict[str, int], known: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = SimpleNamespace(_get_ddp_logging_data=lambda: SimpleNamespace(ints_map=told))
    for one in (SimpleNamespace(logger=logger), SimpleNamespace(logger=None), SimpleNamespace(), None):
        monkeypatch.setattr(exchange, "exchanging", lambda module, one=one: one)
        model = Model(lambda: None, "cpu", 40, {"exchange": {}}, {})
        model.facts.update(exchange.look_at_model(model, after(52)))
        assert model.facts["exchange"] == (known if one == SimpleNamespace(logger=logger) else {})


def after(backwards: int) -> Any:
    """The script, after so many."""
    return SimpleNamespace(agent=SimpleNamespace(steps=SimpleNamespace(backwards=backwards)))


def test_the_first_backwards_connect_and_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"iteration": 2, "avg_backward_comm_time": 90_000_000, "avg_backward_compute_time": 0}
    logger = SimpleNamespace(_get_ddp_logging_data=lambda: SimpleNamespace(ints_map=told))
    monkeypatch.setattr(exchange, "exchanging", lambda module: SimpleNamespace(logger=logger))
    model = Model(lambda: None, "cpu", 5, {"exchange": {}}, {})
    for iteration, mean, known in ((2, 90.0, 90.0), (9, 30.0, (270 - 180) / 7), (100, 30.0, (330 - 180) / 9)):
        told.update(iteration=iteration, avg_backward_comm_time=int(mean * 1e6))
        model.facts.update(exchange.look_at_model(model, after(iteration + 6)))
        assert model.facts["exchange"]["exchange_ms"] == pytest.approx(known)
    assert model.facts["exchange"]["backwards"] == 1


def test_a_model_of_one_process_is_not_watched() -> None:
    module = torch.nn.Linear(1, 1)
    model = Model(lambda: module, "cpu", 0, {}, {})
    assert exchange.describe_model(model) == exchange.look_at_model(model, after(9)) == {}
    assert ExchangeFacts().exchange_ms is None


def test_workers_that_start_each_epoch_are_timed_but_for_the_first_time(runner: Runner) -> None:
    ran = runner.forked("epochs.py", "--workers", "2")
    check_clean(ran)
    (loader,) = ran.facts.loaders
    assert (loader.starts, loader.batches) == (3, 12)
    spent = sum(step.wall_ms for step in ran.steps if step.step in {4, 8})
    assert loader.restarting_ms > 0 and loader.refilling_ms > 0
    assert loader.restarting_ms + loader.refilling_ms <= spent
    assert loader.loop is not None and loader.loop[0].endswith("epochs.py")


def test_workers_that_live_and_loaders_without_any_never_restart(runner: Runner) -> None:
    for argv in (["epochs.py"], ["persistent_workers.py"]):
        (loader,) = runner.forked(*argv).facts.loaders
        assert (loader.starts, loader.restarting_ms) == (0, 0.0) and loader.iterators >= 1
