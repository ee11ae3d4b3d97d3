"""Logits of the positions that are used: what is computed of them, and that nobody can tell but by time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from contexts import ROOT, context
from test_linear_cross_entropy import CLASSES, Model, X
from torch.nn import functional

from agent.harness import Runner, check_clean
from hotlap.levers import _heads, _lazy_logits, all_levers
from hotlap.levers._graph import Compiled
from hotlap.levers._lazy_logits import LazyLogits
from hotlap.records.run import Lever

LEVER = all_levers()["logits-to-keep"]
Use = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What counts as large here; rows of logits that were computed."""
    made: list[int] = []
    product = _lazy_logits.product

    def noting(hidden: Any, *rest: Any) -> Any:
        made.append(hidden.numel() // hidden.shape[-1])
        return product(hidden, *rest)

    monkeypatch.setattr(_heads, "LEAST_CLASSES", CLASSES)
    monkeypatch.setattr(_heads, "LEAST_LOGITS", 1)
    monkeypatch.setattr(_heads, "COMPARED", 0)
    monkeypatch.setattr(_lazy_logits, "product", noting)
    yield made


def taken(model: torch.nn.Module, forward: Any = None) -> tuple[Any, _heads.Head, list[str]]:
    refused: list[str] = []
    heads = _heads.Heads(refused.append, rows=True)
    forward = heads.wrap(model, forward or model)
    return forward, heads.on[0], refused


def of_last(logits: Any) -> Any:
    last = logits[:, -1, :]
    return functional.log_softmax(last / 0.7, dim=-1), last.argmax(-1), last.topk(3).values


FEW: dict[str, tuple[int, Use]] = {
    "last": (4, of_last),
    "last, in float32": (4, lambda logits: logits.float()[:, -1].softmax(-1)),
    "of one": (1, lambda logits: logits[0, -1].argmax()),
    "two positions": (8, lambda logits: logits[:, 1:3].sum(-1)),
    "flat": (1, lambda logits: logits.view(-1, CLASSES)[7].sum()),
    "by places": (2, lambda logits: logits.flatten(0, 1)[torch.tensor([3, 8])].sum()),
    "of some of the last": (4, lambda logits: logits[:, -1][1:3].logsumexp(-1)),
    "nobody": (0, lambda logits: torch.ones(2)),
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("inference", [False, True])
def test_positions_that_are_used_are_computed_alone(name: str, inference: bool, rows: list[int]) -> None:
    bare, model = Model(), Model()
    forward, _, _ = taken(model)
    least, use = FEW[name]
    with torch.inference_mode() if inference else torch.no_grad():
        wanted = use(bare(X))
        logits = forward(X)
        assert type(logits) is LazyLogits and logits.shape == (4, 9, CLASSES)
        check(use(logits), wanted)
    assert sum(rows) == least


def written(logits: Any) -> Any:
    last = logits[:, -1, :]
    before = last.exp().sum()
    last /= 2
    last[:, 3] = -9.0
    return before, last, logits


def written_as_a_whole(logits: Any) -> Any:
    last, copy = logits[:, -1], logits[:, -1].clone()
    before = last.sum()
    logits.mul_(3)
    return before, last, copy, logits, logits[:, -1]


def written_through_a_view(logits: Any) -> Any:
    last = logits[:, -1]
    last.t().add_(1)
    return logits.sum(), last, logits[:, 2]


WHOLE: dict[str, Use] = {
    "all": lambda logits: logits.argmax(-1),
    "classes": lambda logits: logits[..., 2:],
    "written": written,
    "written as a whole": written_as_a_whole,
    "written through a view": written_through_a_view,
    "a place": lambda logits: logits.index_fill_(1, torch.tensor([2]), 0.5),
    "two, then all": lambda logits: (logits[:, -1].sum(), logits[:, 0].sum(), logits.sum()),
    "a loss": lambda logits: functional.cross_entropy(logits.view(-1, CLASSES), X.flatten() % CLASSES),
    "list": lambda logits: torch.stack([logits, logits]),
}


@pytest.mark.parametrize("use", WHOLE.values(), ids=WHOLE)
def test_what_needs_them_as_a_whole_gets_them_so(use: Use) -> None:
    bare, model = Model(), Model()
    with torch.no_grad():
        check(use(taken(model)[0](X)), use(bare(X)))


def check(found: Any, wanted: Any) -> None:
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for one, other in pairs:
        torch.testing.assert_close(torch.as_tensor(one) + 0, other + 0, rtol=1e-5, atol=1e-5)


def test_under_autocast_and_compiled(rows: list[int]) -> None:
    bare, model = Model(), Model()
    compiled = Compiled(model._call_impl, None)
    forward, _, _ = taken(model, compiled)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            found, wanted = forward(X)[:, -1].float(), bare(X)[:, -1].float()
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert sum(rows) == 8


class Written(Model):
    """Writes to the layer's input after it."""

    def forward(self, x: Any) -> Any:
        hidden = self.norm(self.embedding(x))
        logits = self.head(hidden)
        hidden.mul_(2)
        return logits


@pytest.mark.parametrize("inference", [False, True])
def test_the_layers_input_may_be_written_over(inference: bool) -> None:
    bare, model = Written(), Written()
    forward, _, _ = taken(model)
    with torch.inference_mode() if inference else torch.no_grad():
        check(forward(X)[:, -1], bare(X)[:, -1])


def put_aside(model: Any) -> None:
    model.head.weight.data, model.head.bias.data = model.head.weight.data * 2, model.head.bias.data + 1


def written_over(model: Any) -> None:
    model.head.weight.data.mul_(2)


def loaded(model: Any) -> None:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})


@pytest.mark.parametrize("change", [put_aside, written_over, loaded])
@pytest.mark.parametrize("inference", [False, True])
def test_weights_may_change_before_the_first_logits_are_used(
    change: Callable[[Any], None], inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two sets of weights are compared."""
    monkeypatch.setattr(_heads, "COMPARED", 3)
    model = Model()
    forward, _, _ = taken(model)
    with torch.inference_mode() if inference else torch.no_grad():
        wanted = Model()(X)
        logits, last = forward(X), forward(X)[:, -1]
        change(model)
        check((last + 0, logits + 0), (wanted[:, -1], wanted))
        last[0] = 5.0
        assert float(last.sum()) != pytest.approx(float(wanted[:, -1].sum()))


@pytest.mark.parametrize("change", [put_aside, lambda model: model.bfloat16()])
def test_logits_are_those_of_weights_that_were_put_aside(change: Callable[[Any], None]) -> None:
    model = Model()
    forward, _, _ = taken(model)
    with torch.no_grad():
        last = forward(X)[:, -1]
        change(model)
        check(last + 0, Model()(X)[:, -1])
        last = Model()(X)[:, -1]
        logits = taken(other := Model())[0](X)
        other.head.bias.mul_(2)
        with pytest.raises(RuntimeError, match="changed the weights"):
            logits.sum()


def by_out(last: Any) -> Any:
    return torch.exp(last, out=last)


@pytest.mark.parametrize(
    "write",
    [by_out, lambda last: functional.relu(last, inplace=True), lambda last: last.data.add_(3),
     lambda last: last.detach().add_(3)],
)  # fmt: skip
def test_what_is_written_into_rows_is_there_when_they_are_chosen_again(write: Use) -> None:
    def use(logits: Any) -> Any:
        last = logits[:, -1]
        write(last)
        return logits[:, -1], last, logits[:, -2:], logits

    bare, model = Model(), Model()
    with torch.no_grad():
        check(use(taken(model)[0](X)), use(bare(X)))


def test_a_head_whose_logits_are_needed_as_a_whole_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_heads, "PATIENCE_FOR_ROWS", 3)
    model = Model()
    forward, head, refused = taken(model)
    with torch.no_grad():
        for _ in range(6):
            forward(X).argmax(-1)
    assert refused == ["they are needed as a whole: argmax does"] and head.made == 4
    assert model.head._compiled_call_impl is None


def test_rows_that_are_others_when_they_are_alone_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_heads, "COMPARED", 3)
    product = _lazy_logits.product
    monkeypatch.setattr(_lazy_logits, "product", lambda hidden, *rest: product(hidden, *rest) + len(hidden) % 9 / 8)
    model = Model()
    forward, _, refused = taken(model)
    with torch.no_grad():
        forward(X)[0, 1:3].sum()
        assert type(forward(X)) is torch.Tensor
    assert len(refused) == 1 and refused[0].startswith("rows that are computed alone differ by")


def test_with_gradients_the_layer_is_as_it_was() -> None:
    model = Model()
    forward, head, _ = taken(model)
    assert type(forward(X)) is torch.Tensor and head.made == 0


def test_when_it_applies() -> None:
    large = msgspec.structs.replace(ROOT, classes=50_304, training=False)
    assert LEVER.applies(context(True, mode="inference", roots=(large,))).yes
    small = msgspec.structs.replace(large, classes=10)
    assert "4096 outputs" in LEVER.applies(context(True, mode="inference", roots=(small,))).why
    own = msgspec.structs.replace(large, compiled=True)
    assert "compiles the model" in LEVER.applies(context(True, mode="inference", roots=(own,))).why
    assert "trains" in LEVER.applies(context(True)).why


GENERATES = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(8192, 16), torch.nn.Linear(16, 8192))
tokens = torch.randint(0, 8192, (64, 12))
with torch.no_grad():
    for step in range(60):
        logits = model(tokens)
        best = logits[:, -1, :].argmax(-1)
        tokens = torch.cat([tokens[:, 1:], best[:, None]], 1)
        if step % 10 == 0:
            print(step, int(tokens.sum()))
"""


def test_a_script_that_generates_says_the_same(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "generates.py"
    script.write_text(GENERATES)
    plain, run = runner.apart([str(script)]), runner.under([str(script)], levers=(Lever(name="logits-to-keep"),))
    check_clean(run)
    assert run.output == plain.output and "50 " in plain.output


def test_a_script_that_compares_two_sets_of_weights_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen rows are those of before; where it is the logits that are kept, they are, and the lever goes."""
    bare, model = Model(), Model()
    forward, _, refused = taken(model)
    with torch.no_grad():
        last, wanted = forward(X)[:, -1], bare(X)[:, -1]
        for one in (bare, model):
            one.head.weight.mul_(2)
        check(last, wanted)
        monkeypatch.setattr(_heads, "COMPARED", 3)
        logits, wanted = forward(X), bare(X)
        for one in (bare, model):
            one.head.weight.mul_(2)
        check(logits[:, -1], wanted[:, -1])
        assert not refused
        check(forward(X)[:, -1], bare(X)[:, -1])
    assert refused == ["its logits are used after its weights have changed"]
