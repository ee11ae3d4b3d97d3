"""Levers for memory: when they apply and in which order they are tried; what each does to objects of torch."""

import functools
import json
import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import GPU_ENVIRONMENT, OPTIMIZER, ROOT, context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap.agent.facts.blocks import repeated
from hotlap.agent.facts.process import _memory
from hotlap.agent.guard import Guard
from hotlap.agent.host import Cost, Counts
from hotlap.agent.seams import Refused
from hotlap.levers import all_levers
from hotlap.levers._base import Context
from hotlap.levers.compiler import _compile_cache
from hotlap.levers.compiler.compile_blocks import Now, compile_blocks
from hotlap.levers.memory import activation_offload, optimizer_offload
from hotlap.levers.memory._cycle import Cycle
from hotlap.levers.memory.activation_offload import offloading
from hotlap.levers.memory.allocator import ASYNC, EXPANDABLE, ROUNDED, VARIABLES
from hotlap.records.run import MemoryFacts

GIB = 1 << 30
FULL = MemoryFacts(peak_bytes=70 * GIB, peak_reserved_bytes=79 * GIB, total_bytes=80 * GIB, since=10, step=60)
ROOMY = MemoryFacts(peak_bytes=8 * GIB, peak_reserved_bytes=9 * GIB, total_bytes=80 * GIB, since=10, step=60)
BLOCKS = msgspec.structs.replace(ROOT, blocks=12, block="Block", shapes=1)
SAVERS = (
    "accumulate",
    "activation-budget",
    "activation-offload",
    "allocator",
    "checkpoint-blocks",
    "optimizer-offload",
)


def rich(memory: MemoryFacts = FULL, active: dict[str, Any] | None = None, **facts: Any) -> Context:
    """A transformer on a GPU that is nearly full, of which everything is known."""
    return context(True, active, **{"memory": memory, "roots": (BLOCKS,), **facts})


def allocator(memory: MemoryFacts, active: dict[str, Any] | None = None, **facts: Any) -> list[str]:
    return [settings["conf"] for settings in all_levers()["allocator"].variants(rich(memory, active, **facts))]


def test_levers_that_save_memory_are_known_and_never_tried_for_time_alone() -> None:
    assert tuple(name for name, lever in all_levers().items() if lever.saves_memory) == SAVERS
    for name in SAVERS:
        lever = all_levers()[name]
        where = rich(active={"compile": {"mode": "default"}} if name == "activation-budget" else {})
        assert lever.applies(where).yes, lever.applies(where).why
        assert lever.share(where) == 0, "nothing is known that it could win"


@pytest.mark.parametrize("name", [*SAVERS, "batch-size", "compile-blocks"])
def test_variants_pass_their_own_check_where_the_lever_applies(name: str) -> None:
    """As the contract of all levers, in a context in which these have something to do."""
    lever = all_levers()[name]
    active = {"compile": {"mode": "default"}} if name == "activation-budget" else {}
    where = rich(ROOMY if name == "batch-size" else FULL, active, capability=(9, 0))
    assert lever.applies(where).yes, lever.applies(where).why
    for settings in lever.variants(where):
        assert lever.check(settings) is None
        assert json.loads(json.dumps(settings)) == settings
        for key, value in settings.items():
            for junk in (None, "", -1, [], {}, float("nan"), True):
                assert junk == value or lever.check({**settings, key: junk})
            assert lever.check({other: value for other, value in settings.items() if other != key})
        assert lever.source(settings)


def test_the_allocator_is_left_alone_without_evidence_or_where_it_is_set() -> None:
    lever = all_levers()["allocator"]
    assert "memory is not short" in lever.applies(rich(ROOMY)).why
    retries = msgspec.structs.replace(ROOMY, retries=3)
    assert lever.applies(rich(retries)).yes
    assert lever.share(rich(retries)) > 0.02
    own = msgspec.structs.replace(GPU_ENVIRONMENT, variables={VARIABLES[0]: "backend:native"})
    found = rich(retries)
    set_already = lever.applies(Context(found.diagnosis, found.facts, own, {}))
    assert not set_already.yes
    assert VARIABLES[0] in set_already.why
    assert VARIABLES[0] in (lever.fits(own, {"conf": EXPANDABLE}) or "")
    assert set(lever.environment({"conf": EXPANDABLE}).items()) == {(name, EXPANDABLE) for name in VARIABLES}


def test_expandable_segments_are_kept_from_cuda_graphs_and_nccl() -> None:
    late = msgspec.structs.replace(ROOMY, late_mallocs=50)
    assert allocator(late) == [EXPANDABLE, ROUNDED, ASYNC]
    assert allocator(late, world=4) == [ROUNDED, ASYNC]
    assert allocator(late, {"graph-optimizer": {}}) == [ROUNDED]
    assert EXPANDABLE in allocator(late, {"compile": {"mode": "default"}})
    graphs = all_levers()["compile"].variants(context(True, {"allocator": {"conf": EXPANDABLE}}, bound="launch"))
    assert graphs == [{"mode": "default"}]


def test_a_script_that_sets_the_allocator_itself_keeps_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "max_split_size_mb:64")
    monkeypatch.setenv(VARIABLES[1], EXPANDABLE)
    with pytest.raises(Refused, match="max_split_size_mb:64"):
        all_levers()["allocator"].install(None, {"conf": EXPANDABLE})  # type: ignore[arg-type]
    assert os.environ[VARIABLES[1]] == "max_split_size_mb:64"


def test_what_saves_most_is_tried_last() -> None:
    assert all_levers()["checkpoint-blocks"].variants(rich()) == [{"every": 4}, {"every": 2}, {"every": 1}]
    few = (msgspec.structs.replace(BLOCKS, blocks=3),)
    assert all_levers()["checkpoint-blocks"].variants(rich(roots=few)) == [{"every": 1}]
    assert [v["budget"] for v in all_levers()["activation-budget"].variants(rich())] == [0.8, 0.5, 0.3]
    assert all_levers()["accumulate"].variants(rich()) == [{"parts": 2}, {"parts": 4}, {"parts": 8}]


def test_reasons_not_to() -> None:
    known = all_levers()
    assert "needs a lever that compiles" in known["activation-budget"].applies(rich()).why
    assert "repeated" in known["checkpoint-blocks"].applies(rich(roots=(ROOT,))).why
    assert "repeated" in known["compile-blocks"].applies(rich(roots=(ROOT,))).why
    parallel = (msgspec.structs.replace(BLOCKS, wrapper="DataParallel"),)
    assert "DataParallel" in known["compile-blocks"].applies(rich(roots=parallel)).why
    assert "optimizers" in known["accumulate"].applies(rich(optimizers=(OPTIMIZER, OPTIMIZER))).why
    assert "no room" in known["batch-size"].applies(rich()).why
    assert known["batch-size"].variants(rich(ROOMY)) == [{"times": 2}, {"times": 4}, {"times": 8}]
    theirs = (msgspec.structs.replace(OPTIMIZER, name="Lion", builtin=False),)
    assert "Lion" in known["optimizer-offload"].applies(rich(optimizers=theirs)).why
    for name in ("allocator", "activation-offload", "optimizer-offload"):
        assert "CPU" in known[name].applies(context(False, roots=(BLOCKS,))).why


def test_a_loader_that_can_not_be_split_stays_whole_in_later_epochs() -> None:
    cycle = Cycle(None, "accumulate", 2)  # type: ignore[arg-type]
    odd, even = (DataLoader(TensorDataset(torch.ones(12, 1)), size) for size in (3, 4))
    with pytest.raises(Refused, match="can't be split"):
        cycle.split(odd)
    cycle.split(odd)
    assert odd.batch_size == 3
    assert cycle.factor == 1, "its gradients are those of whole batches"
    for _ in range(2):
        cycle.split(even)
    assert [len(x) for (x,) in even] == [2] * 6
    assert cycle.factor == 0.5


def test_what_the_allocator_did_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"num_alloc_retries": 1, "allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 8}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(total_memory=10))
    assert _memory(Cost())["late_mallocs"] == 0
    found = MemoryFacts(**_memory(Cost(30, Counts({}, mallocs=7))))
    assert (found.late_mallocs, found.since, found.step, found.retries) == (7, 10, 40, 1)
    assert (found.peak_bytes, found.peak_reserved_bytes, found.total_bytes) == (5, 8, 10)


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def test_repeated_blocks_are_the_outermost() -> None:
    encoder = nn.TransformerEncoder(block(), 3)  # attention inside each is not repeated in a list
    assert repeated(encoder) == list(encoder.layers)
    residual = nn.Module()
    kinds = [nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)) for _ in range(4)]
    residual.stages = nn.Sequential(nn.Sequential(*kinds[:2]), nn.Sequential(*kinds[2:]))
    assert repeated(residual) == list(residual.stages), "sequences where nothing else is repeated"
    heads = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])
    assert repeated(nn.ModuleList([heads])) == [], "a layer of torch's own is no block, nor is a list"
    assert repeated(nn.Sequential(block(), nn.Linear(8, 8))) == [], "one is not repeated"
    mixed = nn.ModuleList([block(), block(), nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))])
    assert repeated(mixed) == list(mixed)[:2]


def test_blocks_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward, **how: real(forward, backend="eager", **how))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(6)))
    x = torch.randn(2, 4)
    plain = model(x)
    names = list(model.state_dict())
    compile_blocks(model, dynamic=None, now=Now())
    assert torch.equal(model(x), plain)
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2, "of torch's own classes, too"
    assert list(model.state_dict()) == names
    with pytest.raises(Refused, match="already compiles them"):
        compile_blocks(model, dynamic=None, now=Now())
    with pytest.raises(Refused, match="DataParallel"):
        compile_blocks(nn.DataParallel(model), dynamic=None, now=Now())
    torch._dynamo.reset()


def test_compiled_code_is_kept_with_the_user_and_his_own_setting_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv(_compile_cache.VARIABLE, raising=False)
    monkeypatch.delenv("HOTLAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = tmp_path / "hotlap" / "inductor"
    for name in ("compile", "compile-blocks"):
        assert all_levers()[name].environment({}) == {_compile_cache.VARIABLE: str(there)}
    monkeypatch.setenv(_compile_cache.VARIABLE, "/somewhere")
    assert _compile_cache.folder() == "/somewhere"
    monkeypatch.setenv(_compile_cache.VARIABLE, f"{__file__}/below a file")
    assert _compile_cache.variables() == {}, "torch.compile would fail there"


def test_offloaded_tensors_come_back_as_they_were() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(4, 8)
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    forward = offloading(model, model, 0, unguarded)
    offloaded = torch.autograd.grad(forward(x).sum(), list(model.parameters()))
    assert all(map(torch.equal, plain, offloaded))
    y = torch.randn(8, 4, requires_grad=True)
    gone = offloading(model, lambda z: (z.t() * z.t()).tanh(), 0, unguarded)(y)
    (gradient,) = torch.autograd.grad(gone.sum(), y)
    (expected,) = torch.autograd.grad((y.t() * y.t()).tanh().sum(), y)
    assert torch.equal(gradient, expected), "whatever the order of their dimensions"


def unguarded(undo: Any) -> Any:
    return lambda act, *args: act(*args)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_optimizer_state_is_away_between_steps(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one device: what would lie on the host is a copy, and told apart by a name."""

    def away(value: Any, host: str) -> Any:
        copied = value.clone()
        copied.away = True
        return copied

    monkeypatch.setattr(optimizer_offload, "on_host", away)
    arguments = {"momentum": 0.9} if kind is torch.optim.SGD else {}

    def train(offload: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = kind(model.parameters(), lr=0.1, **arguments)
        for step in range(4):
            if offload and step == 1:
                optimizer_offload.offload(optimizer, unguarded, host="elsewhere")
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            if offload and step:
                moments = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
                assert any(v.dim() for v in moments)
                assert all(hasattr(v, "away") for v in moments if v.dim())
        return [*model.parameters()]

    assert all(map(torch.equal, train(True), train(False)))


def test_a_host_without_room_for_it_leaves_the_state_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own update raised, half of its state moved."""
    guard, said, asked = Guard(), list[str](), 0
    guard.report = lambda where, what, trace, lever: said.append(what)

    def on_host(value: Any, host: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == 4:  # of the second step's the second
            raise torch.OutOfMemoryError("no pinned memory")
        return value.clone()

    monkeypatch.setattr(optimizer_offload, "on_host", on_host)

    def train(offload: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if offload:
            guarded = lambda undo: functools.partial(guard.spare, "lever", undo)  # noqa: E731
            optimizer_offload.offload(optimizer, guarded, host="elsewhere")
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        return [*model.parameters()]

    assert all(map(torch.equal, train(True), train(False)))
    assert asked == 4 and said == ["OutOfMemoryError: no pinned memory"]


def test_a_host_without_room_for_activations_leaves_them_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, said, asked = Guard(), list[str](), 0
    guard.report = lambda where, what, trace, lever: said.append(what)

    def on_host(value: Any, host: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise torch.OutOfMemoryError("no pinned memory")
        return value.clone()

    monkeypatch.setattr(activation_offload, "on_host", on_host)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1), nn.Tanh()), torch.ones(2, 4)
    guarded = lambda undo: functools.partial(guard.spare, "lever", undo)  # noqa: E731
    forward = activation_offload.offloading(model, model, 0, guarded)
    gradients = [torch.autograd.grad(run(x).sum(), [*model.parameters()]) for run in (forward, forward, model)]
    assert all(map(torch.equal, gradients[0], gradients[2])) and all(map(torch.equal, gradients[1], gradients[2]))
    assert asked == 2 and said == ["OutOfMemoryError: no pinned memory"]


def test_an_optimizer_that_is_not_torchs_is_left_alone() -> None:
    class Own(torch.optim.SGD):
        pass

    with pytest.raises(Refused, match="Own"):
        optimizer_offload.offload(Own([nn.Parameter(torch.ones(1))], lr=0.1), unguarded)
