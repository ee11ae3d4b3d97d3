"""The padded head: the script sees the numbers, the shapes and the parameters that it sees without."""

import copy
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from contexts import ROOT, context
from torch import nn
from torch.nn import functional

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.seams import Refused
from hotlap.levers import _padded_head, all_levers
from hotlap.levers._padded_head import MULTIPLE, PATIENCE, PaddedHeads
from hotlap.records.run import Lever

LEVER = all_levers()["pad-vocabulary"]
USE = (Lever(name="pad-vocabulary"),)
CLASSES = 37
X = torch.randint(0, CLASSES, (4, 9), generator=torch.Generator().manual_seed(1))
Step = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as large here; the CPU stands for a device with tensor cores, float32 for TF32."""
    monkeypatch.setattr(_padded_head, "LEAST_CLASSES", 30)
    monkeypatch.setattr(_padded_head, "LEAST_ROWS", 4)
    monkeypatch.setattr(_padded_head, "DEVICES", ("cpu",))
    monkeypatch.setattr(_padded_head, "tf32_matmul", lambda: True)


class Model(nn.Module):
    def __init__(self, tied: bool = False, classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(classes, 8)
        self.head = nn.Linear(8, classes, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.embedding(x).tanh())


def taken(model: nn.Module) -> tuple[PaddedHeads, list[str]]:
    """The model's heads taken hold of; what was refused later."""
    refused: list[str] = []
    heads = PaddedHeads(refused.append)
    heads.take(model)
    return heads, refused


def loss_of(logits: Any) -> Any:
    return functional.cross_entropy(logits.view(-1, CLASSES), X.view(-1))


def written(logits: Any) -> Any:
    """Scripts may write into logits."""
    logits.div_(2.0)
    logits[..., 30:] = -9.0
    return loss_of(logits)


def twice(logits: Any) -> Any:
    """A penalty on a gradient: differentiated again."""
    (gradient,) = torch.autograd.grad(loss_of(logits), logits, create_graph=True)
    return gradient.square().sum() * 100 + loss_of(logits)


STEPS: dict[str, Step] = {
    "cross-entropy": loss_of,
    "transposed": lambda logits: functional.cross_entropy(logits.transpose(1, 2), X, label_smoothing=0.1),
    "shifted": lambda logits: functional.cross_entropy(logits[:, 1:].float().flatten(0, 1), X[:, 1:].flatten()),
    "another loss": lambda logits: -logits.log_softmax(-1).gather(-1, X[..., None]).mean(),
    "written": written,
    "gradients of gradients": twice,
    "some rows": lambda logits: logits[X > 9].logsumexp(-1).square().mean(),
}


def outcome(model: nn.Module, forward: Any, step: Step) -> list[torch.Tensor]:
    """Logits, loss and all gradients."""
    model.zero_grad()
    logits = forward(X)
    seen = logits.detach().clone()
    loss = step(logits)
    loss.backward()
    return [seen, loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def check_equal(found: list[torch.Tensor], wanted: list[torch.Tensor], within: float = 1e-5) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is torch.Tensor
        torch.testing.assert_close(one, other, rtol=within, atol=within)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_losses_and_gradients_are_those_of_before(step: Step, half: bool) -> None:
    for tied in (False, True):
        bare, model = Model(tied), Model(tied)
        heads, _ = taken(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            wanted, found = outcome(bare, bare, step), outcome(model, model, step)
        check_equal(found, wanted, 2e-2 if half else 1e-5)
        assert heads.taken[0].used


def test_a_head_whose_input_autocast_made_is_padded() -> None:
    """By the layer before it, in half precision already."""
    bare, model = Model(), Model()
    bare.embedding, model.embedding = (nn.Sequential(one.embedding, nn.Linear(8, 8)) for one in (bare, model))
    model.load_state_dict(bare.state_dict())
    heads, _ = taken(model)
    with torch.autocast("cpu", torch.bfloat16):
        check_equal(outcome(model, model, loss_of), outcome(bare, bare, loss_of), 2e-2)
    assert heads.taken[0].used
    heads.taken[0].used = False
    with pytest.raises(RuntimeError, match="same dtype"):  # as without hotlap
        model.head(torch.randn(9, 8, dtype=torch.bfloat16))
    assert not heads.taken[0].used


def test_what_the_script_sees() -> None:
    """The original width, in memory with gaps; the same parameters under the same names."""
    model = Model(tied=True)
    before = {name: id(value) for name, value in model.named_parameters()}
    taken(model)
    logits = model(X)
    assert logits.shape == (4, 9, CLASSES) and logits.stride() == (9 * MULTIPLE, MULTIPLE, 1)
    assert not logits._is_view() and not logits.is_contiguous()
    assert {name: id(value) for name, value in model.named_parameters()} == before
    assert list(model.state_dict()) == list(Model(tied=True).state_dict())
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        logits.view(-1)


def test_padding_gets_no_gradient() -> None:
    """And what is behind the classes in memory never reaches it."""
    logits = torch.randn(5, 64, requires_grad=True)
    cut = _padded_head._Cut.apply(logits, CLASSES)
    cut.backward(torch.randn(CLASSES, 5).t())
    assert torch.equal(logits.grad[:, CLASSES:], torch.zeros(5, 64 - CLASSES)) and logits.grad.is_contiguous()
    assert bool((logits.grad[:, :CLASSES] != 0).all())


def test_compiled_with_what_is_around_it() -> None:
    torch._dynamo.reset()
    bare, model = Model(), Model()
    heads, _ = taken(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            check_equal(outcome(model, compiled, loss_of), outcome(bare, bare, loss_of), 2e-2)
    assert heads.taken[0].used


def test_transforms_and_checkpoints_go_through_it() -> None:
    bare, model = Model(), Model()
    taken(model)
    for one in (bare, model):
        one.zero_grad()
        torch.utils.checkpoint.checkpoint(lambda x, one=one: loss_of(one(x)), X, use_reentrant=False).backward()
    check_equal([p.grad for p in model.parameters()], [p.grad for p in bare.parameters()])
    weights = {name: value.detach() for name, value in model.named_parameters()}
    found, wanted = (
        torch.func.grad(lambda given, one=one: loss_of(torch.func.functional_call(one, given, (X,))))(weights)
        for one in (model, bare)
    )
    check_equal(list(found.values()), list(wanted.values()))


def test_where_it_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    heads, refused = taken(model)
    with torch.no_grad():
        assert model(X).is_contiguous()
    assert model(X[:1, :3]).is_contiguous(), "too few rows"
    heads.taken[0].tf32 = False
    assert model(X).is_contiguous(), "float32 without TF32"
    monkeypatch.setattr(_padded_head, "DEVICES", ("cuda",))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(X).is_contiguous(), "no tensor cores"
    assert not heads.taken[0].used and not refused


def test_heads_that_are_never_padded_are_let_go() -> None:
    model = Model()
    heads, refused = taken(model)
    forward = heads.watch(model, model)
    for _ in range(PATIENCE + 1):
        assert not refused or "forward" not in model.head.__dict__
        forward(X[:1, :2])
    assert len(refused) == 1 and "no head multiplies" in refused[0]


def test_models_in_which_it_takes_no_hold() -> None:
    for model in (Model(classes=40), nn.Linear(8, 8), nn.Sequential(*(nn.Sequential(Model()) for _ in range(2)))):
        with pytest.raises(Refused, match="no linear layer outside of repeated blocks"):
            taken(model)
        assert not any("forward" in module.__dict__ for module in model.modules())


def test_copies_and_files_do_not_know() -> None:
    model = Model()
    taken(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other.head.forward.__self__ is other.head and other(X).is_contiguous()
        torch.testing.assert_close(other(X), Model()(X))


def test_when_it_applies() -> None:
    def why(active: dict[str, Any] | None = None, capability: Any = (9, 0), cuda: bool = True, **root: Any) -> str:
        roots = (msgspec.structs.replace(ROOT, **{"classes": 50_257, **root}),)
        applies = LEVER.applies(context(cuda, active, roots=roots, capability=capability))
        return "" if applies.yes else applies.why

    assert LEVER.risk == "semantic"
    assert (
        why(autocast="bfloat16") == why(dtypes=("bfloat16",)) == why({"tf32": {}}) == why({"bf16-autocast": {}}) == ""
    )
    assert "without TF32" in why()
    assert "multiple of 8 already" in why(autocast="bfloat16", classes=50_304)
    assert "4096 outputs" in why(autocast="bfloat16", classes=1001)
    assert "CPU" in why(autocast="bfloat16", cuda=False)
    assert "compiles the model itself" in why(autocast="bfloat16", compiled=True)
    assert "no tensor cores" in why(autocast="float16", capability=(6, 1))
    assert "in training" in why(autocast="bfloat16", training=False)


ON_THE_CPU = (  # as a device with tensor cores
    "import hotlap.levers._padded_head as padded\n"
    "padded.DEVICES, padded.LEAST_ROWS, padded.tf32_matmul = ('cpu',), 64, lambda: True"
)


def test_a_script_trains_the_same(runner: Runner) -> None:
    """With the loss outside of the forward, the embedding tied."""
    arguments = ("--classes", "4099", "--rows", "128", "--width", "16", "--tied")
    bare = runner.bare("vocabulary.py", *arguments)
    ran = runner.forked("vocabulary.py", *arguments, before=ON_THE_CPU, levers=USE)
    check_clean(ran)
    assert len(bare.losses) == 6 and ran.losses == pytest.approx(bare.losses, rel=1e-5)
    assert '"lever": "pad-vocabulary"' in (ran.ranks[0] / "levers.jsonl").read_text()


def test_a_script_with_an_even_vocabulary_is_left_alone(runner: Runner) -> None:
    ran = runner.forked("vocabulary.py", before=ON_THE_CPU, levers=USE)
    check_same(ran, runner.bare("vocabulary.py"))
    assert [problem.lever for problem in ran.problems] == ["pad-vocabulary"]
    assert "no linear layer" in ran.problems[0].what
