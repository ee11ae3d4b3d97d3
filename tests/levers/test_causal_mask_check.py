"""`causal-mask-check` answers as torch does or applies the mask, makes no look at a mask that it knows, and lets the
compiler and recordings through. Here the CPU is taken for a device that is waited for."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from contexts import ROOT, context
from fake_graphs import BEFORE, recorded
from msgspec.structs import replace
from torch import nn
from torch.nn.modules import transformer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.model_code import ModelCode
from hotlap.agent.seams import Refused
from hotlap.diagnose.compiled import with_compiled
from hotlap.diagnose.diagnose import without
from hotlap.diagnose.findings import launch
from hotlap.diagnose.findings._settled import settled
from hotlap.levers import _mask_check, causal_mask_check
from hotlap.levers._forward_graph import GraphedForward
from hotlap.levers._mask_check import FREE, NAME, Masks
from hotlap.levers._training_graph import GraphedTraining
from hotlap.records.run import CompiledFunction, Lever

LENGTH, WIDTH = 6, 16
LEVER = causal_mask_check.LEVER
causal = nn.Transformer.generate_square_subsequent_mask


class Seams:
    """Keeps what the lever registers."""

    def __init__(self) -> None:
        self.slow = 0
        self.wrap: Callable[[Any, Any], Any] = lambda module, forward: forward

    def switch(self, on: Any, off: Any) -> None:
        on()

    def wrap_forward(self, wrap: Callable[[Any, Any], Any], order: int) -> None:
        self.wrap = wrap

    def unsteady(self) -> None:
        self.slow += 1


@pytest.fixture
def seams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seams]:
    monkeypatch.setattr(_mask_check, "HOST", "none")
    monkeypatch.setattr(transformer, NAME, getattr(transformer, NAME))  # put back at the end
    found = Seams()
    LEVER.install(found, {})  # type: ignore[arg-type]
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


class Looks(TorchDispatchMode):
    """Counts what waits for values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch.Tag.data_dependent_output in func.tags
        return func(*args, **(kwargs or {}))


def looks(work: Callable[[], Any]) -> int:
    with Looks() as seen:
        work()
    return seen.count


class Encoding(nn.Module):
    """how: where its mask comes from."""

    def __init__(self, how: str = "kept", dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.how = how
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.how == "bool":
            mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        elif self.how == "new" or (self.how == "kept" and mask is None and self.mask is None):
            self.mask = causal(x.size(1))
        return self.encoder(x, mask=self.mask if mask is None else mask)  # type: ignore[no-any-return]


class Translating(nn.Module):
    """Encoder and decoder; the decoder's mask is causal, the encoder's is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = nn.Transformer(WIDTH, 2, 1, 2, 32, dropout=0.0, batch_first=True)
        self.register_buffer("near", torch.eye(LENGTH).log().fill_diagonal_(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tgt = causal(x.size(1), device=x.device)
        return self.both(x, x.flip(1), src_mask=self.near, tgt_mask=tgt)  # type: ignore[no-any-return]


def batch(seed: int = 0, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(3, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def trained(module: nn.Module, forward: Callable[..., Any], steps: int = 3) -> list[torch.Tensor]:
    """Losses and gradients of some steps."""
    found: list[torch.Tensor] = []
    torch.manual_seed(1)
    for step in range(steps):
        module.zero_grad()
        loss = forward(batch(step)).square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return found


def test_a_kept_mask_is_looked_at_once_and_all_is_the_same_to_the_last_bit(seams: Seams) -> None:
    model, twin = Encoding(dropout=0.1), Encoding(dropout=0.1)
    forward = seams.wrap(model, model._call_impl)
    twin_forward = twin.__call__
    got = trained(model, forward)
    assert looks(lambda: forward(batch())) == 0 and seams.slow == 1
    setattr(transformer, NAME, getattr(transformer, NAME).__prepare_scriptable__())
    assert looks(lambda: twin_forward(batch())) == 1, "torch looks each time"
    twin = Encoding(dropout=0.1)
    assert all(map(torch.equal, got, trained(twin, twin)))


@pytest.mark.parametrize("how", ["new", "bool"])
def test_masks_that_are_made_anew_are_applied_without_a_look_after_some(seams: Seams, how: str) -> None:
    model = Encoding(how)
    forward, expected = seams.wrap(model, model._call_impl), copy.deepcopy(model)
    made = []
    for step in range(FREE + 3):
        x = batch(step)
        made.append(looks(lambda x=x: forward(x)))  # type: ignore[misc]
        torch.testing.assert_close(forward(x), expected(x), rtol=1e-5, atol=1e-5)
    assert sum(made) <= FREE and made[-1] == 0 and seams.slow == FREE


def test_answers_without_a_look_pay_for_looks(seams: Seams) -> None:
    """A mask that is made anew now and then, as with another length, is looked at and known again."""
    model = Encoding()
    forward = seams.wrap(model, model._call_impl)
    for epoch in range(FREE + 4):
        model.mask = None
        made = looks(lambda: [forward(batch()) for _ in range(20)])
        assert made == 1, epoch


def test_a_mask_that_is_written_to_is_looked_at_again(seams: Seams) -> None:
    model = Encoding()
    forward, expected = seams.wrap(model, model._call_impl), copy.deepcopy(model)
    forward(batch())
    assert model.mask is not None
    changes: list[Callable[[torch.Tensor], Any]] = [
        lambda mask: mask[0].fill_(0.0),  # no longer causal
        lambda mask: mask.copy_(causal(LENGTH)),
    ]
    for change in changes:
        change(model.mask)
        other = model.mask.clone()
        assert torch.equal(forward(batch()), expected(batch(), other))
        assert looks(lambda: forward(batch())) == 0
    model.mask.data = torch.zeros(LENGTH, LENGTH)
    assert torch.equal(forward(batch()), expected(batch(), torch.zeros(LENGTH, LENGTH)))


def test_a_later_mask_at_the_same_place_is_another() -> None:
    masks = Masks(getattr(transformer, NAME), lambda: None)
    one, other = causal(3), torch.zeros(3, 3)
    assert masks.answer(one, 3) and masks.answer(one, 3) and masks.looks == 1
    state = other._version, other.data_ptr(), other.shape, other.stride()
    masks._known[id(other)] = masks._known.pop(id(one))._replace(state=state)
    del one
    assert not masks.answer(other, 3) and masks.looks == 2


def test_what_torch_does_not_look_at_is_answered_as_by_torch(seams: Seams) -> None:
    model = Encoding()
    seams.wrap(model, model._call_impl)
    check = getattr(transformer, NAME)
    assert check(None) is False and check(causal(3), True) is True and check(causal(3), False) is False
    results: list[bool] = []
    within = lambda work: seams.wrap(model, lambda: results.append(work()))()  # noqa: E731
    for mask, length in [(causal(3), 4), (torch.zeros(2, 3, 3), 3), (torch.zeros(3, 4), 3)]:
        within(lambda mask=mask, length=length: check(mask, None, length))
        assert results.pop() is False
    within(lambda: check(causal(3), None, None))
    assert results.pop() is True
    assert looks(lambda: check(causal(3), None, 3)) == 1, "outside of a forward it is torch's own"


@pytest.mark.parametrize("how", ["needs a gradient", "double", "vmap"])
def test_masks_that_torch_is_left_to_look_at(seams: Seams, how: str) -> None:
    """Left away they may be of any dtype and get no gradient: applied, they would raise, or get one."""
    model = Encoding("given")
    forward = seams.wrap(model, model._call_impl)
    mask = causal(LENGTH, dtype=torch.float64 if how == "double" else None)
    mask.requires_grad_(how == "needs a gradient")
    for _ in range(2):
        if how == "vmap":
            with pytest.raises(RuntimeError, match="vmap"):
                torch.vmap(lambda one: forward(batch(), one))(mask.expand(2, LENGTH, LENGTH))
        else:
            assert looks(lambda: forward(batch(), mask).sum().backward()) == 1
    assert mask.grad is None and not seams.slow


def test_masks_of_inference_mode(seams: Seams) -> None:
    model = Encoding().eval()
    forward, expected = seams.wrap(model, model._call_impl), copy.deepcopy(model)
    with torch.inference_mode():
        for step in range(FREE + 2):
            assert torch.allclose(forward(batch(step)), expected(batch(step)), atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["kept", "bool"])
def test_checkpoints_compute_again_what_the_forward_was(seams: Seams, reentrant: bool, how: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Encoding(how, dropout=0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = checkpoint(self.inside, x.requires_grad_(), use_reentrant=reentrant)
            return found

    model = Model()
    got = trained(model, seams.wrap(model, model._call_impl), FREE + 2)
    assert bool(seams.slow) is reentrant, "else torch compares what both keep for the backward"
    setattr(transformer, NAME, getattr(transformer, NAME).__prepare_scriptable__())
    twin = Model()
    for one, other in zip(got, trained(twin, twin, FREE + 2), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


# compiled and recorded


class Graphs:
    """A backend that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.mark.parametrize("make", [Encoding, lambda: Encoding("new"), lambda: Encoding("bool"), Translating])
def test_the_compiler_makes_one_graph(seams: Seams, make: Callable[[], nn.Module]) -> None:
    model, twin = make(), make()
    model(batch())  # makes what the first call makes
    graphs = Graphs()
    got = trained(model, seams.wrap(model, torch.compile(model._call_impl, backend=graphs, fullgraph=True)))
    assert graphs.count == 1
    setattr(transformer, NAME, getattr(transformer, NAME).__prepare_scriptable__())
    for one, other in zip(got, trained(twin, twin), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(twin._call_impl, backend=Graphs(), fullgraph=True)(batch())


def test_compiled_code_is_right_for_masks_of_other_values(seams: Seams) -> None:
    model = Encoding("given")
    expected = copy.deepcopy(model)
    graphs = Graphs()
    forward = seams.wrap(model, torch.compile(model._call_impl, backend=graphs, fullgraph=True))
    for mask in (causal(LENGTH), torch.zeros(LENGTH, LENGTH), causal(LENGTH).t().contiguous()):
        torch.testing.assert_close(forward(batch(), mask), expected(batch(), mask))
    assert graphs.count == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_a_script_that_compiles_itself_gets_one_graph(seams: Seams, compiled: bool) -> None:
    model, graphs = Encoding(), Graphs()
    model(batch())
    whole = torch.compile(model, backend=graphs)
    forward = seams.wrap(whole, whole._call_impl if compiled else whole.__call__)
    forward(batch()).sum().backward()
    forward(batch(1)).sum().backward()
    assert graphs.count == 1


@pytest.mark.parametrize("how", ["kept", "new", "bool"])
def test_training_is_recorded(seams: Seams, how: str) -> None:
    """A mask that the model makes in its first forward costs one more look at the whole of it."""
    model, whys = Encoding(how), []  # type: ignore[var-annotated]
    twin, graphed = copy.deepcopy(model), None
    graphed = recorded(model, model._call_impl, GraphedTraining, whys)
    got = trained(model, seams.wrap(model, graphed), BEFORE + 4)
    if how == "new":
        assert whys == ["it leaves new tensors, or changed numbers, in the model or in its arguments"]
    else:
        assert not whys and graphed.replays == 4 - (how == "kept")
    for one, other in zip(got, trained(twin, twin, BEFORE + 4), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_without_it_nothing_is_recorded() -> None:
    model, whys = Encoding("bool"), []  # type: ignore[var-annotated]
    trained(model, recorded(model, model._call_impl, GraphedTraining, whys), BEFORE + 2)
    assert whys == ["the host waits for the device in it (aten::_local_scalar_dense)"] or "waits" in whys[0]


@pytest.mark.parametrize("place", ["model", "argument"])
@pytest.mark.parametrize("kind", [GraphedForward, GraphedTraining])
def test_a_record_is_right_for_masks_of_other_values(seams: Seams, place: str, kind: type[GraphedForward]) -> None:
    """A record that left a causal mask away would go on to."""
    model, whys = Encoding("given"), []  # type: ignore[var-annotated]
    expected = copy.deepcopy(model)
    model.mask = causal(LENGTH)
    graphed = recorded(model, model._call_impl, kind, whys)
    forward = seams.wrap(model, graphed)
    kept = causal(LENGTH)
    with torch.set_grad_enabled(kind is GraphedTraining):
        for step in range(BEFORE + 4):
            if step > BEFORE + 1:
                with torch.no_grad():
                    for mask in (model.mask, kept):
                        mask.zero_()
            mask = kept if place == "argument" else model.mask
            got = forward(batch(step), mask) if place == "argument" else forward(batch(step))
            torch.testing.assert_close(got, expected(batch(step), mask.clone()), rtol=1e-4, atol=1e-6)
            got.requires_grad and got.sum().backward()
    assert not whys and graphed.replays == 4


# where it has no place


class Own(nn.TransformerEncoderLayer):
    pass


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)  # type: ignore[arg-type]


def test_what_it_refuses_is_left_as_it_was(seams: Seams) -> None:
    plain = nn.TransformerEncoderLayer(WIDTH, 2, 32)
    odd = copy.deepcopy(plain)
    odd.self_attn = type("Attention", (nn.MultiheadAttention,), {})(WIDTH, 2)
    half = with_layer(plain)
    half.layers[0].linear1.half()
    before = getattr(transformer, NAME)
    for module, why in [
        (nn.Linear(2, 2), "holds no"), (with_layer(Own(WIDTH, 2, 32)), "class of their own"),
        (with_layer(odd), "class of their own"), (half, "several devices or dtypes"),
    ]:  # fmt: skip
        with pytest.raises(Refused, match=why):
            seams.wrap(module, module._call_impl)
    assert getattr(transformer, NAME) is before


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_torchscript_finds_torchs_own(seams: Seams) -> None:
    model = Encoding()
    seams.wrap(model, model._call_impl)(batch())
    scripted = torch.jit.script(model.encoder)
    assert torch.allclose(scripted(batch(), mask=causal(LENGTH)), model(batch()), atol=1e-6)


BEFORE_IT = "import hotlap.levers._mask_check as own; own.HOST = 'none'; "
EAGER = "import torch, hotlap.levers._graph as graph; graph.Compiled._compile = "
EAGER += "lambda self: torch.compile(self._original, backend='eager', fullgraph=True)"
HERE = (Lever(name="causal-mask-check"),)


def test_a_script_trains_the_same(runner: Runner) -> None:
    bare = runner.bare("masked_encoder.py")
    ran = runner.forked("masked_encoder.py", before=BEFORE_IT, levers=HERE)
    check_clean(ran)
    check_same(ran, bare)
    assert ran.facts.roots[0].mask_checks and (ran.ranks[0] / "levers.jsonl").exists()


def test_a_script_that_makes_masks_anew_trains_the_same_but_for_rounding(runner: Runner) -> None:
    bare = runner.bare("masked_encoder.py", "--new")
    ran = runner.forked("masked_encoder.py", "--new", before=BEFORE_IT, levers=HERE)
    check_clean(ran)
    assert ran.losses == pytest.approx(bare.losses, rel=1e-4)


def test_beside_the_compiler_a_script_is_one_graph(runner: Runner) -> None:
    bare = runner.bare("masked_encoder.py")
    levers = (*HERE, Lever(name="compile", settings={"mode": "default"}))
    ran = runner.forked("masked_encoder.py", before=BEFORE_IT + EAGER, levers=levers)
    check_clean(ran)
    assert ran.code == 0 and ran.losses == pytest.approx(bare.losses, rel=1e-4)
    without = runner.forked("masked_encoder.py", before=EAGER, levers=levers[1:])
    assert without.code != 0 and "data-dependent" in without.output


@pytest.mark.parametrize("argv", [("--own",), ()])
def test_a_script_that_it_is_not_for_is_left_alone(runner: Runner, argv: tuple[str, ...]) -> None:
    bare = runner.bare("masked_encoder.py", *argv)
    ran = runner.forked("masked_encoder.py", *argv, before=BEFORE_IT if argv else "", levers=HERE)
    check_same(ran, bare)
    (problem,) = ran.problems
    assert problem.lever == "causal-mask-check"
    assert ("class of their own" if argv else "not on a CUDA device") in problem.what
    assert '"left_out"' in (ran.ranks[0] / "levers.jsonl").read_text()
    assert ran.facts.roots[0].mask_checks is not bool(argv)


def test_it_applies_where_the_model_holds_torchs_encoder_or_decoder() -> None:
    holds = (replace(ROOT, mask_checks=True),)
    assert LEVER.applies(context(True, roots=holds)).yes
    assert "CPU" in LEVER.applies(context(False, roots=holds)).why
    assert "holds no" in LEVER.applies(context(True)).why
    compiled = context(True, roots=(replace(ROOT, mask_checks=True, compiled=True),))
    assert LEVER.applies(compiled).yes, "the script's own compiler stops there too"
    assert LEVER.share(context(True, bound="launch", roots=holds)) > LEVER.share(context(True, roots=holds)) > 0.02


def test_findings_name_it_where_the_model_holds_such() -> None:
    broken = CompiledFunction(file="/here/train.py", line=9, function="forward", graphs=2, breaks=(11,))
    for holds in (True, False):
        facts = context(True, roots=(replace(ROOT, mask_checks=holds),), compiled=(broken,)).facts
        diagnosis = with_compiled(context(True).diagnosis, facts)
        (finding,) = (without(one, settled(facts)) for one in diagnosis.findings)
        assert finding.id == "graph-break" and (LEVER.name in finding.levers) is holds
    assert LEVER.name in launch.LEVERS and LEVER.name in settled(context(False, roots=(ROOT,)).facts)


def test_the_model_is_read() -> None:
    assert ModelCode(Translating().modules()).mask_checks and ModelCode(Encoding().modules()).mask_checks
    assert not ModelCode(nn.MultiheadAttention(4, 2).modules()).mask_checks
    assert not ModelCode(with_layer(Own(WIDTH, 2, 32)).modules()).mask_checks


def test_the_source_that_it_shows_computes_the_same() -> None:
    model = Encoding().eval()
    names: dict[str, Any] = {"encoder": model.encoder, "x": batch(), "mask": causal(LENGTH)}
    exec(LEVER.source({}), names)
    assert torch.allclose(names["y"], model(batch()), atol=1e-6)
