"""Levers that are put in and taken out between two steps of one process: taken out, everything is as it was."""

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contexts import context
from torch import nn
from torch.nn import functional

from hotlap.agent.guard import Guard
from hotlap.agent.seams import Seams
from hotlap.levers import all_levers
from hotlap.levers._base import STAGES, Lever
from hotlap.levers._fused import fuse, unfuse
from hotlap.levers.compiler import _graph

SWITCHABLE = [lever for lever in all_levers().values() if lever.switchable]
FIRST = {lever.name: lever.variants(context(lever.name != "cpu-threads"))[0] for lever in SWITCHABLE}
FIRST["cpu-threads"] = {"threads": 3}
KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}
each = pytest.mark.parametrize("lever", SWITCHABLE, ids=lambda lever: lever.name)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        weights = functional.softmax(self.query(x) @ self.key(x).mT / 8**0.5, dim=-1)
        return x + weights @ self.value(x)


class Model(nn.Module):
    """Something for each lever that does anything on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2)
        self.register_buffer("image", torch.randn(1, 8, 2, 2))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 4096)

    def forward(self, images: Any) -> Any:
        x = self.conv(images)
        x = functional.interpolate(x + 0 * self.up(self.image).mean(), size=4).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Eager(torch._TorchCompileInductorWrapper):  # type: ignore[misc]
    """A compiler that runs graphs as they are. made: how many it was given."""

    made = 0

    def __call__(self, model_: Any, inputs_: Any) -> Any:
        Eager.made += 1
        return model_.forward


class Live:
    """A process that makes steps, between which levers are switched."""

    def __init__(self, kind: str = "Adam") -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = KINDS[kind](self.model.parameters())
        self.problems: list[str | None] = []
        self.lines: list[tuple[str, str]] = []
        guard = Guard()
        guard.report = lambda where, what, trace, lever: self.problems.append(f"{lever}: {what}")
        agent = SimpleNamespace(
            guard=guard, begun=True, session=SimpleNamespace(turns="a socket"), recorder=SimpleNamespace(index=3),
            stopper=SimpleNamespace(disturbed=[], steady=None), append=lambda *line: self.lines.append(line),
            timeline=SimpleNamespace(segment=SimpleNamespace(probe=False)),
        )  # fmt: skip
        self.seams = Seams(agent)  # type: ignore[arg-type]
        self.seams.rewrap = self.rewrap
        self.forward = self.seams.root(self.model, self.own)
        self.known = False

    def own(self, *args: Any) -> Any:
        return self.model._call_impl(*args)

    def rewrap(self) -> None:
        self.forward = self.seams.wrapped(self.model, self.own)

    def put_in(self, *names: str) -> None:
        self.seams.put_in({name: FIRST[name] for name in names})

    def step(self) -> float:
        torch.manual_seed(1)
        images, targets = torch.randn(2, 3, 4, 4), torch.randint(32, (32,))
        loss = functional.cross_entropy(self.forward(images).flatten(0, 1), targets)
        self.optimizer.zero_grad()
        loss.backward()
        if not self.known:
            self.known = True
            self.seams.optimizer(self.optimizer)
        self.optimizer.step()
        return loss.item()

    def state(self) -> list[tuple[Any, torch.Tensor]]:
        """Where all tensors lie, and their values."""
        held = [value for state in self.optimizer.state.values() for value in state.values()]
        grads = [p.grad for p in self.model.parameters()]
        every = [*self.model.parameters(), *self.model.buffers(), *grads, *held]
        return [((one.dtype, one.device, one.stride()), one.detach().clone()) for one in every if one is not None]

    def ways(self) -> Any:
        """How modules are called, and the optimizer updates."""
        attributes = {name: list(module.__dict__) for name, module in self.model.named_modules()}
        called = [module._compiled_call_impl for module in self.model.modules()]
        own = {name: value for name, value in vars(self.optimizer).items() if name not in {"param_groups", "state"}}
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        hooks = [len(hooks) for name, hooks in own.items() if name.endswith("_hooks")]
        return attributes, called, sorted(own), hooks, groups, dict(self.optimizer.defaults)


def process() -> dict[str, Any]:
    """What levers set in a process, as torch tells it."""
    import torch._dynamo.config

    cuda = torch.backends.cuda
    return {
        "precision": torch.get_float32_matmul_precision(),
        "attention": [getattr(cuda, f"{name}_sdp_enabled")() for name in ("cudnn", "flash", "mem_efficient", "math")],
        "threads": torch.get_num_threads(),
        "loss": functional.cross_entropy,
        "passes": list(_graph.PASSES),
        "static": torch._dynamo.config.assume_static_by_default,
        "autocast": torch.is_autocast_enabled("cpu"),
    }


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._dynamo.config
    import torch._functorch.config

    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Eager)
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    monkeypatch.setattr(functional, "cross_entropy", functional.cross_entropy)
    torch._dynamo.reset()
    Eager.made = 0
    kept = {"recompile_limit": torch._dynamo.config.recompile_limit, "suppress_errors": False}
    with torch._dynamo.config.patch(kept), torch._functorch.config.patch(backward_pass_autocast="same_as_forward"):
        yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def same(one: list[tuple[Any, torch.Tensor]], other: list[tuple[Any, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        lies == there and torch.equal(a, b) for (lies, a), (there, b) in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("lever", all_levers().values(), ids=lambda lever: lever.name)
def test_attributes(lever: Lever) -> None:
    assert lever.stage in STAGES and lever.costs_s >= 0 and lever.memory_order >= 0
    assert lever.stage == "compiler" or not lever.compiles
    if lever.saves_memory and lever.risk != "semantic":
        assert lever.memory_order < 100, "what it costs a step is known"
    if lever.switchable:
        variables = {name for variant in lever.variants(context(True)) for name in lever.environment(variant)}
        assert variables <= {"TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS"}, "a live process does not get them"


@each
def test_it_asks_for_nothing_that_is_not_taken_back(lever: Lever) -> None:
    live = Live()
    live.put_in(lever.name)
    use = live.seams.uses[lever.name]
    assert not use.loaders and all(undo is not None for _, undo in (*use.roots, *use.optimizers))
    live.put_in()


@each
def test_taken_out_all_is_as_it_was(lever: Lever) -> None:
    live = Live()
    live.step()
    flags, ways = process(), live.ways()
    own = live.forward
    for _ in range(2):
        before = live.state()
        live.put_in(lever.name)
        live.put_in()
        assert same(before, live.state()), "values and their places in memory"
        assert (process(), live.ways()) == (flags, ways)
        live.put_in(lever.name)
        assert all(torch.isfinite(torch.tensor([live.step() for _ in range(3)])))
        live.put_in()
        assert (process(), live.ways()) == (flags, ways) and live.forward == own
        assert [lies for lies, _ in before] == [lies for lies, _ in live.state()]
    assert not live.problems, live.problems


def test_in_and_out_in_a_loop() -> None:
    """From a state of the loop on, bare steps are those of a loop that goes on from it without any lever."""
    turns: list[tuple[str, ...]] = [
        ("fused-optimizer",), ("channels-last", "fused-optimizer"), ("compile",), ("bf16-autocast", "compile"),
        ("compile-blocks",), ("channels-last", "compile", "attention"), ("tf32", "compile"),
    ]  # fmt: skip
    live = Live()
    live.step()
    compiled: list[int] = []
    for again in (False, True):
        for names in turns:
            live.put_in(*names)
            made = Eager.made
            assert all(torch.isfinite(torch.tensor([live.step() for _ in range(3)])))
            assert not again or Eager.made == made, f"{names} compiled again"
            live.put_in()
            bare = Live()
            bare.step()
            bare.model.load_state_dict(live.model.state_dict())
            bare.optimizer.load_state_dict(copy.deepcopy(live.optimizer.state_dict()))
            made = Eager.made
            assert [live.step() for _ in range(2)] == [bare.step() for _ in range(2)], names
            assert Eager.made == made
        compiled.append(Eager.made)
    assert 0 < compiled[0] == compiled[1] and not live.problems


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_goes_on_unfused(kind: str) -> None:
    live = Live(kind)
    live.step()
    ways, saved = live.ways(), live.optimizer.state_dict()
    lies = [lies for lies, _ in live.state()]
    live.put_in("fused-optimizer")
    assert all(group["fused"] for group in live.optimizer.param_groups)
    live.step()
    live.put_in()
    live.step()
    assert live.ways() == ways and [lies for lies, _ in live.state()] == lies
    live.optimizer.load_state_dict(saved)
    assert not any(group["fused"] for group in live.optimizer.param_groups), "it loads what it is"


def test_what_others_have_fused_stays() -> None:
    live = Live()
    live.step()
    fuse(live.optimizer)
    live.put_in("fused-optimizer")
    live.put_in()
    assert live.optimizer.param_groups[0]["fused"]
    unfuse(live.optimizer)
    unfuse(live.optimizer)
    assert not live.optimizer.param_groups[0]["fused"]


def test_groups_that_came_while_it_was_fused() -> None:
    live = Live()
    live.step()
    live.put_in("fused-optimizer")
    live.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    live.put_in()
    assert [group["fused"] for group in live.optimizer.param_groups] == [None, None]


def test_gradients_and_states_lie_as_weights_do() -> None:
    live = Live("AdamW")
    live.step()
    before = live.state()
    live.put_in("channels-last")
    weight = live.model.conv.weight
    held = [value for value in live.optimizer.state[weight].values() if value.dim()]
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert len(held) == 3 and weight.grad is not None
    assert {one.stride() for one in (weight.grad, *held)} == {weight.stride()}
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(before, live.state(), strict=True))
    live.put_in()
    assert same(before, live.state())


def test_out_again_tf32_leaves_the_setting_by_which_compiled_code_is_cached() -> None:
    """A fresh start of what was compiled in a live process after it compiled all anew: 80 s of a public diffusion
    model's proof (H100, torch 2.11)."""
    own = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    live = Live()
    try:
        for one in own:
            one.fp32_precision = "none"
        live.put_in("tf32")
        assert [one.fp32_precision for one in own] == ["tf32", "tf32"]
        live.put_in()
        assert [one.fp32_precision for one in own] == ["none", "none"]
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_the_script_sets_meanwhile_stays() -> None:
    live = Live()
    try:
        live.put_in("tf32")
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("medium")
        live.put_in()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_loss_is_compiled_only_while_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def compile_(function: Any) -> Any:
        return lambda *args: compiled.append(1)

    monkeypatch.setattr("hotlap.levers.compiler._losses._large", lambda logits: True)
    monkeypatch.setattr(torch, "compile", compile_)
    live = Live()
    live.seams.rewrap = lambda: None
    live.put_in("compile")
    kept, logits, targets = functional.cross_entropy, torch.randn(4, 8), torch.arange(4)
    kept(logits, targets)
    assert compiled == [1]
    live.put_in()
    assert functional.cross_entropy is not kept
    kept(logits, targets)
    assert compiled == [1], "nor by a name that the script took over"
