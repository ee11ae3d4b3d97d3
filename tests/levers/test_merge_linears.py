"""Linear layers that share an input as one product: on the CPU, graphs run eagerly."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import attention_forms
import pytest
import torch
import torch.nn.functional as F
from contexts import ROOT, context
from msgspec.structs import replace
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from agent.harness import NO_KERNELS, Runner, check_clean
from hotlap.agent.siblings import siblings
from hotlap.levers import _graph, _linear_groups, _merged_linears, graph_training
from hotlap.levers._merged_linears import Made, Report, rewrite
from hotlap.levers.attention import LEVER as ATTENTION
from hotlap.levers.compile import _compiled
from hotlap.levers.merge_linears import LEVER, PATIENCE
from hotlap.records.run import Lever

B, T, C, H = 2, 8, 16, 4
Form = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    _graph.PASSES.clear()


class Attention(nn.Module):
    """By hand, with a layer each for query, key and value. dropout: of its result."""

    def __init__(self, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(C, C, bias=bias) for _ in range(3))
        self.out = nn.Linear(C, C)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(T, T).tril().bool())

    def heads(self, x: Any) -> Any:
        return x.view(*x.shape[:2], H, C // H).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = (q @ k.transpose(-2, -1) / (C // H) ** 0.5).masked_fill(~self.mask, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(x.shape)
        return self.dropout(self.out(y))


class Block(nn.Module):
    """With a gated MLP, as Llama has."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attend = Attention(**options)
        self.norm, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.gate, self.up = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, 3 * C, bias=False)
        self.down = nn.Linear(3 * C, C, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.norm(x))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, layers: int = 2, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(**options) for _ in range(layers)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Merged:
    """A function whose captured graphs are changed and run."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.reports: list[Report] = []
        self.graphs: list[Any] = []
        self.call = torch.compile(function, backend=self.backend, **options)

    def backend(self, graph_module: Any, inputs: list[Any]) -> Any:
        self.reports.append(rewrite(graph_module, inputs))
        self.graphs.append(graph_module)
        return graph_module.forward

    @property
    def report(self) -> Report:
        assert len(self.reports) == 1
        return self.reports[0]

    def linears(self) -> int:
        every = [inner for graph in self.graphs for inner in graph.modules() if hasattr(inner, "graph")]
        return sum(node.target is F.linear for graph in every for node in graph.graph.nodes)


def products(call: Any, x: Any) -> int:
    """Products of matrices in a forward and its backward. (Under a dispatch mode Dynamo would step aside.)"""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(x.clone().requires_grad_()).sum().backward()
    return sum(one.count for one in profile.key_averages() if one.key in {"aten::mm", "aten::addmm"})


def outcome(call: Any, module: Any, x: Any) -> list[Any]:
    """What a module returns and the gradients of its input and parameters."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = call(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return [out.detach(), x.grad, *[None if p.grad is None else p.grad.clone() for p in module.parameters()]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_every_gradient_are_those_of_the_model(bias: bool, training: bool) -> None:
    module = Model(bias=bias).double().train(training)
    x, merged = torch.randn(B, T, C).double(), Merged(module.forward)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    expected, got = outcome(module, module, x), outcome(merged.call, module, x)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
    assert merged.report == Report(groups=4, layers=10)
    assert merged.linears() == 2 * (7 - 3)
    assert list(state) == list(module.state_dict()) and all(torch.equal(state[n], t) for n, t in
                                                           module.state_dict().items())  # fmt: skip


def test_products_are_fewer_forward_and_backward() -> None:
    module = Model(layers=1)
    x, merged = torch.randn(B, T, C), Merged(module.forward)
    merged.call(x.clone().requires_grad_())
    assert products(module, x) == 3 * 7, "a forward's product has two in the backward"
    assert products(merged.call, x) == 3 * 4


def test_without_gradients_and_with_the_backward_of_a_compiler() -> None:
    module = Model(layers=1).double()
    x = torch.randn(B, T, C).double()
    _graph.PASSES.append(lambda graph, inputs: reports.append(rewrite(graph, inputs)))
    reports: list[Report] = []
    compiled = _graph.Compiled(module.forward, "default")
    torch.testing.assert_close(outcome(compiled, module, x), outcome(module, module, x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert [report.layers for report in reports] == [5, 5]


def test_weights_that_the_optimizer_changes_are_seen() -> None:
    module, twin = Model(layers=1).double(), Model(layers=1).double()
    twin.load_state_dict(module.state_dict())
    merged = Merged(module.forward)
    for own, call in ((module, merged.call), (twin, twin)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            call(torch.randn(B, T, C).double()).square().sum().backward()
            optimizer.step()
    assert merged.report.groups == 2
    torch.testing.assert_close(list(module.parameters()), list(twin.parameters()), rtol=1e-8, atol=1e-10)


def test_dropout_draws_the_same_numbers_and_no_other_are_drawn() -> None:
    module = Model(dropout=0.5).double()
    x, merged = torch.randn(B, T, C).double(), Merged(module.forward)
    results = []
    for call in (module, merged.call):
        torch.manual_seed(3)
        results.append([outcome(call, module, x), torch.get_rng_state()])
    torch.testing.assert_close(results[0], results[1], rtol=1e-11, atol=1e-12)
    assert merged.report.groups == 4


@pytest.mark.parametrize("inside", [True, False], ids=["autocast inside", "autocast outside"])
def test_under_autocast_it_is_no_farther_from_float32(inside: bool) -> None:
    module = Model(layers=1)
    x = torch.randn(B, T, C)

    def half(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)

    merged = Merged(half if inside else module.forward)
    call = merged.call if inside else torch.autocast("cpu", dtype=torch.bfloat16)(merged.call)
    exact, own, got = (outcome(one, module, x) for one in (module, half, call))
    assert merged.report.groups == 2 and not merged.report.unchecked
    for one, two, best in zip(own, got, exact, strict=True):
        assert one.dtype == two.dtype
        size = best.norm().clamp(min=1e-3)
        assert (two.float() - best).norm() / size < 0.01 + 1.5 * (one.float() - best).norm() / size


def test_sizes_that_vary() -> None:
    module = Model(layers=1).double()
    module.blocks[0].attend.mask = torch.ones(1, 1, dtype=torch.bool)
    merged = Merged(module.forward, dynamic=True)
    for rows in (T, T + 1, T + 5):
        x = torch.randn(B, rows, C).double()
        torch.testing.assert_close(outcome(merged.call, module, x), outcome(module, module, x))
    assert merged.report.groups == 2, "and one graph serves all"


def test_inside_a_checkpoint() -> None:
    module = Model(layers=1).double()
    merged = Merged(lambda x: checkpoint(module, x, use_reentrant=False))
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(outcome(merged.call, module, x), outcome(module, module, x))
    assert merged.report.groups == 2 and merged.linears() == 4


class Layers(nn.Module):
    """Three layers, and what a form does with them."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)
        self.plain = nn.Linear(C, C, bias=False)
        self.form = form

    def forward(self, x: Any) -> Any:
        return self.form(self, x)


def merged_and_alike(form: Form, change: Callable[[Any], Any] = lambda module: None) -> Merged:
    """A form's graphs, once its outputs and gradients are the same."""
    module = Layers(form).double()
    change(module)
    x, merged = torch.randn(B, T, C).double(), Merged(module.forward)
    torch.testing.assert_close(outcome(merged.call, module, x), outcome(module, module, x), rtol=1e-11, atol=1e-12)
    return merged


def relu_in_place(m: Any, x: Any) -> Any:
    return F.relu(m.a(x), inplace=True) + m.c(x)


def relu_in_place_by_position(m: Any, x: Any) -> Any:
    return F.relu(m.a(x), True) + m.c(x)


def scaled_in_place(m: Any, x: Any) -> Any:
    a, c = m.a(x), m.c(x)
    a.view(B, T, H, -1).mul_(0.5)
    return a + c


def written_between(m: Any, x: Any) -> Any:
    x = x * 2
    a = m.a(x)
    with torch.no_grad():
        x.add_(1)
    return a.detach() + m.c(x)


def set_between(m: Any, x: Any) -> Any:
    x = x.clone()
    a = m.a(x).detach()
    x[:, 0] = 1
    return a + m.c(x)


def weight_written_between(m: Any, x: Any) -> Any:
    a = m.a(x).detach()
    with torch.no_grad():
        m.c.weight.mul_(1.0)
    return a + m.c(x)


def without_gradients_between(m: Any, x: Any) -> Any:
    with torch.no_grad():
        a = m.a(x)
    return a + m.c(x)


def autocast_between(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = m.a(x)
    return a + m.c(x)


def given_back(m: Any, x: Any) -> Any:
    a = m.a(x)
    m.kept = a
    return a + m.c(x)


def strides(m: Any, x: Any) -> Any:
    a, c = m.a(x), m.c(x)
    return a.as_strided((B, T, C), (T * C, C, 1)) + c


def flat(m: Any, x: Any) -> Any:
    return m.a(x).view(-1) + m.c(x).view(-1)


def not_learning(m: Any, x: Any) -> Any:
    return (m.a(x) * 2).detach() + m.c(x)


def not_learning_inside(m: Any, x: Any) -> Any:
    return checkpoint(not_learning, m, x, use_reentrant=False)


REFUSED: dict[Form, str] = {
    relu_in_place: "between",
    relu_in_place_by_position: "between",
    scaled_in_place: "in place",
    written_between: "between",
    set_between: "between",
    weight_written_between: "between",
    without_gradients_between: "between",
    autocast_between: "between",
    given_back: "leaves the graph",
    strides: "as_strided may look at how an output lies",
    not_learning: "no gradient reaches a layer",
    not_learning_inside: "no gradient reaches a layer",
    flat: "view needs an output that lies in one piece",
    lambda m, x: m.a(x) + m.plain(x): "some have a bias and some none",
    lambda m, x: m.a(x) + m.a(x): "called twice",
    lambda m, x: m.a(x) + F.linear(x, m.c.weight * 2, m.c.bias): "a weight is computed",
    lambda m, x: m.a(x) + F.linear(x, m.c.weight[:1], m.c.bias[:1]): "a weight is computed",
}


@pytest.mark.parametrize("form", REFUSED, ids=lambda form: form.__name__)
def test_what_can_not_be_merged_is_left_alone(form: Any) -> None:
    merged = merged_and_alike(form)
    assert not merged.report.groups and REFUSED[form] in "; ".join(merged.report.left), merged.report
    assert merged.linears() == 2


def chunked(m: Any, x: Any) -> Any:
    one, two = m.b(x).chunk(2, dim=-1)
    return one * two.sigmoid() + m.a(x)


def rows_together(m: Any, x: Any) -> Any:
    return (m.a(x).view(-1, C) + m.c(x).flatten(0, 1)).view(B, T, C)


def kept_only_for_a_while(m: Any, x: Any) -> Any:
    m.kept = m.a(x) * 2
    return m.kept + m.c(x).reshape(-1).view(B, T, C)


def of_one_dimension(m: Any, x: Any) -> Any:
    row = x[0, 0]
    return m.a(row) + m.c(row)


def written_after(m: Any, x: Any) -> Any:
    y = m.a(x) * m.c(x)
    y += 1
    return y


def used_elsewhere(m: Any, x: Any) -> Any:
    a = m.a(x)
    return a + m.c(x) + m.a(a)


@pytest.mark.parametrize("form", [chunked, rows_together, kept_only_for_a_while, of_one_dimension, written_after,
                                  used_elsewhere])  # fmt: skip
def test_what_can_be_merged_is(form: Any) -> None:
    merged = merged_and_alike(form)
    assert merged.report.groups == 1 and merged.report.layers == 2 and not merged.report.left


def test_of_three_layers_the_one_that_is_written_stays() -> None:
    def form(m: Any, x: Any) -> Any:
        a, c, b = m.a(x), m.c(x), m.b(x)
        a += 1
        return a + c + b[..., :C]

    merged = merged_and_alike(form)
    assert merged.report.layers == 2 and merged.report.left == ["an output is written in place"]


def test_a_frozen_layer_is_not_merged_with_one_that_learns() -> None:
    """A gradient would be computed for it."""
    merged = merged_and_alike(lambda m, x: m.a(x) + m.c(x), lambda m: m.a.requires_grad_(False))
    assert not merged.report.groups and "kind" in merged.report.left[0]


def test_many_layers_are_parted_into_groups() -> None:
    layers = nn.ModuleList([nn.Linear(C, 4) for _ in range(10)]).double()
    merged = Merged(lambda x: sum(layer(x) for layer in layers))
    x = torch.randn(3, C).double()
    torch.testing.assert_close(merged.call(x), sum(layer(x) for layer in layers))
    assert (merged.report.groups, merged.report.layers, merged.linears()) == (2, 10, 2)


def test_weights_of_different_types() -> None:
    def form(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.a(x) + m.c(x)

    module = Layers(form)
    module.c.to(torch.bfloat16)
    merged = Merged(module.forward)
    x = torch.randn(B, T, C)
    assert torch.equal(merged.call(x), module(x))
    assert not merged.report.groups and merged.linears() == 2


class Other(torch.Tensor):
    """A class of its own."""


def test_weights_of_another_class() -> None:
    module = Layers(lambda m, x: m.a(x) + m.c(x))
    module.a.weight = nn.Parameter(torch.randn(C, C).as_subclass(Other))
    merged = Merged(module.forward)
    x = torch.randn(B, T, C)
    torch.testing.assert_close(merged.call(x).as_subclass(torch.Tensor), module(x).as_subclass(torch.Tensor))
    assert not any(report.groups for report in merged.reports)


@pytest.mark.parametrize(("rows", "merges"), [(4, False), (64, True)])
def test_large_weights_want_many_rows(rows: int, merges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_merged_linears, "SMALL", 2 * C * C - 1)
    module = Layers(lambda m, x: m.a(x) + m.c(x))
    merged = Merged(module.forward)
    merged.call(torch.randn(rows, C))
    assert merged.report.groups == merges
    assert merged.report.left == ([] if merges else ["the weights are larger than what is saved of the input"])


def test_a_wrong_form_is_caught_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Made.product
    monkeypatch.setattr(Made, "product", lambda made, layers: right(made, layers)[::-1])
    merged = merged_and_alike(lambda m, x: m.a(x) + m.c(x))
    assert not merged.report.groups and "differ by" in merged.report.left[0] and merged.linears() == 2
    assert not any(node.target is torch.cat for node in merged.graphs[0].graph.nodes), "it is taken out again"


def test_what_can_not_be_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(_merged_linears, "differs", out_of_memory)
    merged = merged_and_alike(lambda m, x: m.a(x) + m.c(x))
    assert merged.report.groups == 1 and merged.report.unchecked == ["CUDA out of memory"]


@torch.library.custom_op("hotlap_tests::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1, x.shape[-1]).clone().view(x.shape)


@rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_the_scripts_may_look_at_strides() -> None:
    module = Layers(lambda m, x: rows(m.a(x)) + m.c(x))
    merged = Merged(module.forward)
    with torch.no_grad():
        merged.call(torch.randn(B, T, C))
    assert not merged.report.groups


@pytest.mark.parametrize("source", [
    "x.add_(1)", "x.__iadd__(1)", "operator.iadd(x, 1)", "operator.setitem(x, 0, 1)", "operator.ixor(x, 1)",
    "F.dropout(x, 0.5, True, True)", "torch.add(x, 1, out=x)", "torch._foreach_add_([x], 1)",
    "F.embedding(x, x, None, 1.0)", "torch._C._set_grad_enabled(False)", "torch.ops.aten.add_.Tensor(x, 1)",
])  # fmt: skip
def test_changes_are_told(source: str) -> None:
    assert _linear_groups.changes(node_of(source))


@pytest.mark.parametrize("source", [
    "x.add(1)", "operator.and_(x, 1)", "x.__invert__()", "operator.index(x)", "F.dropout(x, 0.5, True)",
    "F.embedding(x, x)", "torch.ops.aten.add.Tensor(x, 1)", "x.int()", "torch.isin(x, x)", "torch.imag(x)",
    "operator.invert(x)", "x.__index__()",
])  # fmt: skip
def test_other_operators_change_nothing(source: str) -> None:
    assert not _linear_groups.changes(node_of(source))


def node_of(source: str) -> Any:
    """A node of a graph, written as a call."""
    import ast
    import operator

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    names = {"x": x, "torch": torch, "F": F, "operator": operator}

    def value(part: ast.expr) -> Any:
        return eval(compile(ast.Expression(part), "", "eval"), names)

    args = tuple(value(part) for part in call.args)
    kwargs = {str(part.arg): value(part.value) for part in call.keywords}
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "x":
        return graph.call_method(call.func.attr, (x, *args), kwargs)
    return graph.call_function(value(call.func), args, kwargs)


# The lever


class Seams:
    """As the agent's, for one lever."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.left_out: list[str] = []
        self.notes: list[Any] = []
        self.wraps: list[tuple[int, Any]] = []
        self.agent = SimpleNamespace(
            append=lambda name, line: self.notes.append(json.loads(line)),
            script=SimpleNamespace(empty_blocks=lambda *_: None),
        )

    def switch(self, on: Any, off: Any) -> None:
        on()

    def wrap_forward(self, wrap: Any, order: int) -> None:
        self.wraps.append((order, wrap))

    def wrap(self, module: Any, forward: Any) -> Any:
        return around(module, forward, self.wraps)

    def refuse(self, lever: str, why: str) -> None:
        self.refused.append(why)

    def leave_out(self, lever: str, why: str) -> None:
        self.left_out.append(why)


def around(module: Any, forward: Any, wraps: list[tuple[int, Any]]) -> Any:
    for _, wrap in sorted(wraps, key=lambda one: one[0]):
        forward = wrap(module, forward)
    return forward


def put_in(
    module: Any, *levers: Any, mode: str | None = None, others: tuple[tuple[int, Any], ...] = ()
) -> tuple[Any, list[Seams]]:
    """A forward with levers around it, by their order. mode: of what `compile` makes; None: graphs run eagerly. others:
    wrappers of other levers, with their orders."""
    seams = []
    for lever in levers:
        seams.append(Seams())
        lever.install(seams[-1], {})
    forward = module.forward if mode is None else _compiled(module, module.forward, mode)
    if mode is None:
        inner = _graph.Compiled(module.forward, None)

        def forward(*args: Any) -> Any:
            return inner(*args)

        forward.compiled = inner  # type: ignore[attr-defined]
    return around(module, forward, [*others, *(wrap for own in seams for wrap in own.wraps)]), seams


@pytest.mark.parametrize("first", [LEVER, ATTENTION], ids=lambda lever: lever.name)
def test_with_attention_in_either_order_both_take_hold(first: Any) -> None:
    module = Model().double()
    second = ATTENTION if first is LEVER else LEVER
    forward, seams = put_in(module, first, second)
    _graph.PASSES.append(lambda graph, _: graphs.append(graph.graph))
    graphs: list[Any] = []
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(outcome(forward, module, x), outcome(module, module, x))
    targets = [node.target for node in graphs[0].nodes]
    assert targets.count(F.scaled_dot_product_attention) == 2 and targets.count(F.linear) == 2 * 4
    notes = {"groups" in note: note for one in seams for note in one.notes}
    assert notes[True] == {"groups": 4, "layers": 10, "left": [], "unchecked": []}
    assert notes[False]["causal"] == 2 and not notes[False]["unchecked"]
    assert not any(one.refused or one.left_out for one in seams)


def test_beside_compile() -> None:
    module = Model(layers=1).double()
    forward, (seams,) = put_in(module, LEVER, mode="default")
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(outcome(forward, module, x), outcome(module, module, x))
    assert seams.notes == [{"groups": 2, "layers": 5, "left": [], "unchecked": []}]


def replaying(module: Any, forward: Any) -> Any:
    """As a recording does: what lies within is called once."""
    outputs: list[Any] = []

    def replay(*args: Any) -> Any:
        if not outputs:
            outputs.append(forward(*args))
        return outputs[0]

    return replay


@pytest.mark.parametrize(
    ("lever", "why"), [(LEVER, "no linear layers that share"), (ATTENTION, "no hand-written attention was found")]
)
def test_that_there_is_nothing_is_said_where_forwards_are_replayed(lever: Any, why: str) -> None:
    """Seen of a tuned GPT: its recipe had merge-linears, which had merged nothing; a trial without graphs was ended."""
    x = torch.randn(attention_forms.B, attention_forms.T, attention_forms.C)
    forward, (seams,) = put_in(nn.Linear(x.shape[-1], 4), lever, others=((graph_training.ORDER, replaying),))
    for _ in range(PATIENCE + 2):
        forward(x)
    assert [said for said in (*seams.left_out, *seams.refused) if why in said]


def test_where_there_is_nothing_it_says_so_and_steps_aside() -> None:
    module = attention_forms.NanoGPT().double()
    forward, (seams,) = put_in(module, LEVER)
    x = torch.randn(attention_forms.B, attention_forms.T, attention_forms.C).double()
    for _ in range(PATIENCE + 2):
        torch.testing.assert_close(forward(x, None), module(x, None))
    assert seams.left_out == ["no linear layers that share their input were found"]


def test_what_was_left_alone_is_named() -> None:
    forward, (seams,) = put_in(Layers(flat), LEVER)
    for _ in range(PATIENCE + 2):
        forward(torch.randn(B, T, C))
    assert seams.left_out == [
        "linear layers that share their input were left alone (view needs an output that lies in one piece)"
    ]


def test_without_graphs_it_steps_aside() -> None:
    module = Layers(flat)
    seams = Seams()
    LEVER.install(seams, {})  # type: ignore[arg-type]
    forward = seams.wrap(module, module.forward)
    with torch.no_grad():
        for _ in range(PATIENCE + 2):
            forward(torch.randn(B, T, C))
    assert not seams.left_out, "an evaluation before the training is not compiled"
    for _ in range(PATIENCE):
        forward(torch.randn(B, T, C))
    assert seams.left_out == ["no graph of the model was captured, as the lever compile does"]


def test_an_error_of_its_own_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "product", lambda *_: {}["none"])
    module = Model(layers=1).double()
    forward, (seams,) = put_in(module, LEVER)
    x = torch.randn(B, T, C).double()
    assert torch.equal(forward(x), module(x))
    assert "KeyError" in seams.refused[0]


def test_it_applies_behind_compile_where_layers_stand_beside_each_other() -> None:
    root = replace(ROOT, sibling_linears=3)
    compiled = {"compile": {"mode": "default"}}
    assert LEVER.applies(context(False, compiled, roots=(root,))).yes
    assert "compile, which comes first" in LEVER.applies(context(False, roots=(root,))).why
    assert "holds two linear layers" in LEVER.applies(context(False, compiled)).why
    assert "compiles the model itself" in LEVER.applies(context(False, roots=(replace(root, compiled=True),))).why
    launch, other = (LEVER.share(context(True, bound=bound)) for bound in ("launch", "compute"))
    assert 0 < other < launch <= 0.15


def test_siblings_are_counted() -> None:
    assert siblings(Model().modules()) == 4
    assert siblings(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).modules()) == 0
    assert siblings(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]).modules()) == 0
    assert siblings(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4).half()]).modules()) == 0
    shared = nn.Linear(4, 4)
    assert siblings(nn.ModuleList([shared, shared]).modules()) == 0
    odd = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    del odd[0].weight
    assert siblings(odd.modules()) == 0


@pytest.mark.parametrize(("beside", "apart"), [("attention", 1e-4), ("bf16-autocast", 0.05)])
def test_a_script_trains_the_same(beside: str, apart: float, runner: Runner) -> None:
    """It evaluates before it trains, which is no reason to step aside."""
    levers = (Lever(name="merge-linears"), Lever(name="compile", settings={"mode": "default"}), Lever(name=beside))
    bare, ran = runner.bare("gated.py"), runner.forked("gated.py", before=NO_KERNELS, levers=levers)
    check_clean(ran)
    assert ran.losses == pytest.approx(bare.losses, rel=apart) and len(bare.losses) == 12
    assert ran.facts.roots[0].sibling_linears == 1
    notes = [json.loads(line) for line in (ran.ranks[0] / "merge-linears.jsonl").read_text().splitlines()]
    assert notes == [{"groups": 2, "layers": 5, "left": [], "unchecked": []}]


def test_flex_attention_takes_parts_of_a_product() -> None:
    def form(m: Any, x: Any) -> Any:
        q, k, v = (y.view(B, T, H, -1).transpose(1, 2) for y in (m.a(x), m.c(x), m.b(x)[..., :C]))
        return flex_attention(q, k, v).transpose(1, 2).reshape(x.shape)

    module = Layers(form)
    x, merged = torch.randn(B, T, C), Merged(module.forward)
    with torch.no_grad():
        torch.testing.assert_close(merged.call(x), module(x))
    assert merged.report.layers == 3
