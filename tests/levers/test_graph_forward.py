"""Forwards as graphs: whatever script, model and inputs do, outputs are those of ordinary calls."""

import math
import random
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from fake_graphs import BEFORE, Run
from torch import nn

from hotlap.levers import graph_optimizer, graph_training
from hotlap.levers._effects import watched
from hotlap.levers._forward_graph import MOST_CHANGES, MOST_SHAPES, PATIENCE, relative_error


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3))


def batch(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def test_shapes_that_come_in_turns() -> None:
    run = Run(mlp())
    for turn in range(6):
        for rows in (2, 5, 3):
            run.same(batch(rows, turn))
    assert not run.whys and run.captures == 3
    assert run.graphed.replays == 3 * (6 - BEFORE) and run.slow == 3 * BEFORE


def test_numpy_that_is_loaded_meanwhile_is_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch loads it late: the first forward that was watched then was said to draw random numbers."""
    numpy_random = sys.modules["numpy.random"]
    monkeypatch.delitem(sys.modules, "numpy.random")

    class Loads(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sys.modules["numpy.random"] = numpy_random
            return super().forward(x)

    run = Run(Loads(4, 3))
    for turn in range(BEFORE + 1):
        run.same(batch(2, turn))
    assert run.graphed.replays == 1 and not run.whys


class Lazy(nn.Linear):
    """Makes its scale in the first call."""

    scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = torch.full((1,), float(x.new_ones(()).item()) + 2.0)
        return super().forward(x) * self.scale


def test_what_only_a_first_forward_does_is_looked_at_again() -> None:
    run = Run(Lazy(4, 3))
    for turn in range(BEFORE + 3):
        run(batch(2, turn))
    run.same(batch(2, 9))
    assert not run.whys and run.graphed.replays == 3 and run.captures == 1


def test_the_script_keeps_what_it_got() -> None:
    """Outputs are its own: the next replay leaves them as they are, and so does the script the record's."""
    run = Run(mlp())
    for _ in range(BEFORE):
        run(batch(2))
    x = batch(2, 1)
    one, two = run(x), run(batch(2, 2))
    with torch.no_grad():
        assert torch.equal(one, run.model(x)) and not torch.equal(one, two)
    one.fill_(7.0)
    two.fill_(7.0)
    x.fill_(9.0)
    run.same(batch(2, 3))
    assert run.graphed.replays == 3


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, scale: float = 1.0, more: Any = None) -> Any:
        y = self.layer(x["tokens"]) * scale
        return {"both": (y, more[0]), "words": ("none", None, 3), "sum": y.sum()}


def test_nests_of_inputs_and_outputs() -> None:
    run = Run(Nested())
    for seed in range(BEFORE + 2):
        more = [batch(1, seed)]
        run.same({"tokens": batch(2, seed)}, 2.0, more)
        assert run({"tokens": batch(2, seed)}, 2.0, more)["both"][1] is more[0], "an argument stays the caller's"
    assert run.graphed.replays and not run.whys
    run.same({"tokens": batch(2)}, 3.0, [batch(1)])
    assert len(run.graphed.buckets) == 2, "a number is part of the record"


class Cache(nn.Module):
    """Keys and values as decode loops keep them: at a position, in the model or in an argument."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, position: torch.Tensor, cache: Any = None) -> Any:
        keys = self.keys if cache is None else cache
        keys.index_copy_(0, position, self.layer(x))
        self.count += 1
        return keys.softmax(0), self.count + 0


@pytest.mark.parametrize("argument", [False, True])
def test_a_cache_that_is_written_in_place(argument: bool) -> None:
    """Each call writes once: neither the watch nor the recording leaves anything behind."""
    run, twin = Run(Cache()), Cache()
    caches = [torch.zeros(8, 4) if argument else None for _ in range(2)]
    for at in range(8):
        x, position = batch(1, at), torch.tensor([at])
        with torch.no_grad():
            expected = twin(x, position, caches[1])
        assert all(map(torch.equal, run(x, position, caches[0]), expected))
    assert torch.equal(run.model.keys, twin.keys) and run.model.count == 8  # type: ignore[arg-type]
    assert run.graphed.replays == 8 - BEFORE and not run.whys


def test_a_cache_that_lies_elsewhere_each_time_is_given_up() -> None:
    run, kept = Run(Cache()), []
    for turn in range(4 * (MOST_CHANGES + 2)):
        if turn % (BEFORE + 1) == 0:
            kept.append(torch.zeros(8, 4))
        run(batch(1), torch.tensor([0]), kept[-1])
    assert "changed" in run.whys[0] and len(run.whys) == 1


def rebind(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight + 1)


def swap(model: Any) -> None:
    model[4] = nn.Linear(8, 3)


def set_data(model: Any) -> None:
    model[0].weight.data = model[0].weight.data + 1


def change_number(model: Any) -> None:
    model[3].eps = 0.5


CHANGES = [rebind, swap, set_data, change_number]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_is_recorded_anew(change: Callable[[Any], None]) -> None:
    run = Run(mlp())
    for again in range(2):
        for seed in range(BEFORE + 2):
            run.same(batch(2, seed))
        assert run.captures == again + 1 and run.graphed.replays == 2 * (again + 1)
        change(run.model)


def test_values_that_change_in_place_need_no_new_record() -> None:
    run = Run(mlp())
    for seed in range(BEFORE + 3):
        run.same(batch(2, seed))
        with torch.no_grad():
            run.model[0].weight.mul_(1.5)  # type: ignore[index,union-attr]
    assert run.captures == 1 and run.graphed.replays == 3


def test_dropout_that_is_switched_on_is_not_replayed() -> None:
    run = Run(mlp())
    for _ in range(BEFORE + 1):
        run.same(batch(2))
    run.model.train()
    outputs = [run(batch(2)) for _ in range(4)]
    assert not torch.equal(outputs[0], outputs[1]) and run.whys == ["it draws random numbers"]


ELSEWHERE = torch.ones(3)


class Odd(nn.Module):
    """Does one thing that a record can't do."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what, self.calls, self.kept = nn.Linear(4, 3), what, 0, []

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if self.what == "item":
            y = y * 2 if y.sum().item() > 0 else y
        if self.what == "bool":
            y = y * 2 if y.sum() > 0 else y
        if self.what == "nonzero":
            y = y[y[:, 0] > 0]
        if self.what == "elsewhere":
            y = y + ELSEWHERE
        if self.what == "random":
            y = y * random.random()
        if self.what == "numpy":
            y = y if numpy.random.rand() < 2 else -y
        if self.what == "count":
            self.calls += 1
        if self.what == "kept":
            self.kept.append(y)
        if self.what == "object":
            return Box(y)
        if self.what == "weight":
            return y, self.layer.weight
        return x[:1] if self.what == "view" else y


class Box:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and torch.equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("item", "the host waits"), ("bool", "the host waits"), ("nonzero", "the host waits"),
        ("random", "draws random numbers"), ("numpy", "draws random numbers"),
        ("elsewhere", "neither the model's nor its arguments"), ("count", "changed numbers"), ("kept", "new tensors"),
        ("object", "class Box"), ("weight", "a part of the model"), ("view", "a part of the model"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_it_refuses(what: str, why: str, mode: Any) -> None:
    with mode():
        random.seed(0)
        run = Run(Odd(what))
        if what == "random":
            run(batch(3))
            assert why in run.whys[0]
        else:
            assert why in run.refused(batch(3))


def test_hooks_are_refused() -> None:
    model = mlp()
    seen: list[Any] = []
    model[0].register_forward_hook(lambda *args: seen.append(args))  # type: ignore[index,union-attr]
    assert "hooks" in Run(model).refused(batch(2)) and len(seen) == 2 * (BEFORE + 2)


def test_inputs_that_are_neither_tensors_nor_plain_are_refused() -> None:
    class Takes(nn.Module):
        def forward(self, x: Any) -> torch.Tensor:
            return x.value * 2

    assert "class Box" in Run(Takes()).refused(Box(batch(2)))


def test_too_many_shapes() -> None:
    """The first are recorded; where most calls are of others, none is."""
    run = Run(mlp())
    for turn in range(PATIENCE + 1):
        run.same(batch(turn + 1))
    assert len(run.whys) == 1 and f"more than {MOST_SHAPES}" in run.whys[0]
    run = Run(mlp())
    for turn in range(PATIENCE * 2):
        run.same(batch(2 if turn % 4 else turn + 3))
    assert not run.whys and run.graphed.replays > PATIENCE


def test_a_replay_that_differs_is_not_used() -> None:
    """As of a kernel that is launched by other means than torch's, which a record does not hold."""
    model, hidden = mlp(), [0]

    def forward(x: torch.Tensor) -> torch.Tensor:
        hidden[0] += 1
        return model(x) * (1.0 + (hidden[0] > 3))

    run = Run(model, forward)
    for _ in range(2):
        run(batch(2))
    hidden[0] = 1  # what is recorded is not what an ordinary call makes next
    assert torch.equal(run(batch(2)), model(batch(2)) * 2) and "differs by 50.00%" in run.whys[0]


def test_what_can_not_be_captured_stays_ordinary() -> None:
    model = mlp()
    run = Run(model)

    def fails(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    run.graphed._capture = fails
    assert run.refused(batch(2)).endswith("when stream is capturing")


def test_it_stays_out_of_the_way() -> None:
    """With gradients, and while the script captures a graph itself."""
    run = Run(mlp())
    for _ in range(BEFORE + 1):
        run(batch(2))
    assert run.graphed(batch(2)).requires_grad
    run.place = None
    run.same(batch(2))
    assert run.graphed.replays == 1
    run.place = "another stream"
    run.same(batch(2))
    assert run.graphed.replays == 1 and len(run.graphed.buckets) == 2


def test_an_error_of_the_forward_is_the_scripts() -> None:
    run = Run(mlp())
    for _ in range(BEFORE + 2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            run(torch.ones(2, 7))
    run.same(batch(2))


def test_effects() -> None:
    model = Cache()
    with torch.no_grad():
        _, effects = watched(model, model, (batch(1), torch.tensor([0])), {})
    assert len(effects.written) == 2 and not effects.waits
    with torch.no_grad():
        _, effects = watched(mlp().eval(), mlp().eval(), (batch(1),), {})
    assert not effects.written and not effects.draws and not effects.leaves and not effects.hooked
    with torch.no_grad():
        _, effects = watched(mlp(), mlp(), (batch(1),), {})
    assert effects.draws


def test_relative_error() -> None:
    x = torch.tensor([3.0, 4.0, math.inf])
    assert relative_error(x, x) == 0.0
    assert relative_error(x + torch.tensor([0.0, 0.5, 0.0]), x) == pytest.approx(0.1)
    assert math.isnan(relative_error(torch.tensor([math.nan, 1.0]), torch.ones(2)))


class Tunable(nn.Module):
    """What a script may change between calls without touching a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.steps, self.config = nn.Linear(4, 3), torch.relu, [1.0], Settings()

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.layer(x)) * self.config.scale * self.steps[0] * getattr(self, "more", 1.0)


class Settings:
    scale = 1.0

    def __init__(self) -> None:
        self.name = "none"


BESIDE: dict[str, Callable[[Any], Any]] = {
    "function": lambda model: setattr(model, "act", torch.sigmoid),
    "forward": lambda model: setattr(model.layer, "forward", torch.exp),
    "new number": lambda model: setattr(model, "more", 3.0),
    "list": lambda model: model.steps.__setitem__(0, 5.0),
    "config": lambda model: setattr(model.config, "scale", 2.0),
}


@pytest.mark.parametrize("change", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("calls", [1, BEFORE + 1], ids=["watched", "recorded"])
def test_what_a_model_holds_beside_tensors_is_looked_at(change: Callable[[Any], Any], calls: int) -> None:
    run = Run(Tunable())
    for seed in range(calls):
        run.same(batch(2, seed))
    change(run.model)
    for seed in range(BEFORE + 2):
        run.same(batch(2, seed))
    assert run.graphed.replays == calls // BEFORE + 2 and not run.whys


def test_hooks_that_come_after_the_watch_are_called() -> None:
    model, seen = mlp(), []
    run = Run(model)
    run(batch(2))
    model[0].register_forward_hook(lambda *args: seen.append(args))  # type: ignore[index,union-attr]
    for _ in range(BEFORE + 2):
        run(batch(2))
    assert len(seen) == BEFORE + 2 and "hooks" in run.whys[0]


class Output(dict):  # type: ignore[type-arg]
    """No nest that pytree takes apart."""


def test_outputs_that_can_not_be_copied_are_refused() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return Output(y=self.layer(x))

    run = Run(Gives())
    kept = [run(batch(2, seed))["y"] for seed in range(BEFORE + 2)]
    assert not torch.equal(kept[-1], kept[-2]) and run.whys == ["it returns an object of class Output"]


@pytest.mark.parametrize("other", [lambda y, n: (y,) * (1 + n % 2), lambda y, n: (y, n), lambda y, n: (y, y)[: n % 2]])
def test_outputs_of_other_make_each_time_are_refused(other: Callable[[Any, int], Any]) -> None:
    model, calls = mlp(), [0]

    def forward(x: torch.Tensor) -> Any:
        calls[0] += 1
        return other(model(x), calls[0])

    run = Run(model, forward)
    for _ in range(BEFORE + 2):
        run(batch(2))
    assert run.graphed.replays == 0 and "made differently" in run.whys[0]


def test_threads_take_turns() -> None:
    """Of two that call at once each gets the output of its own input."""
    run = Run(mlp())
    for _ in range(BEFORE):
        run(batch(2))
    (bucket,) = run.graphed.buckets.values()
    replay, inside, ready = bucket.replay, threading.Event(), threading.Event()

    def slowly() -> None:
        inside.set()
        ready.wait(0.2)  # the other thread, were it let in, would bring its input now
        assert replay is not None
        replay()

    bucket.replay = slowly
    got: list[Any] = []
    first = threading.Thread(target=lambda: got.append(run(batch(2, 1))))
    first.start()
    assert inside.wait(10)
    second = run(batch(2, 2))
    first.join()
    with torch.no_grad():
        assert torch.equal(got[0], run.model(batch(2, 1))) and torch.equal(second, run.model(batch(2, 2)))


def test_streams_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pools = mlp(), []
    handles, streams = iter(range(9)), iter([7, 7, 8, 7])
    monkeypatch.setattr(nn.Module, "parameters", lambda self: [SimpleNamespace(device=torch.device("cuda", 0))])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=next(streams)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(graph_optimizer, "capture", lambda work, device, pool, aside: pools.append(pool))
    graphed = graph_training.graphed(model, model, lambda: None, lambda why: None)
    for _ in range(4):
        graphed._capture(lambda: None)
    assert pools == [0, 0, 0, 1, 1, 0]  # the first of each keeps the pool
