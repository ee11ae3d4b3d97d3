"""The loss in chunks: what is computed in them, what is not, and that nobody can tell but by memory."""

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from contexts import ROOT, context
from torch import nn
from torch.nn import functional

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.seams import Refused
from hotlap.levers import _chunked_loss, _heads, all_levers
from hotlap.levers._autocast import autocasting
from hotlap.levers._graph import Compiled
from hotlap.levers._lazy_logits import LazyLogits
from hotlap.records.run import Lever

LEVER = all_levers()["linear-cross-entropy"]
USE = (Lever(name="linear-cross-entropy"),)
HEAD = msgspec.structs.replace(ROOT, classes=50_304)
CLASSES = 30
Change = Callable[[Any], Any]
torch.manual_seed(1)
X, Y = torch.randint(0, CLASSES, (4, 9)), torch.randint(0, CLASSES, (4, 9))
IGNORED = torch.where(torch.arange(36).view(4, 9) % 5 == 0, -100, Y)
WEIGHT = torch.rand(CLASSES)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What counts as large here; five rows and less make a chunk."""
    monkeypatch.setattr(_heads, "LEAST_CLASSES", CLASSES)
    monkeypatch.setattr(_heads, "LEAST_LOGITS", 1)
    monkeypatch.setattr(_chunked_loss, "LEAST_ROWS", 4)
    yield


class Model(nn.Module):
    def __init__(self, tied: bool = False, inside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = inside
        self.embedding, self.norm = nn.Embedding(CLASSES, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        logits = self.head(self.norm(self.embedding(x)))
        return (logits, loss_of(logits.float(), IGNORED)) if self.inside else logits


def loss_of(logits: Any, targets: Any = Y, **options: Any) -> Any:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), **options)


def taken(model: nn.Module, forward: Any = None) -> tuple[Any, _heads.Head, list[str]]:
    """The model's head taken hold of; what was refused later."""
    refused: list[str] = []
    heads = _heads.Heads(refused.append)
    forward = heads.wrap(model, forward or model)
    return forward, heads.on[0], refused


def step(model: nn.Module, forward: Any, change: Change) -> list[torch.Tensor]:
    """The loss and all gradients."""
    model.zero_grad()
    loss = change(forward(X))
    (3 * loss).backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def check_equal(found: list[torch.Tensor], wanted: list[torch.Tensor], within: float = 1e-5) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert type(one) is torch.Tensor
        torch.testing.assert_close(one, other, rtol=within, atol=within, equal_nan=True)


FUSED: dict[str, Change] = {
    "flat": loss_of,
    "ignored": lambda logits: loss_of(logits, IGNORED),
    "another is ignored": lambda logits: loss_of(logits, ignore_index=5),
    "all are ignored": lambda logits: loss_of(logits, torch.full_like(Y, -100)),
    "sum": lambda logits: loss_of(logits, IGNORED, reduction="sum"),
    "weights": lambda logits: loss_of(logits, IGNORED, weight=WEIGHT),
    "smoothed": lambda logits: loss_of(logits, IGNORED, label_smoothing=0.1),
    "smoothed, weights": lambda logits: loss_of(logits, IGNORED, label_smoothing=0.1, weight=WEIGHT),
    "a module": lambda logits: nn.CrossEntropyLoss(weight=WEIGHT)(logits.flatten(0, 1), Y.flatten()),
    "transposed": lambda logits: functional.cross_entropy(logits.transpose(1, 2), IGNORED),
    "permuted": lambda logits: functional.cross_entropy(input=logits.permute(0, 2, 1), target=Y),
    "shifted": lambda logits: loss_of(logits.float()[..., :-1, :].contiguous(), Y[:, 1:]),
    "of some": lambda logits: functional.cross_entropy(logits[Y > 3], Y[Y > 3]),
    "and used otherwise": lambda logits: loss_of(logits) + 0.01 * logits.logsumexp(-1).square().mean(),
}


@pytest.mark.parametrize("change", FUSED.values(), ids=FUSED)
def test_losses_that_are_taken_in_chunks(change: Change) -> None:
    for half in (False, True):
        bare, model = Model(), Model()
        forward, head, _ = taken(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            wanted, found = step(bare, bare, change), step(model, forward, change)
        check_equal(found, wanted, 2e-2 if half else 1e-5)
        assert abs(float(found[0] - wanted[0])) < 1e-4 * abs(float(wanted[0])) or torch.isnan(wanted[0])
        assert head.fused == 1


class Squares(torch.autograd.Function):
    """Of a user's; logits reach it as they are, below what Python can see."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits)
        return (logits * logits).sum()

    @staticmethod
    def backward(ctx: Any, above: Any) -> Any:
        return 2 * above * ctx.saved_tensors[0]


def written(logits: Any) -> Any:
    """Views made before show what is written, copies do not."""
    view, clone = logits.view(-1, CLASSES), logits.clone()
    logits[..., 20:] = -9.0
    return functional.cross_entropy(view, Y.flatten()) + clone.square().mean()


def watched(logits: Any) -> Any:
    logits.retain_grad()
    loss = loss_of(logits)
    loss.backward(retain_graph=True)
    return loss + float(logits.grad.norm())


NEEDED: dict[str, Change] = {
    "rows apart": lambda logits: loss_of(logits, reduction="none").square().mean(),
    "soft targets": lambda logits: functional.cross_entropy(logits.flatten(0, 1), torch.ones(36, CLASSES) / CLASSES),
    "another loss": lambda logits: -logits.log_softmax(-1).gather(-1, Y.unsqueeze(-1)).mean(),
    "a temperature": lambda logits: loss_of(logits / 2),
    "some classes": lambda logits: functional.cross_entropy(logits[:, :, :29].flatten(0, 1), Y.flatten().clamp(max=28)),
    "other classes": lambda logits: functional.cross_entropy(logits.view(-1, 15), Y.repeat(1, 2).flatten() % 15),
    "in place": written,
    "two of them": lambda logits: torch.cat([logits, logits.view(4, 9, -1)]).square().mean(),
    "a function": Squares.apply,
    "a function of the transposed": lambda logits: Squares.apply(logits.transpose(1, 2)),
    "gradients of logits": watched,
}


@pytest.mark.parametrize("change", NEEDED.values(), ids=NEEDED)
def test_logits_that_are_needed_are_there(change: Change) -> None:
    bare, model = Model(tied=True), Model(tied=True)
    forward, head, _ = taken(model)
    check_equal(step(model, forward, change), step(bare, bare, change))
    assert (head.made, head.fused) == (1, 0)


def test_a_metric_without_gradients_does_not_cost_them() -> None:
    def change(logits: Any) -> Any:
        with torch.no_grad():
            right = (logits.argmax(-1) == Y).float().mean()
        return loss_of(logits) + right

    bare, model = Model(), Model()
    check_equal(step(model, taken(model)[0], change), step(bare, bare, change))


def test_logits_used_after_the_update_are_those_of_before() -> None:
    def metrics(model: nn.Module, forward: Any) -> list[Any]:
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=5.0), []
        for _ in range(3):
            logits = forward(X)
            loss_of(logits).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(logits.detach().clone())
        return seen

    bare, model = Model(tied=True), Model(tied=True)
    forward, head, _ = taken(model)
    for found, wanted in zip(metrics(model, forward), metrics(bare, bare), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert head.fused == 3
    logits = forward(X)
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed the weights"):
        logits.sum()


def test_what_can_be_known_of_them() -> None:
    model = Model()
    forward, head, _ = taken(model)
    logits = forward(X)
    assert type(logits) is LazyLogits and isinstance(logits, torch.Tensor)
    assert logits.shape == (4, 9, CLASSES) and logits.dtype is torch.float32 and len(logits) == 4
    assert logits.requires_grad and not logits.is_leaf and hash(logits) == id(logits)
    assert head.last == "nothing does"
    plain = Model()(X)
    assert repr(logits)[:40] == repr(plain)[:40] and torch.equal(logits, plain)
    assert logits.tolist() == plain.tolist() and torch.equal(copy.deepcopy(logits.detach()), plain)
    with torch.no_grad():
        assert type(forward(X)) is torch.Tensor


def test_backward_again_and_of_gradients() -> None:
    def twice(model: nn.Module, forward: Any) -> list[torch.Tensor]:
        model.zero_grad()
        loss = loss_of(forward(X), IGNORED, label_smoothing=0.1)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(gradient.square().sum() for gradient in gradients).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    bare, model = Model(), Model()
    check_equal(twice(model, taken(model)[0]), twice(bare, bare))


def test_inside_transforms_and_checkpoints_the_layer_is_as_it_was() -> None:
    model = Model()
    forward, head, _ = taken(model)
    weights = dict(model.named_parameters())
    torch.func.grad(lambda given: loss_of(torch.func.functional_call(model, given, (X,))))(weights)
    torch.utils.checkpoint.checkpoint(forward, X, use_reentrant=False).sum().backward()
    with torch.autocast("cpu", torch.float16):
        forward(X)
    assert head.made == 0


def test_copies_and_files_do_not_know() -> None:
    model = Model()
    _, head, _ = taken(model, Compiled(model, None))
    head.end_graphs()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other.head._compiled_call_impl is None
        assert other.head.forward.__self__ is other.head
        assert type(other(X)) is torch.Tensor and torch.equal(other(X), Model()(X))
    assert list(model.state_dict()) == list(Model().state_dict())


def test_a_head_whose_logits_go_elsewhere_is_let_go() -> None:
    model = Model()
    _, head, refused = taken(model, Compiled(model._call_impl, None))
    for _ in range(_heads.PATIENCE + 1):
        step(model, model, lambda logits: logits.softmax(-1).square().sum())
    assert refused == ["no F.cross_entropy takes the logits: softmax does"]
    assert model.head._compiled_call_impl is None and "forward" not in model.head.__dict__
    assert head.made == _heads.PATIENCE + 1 and head.fused == 0


@pytest.mark.parametrize("inside", [False, True], ids=["", "loss in the forward"])
def test_captured_forwards_end_before_the_head(inside: bool) -> None:
    """As with the levers compile, bf16-autocast and attention; what Dynamo captures runs as it is."""
    change: Change = (lambda found: found[1]) if inside else (lambda logits: loss_of(logits, IGNORED))
    bare, model = Model(inside=inside), Model(inside=inside)
    half = autocasting(torch.bfloat16)
    forward, head, refused = taken(model, Compiled(half(model, model._call_impl), None))
    for _ in range(2):
        check_equal(step(model, forward, change), step(bare, half(bare, bare), change), 2e-2)
    assert (head.made, head.fused, refused) == (2, 2, [])


def test_models_in_which_it_takes_no_hold() -> None:
    for model in (nn.Linear(4, 4), nn.DataParallel(Model()), nn.ModuleList([Model()])[:0]):
        with pytest.raises(Refused):
            _heads.Heads(print).wrap(model, model)
    hooked = Model()
    hooked.head.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(Refused, match="no linear layer"):
        _heads.Heads(print).wrap(hooked, hooked)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 60), nn.Linear(60, 8)) for _ in range(2)))
    with pytest.raises(Refused, match="outside of repeated blocks"):
        _heads.Heads(print).wrap(blocks, blocks)


def test_when_it_applies() -> None:
    def why(**facts: Any) -> str:
        applies = LEVER.applies(context(True, **facts))
        return "" if applies.yes else applies.why

    changed = msgspec.structs.replace
    assert why(roots=(HEAD,)) == ""
    assert "4096" in why(roots=(changed(HEAD, classes=1000),))
    assert "in training" in why(roots=(changed(HEAD, training=False),))
    assert "wrapped" in why(roots=(changed(HEAD, wrapper="DistributedDataParallel"),))
    assert "no optimizer" in why(roots=(HEAD,), optimizers=())
    assert "several processes" in why(roots=(HEAD,), world=2)
    assert "compiles" in why(roots=(changed(HEAD, compiled=True),))
    assert "float16" in why(roots=(changed(HEAD, autocast="float16"),))
    assert why(roots=(changed(HEAD, autocast="bfloat16"),)) == ""


def test_chunks() -> None:
    assert _chunked_loss.chunk_rows(32 * 1024, 50_304) == 1024
    assert _chunked_loss.chunk_rows(2048, 32_000) == 256
    assert _chunked_loss.chunk_rows(1, 1 << 40) == 1


ROWS = ("--rows", "2048", "--steps", "2")


def test_a_script_with_a_large_vocabulary_needs_less_memory(runner: Runner) -> None:
    """It wins: more than what the logits take stays unallocated; losses are the same but for rounding."""
    bare, ran = (runner.forked("vocabulary.py", *ROWS, levers=levers) for levers in ((), USE))
    check_clean(ran)
    assert ran.losses == pytest.approx(bare.losses, rel=1e-5)
    assert "type Tensor" in ran.output
    assert bare.facts.peak_rss_bytes and ran.facts.peak_rss_bytes
    assert bare.facts.peak_rss_bytes - ran.facts.peak_rss_bytes > 2048 * 8192 * 4
    assert [root.classes for root in ran.facts.roots] == [8192]


def test_scripts_for_which_it_is_nothing(runner: Runner) -> None:
    bare = runner.bare("vocabulary.py", "--own-loss", "--steps", "6")
    ran = runner.forked("vocabulary.py", "--own-loss", "--steps", "6", levers=USE)
    check_same(ran, bare)
    assert [problem.what for problem in ran.problems] == [
        "Refused: no F.cross_entropy takes the logits: log_softmax does"
    ]
    few = runner.forked("vocabulary.py", "--classes", "1000", "--steps", "1", levers=USE)
    assert "no linear layer outside of repeated blocks has 4096" in few.problems[0].what
