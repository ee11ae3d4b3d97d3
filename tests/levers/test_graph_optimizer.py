"""The update as a graph: whatever a script does between steps, its weights are those of an ordinary optimizer.

A graph is faked truthfully: what is recorded are torch's own kernels with their numbers, on the memory that they got.
"""

import copy
import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import CUDA_FACTS, OPTIMIZER, ROOT, context
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from hotlap.agent.seams import Refused
from hotlap.levers import all_levers
from hotlap.levers._fused import fuse
from hotlap.levers.cudagraphs import _device, _update_graph
from hotlap.levers.cudagraphs._update_graph import MOST_RECORDINGS, MOST_SETTLING, STEADY, GraphedUpdate
from hotlap.levers.cudagraphs.graph_optimizer import graph, prepare
from hotlap.records.run import MemoryFacts

Act = Callable[["Run", int], None]
LEVER = all_levers()["graph-optimizer"]
FIRST = STEADY + 3
"""Step (from 1) that a graph makes: the first one makes the state, the second is the first of a kind, STEADY more."""
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.05}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


class Recorder(TorchDispatchMode):
    """Notes what would be launched, and launches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert all(r.alias_info is not None for r in func._schema.returns), f"{func} makes something new"
        if "detach" in str(func):
            return func(*args, **(kwargs or {}))
        memory = lambda x: torch.as_strided(x.data, x.size(), x.stride()) if isinstance(x, torch.Tensor) else x  # noqa: E731
        with torch._C._DisableTorchDispatch():
            self.launches.append((func, tree_map(memory, args), tree_map(memory, kwargs or {})))
        return args[0] if func._schema.returns else None

    def replay(self) -> None:
        for func, args, kwargs in self.launches:
            func(*args, **kwargs)


def record(work: Callable[[], None]) -> Callable[[], None]:
    recorder = Recorder()
    with recorder:
        work()
    assert recorder.launches
    return recorder.replay


class Run:
    """A training of some steps; `acts` happen before each step, with the gradients in place."""

    def __init__(self, kind: str, graphed: bool, none: bool = True, capture: Any = record, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        self.spare = nn.Linear(2, 2)
        build, given = KINDS[kind]
        first, *rest = self.model.parameters()
        rest.sort(key=torch.Tensor.dim)  # the two of the same shape beside each other
        self.optimizer = build([{"params": [first]}, {"params": rest, "lr": 0.02}], **{**given, **options})
        self.none = none
        self.why: list[str] = []
        self.slow = 0
        self.update: GraphedUpdate | None = None
        if graphed:
            self.put_in(capture)
        else:
            fuse(self.optimizer)

    def put_in(self, capture: Any) -> None:
        assert prepare(self.optimizer) is None
        self.update = GraphedUpdate(
            self.optimizer, capture, prepare=prepare, room=lambda size: True, recording=self._slow,
            gave_up=lambda optimizer, why: self.why.append(why),
        )  # fmt: skip
        self.optimizer._init_group = self.update  # type: ignore[attr-defined]

    def _slow(self) -> None:
        self.slow += 1

    def step(self, at: int, *acts: Act) -> None:
        generator = torch.Generator().manual_seed(at)
        x = torch.randn(16, 4, generator=generator)
        (self.spare(self.model(x)) - x[:, :2]).square().mean().backward()
        for act in acts:
            act(self, at)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.none)
        self.spare.zero_grad()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in [*self.model.parameters(), *self.spare.parameters()]])


def both(kind: str, *acts: Act, steps: int = 20, none: bool = True, begin: Act | None = None, **options: Any) -> Run:
    """Run with and without the graph; the weights and the optimizer's state must be the same."""
    runs = [Run(kind, graphed, none, **options) for graphed in (False, True)]
    for run in runs:
        if begin is not None:
            begin(run, 0)
        for at in range(1, steps + 1):
            run.step(at, *acts)
    plain, graphed = runs
    torch.testing.assert_close(graphed.weights(), plain.weights(), rtol=1e-5, atol=1e-7)
    old, new = plain.optimizer.state_dict(), graphed.optimizer.state_dict()
    torch.testing.assert_close(new["state"], old["state"], rtol=1e-5, atol=1e-7)
    assert new["param_groups"] == old["param_groups"], "nothing of the graph stays in the groups"
    return graphed


def at_steps(*steps: int) -> Callable[[Act], Act]:
    return lambda act: lambda run, at: act(run, at) if at in steps else None


@each_kind
@pytest.mark.parametrize("none", [True, False])
def test_the_same_weights(kind: str, none: bool) -> None:
    run = both(kind, none=none)
    assert run.update is not None and run.update.place is not None and not run.why
    assert run.update.replays >= 20 - FIRST - MOST_SETTLING and run.slow == 2 * run.update.recordings
    if not none:
        assert not run.update.place.buffers, "gradients that stay where they are need no copy"
        assert run.update.replays == 20 - FIRST + 1 + (kind == "SGD")  # which has no state to make first
    assert torch.is_grad_enabled()


@each_kind
def test_learning_rates_are_read_at_each_step(kind: str) -> None:
    """By hand, by a scheduler with each step, and by one in epochs."""

    def schedule(run: Run, at: int) -> None:
        run.schedules = [  # type: ignore[attr-defined]
            torch.optim.lr_scheduler.StepLR(run.optimizer, 3, 0.5),
            torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.97),
        ]

    def advance(run: Run, at: int) -> None:
        run.optimizer.param_groups[1]["lr"] *= 1.3 if at % 4 else 0.2
        if at > 1:
            for one in run.schedules:  # type: ignore[attr-defined]
                one.step()

    run = both(kind, advance, begin=schedule, none=False)
    assert run.update is not None and run.update.recordings == 1 and run.update.replays >= 20 - FIRST


def test_a_schedule_of_the_momentum_too() -> None:
    """It is one of the recorded numbers, so nothing is recorded while it changes."""

    def schedule(run: Run, at: int) -> None:
        run.one = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=40)  # type: ignore[attr-defined]

    def advance(run: Run, at: int) -> None:
        if at > 1:
            run.one.step()  # type: ignore[attr-defined]

    for kind in ("AdamW", "SGD, momentum"):
        run = both(kind, advance, begin=schedule)
        assert run.update is not None and run.update.recordings == 0 and not run.why


@each_kind
def test_hyper_parameters_that_change_once(kind: str) -> None:
    @at_steps(10)
    def change(run: Run, at: int) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = 0.3

    run = both(kind, change)
    assert run.update is not None and run.update.recordings > 1 and run.update.replays > 5


@each_kind
def test_clipped_gradients(kind: str) -> None:
    both(kind, lambda run, at: nn.utils.clip_grad_norm_(run.model.parameters(), 0.1) and None)
    both(kind, lambda run, at: nn.utils.clip_grad_value_(run.model.parameters(), 0.01), none=False)


@each_kind
@pytest.mark.parametrize("steps", [{9}, {9, 12, 13}, set(range(8, 20)), set(range(1, 9))], ids=str)
def test_parameters_without_gradients_in_some_steps(kind: str, steps: set[int]) -> None:
    def drop(run: Run, at: int) -> None:
        if at in steps:
            run.model[2].weight.grad = None

    if kind == "SGD, momentum" and 1 in steps:
        pytest.skip("torch's fused SGD raises where a parameter's first gradient comes late")
    run = both(kind, drop)
    assert run.update is not None and run.update.replays


def test_an_odd_step_leaves_the_graph_in_use() -> None:
    """One that does not fit is an ordinary step; the next one is replayed again."""
    kept: list[Any] = []

    def hide(run: Run, at: int) -> None:
        weight = run.model[2].weight
        if at == 11:
            kept.append(weight.grad)
            weight.grad = None
        if at == 12:
            weight.grad = kept.pop().copy_(weight.grad)  # where it was

    run = both("AdamW", hide, none=False)
    assert run.update is not None and run.update.recordings == 1 and run.update.replays == 20 - FIRST


@each_kind
def test_another_parameter_of_the_same_shape_gets_the_gradient(kind: str) -> None:
    def drop(run: Run, at: int) -> None:
        if at > 1:
            run.model[0 if at < 12 else 2].bias.grad = None

    run = both(kind, drop)
    assert run.update is not None and run.update.recordings > 1


def _moved(kind: str, *steps: int) -> Run:
    """With gradients that lie elsewhere from these steps on."""
    kept = []

    @at_steps(*steps)
    def move(run: Run, at: int) -> None:
        for parameter in run.model.parameters():
            kept.append(parameter.grad)
            parameter.grad = parameter.grad.clone()

    return both(kind, move, none=False)


@each_kind
@pytest.mark.parametrize("moves", [{3}, {4}])
def test_gradients_that_move_once_in_the_first_steps_are_not_copied(kind: str, moves: set[int]) -> None:
    """As where a recorded backward leaves them from then on."""
    run = _moved(kind, *moves)
    assert run.update is not None and run.update.recordings == 1
    assert run.update.place is not None and not run.update.place.buffers
    assert run.update.replays >= 20 - FIRST - MOST_SETTLING


def test_gradients_of_another_layout_or_class_are_seen() -> None:
    @at_steps(12)
    def lay(run: Run, at: int) -> None:
        weight = run.model[2].weight
        weight.grad.data = weight.grad.data.t().contiguous().t()  # type: ignore[union-attr, operator]

    both("AdamW", lay, none=False)
    both("AdamW", lay)


@each_kind
def test_gradients_that_move(kind: str) -> None:
    """Recorded where they were; from then on they are copied."""
    run = _moved(kind, 9, 13)
    assert run.update is not None and run.update.recordings == 2
    assert run.update.place is not None and run.update.place.buffers


def test_momentum_that_begins_late() -> None:
    """Where torch's fused SGD would raise."""

    def drop(run: Run, at: int) -> None:
        if at < 12:
            run.model[2].weight.grad = None

    run, plain = Run("SGD, momentum", True), Run("SGD, momentum", True)
    unfused = [group.update(fused=None, foreach=None) for group in plain.optimizer.param_groups]
    assert unfused and vars(plain.optimizer).pop("_init_group")
    for at in range(1, 25):
        run.step(at, drop)
        plain.step(at, drop)
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=1e-5, atol=1e-7)
    assert run.update is not None and run.update.recordings > 1 and run.optimizer.param_groups[0]["fused"]


@each_kind
def test_groups_that_are_added(kind: str) -> None:
    @at_steps(10)
    def add(run: Run, at: int) -> None:
        run.optimizer.add_param_group({"params": list(run.spare.parameters()), "lr": 0.003})
        if run.update is None:
            fuse(run.optimizer)

    run = both(kind, add, steps=25)
    assert run.update is not None and run.update.recordings > 1 and run.update.replays > 8


@each_kind
@pytest.mark.parametrize("saved_by", ["itself", "an unfused one"])
def test_checkpoints(kind: str, saved_by: str) -> None:
    """Loaded in the middle, from a file: new tensors at other addresses, of an earlier state."""
    kept: dict[str, io.BytesIO] = {}

    def save_and_load(run: Run, at: int) -> None:
        if at == 9:
            state = copy.deepcopy(run.optimizer.state_dict())
            for group in state["param_groups"]:
                group["fused"] = None if saved_by == "an unfused one" else True
            torch.save(state, kept.setdefault("file", io.BytesIO()))
        if at == 14:
            kept["file"].seek(0)
            run.optimizer.load_state_dict(torch.load(kept.pop("file")))
            if run.update is None:
                fuse(run.optimizer)

    run = both(kind, save_and_load, steps=28)
    assert run.update is not None and run.update.replays > 10
    steps = {float(state["step"]) for state in run.optimizer.state.values() if "step" in state}
    assert steps <= {9.0 + 28 - 14}


@each_kind
def test_weights_that_move(kind: str) -> None:
    """To other memory, for good or for a while."""

    @at_steps(9, 15)
    def move(run: Run, at: int) -> None:
        for parameter in run.model.parameters():
            parameter.data = parameter.data.clone()

    both(kind, move)


def test_a_state_that_is_replaced() -> None:
    @at_steps(10)
    def halve(run: Run, at: int) -> None:
        for state in run.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"] * 0.5

    both("AdamW", halve)


def test_hooks_and_schedulers_see_every_step_once() -> None:
    run, seen = Run("AdamW", True, none=False), []
    run.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append("before"))
    run.optimizer.register_step_post_hook(lambda optimizer, args, kwargs: seen.append("after"))
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for at in range(1, 13):
            run.optimizer._opt_called = False  # type: ignore[attr-defined]
            run.step(at)
            assert run.optimizer._opt_called  # type: ignore[attr-defined]
            schedule.step()
    assert seen == ["before", "after"] * 12
    assert run.update is not None and run.update.replays == 12 - FIRST + 1
    ranges = [event.count for event in profile.key_averages() if event.key.startswith("Optimizer.step#")]
    assert ranges == [12]


def test_closures_are_called_once() -> None:
    losses = []
    for graphed in (False, True):
        run, called = Run("Adam", graphed), []

        def closure(run: Run = run, called: list[float] = called) -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = run.model(torch.ones(3, 4)).square().mean()
            loss.backward()
            called.append(loss.item())
            return loss

        returned = [run.optimizer.step(closure).item() for _ in range(15)]
        assert returned == called
        losses.append(returned)
    assert run.update is not None and run.update.replays > 5
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_autograd_notices_the_update() -> None:
    run = Run("AdamW", True, none=False)
    for at in range(1, FIRST + 2):
        run.step(at)
    loss = run.model(torch.ones(3, 4)).square().mean()
    run.step(FIRST + 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_copies_and_pickles_are_ordinary() -> None:
    run = Run("AdamW", True, none=False)
    for at in range(1, FIRST + 2):
        run.step(at)
    twin = copy.deepcopy(run.optimizer)
    assert "_init_group" in vars(run.optimizer) and "_init_group" not in vars(twin)


def test_a_dropped_optimizer_is_freed_at_once() -> None:
    run = Run("AdamW", True)
    for at in range(1, FIRST + 2):
        run.step(at)
    gone = weakref.ref(run.optimizer)
    gc.collect()
    gc.disable()
    try:
        del run.optimizer
        assert gone() is None
    finally:
        gc.enable()


def test_gradients_are_not_kept_alive() -> None:
    """Else they could never come back to where they were."""
    run = Run("AdamW", True)
    for at in range(1, FIRST + 4):
        alive: list[weakref.ref[torch.Tensor]] = []
        run.step(at, lambda run, at, to=alive: to.extend(weakref.ref(p.grad) for p in run.model.parameters()))  # type: ignore[misc]
        assert len(alive) == 6 and not any(one() is not None for one in alive)


def test_a_capture_that_fails_costs_no_step() -> None:
    def fail(work: Callable[[], None]) -> Callable[[], None]:
        record(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    run, plain = Run("AdamW", True, capture=fail), Run("AdamW", False)
    for at in range(1, 15):
        run.step(at)
        plain.step(at)
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=1e-5, atol=1e-7)
    assert run.why == ["its update could not be captured: operation not permitted when stream is capturing"]
    assert "_init_group" not in vars(run.optimizer)


def test_it_gives_up_where_things_change_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_update_graph, "PATIENCE", 16)

    def wander(run: Run, at: int) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = at / 1000

    assert both("Adam", wander).why == ["it changes from step to step"]

    def turn(run: Run, at: int) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = at // 6 / 100

    run = both("Adam", turn, steps=6 * (MOST_RECORDINGS + 3))
    assert run.why == [f"it changed again after {MOST_RECORDINGS} recordings"]


def test_no_room_for_buffers() -> None:
    run = Run("Adam", True)
    assert run.update is not None
    run.update._room = lambda size: False
    held = []
    for at in range(1, 12):
        run.step(at, lambda run, at: held.extend(p.grad for p in run.model.parameters()))  # so they can't come back
    assert run.why == ["device memory has no room for a copy of the gradients"]


def test_a_grad_scaler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_update_graph, "PATIENCE", 10)

    def scaled(run: Run, at: int) -> None:
        run.optimizer.grad_scale = torch.ones(())  # type: ignore[attr-defined]

    assert both("Adam", scaled).why == ["the script scales its loss with a GradScaler"]


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (torch.optim.RMSprop, "RMSprop is not one of torch's own"),
        (type("AdamW", (torch.optim.AdamW,), {}), "AdamW is not one of"),
        (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), capturable=False), "learning rate is a tensor"),
        (lambda p: torch.optim.AdamW(p, capturable=True), "capturable"),
        (lambda p: torch.optim.AdamW(p, differentiable=True), "no fused form"),
        (lambda p: torch.optim.SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))]), "no fused form"),
        (lambda p: torch.optim.SGD([Own(torch.ones(2))]), "class of their own"),
    ],
)
def test_optimizers_that_it_refuses(build: Callable[[Any], Any], why: str) -> None:
    assert why in (prepare(build([nn.Parameter(torch.ones(2))])) or "")


class Own(torch.nn.Parameter):
    """As a sharded parameter is."""


def test_parameters_on_the_cpu_are_refused() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    with pytest.raises(Refused, match="CUDA"):
        graph(optimizer, lambda: None, lambda why: None)
    assert optimizer.param_groups[0]["fused"] is None


def test_when_it_applies() -> None:
    assert LEVER.applies(context(True)).yes
    assert LEVER.share(context(True)) == pytest.approx(0.8 * 0.5 / 10)
    assert not LEVER.applies(context(False)).yes
    for change in (
        {"name": "RMSprop"}, {"builtin": False}, {"capturable": True}, {"sparse": True}, {"dtypes": ("complex64",)},
        {"devices": ("cuda:0", "cuda:1")},
    ):  # fmt: skip
        one = msgspec.structs.replace(CUDA_FACTS.optimizers[0], **change)
        assert not LEVER.applies(context(True, optimizers=(one,))).yes
        assert LEVER.applies(context(True, optimizers=(one, OPTIMIZER))).yes


def test_the_host_must_be_what_the_device_waits_for() -> None:
    where = context(True)
    ahead = msgspec.structs.replace(where.diagnosis, clock="device")
    assert "runs ahead" in LEVER.applies(replace(where, diagnosis=ahead)).why
    assert LEVER.share(replace(where, diagnosis=ahead)) == 0


def test_memory_that_is_nearly_full() -> None:
    large = msgspec.structs.replace(ROOT, parameters=10**9)
    for peak, yes in ((60 << 30, True), (70 << 30, False)):
        memory = MemoryFacts(peak_bytes=peak, peak_reserved_bytes=peak, total_bytes=80 << 30)
        assert LEVER.applies(context(True, roots=(large,), memory=memory)).yes is yes


def test_a_pool_outlives_its_recordings_and_is_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch fails when it records into a pool whose last graph was dropped (CUDACachingAllocator.cpp, use_count)."""

    class Graph:
        def __call__(self) -> None: ...

    recorded: list[tuple[weakref.ref[Graph], Any, Any]] = []

    def capture(work: Callable[[], None], device: Any, pool: Any = None, aside: Any = None) -> Graph:
        work()
        graph = Graph()
        recorded.append((weakref.ref(graph), pool, aside))
        return graph

    current = SimpleNamespace(cuda_stream=7)
    handles = iter(range(9))
    monkeypatch.setattr(_device, "capture", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    device = _device.Device(torch.device("cpu"))
    first = device.pool()
    assert device.pool() == first
    current.cuda_stream = 8
    assert device.pool() != first
    assert [(handle, aside) for _, handle, aside in recorded] == [first, device.pool()]
    gc.collect()
    assert all(graph() is not None for graph, _, _ in recorded)
    del device
    gc.collect()
    assert not any(graph() for graph, _, _ in recorded)
