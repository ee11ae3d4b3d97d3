"""grouped-experts: what it reads trains as the loop does, and what it does not read is left as it was."""

import contextlib
import copy
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import experts_forms as forms
import pytest
import torch
import torch._dynamo.testing
from contexts import ROOT, context
from experts_forms import FORMS, Expert, Layer
from fake_graphs import recorded
from msgspec.structs import replace
from torch import nn
from torch.utils.checkpoint import checkpoint

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.seams import Refused
from hotlap.levers import _anchored, _experts_alike, _experts_plan, all_levers
from hotlap.levers._autocast import autocasting
from hotlap.levers._experts_mark import COMPARED, MARK
from hotlap.levers._experts_plan import _outer, _padded, _product
from hotlap.levers._training_graph import GraphedTraining
from hotlap.levers.grouped_experts import Grouped
from hotlap.records.session import LeverUse

LEVER = all_levers()["grouped-experts"]
USE = (LeverUse("grouped-experts", {}),)


class Seams:
    """What the lever asks the agent for."""

    def __init__(self) -> None:
        self.whys: list[str] = []
        self.out: list[str] = []
        self.slow = 0

    def refuse(self, lever: str, why: str) -> None:
        self.whys.append(why)

    def leave_out(self, lever: str, why: str) -> None:
        self.out.append(why)

    def unsteady(self) -> None:
        self.slow += 1


def tensors(output: Any) -> list[torch.Tensor]:
    return list(output) if isinstance(output, tuple) else [output]


class Pair:
    """A model with the lever in it, and its twin without."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = torch.optim.AdamW,
        none: bool = True,
        recorded: Callable[[nn.Module, Any], Any] = lambda model, forward: forward,
    ) -> None:
        self.model, self.twin, self.none = model, copy.deepcopy(model), none
        self.seams = Seams()
        self.grouped = Grouped(self.seams)  # type: ignore[arg-type]
        inside = self.grouped.tell(model, self.grouped.wrap(model, model._call_impl))
        self.forward = self.grouped.hear(model, recorded(model, inside))
        self.optimizers = [optimizer(one.parameters(), 1e-2) for one in (model, self.twin)]
        self.grouped.on_optimizer(self.optimizers[0])

    @property
    def used(self) -> bool:
        return any(mark.used and not mark.off for mark in self.grouped.marks)

    def step(self, x: torch.Tensor, micro: int = 1, forward: Callable[..., Any] | None = None) -> None:
        for run, optimizer in ((forward or self.forward, self.optimizers[0]), (self.twin, self.optimizers[1])):
            optimizer.zero_grad(set_to_none=self.none)
            for part in x.chunk(micro):
                sum((one.float() ** 2).mean() for one in tensors(run(part))).backward()
            optimizer.step()

    def same(self, rtol: float = 1e-5, atol: float = 1e-6) -> None:
        for mine, its in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            assert (mine.grad is None) is (its.grad is None)
            torch.testing.assert_close(mine, its, rtol=rtol, atol=atol)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, its.grad, rtol=rtol, atol=atol)

    def train(self, steps: int = COMPARED + 3, **more: Any) -> "Pair":
        for step in range(steps):
            self.step(rows(step), **more)
            self.same()
        return self


def rows(seed: int = 0, count: int = 24) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def made(kind: Any, *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args, **kwargs)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("top", [1, 2])
def test_it_trains_as_the_loop_does(kind: Any, top: int) -> None:
    pair = Pair(made(kind, top=top)).train()
    assert pair.used and not pair.seams.whys + pair.seams.out and pair.seams.slow == COMPARED


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("none", [True, False])
def test_an_expert_without_rows_is_updated_as_by_the_loop(kind: Any, none: bool) -> None:
    """AdamW passes over a parameter without a gradient, and decays one whose gradient is zero."""
    pair = Pair(made(kind, never=kind is not forms.Where), none=none).train()
    assert pair.used


def test_gradients_gathered_over_batches_and_an_expert_that_comes_and_goes() -> None:
    pair = Pair(made(forms.Zoo, never=True)).train(micro=2)
    for model in (pair.model, pair.twin):
        model.never = False
    pair.train(micro=3)
    for model in (pair.model, pair.twin):
        model.never = True
    pair.train(micro=2)
    assert pair.used


class Away(forms.Zoo):
    """The router keeps away from the experts of which it is told."""

    away = 3

    def probs(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.router(x).float() - 1e4 * nn.functional.one_hot(torch.tensor(self.away), 4), dim=-1)


class Holds(nn.Module):
    """A layer within, which it may run twice. fails: after that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.before = Away(), nn.Linear(8, 8)
        self.again: int | None = None
        self.fails = False

    def forward(self, x: torch.Tensor) -> Any:
        out, loss = self.layer(self.before(x))
        if self.again is not None:
            self.layer.away, away = self.again, self.layer.away
            more, other = self.layer(out)
            out, loss, self.layer.away = out + more, loss + other, away
        if self.fails:
            raise ValueError("this batch is passed over")
        return out, loss


def evaluated(run: Any, model: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        run(x)


def evaluated_with_gradients(run: Any, model: Any, x: torch.Tensor) -> None:
    model.eval()
    run(x)
    model.train()


def failed(run: Any, model: Any, x: torch.Tensor) -> None:
    model.fails = True
    with pytest.raises(ValueError, match="passed over"):
        run(x)
    model.fails = False


@pytest.mark.parametrize("between", [evaluated, evaluated_with_gradients, failed])
def test_what_has_no_backward_counts_for_nothing(between: Any) -> None:
    """Its rows are other experts', and its first calls run the loop."""
    pair = Pair(made(Holds)).train()
    for step in range(COMPARED + 2):
        for run, model in ((pair.forward, pair.model), (pair.twin, pair.twin)):
            model.layer.away = 1
            between(run, model, rows(step + 50))
            model.layer.away = 3
        pair.step(rows(step))
        pair.same()
    assert pair.used and not pair.seams.whys + pair.seams.out


def test_a_layer_that_runs_twice_in_a_forward() -> None:
    pair = Pair(made(Holds))
    for model in (pair.model, pair.twin):
        model.layer.away, model.again = 3, 0
    pair.train()
    for model in (pair.model, pair.twin):
        model.again = 3
    assert pair.train().used


def by_itself(model: Any) -> Any:
    return model.layer


def past_hooks(model: Any) -> Any:
    return model.forward


@pytest.mark.parametrize("beside", [by_itself, past_hooks])
def test_calls_beside_those_of_the_model(beside: Any) -> None:
    pair = Pair(made(Holds)).train()
    for step in range(3):
        for run, model, optimizer in zip(
            (pair.forward, pair.twin), (pair.model, pair.twin), pair.optimizers, strict=True
        ):
            optimizer.zero_grad()
            for call, away in ((run, 3), (beside(model), 1)):
                model.layer.away = away
                sum((one.float() ** 2).mean() for one in call(rows(step))).backward()
            optimizer.step()
        pair.same()
    assert pair.used and not pair.seams.whys + pair.seams.out


class Checkpointed(Holds):
    def forward(self, x: torch.Tensor) -> Any:
        out, loss = checkpoint(self.layer, self.before(x), use_reentrant=False)
        more, other = self.layer(out)
        return out + more, loss + other


def test_a_checkpoint_runs_the_loop_again_that_it_ran() -> None:
    """Though the second call of the layer has been compared meanwhile."""
    assert Pair(made(Checkpointed)).train().used


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("make", [forms.sequential, partial(Expert, bias=True), partial(nn.Linear, 8, 8)])
def test_experts_of_other_make(kind: Any, make: Any) -> None:
    assert Pair(made(kind, make)).train().used


@pytest.mark.parametrize("kind", FORMS)
def test_autocast_to_bfloat16(kind: Any) -> None:
    pair = Pair(made(kind), partial(torch.optim.SGD))
    for step in range(COMPARED + 2):
        with torch.autocast("cpu", torch.bfloat16):
            pair.step(rows(step))
        pair.same(rtol=0.05, atol=2e-3)
    assert pair.used and not pair.seams.whys + pair.seams.out


@pytest.mark.parametrize("kind", [forms.Where, forms.OneHot, forms.Masks])
def test_weights_in_bfloat16(kind: Any) -> None:
    pair = Pair(made(kind).bfloat16(), torch.optim.SGD)
    for step in range(COMPARED + 2):
        pair.step(rows(step).bfloat16())
        pair.same(rtol=0.1, atol=1e-2)
    assert pair.used and not pair.seams.whys + pair.seams.out


def test_three_dimensions() -> None:
    pair = Pair(made(forms.Masks))
    for step in range(COMPARED + 3):
        pair.step(rows(step).view(4, 6, 8))
        pair.same()
    assert pair.used


def test_evaluation_is_compared_apart_and_draws_nothing() -> None:
    pair = Pair(made(forms.Zoo, partial(Expert, drop=0.5)).eval(), torch.optim.SGD)
    state = torch.get_rng_state()
    for step in range(COMPARED + 2):
        with torch.no_grad():
            got, right = pair.forward(rows(step)), pair.twin(rows(step))
        torch.testing.assert_close(got, right)
    assert torch.equal(state, torch.get_rng_state())
    assert pair.used and not pair.seams.out
    pair.model.train()
    pair.forward(rows())
    assert "draws random numbers" in pair.seams.whys[0] and MARK not in vars(pair.model)


def test_the_loads_are_the_loops_to_the_bit() -> None:
    pair = Pair(made(forms.Zoo)).train()
    assert pair.used
    for seed in range(4):
        assert torch.equal(pair.forward(rows(seed, 21))[1], pair.twin(rows(seed, 21))[1])


@pytest.mark.parametrize("kind", FORMS)
def test_no_graph_break(kind: Any) -> None:
    pair = Pair(made(kind)).train()
    assert pair.used
    torch._dynamo.reset()
    compiled = torch.compile(pair.forward, fullgraph=False, backend="aot_eager")
    whole = torch.compile(pair.model, fullgraph=True, backend="aot_eager")
    for seed in (7, 8):
        torch.testing.assert_close(whole(rows(seed)), pair.twin(rows(seed)))
    pair.step(rows(9), forward=compiled)
    pair.same()
    torch._dynamo.reset()


def test_the_zoo_has_no_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "zoo"))
    import moe

    pair = Pair(made(moe.Model, 16, 24, 2, 4, 2))
    x = torch.randint(0, 256, (2, 16 + 15), generator=torch.Generator().manual_seed(0))
    for _ in range(COMPARED + 3):
        pair.step(x)
        pair.same()
    assert pair.used and len(pair.grouped.marks) == 2
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(pair.model, fullgraph=True, backend="eager")(x), pair.twin(x))
    torch._dynamo.reset()
    del sys.modules["moe"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (forms.Prints, "a statement that is not known: print(i)"),
        (forms.WritesRows, "a statement that is not known: x[rows] *= 0.5"),
        (forms.ReadsOut, "reads out, which it adds to"),
        (forms.ReadsLast, "rows is of the loop, and is read outside of it"),
        (forms.NotByTopk, "whether chosen names an expert twice"),
        (forms.KeepsNumbers, "what becomes of load"),
        (forms.SkipsNumbers, "what load holds after the loop"),
        (forms.Breaks, "a statement that is not known: break"),
    ],
)
def test_loops_that_are_not_read(kind: Any, why: str) -> None:
    model = made(kind)
    with pytest.raises(Refused, match="line") as refused:
        Grouped(Seams()).wrap(model, model._call_impl)  # type: ignore[arg-type]
    assert why in str(refused.value)
    assert not hasattr(kind.forward, MARK) and MARK not in vars(model)


def test_processes_that_may_exchange_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert without rows in one of them has the others' gradient, and keeps it."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model = made(forms.Zoo)
    for world in (1, 2):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda world=world: world)
        with contextlib.nullcontext() if world == 1 else pytest.raises(Refused, match="several processes"):
            Grouped(Seams()).wrap(made(forms.Zoo), model._call_impl)  # type: ignore[arg-type]


def different() -> Any:
    sizes = iter((12, 12, 13, 12))
    return lambda: Expert(hidden=next(sizes))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (different(), "different shapes"),
        (lambda: forms.Norm(nn.LayerNorm), "LayerNorm with parameters"),
        (lambda: forms.Norm(nn.BatchNorm1d), "norm has buffers"),
        (forms.Remembers, "leaves something behind (last)"),
        (forms.Scaled, "other settings in different experts"),
    ],
)
def test_experts_that_do_not_fit(make: Any, why: str) -> None:
    model = made(forms.Zoo, make)
    with pytest.raises(Refused) as refused:
        Grouped(Seams()).wrap(model, model._call_impl)  # type: ignore[arg-type]
    assert why in str(refused.value)


@pytest.mark.parametrize("how", ["hook", "shared", "shared with others"])
def test_experts_that_others_look_at(how: str) -> None:
    model = made(forms.Zoo)
    if how == "hook":
        model.experts[1].up.register_forward_hook(lambda *_: None)
    elif how == "shared":
        model.experts[1].up.weight = model.experts[0].up.weight
    else:
        model.other = nn.Linear(8, 12)
        model.other.weight = model.experts[2].up.weight
    with pytest.raises(Refused, match="hooks" if how == "hook" else "share parameters"):
        Grouped(Seams()).wrap(model, model._call_impl)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (forms.Centred, "mean"),
        (lambda: forms.Norm(partial(nn.BatchNorm1d, affine=False, track_running_stats=False)), "of its own"),
        (partial(Expert, drop=0.5), "draws random numbers"),
        (forms.InPlace, "writes to the rows"),
        (forms.InPlaceByName, "writes to the rows"),
        (forms.Counted, "differs by"),
    ],
)
def test_experts_that_turn_out_not_to_fit(make: Any, why: str) -> None:
    """The script's own loop gives what the first call returns, and all later ones."""
    pair = Pair(made(forms.Zoo, make))
    for step in range(4):
        torch.manual_seed(step)
        (mine,) = pair.forward(rows(step))[:1]
        torch.manual_seed(step)
        assert torch.equal(mine, pair.twin(rows(step))[0])
    assert not pair.used and why in pair.seams.out[0]
    assert MARK not in vars(pair.model)


def test_rows_that_are_added_to_what_is_read() -> None:
    pair = Pair(made(forms.Alias)).train()
    assert not pair.used and "parts of one tensor" in pair.seams.out[0]


def test_hooks_and_other_parts_that_come_later_end_it() -> None:
    pair = Pair(made(forms.Zoo)).train()
    calls: list[int] = []
    pair.model.experts[0].register_forward_hook(lambda *_: calls.append(1))
    pair.train(2)
    assert len(calls) == 2 and "hooks" in pair.seams.whys[0]
    pair = Pair(made(forms.Zoo)).train()
    for model in (pair.model, pair.twin):
        torch.manual_seed(1)
        model.experts[2].up = nn.Linear(8, 12)
    pair.optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (pair.model, pair.twin)]
    pair.train(2)
    assert "parts" in pair.seams.whys[0]


def test_settings_that_change_end_it() -> None:
    pair = Pair(made(forms.Zoo)).train()
    for model in (pair.model, pair.twin):
        for expert in model.experts:
            expert.dropout.p = float("0.0")
    pair.train(1)
    assert pair.used
    pair.model.experts[1].dropout.p = 0.5
    pair.forward(rows())
    assert not pair.used and "settings" in pair.seams.whys[0]


def test_weights_that_are_replaced_or_frozen() -> None:
    pair = Pair(made(forms.Where), torch.optim.SGD).train()
    for model in (pair.model, pair.twin):
        torch.manual_seed(1)
        model.experts[2].up.weight = nn.Parameter(torch.randn(12, 8))
        model.experts[1].down.weight.requires_grad_(False)
    pair.train()
    assert pair.used


def test_choices_of_no_expert() -> None:
    """The router knows one more than there are."""
    assert Pair(made(Beyond)).train().used


class Beyond(Layer):
    """A choice that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(torch.softmax(self.router(x), -1), self.top)
        out = x.clone()
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            out[rows] = out[rows] + weights[rows, slots, None] * expert(x[rows])
        return out


def test_copies_and_pickles_have_the_script_own_forward() -> None:
    pair = Pair(made(forms.Zoo)).train()
    assert pair.used and MARK in vars(pair.model)
    for other in (copy.deepcopy(pair.model), pickle.loads(pickle.dumps(pair.model))):
        assert vars(other).get(MARK) is None
        torch.testing.assert_close(other(rows()), pair.twin(rows()))
    assert list(pair.model.state_dict()) == list(pair.twin.state_dict())


def test_second_derivatives() -> None:
    pair = Pair(made(forms.Where)).train()
    assert pair.used
    found = []
    for run in (pair.forward, pair.twin):
        x = rows(3).requires_grad_()
        (first,) = torch.autograd.grad((run(x) ** 2).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), x)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("make", [partial(Expert, 8, 16), partial(Expert, 8, 16, bias=True)])
def test_the_grouped_product_of_torch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it runs on the device, in bfloat16 and without a word to the host."""
    monkeypatch.setattr(_experts_alike, "has_grouped", lambda device, sizes: True)
    pair = Pair(made(forms.Zoo, make, never=True), torch.optim.SGD)
    for step in range(COMPARED + 2):
        with torch.autocast("cpu", torch.bfloat16):
            pair.step(rows(step))
        pair.same(rtol=0.05, atol=2e-3)
    assert pair.used and not pair.seams.whys + pair.seams.out


class Graphs:
    """CUDA graphs of forward and backward, faked on the CPU."""

    def __init__(self) -> None:
        self.whys: list[str] = []
        self.graphed: Any = None

    def __call__(self, model: nn.Module, forward: Any) -> Any:
        self.graphed = recorded(model, forward, GraphedTraining, self.whys)
        return self.graphed


class Avoids(forms.Zoo):
    """The router keeps away from the last expert, without a word to the host."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.register_buffer("away", torch.tensor([0.0, 0.0, 0.0, 1e4]))

    def probs(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.router(x).float() - self.away, dim=-1)


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("none", [True, False])
def test_graphs_are_recorded_of_it_and_tell_which_experts_had_no_rows(
    none: bool, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight decay would change an expert that no row chose, and others have none in some steps only."""
    _anchored.install()
    monkeypatch.setattr(_experts_alike, "has_grouped", lambda device, sizes: True)
    graphs = Graphs()
    decayed = partial(torch.optim.SGD, weight_decay=0.5)
    pair = Pair(made(Avoids, partial(Expert, 8, 16)), decayed, none, graphs)
    for step in range(12):
        with torch.autocast("cpu", torch.bfloat16):
            pair.step(rows(step, 4 * micro), micro)
        pair.same(rtol=0.05, atol=5e-3)
    assert pair.used and not pair.seams.whys + pair.seams.out + graphs.whys
    assert graphs.graphed.replays >= 6


def test_compiled_code_has_the_grouped_product_under_a_levers_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_experts_alike, "has_grouped", lambda device, sizes: True)
    model = made(forms.Zoo, partial(Expert, 8, 16))
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    autocast = autocasting(torch.bfloat16)(model, model._call_impl)
    grouped = Grouped(Seams())  # type: ignore[arg-type]
    inside = grouped.tell(model, grouped.wrap(model, torch.compile(autocast, backend=backend)))
    forward = grouped.hear(model, inside)
    for seed in range(COMPARED + 3):
        forward(rows(seed))[0].sum().backward()
    (graph,) = graphs
    assert sum("grouped_mm" in str(node.target) for node in graph.graph.nodes) == 3
    torch._dynamo.reset()


def test_blocks_that_are_compiled_share_a_graph() -> None:
    """As compile-blocks leaves them."""
    torch.manual_seed(0)
    model = nn.Sequential(*[forms.Where() for _ in range(3)])
    pair = Pair(model, torch.optim.SGD)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    for block in model:
        block._compiled_call_impl = torch.compile(block._call_impl, backend=counter, fullgraph=True)
    pair.train()
    assert pair.used and counter.frame_count == 2, "the first has inputs without gradients"
    torch._dynamo.reset()


@pytest.mark.parametrize("pads", [False, True])
def test_the_products_of_groups(pads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded to the largest, too, as on a GPU."""
    monkeypatch.setattr(_experts_plan, "_pads", lambda x: pads)
    x, y, weight = torch.randn(11, 3), torch.randn(11, 4), torch.randn(3, 4, 3)
    stops = [4, 4, 9]
    got = _product(x, weight, torch.tensor(stops))
    assert torch.equal(got[9:], torch.zeros(2, 4))
    outer = _outer(y, x, torch.tensor(stops))
    for number, (begin, end) in enumerate(((0, 4), (4, 4), (4, 9))):
        torch.testing.assert_close(got[begin:end], x[begin:end] @ weight[number].t())
        torch.testing.assert_close(outer[number], y[begin:end].t() @ x[begin:end])
    assert (_padded(x, stops) is not None) is pads
    assert _padded(x, [9, 9, 9]) is None, "three times as many rows"


TELL = """
import atexit, hotlap.levers.grouped_experts as own
made, enter = [], own.Grouped.__init__
def init(self, seams):
    enter(self, seams)
    made.append(self)
own.Grouped.__init__ = init
atexit.register(lambda: print("ready", sum(mark.used for grouped in made for mark in grouped.marks)))
"""


def test_a_script_trains_the_same(runner: Runner) -> None:
    bare = runner.bare("experts.py")
    ran = runner.forked("experts.py", before=TELL, levers=USE)
    check_clean(ran)
    assert "ready 2" in ran.output, "both layers"
    assert ran.losses == pytest.approx(bare.losses, rel=1e-5) and len(bare.losses) == 6
    assert ran.facts.roots[0].experts == 4
    assert '"grouped-experts"' in (ran.ranks[0] / "levers.jsonl").read_text()


def test_a_script_whose_loop_is_not_read_is_left_alone(runner: Runner) -> None:
    ran = runner.forked("experts.py", "--shows", levers=USE)
    check_same(ran, runner.bare("experts.py", "--shows"))
    (problem,) = ran.problems
    assert "SEEN.append(number)" in problem.what
    assert "left_out" in (ran.ranks[0] / "levers.jsonl").read_text()


def test_the_source_that_it_shows_computes_the_same() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(24, 8).bfloat16(), torch.rand(24, 2).bfloat16()
    chosen = torch.topk(torch.randn(24, 4), 2).indices
    gate, up, down = (torch.randn(4, *size).bfloat16() / 4 for size in ((16, 8), (16, 8), (8, 16)))
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "x": x, "weights": weights, "chosen": chosen}
    names |= {"gate": gate, "up": up, "down": down}
    exec(LEVER.source({}), names)
    right = torch.zeros(24, 8)
    for row in range(24):
        for slot, expert in enumerate(chosen[row].tolist()):
            hidden = torch.nn.functional.silu(x[row] @ gate[expert].t()) * (x[row] @ up[expert].t())
            right[row] += (weights[row, slot] * (hidden @ down[expert].t())).float()
    torch.testing.assert_close(names["out"].float(), right, rtol=0.05, atol=0.05)


def test_it_applies_where_the_model_loops_over_experts() -> None:
    some = replace(ROOT, experts=16)
    assert LEVER.applies(context(True, roots=(some,))).yes
    assert LEVER.applies(context(False, roots=(some,))).yes
    assert not LEVER.applies(context(True)).yes
    assert not LEVER.applies(context(True, roots=(replace(some, compiled=True),))).yes
    assert not LEVER.applies(context(True, roots=(some,), world=2)).yes
