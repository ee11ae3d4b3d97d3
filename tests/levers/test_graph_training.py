"""Forward and backward that are replayed, on the CPU with graphs that are faked truthfully (`fake_graphs`)."""

import copy
import gc
import math
import random
import sys
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contexts import context
from fake_graphs import BEFORE, FakeDevice, Recorder, recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.levers import all_levers
from hotlap.levers.cudagraphs import _compared, _device, graph_training
from hotlap.levers.cudagraphs._compared import difference, relative_error
from hotlap.levers.cudagraphs._effects import watched
from hotlap.levers.cudagraphs._training_call import waves
from hotlap.levers.cudagraphs._training_graph import TWICE, GraphedTraining

LEVER = all_levers()["graph-training"]


class Pair:
    """A model whose forward and backward are replayed, and its twin, which is an ordinary one."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.twin = model, copy.deepcopy(model)
        self.whys: list[str] = []
        self.recorders: list[Recorder] = []
        self.device = FakeDevice(self._capture)
        self.graphed = GraphedTraining(model, model._call_impl, self.device, lambda: None, self.whys.append)
        self.optimizers = [torch.optim.SGD(one.parameters(), 0.01, momentum=0.9) for one in (model, self.twin)]

    def _capture(self, work: Callable[[], None]) -> Callable[[], None]:
        recorder = Recorder()
        with recorder:
            work()
        recorder.spoil()
        forward = len(self.recorders) % 2 == 0
        self.recorders.append(recorder)
        return (lambda: self._replay_forward(recorder)) if forward else recorder.replay

    def _replay_forward(self, recorder: Recorder) -> None:
        """They share a pool of memory: what backwards, and other forwards, left there is gone."""
        for other in self.recorders:
            other.spoil()
        recorder.replay()

    @property
    def captures(self) -> int:
        return len(self.recorders)

    @property
    def ways(self) -> list[Any]:
        return [(self.graphed, self.optimizers[0]), (self.twin, self.optimizers[1])]

    def step(self, *args: Any, none: bool = True, loss: Callable[[Any], Any] = lambda y: (y**2).mean()) -> None:
        """One step of both; loss and weights are equal."""
        losses = []
        for forward, optimizer in self.ways:
            optimizer.zero_grad(set_to_none=none)
            value = loss(forward(*args))
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        assert torch.equal(*losses)
        self.same()

    def same(self) -> None:
        state = zip(self.model.state_dict().values(), self.twin.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in state)
        both = zip(self.model.parameters(), self.twin.parameters(), strict=True)
        assert all((p.grad is None) is (q.grad is None) for p, q in both)
        both = zip(self.model.parameters(), self.twin.parameters(), strict=True)
        assert all(torch.equal(p.grad, q.grad) for p, q in both if p.grad is not None and q.grad is not None)

    def trained(self, *shapes: int, steps: int = BEFORE) -> "Pair":
        for step in range(steps):
            for rows in shapes:
                self.step(batch(rows, step))
        return self


def mlp(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def batch(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", [False, True])
def test_training_is_the_same_to_the_last_bit_also_with_shapes_in_turns(norm: bool) -> None:
    pair = Pair(mlp(norm)).trained(4, 6, steps=8)
    assert not pair.whys and pair.captures == 4
    assert pair.graphed.replays == 2 * (8 - BEFORE)


@pytest.mark.parametrize("none", [False, True])
def test_gradients_that_are_cleared_in_place_or_gathered_over_batches_are_right(none: bool) -> None:
    pair = Pair(mlp())
    for step in range(7):
        pair.step(batch(4, step), none=none)
    for step in range(3):  # accumulation
        for forward, _ in pair.ways:
            (forward(batch(4, step)) ** 2).sum().backward()
    pair.same()
    assert pair.graphed.replays == 7 - BEFORE + 3


def test_gradients_lie_at_the_same_places_each_time() -> None:
    """As a recorded update wants it: autograd takes them as they are."""
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    (bucket,) = pair.graphed.buckets.values()
    assert [p.grad.data_ptr() for p in pair.model.parameters()] == [g.data_ptr() for g in bucket.gradients]  # type: ignore[union-attr]


def test_gradients_that_the_script_keeps_stay_as_they_are() -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    kept = [p.grad for p in pair.model.parameters()]
    were = [g.clone() for g in kept if g is not None]
    pair.step(batch(4, 9))
    assert all(torch.equal(g, was) for g, was in zip(kept, were, strict=True) if g is not None)


KEPT: list[Any] = []


def keeps_them(model: nn.Module) -> None:
    KEPT.extend((p.grad, p.grad.clone()) for p in model.parameters())  # type: ignore[union-attr]


def keeps_views(model: nn.Module) -> None:
    KEPT.extend((p.grad.view(-1)[1:], p.grad.view(-1)[1:].clone()) for p in model.parameters())  # type: ignore[union-attr]


def keeps_one_aside(model: nn.Module) -> None:
    grad = next(model.parameters()).grad
    assert grad is not None
    KEPT.append((grad.detach(), grad.clone()))
    KEPT.append((torch.from_numpy(grad.numpy()), grad.clone()))


def keeps_it_in_a_graph(model: nn.Module) -> None:
    *_, last = model.parameters()
    assert last.grad is not None
    x = torch.ones_like(last, requires_grad=True)
    value, expected = (x * last.grad).sum(), last.grad.clone()
    KEPT.append((lambda: torch.autograd.grad(value, x, retain_graph=True)[0], expected))


def puts_others_in_place(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad.data = p.grad.data * 2  # type: ignore[union-attr]


def turns(model: nn.Module) -> None:
    model[0].weight.grad.data = model[0].weight.grad.data.t().contiguous().t()  # type: ignore[index, union-attr]
    model[3].weight.grad.t_().t_()  # type: ignore[index, union-attr, operator]
    model[3].bias.grad.unsqueeze_(0).squeeze_(0)  # type: ignore[index, union-attr, operator]


def turns_a_square(model: nn.Module) -> None:
    for p in model.parameters():
        if p.dim() == 2:
            p.grad.as_strided_(p.shape, (1, p.shape[0]))  # type: ignore[union-attr]


def marks_them(model: nn.Module) -> None:
    for p in model.parameters():
        assert not hasattr(p.grad, "_marked"), "it would be left as it is"
        p.grad._marked = True  # type: ignore[union-attr]


def refers_to_them(model: nn.Module) -> None:
    """A key of a dictionary without them, as of what was done to them."""
    for p in model.parameters():
        assert p.grad not in DONE
        DONE[p.grad] = 1


def wants_their_gradient(model: nn.Module) -> None:
    for p in model.parameters():
        assert not p.grad.requires_grad  # type: ignore[union-attr]
        p.grad.requires_grad_()  # type: ignore[union-attr]


def empties(model: nn.Module) -> None:
    next(model.parameters()).grad.resize_(0)  # type: ignore[union-attr]
    next(model.parameters()).grad = None


DONE: Any = torch.utils.weak.WeakIdKeyDictionary()


def test_of_other_parameters_in_the_same_memory_nothing_is_kept() -> None:
    """As of a functional call, in whose graph there may be a whole inner loop."""
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    views: list[Any] = []
    for _ in range(3):
        given = {name: p.view_as(p) for name, p in pair.model.named_parameters()}
        views += map(weakref.ref, given.values())
        with torch.nn.utils.stateless._reparametrize_module(pair.model, given):
            pair.graphed(batch(4)).sum().backward()
        del given
    gc.collect()
    assert pair.graphed.replays == 4 and all(view() is None for view in views)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "use",
    [keeps_them, keeps_views, keeps_one_aside, keeps_it_in_a_graph, puts_others_in_place, turns, turns_a_square,
     marks_them, refers_to_them, wants_their_gradient, empties],
)  # fmt: skip
def test_gradients_are_the_scripts_own_whatever_it_does_with_them(use: Callable[[nn.Module], None], every: int) -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 2)
    KEPT.clear()
    for step in range(6):
        for forward, optimizer in pair.ways:
            optimizer.zero_grad()
            (forward(batch(4, step)) ** 2).mean().backward()
        pair.same()
        for (_, optimizer), model in zip(pair.ways, (pair.model, pair.twin), strict=True):
            if step % every == 0:
                use(model)
            with torch.no_grad():
                optimizer.step()
        pair.same()
        for kept, was in KEPT:
            assert torch.equal(kept() if callable(kept) else kept, was)
    assert pair.graphed.replays == 8 and not pair.whys


def test_gradients_of_inputs_are_added_up_by_autograd() -> None:
    pair = Pair(mlp())
    makers = [nn.Linear(4, 4) for _ in range(2)]
    makers[1].load_state_dict(makers[0].state_dict())
    for step in range(BEFORE + 4):
        made = []
        for (forward, optimizer), maker in zip(pair.ways, makers, strict=True):
            optimizer.zero_grad()
            x = maker(batch(4, step))
            ((forward(x) ** 2).sum() + (x**3).sum()).backward()
            made.append(maker.weight.grad)
        assert torch.allclose(*made)
        pair.same()
    assert pair.graphed.replays == 4


@pytest.mark.parametrize("layers", [2, 60])
def test_few_functions_are_called_for_a_step(layers: int) -> None:
    """Of Python's, and by Python's; what is looked at for each parameter is within one of them."""
    torch.manual_seed(0)
    pair = Pair(nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])).trained(4, steps=BEFORE + 2)
    (bucket,) = pair.graphed.buckets.values()
    bucket.forward = bucket.backward = lambda: None
    x, calls = batch(4), [0]

    def count(frame: Any, event: str, arg: Any) -> None:
        calls[0] += event in {"call", "c_call"}

    pair.optimizers[0].zero_grad()
    gc.disable()
    sys.setprofile(count)
    try:
        pair.graphed(x).sum().backward()
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls[0] <= 320 + 6 * layers, "torch looks at each parameter that goes into the graph"


def test_outputs_are_the_scripts_own() -> None:
    pair = Pair(mlp()).trained(4)
    one = pair.graphed(batch(4, 1))
    was = one.detach().clone()
    one.sum().backward()
    pair.graphed(batch(4, 2))
    assert torch.equal(one, was)


def test_a_forward_that_comes_before_the_last_ones_backward_is_an_ordinary_one() -> None:
    pair = Pair(mlp()).trained(4)
    for forward, optimizer in pair.ways:
        optimizer.zero_grad()
        (forward(batch(4, 1)).sum() + (forward(batch(4, 2)) ** 2).sum()).backward()
    pair.same()
    assert pair.graphed.replays == 1
    for forward, _ in pair.ways:
        forward(batch(4, 3))  # whose output nobody keeps
    pair.step(batch(4, 4))
    assert pair.graphed.replays == 3


def test_a_backward_may_come_again_until_the_next_forward() -> None:
    pair = Pair(mlp()).trained(4)
    for forward, optimizer in pair.ways:
        optimizer.zero_grad()
        loss = (forward(batch(4, 1)) ** 2).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    pair.same()


def test_a_backward_that_comes_again_after_another_forward_is_right() -> None:
    """What the first forward saved is kept as long as its graph is: the others are ordinary ones."""
    pair = Pair(mlp()).trained(4)
    for forward, optimizer in pair.ways:
        optimizer.zero_grad()
        y = forward(batch(4, 1))
        (y**2).sum().backward(retain_graph=True)
        forward(batch(4, 2)).sum().backward()
        y.sum().backward()
    pair.same()
    assert pair.graphed.replays == 1
    y = pair.graphed(batch(4, 1))
    y.backward(torch.ones(4, 3))
    pair.graphed(batch(4, 2))
    with pytest.raises(RuntimeError, match="a second time"):  # an ordinary one raises too
        y.backward(torch.ones(4, 3))


def test_inputs_that_another_model_made_get_their_gradient_and_leaves_are_not_for_it() -> None:
    """A GAN's discriminator, and one with a gradient penalty."""
    pair = Pair(mlp())
    made = []
    for forward, optimizer in pair.ways:
        maker = nn.Linear(4, 4)
        torch.nn.init.eye_(maker.weight)
        torch.nn.init.zeros_(maker.bias)
        for step in range(6):
            optimizer.zero_grad()
            forward(maker(batch(4, step))).sum().backward()
        made.append(maker.weight.grad)
    assert torch.equal(*made) and pair.graphed.replays == 6 - BEFORE
    leaf = batch(4).requires_grad_()
    (slope,) = torch.autograd.grad(pair.graphed(leaf).sum(), leaf, create_graph=True)
    slope.norm().backward()
    assert pair.graphed.replays == 6 - BEFORE and not pair.whys


def test_parameters_that_are_frozen_meanwhile_get_no_gradient() -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    for frozen in (True, False, True):
        for model in (pair.model, pair.twin):
            model[0].requires_grad_(not frozen)
        for step in range(BEFORE + 1):
            pair.step(batch(4, step))
    assert not pair.whys and pair.captures == 4, "each of both is recorded once"


def test_evaluation_is_left_alone_and_training_goes_on() -> None:
    pair = Pair(mlp(norm=True)).trained(4)
    for epoch in range(6):
        for forward, model in ((pair.graphed, pair.model), (pair.twin, pair.twin)):
            model.eval()
            with torch.no_grad():
                forward(batch(5, epoch))
            model.train()
        pair.step(batch(4, epoch))
    assert pair.graphed.replays == 6 and not pair.whys


def asked(forward: Any, model: nn.Module, how: str) -> list[Any]:
    """Gradients by other ways than a plain backward."""
    parameters = list(model.parameters())
    loss = (forward(batch(4, 5)) ** 2).sum()
    if how == "alone":
        return list(torch.autograd.grad(loss, parameters))
    if how == "some":
        return list(torch.autograd.grad([loss, parameters[1].sum()], [parameters[1], parameters[-1]], [loss, loss]))
    if how == "one":
        return list(torch.autograd.grad(loss, parameters[0]))
    if how == "beside":  # and a term of the loss that the model did not make
        loss = loss + sum((p**2).sum() for p in parameters)
        kept = torch.autograd.grad(loss, parameters, retain_graph=True)
        loss.backward()
        return [*kept, *(p.grad for p in parameters)]
    if how == "unused":
        other = torch.ones(2, requires_grad=True)
        made = torch.autograd.grad(loss, [other, *parameters], retain_graph=True, allow_unused=True)
        zero = torch.autograd.grad(loss, [other], retain_graph=True, materialize_grads=True)
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            torch.autograd.grad(loss, [parameters[0], other])
        return [*made, *zero]
    if how == "inputs":
        loss.backward(inputs=[parameters[0], parameters[2]], retain_graph=True)
        loss.backward(inputs=parameters[0])
    elif how == "many":
        for part in range(3):
            (forward(batch(4, part)).sum() * loss.detach()).backward()
    elif how == "hooks":
        called: list[str] = []
        handles = [
            parameters[0].register_hook(lambda g: g * 2),
            parameters[1].register_hook(lambda g: called.append("a")),
        ]
        handles += [parameters[2].register_post_accumulate_grad_hook(lambda p: called.append("b"))]
        loss.backward()
        for handle in handles:
            handle.remove()
        assert sorted(called) == ["a", "b"]
    elif how == "created":
        made = torch.autograd.grad(loss, parameters, create_graph=True)
        sum(g.norm() for g in made).backward()
    return [p.grad for p in parameters]


@pytest.mark.parametrize(
    "how", ["alone", "some", "one", "beside", "unused", "inputs", "many", "hooks", "created", "plain after all"]
)
def test_gradients_are_right_however_a_script_asks_for_them(how: str) -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    for optimizer in pair.optimizers:
        optimizer.zero_grad()
    found = [asked(forward, model, how) for forward, model in ((pair.graphed, pair.model), (pair.twin, pair.twin))]
    for one, other in zip(*found, strict=True):
        assert (one is None) is (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    if how != "created":
        pair.step(batch(4, 8))
        assert not pair.whys


def square(y: torch.Tensor) -> torch.Tensor:
    return (y**2).sum()


def clamped(forward: Any, parameters: list[Any]) -> Any:
    """A hook is called with the sum of all gradients, also of those that the model did not make."""
    counts: list[int] = []
    handles = [
        parameters[0].register_hook(lambda g: g.clamp(-0.1, 0.1)),
        parameters[1].register_post_accumulate_grad_hook(lambda p: counts.append(1)),
        torch.autograd.graph.register_multi_grad_hook(parameters, lambda gs: counts.append(len(gs))),
    ]
    (square(forward(batch(4, 5))) + sum(square(p) for p in parameters)).backward()
    for handle in handles:
        handle.remove()
    return counts


def kept_by_a_hook(forward: Any, parameters: list[Any]) -> Any:
    loss = square(forward(batch(4, 5)))
    kept: list[torch.Tensor] = []
    handle = parameters[0].register_hook(kept.append)
    loss.backward()
    parameters[0].grad.zero_()
    handle.remove()
    return kept


def asked_with_a_hook(forward: Any, parameters: list[Any]) -> Any:
    loss = square(forward(batch(4, 5)))
    handle = parameters[0].register_hook(lambda g: g * 2)
    made = torch.autograd.grad(loss, [parameters[0], *parameters])
    handle.remove()
    return made


def frozen_before_its_backward(forward: Any, parameters: list[Any]) -> Any:
    loss = square(forward(batch(4, 5)))
    parameters[0].requires_grad_(False)
    loss.backward()
    parameters[0].requires_grad_(True)
    return []


def of_another_model(forward: Any, parameters: list[Any]) -> Any:
    loss, other = square(forward(batch(4, 5))), nn.Linear(2, 2)
    made = torch.autograd.grad(other(torch.ones(1, 2)).sum(), other.parameters())
    loss.backward()
    return made


def beside_another_leaf(forward: Any, parameters: list[Any]) -> Any:
    other = torch.ones(3, requires_grad=True)
    other.register_hook(lambda g: g * 2)
    square(forward(batch(4, 5)) * other).backward(inputs=[parameters[0], other])
    return [other.grad]


def functional(forward: Any, parameters: list[Any]) -> Any:
    model = getattr(forward, "_module", lambda: forward)()
    with torch.nn.utils.stateless._reparametrize_module(
        model, {name: p.view_as(p) for name, p in model.named_parameters()}
    ):
        y = forward(batch(4, 5))
    square(y).backward()
    return []


def sparse_before(forward: Any, parameters: list[Any]) -> Any:
    parameters[0].grad = torch.eye(8, 4).to_sparse()
    square(forward(batch(4, 5))).backward()
    return [parameters[0].grad.layout]


@pytest.mark.parametrize(
    "use",
    [clamped, kept_by_a_hook, asked_with_a_hook, frozen_before_its_backward, of_another_model, beside_another_leaf,
     functional, sparse_before],
)  # fmt: skip
def test_what_the_nodes_of_parameters_do_is_done(use: Callable[[Any, list[Any]], Any]) -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    found = []
    for (forward, optimizer), model in zip(pair.ways, (pair.model, pair.twin), strict=True):
        optimizer.zero_grad()
        made = use(forward, list(model.parameters()))
        found.append([*made, *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other
    assert pair.graphed.replays == 2


def test_nodes_of_parameters_that_a_script_keeps_are_in_the_graph() -> None:
    """As of optimizers that hook themselves to them."""
    pair = Pair(mlp())
    counts: list[list[int]] = []
    nodes = []
    for model in (pair.model, pair.twin):
        calls: list[int] = []
        counts.append(calls)
        for p in model.parameters():
            nodes.append(p.expand_as(p).grad_fn.next_functions[0][0])
            nodes[-1].register_hook(lambda *_, calls=calls: calls.append(1))
    pair.trained(4, steps=BEFORE + 2)
    assert pair.graphed.replays == 2 and len(counts[0]) == len(counts[1]) > 0


class Supervised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = mlp(), mlp()

    def forward(self, x: torch.Tensor) -> tuple[Any, Any]:
        return self.a(x), self.b(x)


def test_outputs_that_share_nothing_have_backwards_of_their_own() -> None:
    """As of an actor and a critic: without retain_graph, and with another forward between."""
    pair = Pair(Supervised())
    for step in range(BEFORE + 3):
        for forward, optimizer in pair.ways:
            optimizer.zero_grad()
            one, other = forward(batch(4, step))
            square(one).backward()
            if step % 2:
                forward(batch(4, 9))
            square(other).backward()
            optimizer.step()
        pair.same()
    assert pair.graphed.replays == 4 and not pair.whys
    one, other = pair.graphed(batch(4))
    (square(one) + square(other)).backward()
    with pytest.raises(RuntimeError, match="a second time"):
        one.backward(torch.ones(4, 3))


class Turned(nn.Module):
    """Autograd makes the gradient of its parameter in another layout, and puts it in place in the parameter's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.p = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[:, :, None] * self.p.t()  # type: ignore[no-any-return]


def test_gradients_are_laid_out_as_their_parameters() -> None:
    pair = Pair(Turned()).trained(4, steps=BEFORE + 1)
    assert [p.grad.stride() for p in pair.model.parameters()] == [p.stride() for p in pair.model.parameters()]


def test_a_parameter_that_is_turned_where_it_lies_is_another() -> None:
    pair = Pair(nn.Linear(4, 4)).trained(4, steps=BEFORE + 1)
    for model in (pair.model, pair.twin):
        model.weight.data = model.weight.data.t()
        model.weight.grad = None
    for optimizer in pair.optimizers:
        optimizer.state.clear()
    pair.trained(4, steps=BEFORE + 1)
    assert pair.captures == 4


@pytest.mark.parametrize(("spread", "gap", "same"), [(0.0, 0.0015, False), (0.001, 0.0015, True), (0.001, 0.01, False)])
def test_a_replay_may_differ_as_ordinary_calls_do(spread: float, gap: float, same: bool) -> None:
    exact = torch.linspace(1, 2, 50)
    assert (difference([exact * (1 + gap)], [exact], spread=[exact * (1 + spread)]) == "") is same


@pytest.mark.parametrize(
    ("own", "other", "same"), [(1e-5, 0.0005, True), (1e-5, 0.0, False), (0.0, 0.0005, False), (1e-5, 5.0, False)]
)
def test_a_replay_may_differ_as_another_tensor_of_the_call_does_up_to_a_percent(
    own: float, other: float, same: bool
) -> None:
    """Of sums in another order each time two calls may happen to nearly agree in one tensor, by which it is not to be
    judged. own 0: two calls give it bit for bit. 5: noise around zero, as a key's bias has for a gradient."""
    exact = torch.linspace(1, 2, 50)

    def why(gap: float) -> str:
        return difference([exact * (1 + gap), exact], [exact, exact], spread=[exact * (1 + own), exact * (1 + other)])

    assert (why(0.0014) == "") is same and "differs by 1.10%" in why(0.011)


@pytest.mark.parametrize(("scale", "same"), [(1e-9, True), (1e-4, False)])
def test_a_gradient_that_is_nothing_beside_the_others_may_be_another(scale: float, same: bool) -> None:
    """That of a key's bias is zero but for rounding, which other kernels leave otherwise: two ordinary calls may agree
    in it, and a replay not at all. Of an output nothing is said."""
    weight, bias = torch.linspace(1, 2, 50), torch.linspace(-1, 1, 50) * scale
    why = difference([weight, -bias], [weight, bias], gradients=["k.weight", "k.bias"])
    assert why == ("" if same else "its replay differs by 200.00% from an ordinary call in the gradient of k.bias")
    assert "differs by 200.00%" in difference([weight, -bias], [weight, bias])
    assert "differs by 200.00%" in difference([-bias, weight], [bias, weight], gradients=["k.weight"])
    assert "differs by" in difference([weight, bias * math.nan], [weight, bias], gradients=["k.weight", "k.bias"])
    for other, named in ((weight, "head.weight"), (weight * math.inf, "k.weight")):
        assert "differs by 200.00%" in difference([other, -bias], [other, bias], gradients=[named, "k.bias"])


def test_what_two_calls_give_alike_is_not_taken_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a gigabyte would be several."""
    looked: list[int] = []
    known = _compared.relative_error
    monkeypatch.setattr(_compared, "relative_error", lambda one, two: looked.append(len(one)) or known(one, two))
    large, small = torch.randn(1000), torch.randn(10)
    assert difference([large, small * 1.5], [large, small], spread=[large.clone(), small * 2]) == ""
    assert set(looked) == {10}


class Dict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"a": self.a(x), "b": self.b(x), "best": self.a(x).argmax(1), "rows": len(x)}


def test_of_several_outputs_some_may_not_be_used() -> None:
    pair = Pair(Dict())
    for step in range(6):
        pair.step(batch(4, step), loss=lambda out: out["a"].sum() * (out["best"] == 0).sum() / out["rows"])
    pair.step(batch(4, 7), loss=lambda out: (out["b"] ** 2).sum())
    assert pair.graphed.replays == 7 - BEFORE and not pair.whys


class Recurrent(nn.Module):
    """Its LSTM holds its weights twice; one is used by the other layer too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.out = nn.LSTM(4, 4, num_layers=2), nn.Linear(4, 16)
        self.out.weight = self.lstm.weight_ih_l0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])  # type: ignore[no-any-return]


@torch.backends.mkldnn.flags(enabled=False)  # type: ignore[untyped-decorator]
def test_weights_that_are_held_twice() -> None:
    """Without oneDNN, whose LSTM looks whether gradients are on, which the faked replay has off."""
    pair = Pair(Recurrent())
    flat = list(pair.model.lstm._flat_weights)
    losses: list[torch.Tensor] = []  # whose graphs stay alive

    def loss(y: torch.Tensor) -> torch.Tensor:
        losses.append((y**2).mean())
        return losses[-1]

    for step in range(6):
        pair.step(batch(4, step), loss=loss)
    assert not pair.whys and pair.graphed.replays
    assert all(one is other for one, other in zip(flat, pair.model.lstm._flat_weights, strict=True))
    assert all(one is other for one, other in zip(flat, pair.model.lstm.parameters(), strict=True))


class Wearing(nn.Module):
    """Its forward writes to a parameter, as embeddings with a largest norm do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.mul_(0.9)
        return self.layer(x) * self.scale  # type: ignore[no-any-return]


def test_what_a_forward_writes_to_a_parameter_is_written_once_a_step() -> None:
    pair = Pair(Wearing())
    for step in range(7):
        pair.step(batch(4, step))
    assert pair.graphed.replays == 7 - BEFORE and not pair.whys


class Own(nn.Parameter):
    pass


def test_parameters_of_a_class_of_their_own_are_left_alone() -> None:
    model = mlp()
    model[0].weight = Own(torch.ones(8, 4))
    pair = Pair(model)
    for step in range(5):
        pair.graphed(batch(4, step)).sum().backward()
    assert pair.graphed.replays == 0 and "it contains a tensor of class Own" in pair.whys[0]


def test_a_functional_call_is_left_alone() -> None:
    """Its parameters are what the script computed."""
    model = nn.Linear(4, 3)
    pair = Pair(model)
    own = {name: p.detach() * 1 for name, p in model.named_parameters()}
    with torch.nn.utils.stateless._reparametrize_module(model, own):
        pair.graphed(batch(4, 0))
    assert "its parameters are of a class of their own" in pair.whys[0]


class Odd(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.calls, self.seen = nn.Linear(4, 3), how, 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "writes":
            x.mul_(1.0)
        y = self.layer(x)
        if self.how == "waits":
            return y * 2 if y.sum() > 0 else y
        if self.how == "counts":
            self.calls += 1
        if self.how == "draws":
            return y + torch.rand(3)
        if self.how == "leaves":
            self.seen = y.detach().clone()  # type: ignore[assignment]
        return y


WHYS = {
    "waits": "waits for the device", "counts": "changes numbers", "draws": "draws random numbers on the host",
    "leaves": "leaves new tensors", "writes": "writes to its arguments",
}  # fmt: skip


@pytest.mark.parametrize("how", WHYS)
def test_what_a_replay_would_leave_out_is_seen(how: str) -> None:
    pair = Pair(Odd(how))
    for step in range(5):
        (pair.graphed(batch(4, step)) ** 2).sum().backward()
    assert pair.graphed.replays == 0 and len(pair.whys) == 1 and WHYS[how] in pair.whys[0]


class Indexed(nn.Module):
    """how: to index by."""

    def __init__(self, how: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inside, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.inside(x)[self.how(lengths)]


@pytest.mark.parametrize(("how", "why"), [
    (lambda lengths: lengths, ""),
    (lambda lengths: torch.cat([lengths, lengths]) > 0, "the host waits for the device in it (aten::index)"),
    (lambda lengths: lengths.tolist(), "the host waits for the device in it (tolist)"),
    (lambda lengths: slice(int(lengths.numpy()[0])), "the host waits for the device in it (numpy)"),
])  # fmt: skip
def test_rows_may_be_taken_by_integers_of_arguments(how: Callable[[torch.Tensor], Any], why: str) -> None:
    """They are as many as these; values of arguments must not become a part of the record."""
    model, whys = Indexed(how), list[str]()
    forward = recorded(model, model._call_impl, whys)
    for step in range(BEFORE + 3):
        x, lengths = torch.randn(4, 4), torch.tensor([step % 3, 1])
        assert torch.equal(forward(x, lengths), model(x, lengths) if why else model.inside(x)[lengths])
    assert whys == ([why] if why else []) and bool(forward.replays) is not bool(why)


OUTSIDE = torch.tensor([0, 1])


@pytest.mark.parametrize("form", [lambda x: x[:, OUTSIDE], lambda x: x[:, torch.tensor([0, 1]) + 1]])
def test_a_copy_to_the_device_is_a_wait(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The meta device stands for the other one."""
    effects = watched(nn.Linear(4, 4), form, (torch.randn(4, 4, device="meta"),), {})[1]
    assert "aten::index" in effects.waits and not effects.odd


class Lazy(nn.Module):
    """Makes its scale in the first call, or in so many of the first, and for another number of rows."""

    def __init__(self, each: int = 0) -> None:
        super().__init__()
        self.layer, self.first = nn.Linear(4, 3), iter(range(each))
        self.scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = next(self.first, None) is not None
        if again or self.scale is None or len(self.scale) != len(x):
            self.scale = torch.full((len(x), 1), 2.0 + float(torch.ones(()).item()))
        return self.layer(x) * self.scale  # type: ignore[no-any-return]


def test_what_only_a_first_forward_does_is_looked_at_again() -> None:
    """A public language model makes its mask there, on the host."""
    pair = Pair(Lazy()).trained(4, steps=BEFORE + 4)
    assert not pair.whys and pair.graphed.replays == 3 and pair.captures == 2
    pair.trained(6, steps=BEFORE + 3)
    assert not pair.whys and pair.graphed.replays == 3 + 2 and pair.captures == 4


@pytest.mark.parametrize("each", [2, 3])
def test_what_the_first_three_do_is_believed(each: int) -> None:
    pair = Pair(Lazy(each)).trained(4, steps=each + 4)
    assert pair.whys == (["the host waits for the device in it (aten::_local_scalar_dense)"] if each == 3 else [])
    assert pair.graphed.replays == (0 if each == 3 else 1)


class Island(nn.Module):
    """A layer in float32 whatever autocast is on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return self.second(x.float())  # type: ignore[no-any-return]


def test_a_backward_is_recorded_outside_of_the_autocast_around_the_forward() -> None:
    """As the script calls it: else layers that are kept in float32 get a backward in half precision."""
    pair = Pair(Island())
    for number in range(BEFORE + 4):
        for forward, optimizer in pair.ways:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = forward(batch(4, number))
            output.square().mean().backward()
            optimizer.step()
        pair.same()
    assert not pair.whys and pair.graphed.replays == 4


class Unlike(nn.Module):
    """A function whose backward is another at each call, which no record can be."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Shifting.apply(x * self.weight)  # type: ignore[no-any-return,no-untyped-call]


class Shifting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        Shifting.calls += 1
        return g * Shifting.calls


def test_a_replay_that_gives_other_gradients_is_not_used() -> None:
    pair = Pair(Unlike())
    for step in range(5):
        pair.graphed(batch(4, step)).sum().backward()
    assert pair.graphed.replays == 0 and "differs by" in pair.whys[0]


class Rare(nn.Module):
    """What a forward may do that no record of it would."""

    scale = 1.0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how
        self.own = random.Random(0) if how == "own generator" else None

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        y = self.layer(x)
        if self.how == "hook inside":
            y.register_hook(lambda _: SEEN.append(0))
        if self.how == "same argument":
            return y if other is x else y * 2
        if self.how == "overlap":
            return y, y[:, 0]
        if self.how == "sparse":
            return self.layer(torch.sparse.mm(torch.eye(4).to_sparse(), x))
        if self.how == "no modes" and torch._C._len_torch_dispatch_stack():
            raise NotImplementedError("no rule for this mode")
        if self.own is not None:
            return y * (2 if self.own.random() < 0.05 else 1)
        return y * getattr(x, "scale", 1.0) * OUTER["scale"] * Rare.scale


SEEN: list[int] = []
OUTER = {"scale": 1.0}
RARE = {
    "hook inside": "hooks", "same argument": "differs by", "overlap": "part of the other", "sparse": "layout",
    "no modes": "no rule for this mode",
    "own generator": "a generator or an iterator", "attribute": "attributes of their own",
    "parameter hook": "parameters have hooks", "backward hook": "hooks",
}  # fmt: skip


def rare_loss(how: str, forward: Any, step: int) -> Any:
    x = batch(4, step)
    if how == "attribute":
        x.scale = step  # type: ignore[attr-defined]
    y = forward(x, x) if how == "same argument" else forward(x)
    if how == "overlap":
        y[0].mul_(2.0)
        return y[1].sum()
    return (y**2).mean()


@pytest.mark.parametrize("how", RARE)
def test_what_a_replay_would_do_otherwise_is_left_alone(how: str) -> None:
    pair = Pair(Rare(how))
    counts = []
    for model in (pair.model, pair.twin):
        seen: list[int] = []
        counts.append(seen)
        if how == "parameter hook":
            model.layer.weight.register_hook(lambda _, seen=seen: seen.append(0))
        if how == "backward hook":
            model.layer.register_full_backward_hook(lambda *_, seen=seen: seen.append(0))
    for step in range(6):
        losses = []
        for (forward, optimizer), seen in zip(pair.ways, counts, strict=True):
            SEEN.clear()
            optimizer.zero_grad()
            losses.append(rare_loss(how, forward, step))
            losses[-1].backward()
            optimizer.step()
            seen.extend(SEEN)
        assert torch.equal(*losses)
        pair.same()
    assert len(counts[0]) == len(counts[1]) and pair.graphed.replays == 0
    assert len(pair.whys) == 1 and RARE[how] in pair.whys[0]
    assert not pair.graphed.buckets and pair.graphed._model is None and not pair.graphed._places


def test_numbers_that_its_code_reads_elsewhere_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Rare("")).trained(4, steps=BEFORE + 1)
    monkeypatch.setitem(OUTER, "scale", 0.5)
    pair.trained(4, steps=BEFORE + 1)
    monkeypatch.setattr(Rare, "scale", 2.0)
    pair.trained(4, steps=BEFORE + 1)
    assert pair.captures == 6 and not pair.whys


def test_a_parameter_that_is_cut_where_it_lies_is_another() -> None:
    pair = Pair(nn.Linear(4, 3)).trained(4, steps=BEFORE + 1)
    for model, optimizer in zip((pair.model, pair.twin), pair.optimizers, strict=True):
        model.weight.data, model.bias.data = model.weight.data[:2], model.bias.data[:2]
        optimizer.zero_grad()
        optimizer.state.clear()
    pair.trained(4, steps=BEFORE + 1)
    assert pair.captures == 4 and not pair.whys


@pytest.mark.parametrize("before", [0, BEFORE + 1])
def test_gradients_that_are_differentiated_again(before: int) -> None:
    pair = Pair(mlp()).trained(4, steps=before)
    for step in range(3):
        for (forward, optimizer), model in zip(pair.ways, (pair.model, pair.twin), strict=True):
            optimizer.zero_grad()
            value = (forward(batch(4, step)) ** 2).mean()
            slopes = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
            (value + sum((slope**2).sum() for slope in slopes)).backward()
            optimizer.step()
        both = zip(pair.model.parameters(), pair.twin.parameters(), strict=True)
        assert all(torch.allclose(p, q, atol=1e-6) for p, q in both)
    assert pair.whys == [TWICE]


def around(how: str, forward: Any, x: torch.Tensor) -> torch.Tensor:
    if how == "checkpoint":
        y = checkpoint(forward, x, use_reentrant=False)
    elif how == "offload":
        with torch.autograd.graph.save_on_cpu():
            y = forward(x)
    elif how == "vmap":
        y = torch.vmap(forward)(x[None])
    else:
        with torch.autograd.forward_ad.dual_level():
            y = torch.autograd.forward_ad.unpack_dual(forward(torch.autograd.forward_ad.make_dual(x, x))).tangent
    return (y**2).mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["checkpoint", "offload", "vmap", "dual"])
def test_what_stands_around_a_call_is_not_passed_by(how: str) -> None:
    pair = Pair(mlp()).trained(4)
    for step in range(5):
        for forward, optimizer in pair.ways:
            optimizer.zero_grad()
            around(how, forward, batch(4, step)).backward()
            optimizer.step()
        pair.same()
    pair.step(batch(4, 9))
    assert pair.graphed.replays == 1 and not pair.whys


def test_threads_that_train_one_model_do_not_meet() -> None:
    pair = Pair(mlp()).trained(4)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for step in range(5):
                pair.graphed(batch(4, step)).sum().backward()
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_modules_that_keep_account_of_backwards_outside_of_python_are_left_alone() -> None:
    class Synced(nn.Linear):
        __module__ = "torch.nn.parallel.distributed"

    pair = Pair(Synced(4, 3)).trained(4, steps=5)
    assert pair.whys == ["it exchanges gradients with other processes"]


@torch.backends.mkldnn.flags(enabled=False)  # type: ignore[untyped-decorator]
@pytest.mark.parametrize("error", [RuntimeError, OSError, ZeroDivisionError])
@pytest.mark.parametrize("at", [0, 1])
def test_a_recording_that_fails_half_way_leaves_no_trace(error: type[Exception], at: int) -> None:
    pair = Pair(Recurrent())
    lstm = pair.model.lstm
    held = [[*pair.model.parameters()], [*lstm._flat_weights]]
    own = pair.device.capture

    def fail(work: Callable[[], None]) -> Callable[[], None]:
        replay = own(work)
        if pair.captures == at + 1:
            raise error("half way")
        return replay

    pair.device.capture = fail
    pair.trained(4, steps=5)
    for was, now in zip(held, [pair.model.parameters(), lstm._flat_weights], strict=True):
        assert all(one is other for one, other in zip(was, now, strict=True))
    assert all(one() is other for one, other in zip(lstm._flat_weight_refs, lstm._flat_weights, strict=True))
    assert pair.whys == ["it could not be captured: half way"]
    assert not pair.graphed.buckets and pair.graphed._model is None


def test_memory_is_given_back_and_enough_is_there_before() -> None:
    pair = Pair(mlp()).trained(4, steps=BEFORE + 1)
    kept = [weakref.ref(bucket) for bucket in pair.graphed.buckets.values()]
    pair.graphed._give_up("enough")
    pair.recorders.clear()
    gc.collect()
    assert [one() for one in kept] == [None]
    pair = Pair(mlp())
    pair.device.has_room = lambda: False
    pair.trained(4, steps=5)
    assert pair.captures == 0 and "no room" in pair.whys[0]


def test_what_can_not_be_captured_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(mlp(norm=True))

    def fail(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    pair.device.capture = fail
    pair.trained(4, steps=5)
    assert pair.whys == ["it could not be captured: operation not permitted when stream is capturing"]


def test_where_it_applies() -> None:
    assert not LEVER.applies(context(False)).yes


class Made(SimpleNamespace):
    """One that can be referred to weakly."""


def test_it_leaves_itself_out_once_no_model_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    wraps: list[Any] = []
    seams: Any = SimpleNamespace(
        unsteady=lambda: None,
        wrap_forward=lambda wrap, order: wraps.append(wrap),
        leave_out=lambda name, why: said.append(("left out", why)),
        refuse=lambda name, why: said.append(("refused", why)),
    )
    made: list[Any] = []

    def graphed(module: Any, forward: Any, unsteady: Any, gave_up: Callable[[str], None]) -> Any:
        made.append(Made(given_up=False, replays=0, gave_up=gave_up))
        return made[-1]

    monkeypatch.setattr(graph_training, "graphed", graphed)
    LEVER.install(seams, {})
    for _ in range(2):
        wraps[0](None, "forward")
    made[0].given_up = True
    made[0].gave_up("hooks")
    assert not said, "the other goes on"
    made[1].given_up = True
    made[1].gave_up("waits")
    assert said == [("left out", "waits")] and wraps[0](None, "forward") == "forward"
    LEVER.install(seams, {})
    wraps[1](None, "forward")
    made[2].given_up, made[2].replays = True, 7
    made[2].gave_up("changed")
    assert said[-1] == ("refused", "changed"), "what was replayed stays in the run"


def test_a_torch_that_lacks_what_calls_are_looked_at_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.agent import torch_internals
    from hotlap.agent.seams import Refused

    assert torch_internals.missing_for_replays() == ""
    monkeypatch.setattr(torch_internals, "LACKING", {"_C._functorch.peek_interpreter_stack"})
    wraps: list[Any] = []
    LEVER.install(SimpleNamespace(wrap_forward=lambda wrap, order: wraps.append(wrap)), {})  # type: ignore[arg-type]
    with pytest.raises(Refused, match="peek_interpreter_stack"):
        wraps[0](None, "forward")


def test_the_gradient_that_a_recording_is_made_with_lies_as_the_output_does() -> None:
    """A compiled backward copies one that does not."""
    rows = torch.zeros(4, 64)[:, :17]
    assert waves(rows).stride() == (64, 1) and torch.equal(waves(rows), waves(rows.contiguous()))
    for shared in (torch.zeros(3, 1).expand(3, 5), torch.zeros(10).as_strided((4, 4), (1, 2))):
        assert waves(shared).is_contiguous()


def rebind(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight + 1)


def swap(model: Any) -> None:
    model[3] = copy.deepcopy(model[3])


def set_data(model: Any) -> None:
    model[0].weight.data = model[0].weight.data + 1


def change_number(model: Any) -> None:
    model[2].eps = 0.5


CHANGES = [rebind, swap, set_data, change_number]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_is_recorded_anew(change: Callable[[Any], None]) -> None:
    pair = Pair(mlp())
    for again in range(2):
        pair.trained(2, steps=BEFORE + 2)
        assert pair.captures == 2 * (again + 1) and pair.graphed.replays == 2 * (again + 1)
        for model in (pair.model, pair.twin):
            change(model)


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
    "forward": lambda model: setattr(model.layer, "forward", lambda x: (x @ model.layer.weight.mT).exp()),
    "new number": lambda model: setattr(model, "more", 3.0),
    "list": lambda model: model.steps.__setitem__(0, 5.0),
    "config": lambda model: setattr(model.config, "scale", 2.0),
}


@pytest.mark.parametrize("change", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("calls", [1, BEFORE + 1], ids=["watched", "recorded"])
def test_what_a_model_holds_beside_tensors_is_looked_at(change: Callable[[Any], Any], calls: int) -> None:
    pair = Pair(Tunable()).trained(2, steps=calls)
    for model in (pair.model, pair.twin):
        change(model)
    pair.trained(2, steps=BEFORE + 2)
    assert pair.graphed.replays == calls // BEFORE + 2 and not pair.whys


def test_relative_error() -> None:
    x = torch.tensor([3.0, 4.0, math.inf])
    assert relative_error(x, x) == 0.0
    assert relative_error(x + torch.tensor([0.0, 0.5, 0.0]), x) == pytest.approx(0.1)
    assert math.isnan(relative_error(torch.tensor([math.nan, 1.0]), torch.ones(2)))


def test_streams_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pools = mlp(), []
    handles, streams = iter(range(9)), iter([7, 7, 8, 7])
    monkeypatch.setattr(nn.Module, "parameters", lambda self: [SimpleNamespace(device=torch.device("cuda", 0))])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=next(streams)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(_device, "capture", lambda work, device, pool, aside: pools.append(pool))
    graphed = graph_training.graphed(model, model, lambda: None, lambda why: None)
    for _ in range(4):
        graphed._device.capture(lambda: None)
    assert pools == [0, 0, 0, 1, 1, 0]  # the first of each keeps the pool
