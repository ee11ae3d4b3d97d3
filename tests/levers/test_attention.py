"""The rewriting of hand-written attention: on the CPU, graphs run eagerly."""

import json
import weakref
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from attention_forms import (
    T5,
    WANTED,
    Alibi,
    AnnotatedTransformer,
    B,
    Bert,
    C,
    D,
    Einsum,
    Form,
    KeyPadding,
    Llama,
    NanoGPT,
    OldGPT2WithPadding,
    Swin,
    T,
)
from contexts import ROOT, context
from torch import nn

from agent.harness import Runner
from hotlap.agent.facts.code import ModelCode, softmax_seen
from hotlap.levers import settled
from hotlap.levers.attention import _build
from hotlap.levers.attention._find import op
from hotlap.levers.attention._rewrite import Report, rewrite
from hotlap.levers.attention.attention import LEVER, PATIENCE
from hotlap.levers.compiler import _graph

NARROW = (NanoGPT, Bert, OldGPT2WithPadding, Llama, T5, Swin, Einsum, AnnotatedTransformer)
"""Forms that are also run in float32: the others do nothing that depends on the type."""


@pytest.fixture(autouse=True)
def nothing_compiled() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    _graph.PASSES.clear()


class Rewritten:
    """A module whose captured graphs are rewritten and run."""

    def __init__(self, module: Any, same_random: bool = False) -> None:
        self.module, self.held, self.reports = module, dict[Any, Any](), []
        self.same_random = same_random
        self.graphs: list[Any] = []
        reference: Any = weakref.ref(module)

        def outermost(*args: Any) -> Any:  # as the agent calls it
            return reference().forward(*args)

        self.call = torch.compile(outermost, backend=self.backend)

    def backend(self, graph_module: Any, inputs: list[Any]) -> Any:
        self.reports.append(rewrite(graph_module, inputs, [self.module], self.held, self.same_random))
        self.graphs.append(graph_module)
        return graph_module.forward

    @property
    def report(self) -> Report:
        return self.reports[-1]


def outcome(call: Any, module: Any, x: Any, padding: Any) -> list[Any]:
    """What a module returns and the gradients of its input and weights."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = call(x, padding)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in module.parameters()]
    return [out.detach(), x.grad, *[g.clone() for g in gradients]]


@pytest.mark.parametrize("form", WANTED, ids=lambda form: form.__name__)
def test_a_form_is_rewritten_or_left_alone_and_computes_the_same(form: type[Form]) -> None:
    want = WANTED[form]
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5))[: 1 + (form in NARROW)]:
        module = form().to(dtype)
        x, padding = torch.randn(B, T, C, dtype=dtype), module.padding
        rewritten = Rewritten(module)
        expected, got = outcome(module, module, x, padding), outcome(rewritten.call, module, x, padding)
        for one, two in zip(expected, got, strict=True):
            torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)
        report = rewritten.report
        if want in {"causal", "mask", "plain"}:
            assert report.rewritten and not report.left and not report.unchecked, report
            assert (report.causal > 0, report.masked > 0) == (want == "causal", want == "mask"), report
        else:
            assert not report.rewritten and want in " ".join(report.left), report
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", [NanoGPT, Bert, T5], ids=lambda form: form.__name__)
@pytest.mark.parametrize("inside", [True, False], ids=["autocast inside", "autocast outside"])
def test_under_autocast_it_is_no_farther_from_float32(form: type[Form], inside: bool) -> None:
    module = form()
    x, rewritten = torch.randn(B, T, C), Rewritten(module)

    def half(x: Any, padding: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x, padding)

    if inside:
        call = torch.compile(half, backend=rewritten.backend)
    else:
        call = torch.autocast("cpu", dtype=torch.bfloat16)(rewritten.call)
    exact, own = outcome(module, module, x, module.padding), outcome(half, module, x, module.padding)
    got = outcome(call, module, x, module.padding)
    assert rewritten.report.rewritten == 1 and not rewritten.report.unchecked
    assert got[0].dtype == own[0].dtype
    for one, two, best in zip(own, got, exact, strict=True):
        size = best.norm().clamp(min=1e-3)
        assert (two.float() - best).norm() / size < 0.02 + 1.5 * (one.float() - best).norm() / size


def test_half_precision_in_and_float32_softmax_are_one_kernel_in_half_precision() -> None:
    class Upcast(Form):
        def attend(self, x: Any, padding: Any) -> Any:
            q, k, v = self.heads(x)
            weights = (q.float() @ k.float().mT * 0.5).softmax(-1).to(v.dtype)
            return weights @ v

    module = Upcast().bfloat16()
    rewritten = Rewritten(module)
    x = torch.randn(B, T, C, dtype=torch.bfloat16)
    for one, two in zip(outcome(module, module, x, None), outcome(rewritten.call, module, x, None), strict=True):
        torch.testing.assert_close(two, one, rtol=0.05, atol=0.05)
    [kernel] = [node for node in rewritten.graphs[0].graph.nodes if "scaled_dot" in node.name]
    assert all(node.meta["example_value"].dtype == torch.bfloat16 for node in kernel.args if node.meta)


class Cropped(NanoGPT):
    """A buffer, as large as the longest sequence."""

    def attend(self, x: Any, padding: Any) -> Any:
        q, k, v = self.heads(x)
        att = (q @ k.mT * 0.5).masked_fill(self.mask[:, :, : x.size(1), : x.size(1)] == 0, float("-inf"))
        return att.softmax(-1) @ v


class Window(Form):
    """Causal by chance as long as the window is."""

    def attend(self, x: Any, padding: Any) -> Any:
        q, k, v = self.heads(x)
        at = torch.arange(x.size(1))
        near = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < 5)
        return (q @ k.mT * 0.5).masked_fill(~near, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize(("form", "lengths"), [(Cropped, (6, 4, 3, 5, 6)), (Window, (3, 4, 12))])
def test_once_sizes_vary_masks_are_passed_as_they_are(form: type[Form], lengths: tuple[int, ...]) -> None:
    module = form().double()
    rewritten = Rewritten(module)
    for length in lengths:
        x = torch.randn(B, length, C).double()
        torch.testing.assert_close(rewritten.call(x, None), module(x, None))
    assert [(report.causal, report.masked) for report in rewritten.reports] == [(1, 0), (0, 1)]


def test_dropout_goes_into_the_kernel_which_can_draw_as_by_hand() -> None:
    module = NanoGPT().double()
    module.drop.p = 0.5
    x = torch.randn(B, T, C).double()
    rewritten = Rewritten(module)
    dropped = torch.stack([rewritten.call(x, None) for _ in range(300)])
    assert rewritten.report.rewritten == 1 and not rewritten.report.unchecked
    assert not torch.equal(dropped[0], dropped[1])
    plain = torch.stack([module(x, None) for _ in range(300)])
    for statistic in (torch.mean, torch.std):
        torch.testing.assert_close(statistic(dropped, 0), statistic(plain, 0), rtol=0.5, atol=0.15)
    module.eval()
    torch.testing.assert_close(rewritten.call(x, None), module(x, None))
    assert [report.rewritten for report in rewritten.reports] == [1, 1]

    compared = Rewritten(module.train(), same_random=True)
    torch.manual_seed(3)
    expected = module(x, None)
    torch.manual_seed(3)
    torch.testing.assert_close(compared.call(x, None), expected)
    assert compared.report.rewritten == 1


def test_rows_with_nothing_to_attend_to_keep_the_mean_of_v() -> None:
    class Nothing(Form):
        def attend(self, x: Any, padding: Any) -> Any:
            q, k, v = self.heads(x)
            scores = (q @ k.mT * 0.5).masked_fill(~padding[:, None, None, :], -1e9)
            return scores.softmax(-1) @ v

    module = Nothing().double()
    rewritten = Rewritten(module)
    x, padding = torch.randn(B, T, C).double(), module.padding.clone()
    padding[1] = False
    for one, two in zip(outcome(module, module, x, padding), outcome(rewritten.call, module, x, padding), strict=True):
        torch.testing.assert_close(two, one)
    assert rewritten.report.masked == 1


@pytest.mark.parametrize("wrong", ["scale", "mask", "order"])
def test_a_wrong_form_is_caught_before_it_is_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _build.Build.attention

    def attention(self: Any, q: Any, k: Any, v: Any, causal: bool, mask: Any) -> Any:
        result = right(self, q, k, v, causal and wrong != "mask", mask)
        if wrong == "scale":
            self.nodes[-1].update_kwarg("scale", 1.0)
        if wrong == "order":
            self.nodes[-1].args = (q.node, v.node, k.node)
        return result

    monkeypatch.setattr(_build.Build, "attention", attention)
    module = NanoGPT().double()
    rewritten = Rewritten(module)
    x = torch.randn(B, T, C).double()
    assert torch.equal(rewritten.call(x, None), module(x, None))
    assert not rewritten.report.rewritten and "differs by" in rewritten.report.left[0]
    assert not any("scaled_dot" in node.name for node in rewritten.graphs[0].graph.nodes)


def test_attention_inside_a_checkpoint_is_rewritten() -> None:
    module = KeyPadding().double()
    rewritten = Rewritten(module)

    def checkpointed(x: Any, padding: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(module, x, padding, use_reentrant=False)

    call = torch.compile(checkpointed, backend=rewritten.backend)
    x = torch.randn(B, T, C).double()
    for one, two in zip(
        outcome(module, module, x, module.padding), outcome(call, module, x, module.padding), strict=True
    ):
        torch.testing.assert_close(two, one)
    assert rewritten.report.rewritten == 1


class Broken(NanoGPT):
    """Compiled by itself, once for all of its class, since the outer forward breaks the graph."""

    def forward(self, x: Any, padding: Any) -> Any:
        torch._dynamo.graph_break()
        return self.part(x, padding)

    def part(self, x: Any, padding: Any) -> Any:
        return self.attend(x, padding)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Broken().double(), Broken().double()

    def forward(self, x: Any, padding: Any) -> Any:
        return self.one(x, padding) + self.two(x, padding)


def test_code_that_serves_several_modules_is_passed_the_mask_of_each() -> None:
    module = Two()
    module.two.mask[..., 1:, 0] = 0  # of the same shape, but its rows do not see the first key
    rewritten = Rewritten(module)
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(rewritten.call(x, None), module(x, None))
    causal, masked = (sum(getattr(report, what) for report in rewritten.reports) for what in ("causal", "masked"))
    assert (causal, masked, rewritten.held) == (0, 1, {})


class Seams:
    """As the agent's, for one lever."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.notes: list[Any] = []
        self.wraps: list[tuple[int, Any]] = []
        self.agent = SimpleNamespace(append=lambda name, line: self.notes.append(json.loads(line)))

    def switch(self, on: Any, off: Any) -> None:
        on()

    def wrap_forward(self, wrap: Any, order: int) -> None:
        self.wraps.append((order, wrap))

    def wrap(self, module: Any, forward: Any) -> Any:
        for _, wrap in sorted(self.wraps, key=lambda one: one[0]):
            forward = wrap(module, forward)
        return forward

    def refuse(self, lever: str, why: str) -> None:
        self.refused.append(why)

    leave_out = refuse


def put_in(module: Any, inner: Any = None, **settings: Any) -> tuple[Any, Seams]:
    """A forward with the lever around it. inner: what lies further in."""
    seams = Seams()
    LEVER.install(seams, settings)  # type: ignore[arg-type]

    def forward(*args: Any) -> Any:
        return reference()._call_impl(*args)

    reference: Any = weakref.ref(module)
    return seams.wrap(module, inner(forward) if inner else forward), seams


def changed_in_place(module: Any) -> None:
    module.mask[..., 0, 1] = 1


def changed_by_data(module: Any) -> None:
    module.mask.data = torch.ones(1, 1, T, T).double()


def replaced(module: Any) -> None:
    module.mask = torch.ones(1, 1, T, T).double()


@pytest.mark.parametrize("change", [changed_in_place, changed_by_data, replaced], ids=lambda change: change.__name__)
def test_a_mask_that_changes_later_is_noticed(change: Any) -> None:
    module = NanoGPT().double()
    forward, seams = put_in(module)
    x = torch.randn(B, T, C).double()
    before = forward(x, None)
    torch.testing.assert_close(before, module(x, None))
    change(module)
    after = forward(x, None)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, module(x, None))
    assert [(note["causal"], note["masked"]) for note in seams.notes] == [(1, 0), (0, 1)]
    assert not seams.refused


def test_a_mask_written_with_the_same_values_changes_nothing() -> None:
    module = NanoGPT().double()
    forward, seams = put_in(module)
    x = torch.randn(B, T, C).double()
    forward(x, None)
    module.load_state_dict(module.state_dict())
    module.mask = module.mask.clone()
    forward(x, None)
    assert [note["causal"] for note in seams.notes] == [1]


@pytest.mark.parametrize("form", [AnnotatedTransformer, Alibi])
def test_where_there_is_nothing_it_says_so_and_steps_aside(form: type[Form]) -> None:
    module = form().double()
    forward, seams = put_in(module)
    x = torch.randn(B, T, C).double()
    for _ in range(PATIENCE + 2):
        torch.testing.assert_close(forward(x, module.padding), module(x, module.padding))
    if form is Alibi:
        assert not seams.refused
    else:
        assert seams.refused == ["no hand-written attention was found (the weights are used for something else)"]


def test_an_error_of_its_own_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build.Build, "attention", lambda *_: {}["none"])
    module = NanoGPT().double()
    forward, seams = put_in(module)
    x = torch.randn(B, T, C).double()
    assert torch.equal(forward(x, None), module(x, None))
    assert "KeyError" in seams.refused[0]


def test_what_was_rewritten_before_an_error_is_guarded_and_what_was_begun_is_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, sites = _build.Build.attention, []

    def attention(self: Any, *args: Any) -> Any:
        sites.append(self)
        result = right(self, *args)
        return result if len(sites) == 1 else {}["none"]

    monkeypatch.setattr(_build.Build, "attention", attention)
    module, held, graphs = nn.ModuleList([NanoGPT().double(), NanoGPT().double()]), dict[Any, Any](), []

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        with pytest.raises(KeyError):
            rewrite(graph_module, inputs, [module], held, False)
        graphs.append(graph_module)
        return torch.fx.GraphModule(graph_module, graph_module.graph).forward

    reference: Any = weakref.ref(module)
    call = torch.compile(lambda x: reference()[0].attend(x, None) + reference()[1].attend(x, None), backend=backend)
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(call(x), module[0].attend(x, None) + module[1].attend(x, None))
    assert len(sites) == 2 and held and all(one.same() for one in held.values())
    assert sum("scaled_dot" in node.name for node in graphs[0].graph.nodes) == 1


def test_a_full_disk_is_no_reason_to_stop() -> None:
    def full(name: str, line: str) -> None:
        raise OSError(28, "No space left on device")

    module = NanoGPT().double()
    forward, seams = put_in(module)
    seams.agent.append = full
    x = torch.randn(B, T, C).double()
    torch.testing.assert_close(forward(x, None), module(x, None))
    assert "No space left" in seams.refused[0]


def test_beside_compile_the_graphs_are_rewritten_before_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.levers.compiler.compile import _compiled

    modes, graphs = [], []

    class Inductor:
        def __init__(self, mode: Any, options: Any, dynamic: Any) -> None:
            modes.append(mode)

        def __call__(self, graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        def reset(self) -> None:
            pass

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Inductor)
    for mode, given in (("default", None), ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs")):
        torch._dynamo.reset()
        _graph.PASSES.clear()
        module = NanoGPT().double()
        forward, seams = put_in(module, lambda forward, mode=mode, module=module: _compiled(module, forward, mode))
        x = torch.randn(B, T, C).double()
        torch.testing.assert_close(forward(x, None), module(x, None))
        assert modes[-1] == given and seams.notes[0]["causal"] == 1
        assert any("scaled_dot" in node.name for node in graphs[-1].graph.nodes)


def test_without_passes_compile_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(torch, "compile", lambda forward, **kwargs: seen.append(kwargs) or forward)
    _graph.Compiled(lambda: None, "default")
    _graph.Compiled(lambda: None, "max-autotune-no-cudagraphs")
    assert seen == [{"mode": None}, {"mode": "max-autotune-no-cudagraphs"}]


def attention(q: Any, k: Any) -> Any:
    return F.softmax(q @ k.mT / D**0.5, dim=-1)


def decorated(function: Any) -> Any:
    def around(*args: Any) -> Any:
        return function(*args)

    return around


@decorated
def times_values(weights: Any, v: Any) -> Any:
    return torch.bmm(weights, v)


class CallsAFunction(nn.Linear):
    def forward(self, x: Any) -> Any:
        return attention(x, x)


class SaysSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Any) -> Any:
        return times_values(self.softmax(x), x)


class Router(nn.Linear):
    """A mixture of experts: its softmax chooses, and its rows depend on what was chosen."""

    def forward(self, x: Any) -> Any:
        weights, chosen = torch.softmax(super().forward(x), dim=-1).topk(2)
        return weights, torch.nonzero(chosen)


def dice(logits: Any, target: Any) -> Any:
    return 1 - (F.softmax(logits, dim=1) * target).sum() + 0 * (target @ target).sum()


class Convolutions(nn.Conv2d):
    """A loss beside it, which is none of its own, calls softmax."""


def test_shapes_that_depend_on_values_are_seen_in_the_code() -> None:
    assert ModelCode([Router(4, 4)]).shapes_by == "nonzero"
    assert ModelCode([CallsAFunction(1, 1), nn.Conv2d(1, 1, 1)]).shapes_by == ""


class OfNumbers(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * torch.tensor([0.5, 2.0], device=x.device)


def test_tensors_of_numbers_are_seen_in_the_code() -> None:
    assert ModelCode([OfNumbers()]).constants and not ModelCode([nn.Linear(2, 2)]).constants


class OwnLayer(nn.TransformerEncoderLayer):
    """May go by `is_causal` alone."""


def test_modules_that_look_at_their_mask_are_seen() -> None:
    both = nn.Transformer(4, 2, 1, 1, 8, batch_first=True)
    assert ModelCode(both.modules()).mask_checks and ModelCode(both.decoder.modules()).mask_checks
    assert not ModelCode(nn.MultiheadAttention(4, 2).modules()).mask_checks
    own = nn.TransformerEncoder(OwnLayer(4, 2, 8), 1, enable_nested_tensor=False)
    assert not ModelCode(own.modules()).mask_checks


class Generates:
    """As transformers' models: beside the forward, methods that training never calls."""

    def generate(self, x: Any) -> Any:
        return (x @ x).softmax(-1).nonzero()


class WithGenerate(nn.Module, Generates):
    def forward(self, x: Any) -> Any:
        return self.body(x) * isinstance(self, Generates)

    def body(self, x: Any) -> Any:
        return torch.unique(x)


class CallsGenerate(WithGenerate):
    def body(self, x: Any) -> Any:
        return self.generate(x)


class ByConfiguration(CallsAFunction):
    """As transformers': attention by hand stands beside a kernel that the configuration chooses."""

    def __init__(self, kernel: str | None) -> None:
        super().__init__(1, 1)
        self.config = SimpleNamespace(_attn_implementation=kernel)


def test_methods_that_no_forward_names_are_not_the_models_code() -> None:
    assert not ModelCode([WithGenerate()]).softmax
    assert ModelCode([WithGenerate()]).shapes_by == "unique", "a method that the forward calls"
    assert ModelCode([CallsGenerate()]).softmax


def test_attention_by_hand_does_not_run_where_the_configuration_chose_a_kernel() -> None:
    assert ModelCode([ByConfiguration("eager")]).softmax and ModelCode([ByConfiguration(None)]).softmax
    for kernel in ("sdpa", "flash_attention_2"):
        assert not ModelCode([ByConfiguration(kernel)]).softmax
    assert ModelCode([ByConfiguration("sdpa")]).sdpa and not ModelCode([ByConfiguration("eager")]).sdpa


def test_it_applies_where_the_code_of_the_model_calls_softmax() -> None:
    assert ModelCode([CallsAFunction(1, 1)]).softmax, "a function beside the class"
    assert ModelCode(SaysSoftmax().modules()).softmax, "a layer of torch's, and a product under a decorator"
    assert ModelCode([form() for form in NARROW[:1]]).softmax and ModelCode(Swin().modules()).softmax
    assert not ModelCode([Router(4, 4)]).softmax and not ModelCode([nn.Linear(1, 1), nn.Softmax(-1)]).softmax
    assert not ModelCode([Convolutions(1, 1, 1)]).softmax
    assert ModelCode([nn.MultiheadAttention(4, 1)]).softmax
    assert not ModelCode(nn.TransformerEncoderLayer(4, 1).modules()).softmax
    assert not ModelCode(nn.Sequential(nn.Linear(1, 1), nn.ReLU()).modules()).softmax
    with_softmax = context(True, roots=(msgspec.structs.replace(ROOT, softmax=True),))
    assert LEVER.applies(with_softmax).yes and not LEVER.applies(context(True)).yes
    compiled = context(True, roots=(msgspec.structs.replace(ROOT, softmax=True, compiled=True),))
    assert not LEVER.applies(compiled).yes


@pytest.mark.parametrize("ran", [None, True, False])
def test_attention_by_hand_that_did_not_run_is_no_reason_to_try_it(ran: bool | None) -> None:
    given = context(True, roots=(msgspec.structs.replace(ROOT, softmax=True, softmax_ran=ran),))
    assert LEVER.applies(given).yes is (ran is not False) and ("attention" in settled(given.facts)) is (ran is False)
    both = context(True, roots=(*given.facts.roots, msgspec.structs.replace(ROOT, softmax=True, softmax_ran=True)))
    assert LEVER.applies(both).yes, "a discriminator, say"


def attended(q: Any) -> Any:
    return (q @ q.mT).softmax(-1) @ q


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return 2 * gradient


def test_whether_a_softmax_ran_is_told_by_the_graph_of_the_output() -> None:
    q = nn.Parameter(torch.randn(1, 2, 4, 8))
    fused = F.scaled_dot_product_attention(q, q, q)
    assert softmax_seen(attended(q), [q]) is True
    assert softmax_seen({"logits": [attended(q).sum()], "loss": None}, [q]) is True
    assert softmax_seen(nn.MultiheadAttention(8, 2)(q[0], q[0], q[0])[0], [q]) is True, "it returns the weights"
    assert softmax_seen((fused, F.cross_entropy(fused.flatten(1), torch.zeros(1, dtype=torch.long))), [q]) is False
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert softmax_seen(F.scaled_dot_product_attention(q, q, q), [q]) is False, "by torch's formula, but fused"
    other = nn.Parameter(torch.ones(()))
    assert softmax_seen(fused, [q, other]) is None, "what has this parameter may have run without gradients"
    assert softmax_seen(Doubled.apply(fused), [q]) is None, "there is no looking into it"
    assert softmax_seen(Doubled.apply(attended(q)), [q]) is True
    assert softmax_seen(None, [q]) is softmax_seen(fused.detach(), [q]) is None


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 5), (2, 5, 1)])
def test_a_softmax_of_no_pairs_in_a_batch_is_no_attention(shape: tuple[int, ...]) -> None:
    """Graph-WaveNet's softmax makes a graph of its nodes, and Luong's attention has one query: both were told of it."""
    scores = nn.Parameter(torch.randn(shape))
    assert softmax_seen(scores.softmax(-1), [scores, nn.Parameter(torch.ones(()))]) is False
    batch = scores.expand(2, *shape).repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert softmax_seen(batch.softmax(-1), [scores]) is True


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("", False),
        ("--slow", True),
        ("--later", True),
        ("--frozen", None),
        ("--frozen --slow", None),
        ("--hidden", None),
        ("--hidden --slow", None),
        ("--infer --slow", None),
    ],
)
def test_the_branch_of_a_script_that_runs_is_told(argv: str, told: bool | None, runner: Runner) -> None:
    """As nanoGPT: attention by hand stands in the code of all of these."""
    ran = runner.untouched("attends.py", *argv.split())
    [root] = ran.facts.roots
    assert (root.softmax, root.sdpa, root.softmax_ran) == (True, True, told)


def test_a_graph_too_large_to_look_at_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.agent.facts.code.MOST", 50)
    x = q = nn.Parameter(torch.randn(1, 2, 4, 8))
    for _ in range(60):
        x = x + 1
    assert softmax_seen(x, [q]) is None


@pytest.mark.parametrize(("method", "name"), [("__eq__", "eq"), ("__mul__", "mul"), ("__getitem__", "getitem")])
def test_operators_are_known_as_methods_too(method: str, name: str) -> None:
    graph = torch.fx.Graph()
    assert op(graph.call_method(method, (graph.placeholder("x"), 0))) == name
