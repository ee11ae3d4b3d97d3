"""What a script does in each step that torch can be asked of, on real runs of one."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.agent.done_again import denormal_share
from hotlap.agent.facts import Script
from hotlap.agent.facts.hooks import most_alike
from hotlap.agent.facts.inputs import padded_steps, padding
from hotlap.agent.facts.optimizer import describe_optimizer, idle_rows, look_at_optimizer
from hotlap.agent.habits import Habits, switches

from .harness import Runner, check_clean

WHATS = ["plain", "anomaly", "around", "first", "hooks", "iterators", "checkpoint", "sparse", "all-rows", "profiler"]
WHATS += ["table"]


@pytest.mark.parametrize("what", WHATS)
def test_a_habit_is_seen_where_it_is_and_nowhere_else(what: str, runner: Runner) -> None:
    ran = runner.untouched("habits.py", what)
    facts = ran.facts
    (loader,), (root,), (optimizer,) = facts.loaders, facts.roots, facts.optimizers
    anomaly = ("detect_anomaly",)
    assert facts.switches == {"anomaly": anomaly, "around": anomaly, "profiler": ("profiler",)}.get(what, ())
    assert root.hooks == ((1, 20) if what == "hooks" else (0, 0)) == root.alike
    assert root.piled is (what == "hooks")
    assert (root.hook is not None and root.hook[1:] == (43, "<lambda>")) is (what == "hooks")
    assert (loader.iterators >= 20) is (what == "iterators") or what == "all-rows"
    assert (loader.loop is not None and loader.loop[1] == 45) is (what == "iterators")
    assert bool(facts.recomputed) is (what == "checkpoint")
    assert (optimizer.idle > 0.9) is (what not in {"sparse", "all-rows"})
    assert root.embeds is (what != "table")
    assert optimizer.matrix == (() if what == "sparse" else (20_000, 4))


@pytest.mark.parametrize(("cuda", "seen"), [(True, ["cudnn.enabled"]), (False, [])])
def test_cudnn_that_is_off_is_seen_where_cuda_is_used(cuda: bool, seen: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    with torch.backends.cudnn.flags(enabled=False):
        assert switches() == seen
    with torch.backends.cudnn.flags(enabled=True):
        assert switches() == []


def test_a_model_that_is_gone_at_the_end_was_looked_at_not_long_before(runner: Runner) -> None:
    ran = runner.untouched("gone.py")
    (root,) = ran.facts.roots
    assert root.hooks == (0, 7)
    assert root.piled


def test_settings_that_are_tensors_on_a_device() -> None:
    parameter = torch.ones(3, requires_grad=True)
    rate = torch.tensor(1e-3, device="meta")
    for lr, held in ((rate, ["lr"]), (torch.tensor(1e-3), []), (1e-3, [])):
        optimizer = torch.optim.AdamW([{"params": [parameter], "lr": lr}])
        facts = describe_optimizer(optimizer, [parameter])
        assert facts["on_device"] == look_at_optimizer(optimizer, facts)["on_device"] == held
    optimizer.param_groups[0]["lr"] = rate
    assert look_at_optimizer(optimizer, facts)["on_device"] == ["lr"], "it became one later"


@pytest.mark.parametrize(
    ("options", "device", "counters"), [({}, "meta", 2), ({}, "cpu", 0), ({"fused": True}, "meta", 0)]
)
def test_step_counters_that_a_loaded_state_left_on_a_device(
    options: dict[str, Any], device: str, counters: int
) -> None:
    parameters = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    optimizer = torch.optim.AdamW(parameters, **options)
    sum(one.sum() for one in parameters).backward()
    optimizer.step()
    script = Script(SimpleNamespace())  # type: ignore[arg-type]
    script.optimizer(optimizer)
    for state in optimizer.state.values():
        state["step"] = state["step"].to(device)
    facts = script.optimizers[id(optimizer)]
    assert (facts["counters"], look_at_optimizer(optimizer, facts).get("counters", 0)) == (0, counters)


class Hook:
    def __call__(self, *given: Any) -> None:
        pass

    def method(self, *given: Any) -> None:
        pass


def test_hooks_are_alike_by_what_they_run() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    assert most_alike(model) == (0, None)
    for part in model:
        for _ in range(2):
            part.register_forward_hook(Hook())
        part.register_forward_hook(print)
    assert most_alike(model) == (2, Hook.__call__.__code__)
    for _ in range(3):
        model[1].register_forward_hook(partial(partial(Hook().method), 1))
    assert most_alike(model) == (3, Hook.method.__code__)


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
    assert idle_rows([parameter(dense), parameter(torch.zeros(20_000, 4))])[0] == pytest.approx(0.75, abs=0.01)
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
    ids = padded([5, 10, 5, 5, 10, 10, 5, 10], value, left)
    share, of_all = padding([torch.ones(8, 20), (ids != value).long(), ids[:, :9], ids])
    assert (share, of_all) == (pytest.approx(1 - 7.5 / 20), pytest.approx(0.5))


def test_captions_beside_images_are_not_all_that_is_computed() -> None:
    assert padding([torch.ones(8, 3, 32, 32), padded([5] * 8)]) == (0.0, 0.0)


@pytest.mark.parametrize(
    "batch",
    [
        ROWS,
        ROWS.float(),
        padded([5] * 8, -100, left=True),
        torch.zeros(8, 20, dtype=torch.int64),
        torch.zeros(1, 8, 64),
        torch.eye(20, dtype=torch.int64),
        torch.zeros(8, 3, 20, 20),
        torch.zeros(8),
        ROWS[:, :5],
        torch.zeros(0, 20, dtype=torch.int64),
        torch.nested.nested_tensor([torch.ones(20), torch.ones(9)]),
        ROWS.to_sparse(),
        None,
    ],
    ids=lambda batch: f"{getattr(batch, 'dtype', None)}",
)
def test_what_is_no_padding(batch: Any) -> None:
    assert padding([batch])[0] < 0.05


SERIES = torch.randn(8, 20, 3)


def filled(lengths: list[int], left: bool = False) -> Any:
    """Each feature with a number of its own, as where padding was scaled with the rest."""
    rows, fill = SERIES.clone(), torch.tensor([0.0, -1.0, 0.5])
    for row, length in zip(rows, lengths, strict=True):
        (row[: 20 - length] if left else row[length:])[:] = fill
    return rows


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_steps_of_sequences_that_only_fill_them_up(batch_first: bool, left: bool) -> None:
    """7 of 100 steps of a GRU's input were more than padding, and 30% was won by leaving it out."""
    rows = filled([5, 10, 5, 5, 10, 10, 5, 10], left)
    share, of_all = padded_steps([torch.ones(8), rows if batch_first else rows.transpose(0, 1), None], batch_first)
    assert (share, of_all) == (pytest.approx(1 - 7.5 / 20), pytest.approx(0.5))
    whole = [rows, SERIES] if batch_first else [rows.transpose(0, 1), SERIES.transpose(0, 1)]
    assert padded_steps(whole, batch_first)[0] == pytest.approx(share / 2), "of two inputs one is not padded"


@pytest.mark.parametrize(
    "batch",
    [
        SERIES,
        torch.zeros(8, 20, 3),  # what a decoder begins with
        torch.cat([SERIES, SERIES[:, -1:].expand(8, 20, 3)], 1),  # each goes on as it ended
        torch.cat([SERIES, SERIES[:, -1:]], 1),
        filled([20] * 6 + [5] * 2),
        filled([5] * 8)[:, :7],
        filled([5] * 8)[..., 0],
        torch.zeros(0, 20, 3),
        filled([5] * 8).to_sparse(),
    ],
)
def test_what_is_no_padding_of_steps(batch: Any) -> None:
    assert padded_steps([batch], batch_first=True)[0] < 0.25


def test_denormal_numbers_are_those_that_a_tensor_holds() -> None:
    some = torch.ones(10_000)
    some[::4] = 1e-41
    some[1::4] = 0.0
    assert denormal_share([None, some.long(), some[:9], some]) == pytest.approx(1 / 3, abs=0.01)
    given_back = torch.full((10_000,), 1e-41)
    given_back.untyped_storage().resize_(0)
    of_others = [some.double() * 1e30, (some * 1e36).half(), some.expand(100, 10_000), some.to(torch.float8_e5m2)]
    nested = torch.nested.nested_tensor([some, some])
    assert denormal_share([*of_others, given_back, nested, some.to_sparse(), some.cfloat()]) == 0
    torch.vmap(lambda row: row + denormal_share([row]) + padding([row.long()])[0])(torch.full((4, 10_000), 1e-41))


def test_a_mask_that_is_one_row_many_times_is_not_copied() -> None:
    wide = torch.ones(1, 64).expand(1 << 40, 64)  # 256 TiB, were it copied
    assert denormal_share([wide]) == 0
    assert padding([torch.ones(1, 64, dtype=torch.int64).expand(1 << 40, 64)]) == (0.0, 0.0)


PER_SAMPLE = """
import torch
from torch.func import functional_call, grad, vmap

model = torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.Linear(8192, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
names = dict(model.named_parameters())

def loss(names, x):
    return functional_call(model, names, (x,)).sum()

for step in range(30):
    each = vmap(grad(loss), in_dims=(None, 0))(names, torch.randn(4, 8192))
    optimizer.zero_grad()
    model(torch.randn(8192)).sum().backward()
    optimizer.step()
"""
SCHEDULED = """
import os
import torch

os.environ["KINETO_LOG_LEVEL"] = "99"
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
told = torch.profiler.schedule(wait=5, warmup=2, active=3)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=told) as profiler:
    for step in range(90):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        profiler.step()
"""
HALF = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.table = nn.Embedding(500, 4)
        self.head = nn.Linear(4, 1)
    def forward(self, ids):
        return self.head(self.table(ids).mean(1)) * self.scale

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    ids = torch.randint(1, 500, (8, 20))
    ids[:, 5:] = 0
    model(ids).sum().backward()
    optimizer.step()
"""


RECURRENT = """
import torch

model = torch.nn.GRU(3, 4, batch_first=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 20, 3)
    x[:, 5:] = -1.0
    model(x)[0].sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("script", "what"),
    [(PER_SAMPLE, "mapped"), (SCHEDULED, "scheduled"), (HALF, "padded"), (RECURRENT, "padded")],
)
def test_what_odd_scripts_hand_over_costs_no_step(script: str, what: str, runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(script)
    ran = runner.forked(str(tmp_path / "odd.py"))
    check_clean(ran)
    assert len(ran.steps) == {"mapped": 30, "scheduled": 90, "padded": 20}[what]
    assert ran.facts.switches == ()
    root = ran.facts.model
    assert root is not None and root.double < 0.01
    assert (root.padding, root.padding_of_all) == ((0.75, 0.75) if what == "padded" else (0.0, 0.0))


MODES = """
import contextlib
import sys
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

what = sys.argv[1]


class Sees(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Inside(nn.Sequential):
    def forward(self, x):
        with Sees():
            return super().forward(x)


class Recomputes(nn.Sequential):
    def forward(self, x):
        keeps = lambda context, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE
        contexts = lambda: create_selective_checkpoint_contexts(keeps)
        return checkpoint(super().forward, x, use_reentrant=False, context_fn=contexts)


if what == "device":
    torch.set_default_device("cpu")
kind = {"inside": Inside, "checkpoint": Recomputes}.get(what, nn.Sequential)
model = kind(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    on = {
        "each": FlopCounterMode(display=False), "first": FlopCounterMode(display=False) if step < 5 else None,
        "own": Sees(), "calls": Calls(),
    }.get(what) or contextlib.nullcontext()
    with on:
        loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", repr(loss.item()))
"""


@pytest.mark.parametrize("what", ["each", "own", "calls", "first", "inside", "checkpoint", "device", "none"])
def test_a_mode_is_told_that_is_on_around_most_forwards(what: str, runner: Runner, tmp_path: Path) -> None:
    """Neither one of the first steps, nor what a model or torch itself puts on inside, nor a default device."""
    (tmp_path / "modes.py").write_text(MODES)
    ran = runner.forked(str(tmp_path / "modes.py"), what)
    check_clean(ran)
    assert len(ran.steps) == 30 and ran.facts.forwards_each == 1
    assert ran.facts.dispatch_modes == {"each": ("FlopCounterMode",), "own": ("Sees",)}.get(what, ())
    assert ran.facts.function_modes == (("Calls",) if what == "calls" else ())


def test_an_optimizers_momentum() -> None:
    for momentum in (0.0, 0.9):
        optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1, momentum=momentum)
        assert describe_optimizer(optimizer, optimizer.param_groups[0]["params"])["momentum"] is bool(momentum)


def test_groups_of_an_optimizer_are_told_apart_by_their_settings() -> None:
    """A name in a group is no setting; a scheduler that changes each group in its own way makes them differ."""
    parameters = [torch.ones(3, requires_grad=True) for _ in range(20)]
    groups = [{"params": [one], "weight_decay": 0.1 * (at % 2), "name": at} for at, one in enumerate(parameters)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    script = Script(SimpleNamespace())  # type: ignore[arg-type]
    script.optimizer(optimizer)
    facts = script.optimizers[id(optimizer)]
    assert (facts["groups"], facts["settings"], facts["differ"]) == (20, 2, ["weight_decay"])
    assert facts["foreach"] is None and facts["stepped"][0] == __file__ and not facts["momentum"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step, at=at: 0.9 ** (step * at) for at in range(20)]
    )
    scheduler.step()
    facts |= look_at_optimizer(optimizer, facts)
    assert (facts["settings"], facts["differ"]) == (20, ["lr", "weight_decay"])
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    facts |= look_at_optimizer(optimizer, facts)
    assert facts["settings"] == 20


def test_an_error_in_these_looks_ends_them_alone(runner: Runner) -> None:
    ran = runner.forked("habits.py", "plain", fail_in="habits")
    assert [(problem.where, problem.what) for problem in ran.problems][:1] == [
        ("habits", "RuntimeError: injected into habits")
    ]
    assert len(ran.steps) == 20 and ran.facts.optimizer_steps == 20


def test_a_profiler_is_seen_at_looks_that_skip_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short steps not each is looked at, nor those of hotlap's own windows: it was on in all 80 and not told."""
    on = True
    monkeypatch.setattr("hotlap.agent.habits.profiler_on", lambda: on)
    skips, scheduled, few = Habits(), Habits(), Habits()
    for at in [*range(10), *range(20, 40, 3)]:
        skips.step_done(at)
    for at in (0, 30):
        few.step_done(at)
    for at in range(80):
        on = at % 10 > 6
        scheduled.step_done(at)
    assert [one.switches for one in (skips, few, scheduled)] == [{"profiler"}, set(), set()]
