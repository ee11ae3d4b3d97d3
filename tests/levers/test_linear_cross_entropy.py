"""linear-cross-entropy: the same losses and gradients without logits; and logits, as they were, for whoever asks."""

import copy
import functools
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import ROOT, context
from torch import nn
from torch.nn import functional

from hotlap.agent.guard import Guard
from hotlap.agent.seams import Refused
from hotlap.levers import all_levers
from hotlap.levers.memory.linear_cross_entropy import LEAST_CLASSES, PATIENCE, Heads

LEVER = all_levers()["linear-cross-entropy"]
HEAD = msgspec.structs.replace(ROOT, classes=50304)
CLASSES, WIDTH, ROWS, LENGTH = LEAST_CLASSES, 6, 3, 5

pytestmark = pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="torch has it from 2.13 on")


class Model(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=bias)

    def forward(self, tokens: Any) -> Any:
        return self.head(torch.tanh(self.words(tokens)))


class Side:
    """A model with the lever or without it, and what the lever said."""

    def __init__(self, lever: bool, bias: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Model(bias)
        self.said: list[str] = []
        guard = Guard()
        guard.report = lambda where, what, trace, lever: self.said.append(what)
        seams = SimpleNamespace(
            guarded=lambda lever, undo: functools.partial(guard.spare, "lever", undo),
            refuse=lambda lever, why: self.said.append(why), leave_out=lambda lever, why: self.said.append(why),
        )  # fmt: skip
        self.heads = Heads(seams, "linear-cross-entropy", 4)  # type: ignore[arg-type]
        if lever:
            self.heads.change(self.model)
        self.tokens = torch.randint(CLASSES, (ROWS, LENGTH))
        self.targets = torch.randint(CLASSES, (ROWS, LENGTH))

    def gradients(self, loss: Callable[[Any, Any], Any], **how: Any) -> list[Any]:
        made = loss(self.model(self.tokens), self.targets)
        return [made, *torch.autograd.grad(made.sum(), [*self.model.parameters()], **how)]


def close(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6)


def ignoring(logits: Any, targets: Any) -> Any:
    where = targets.clone()
    where[0] = -1
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), where.view(-1), ignore_index=-1)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "view": lambda y, t: functional.cross_entropy(y.view(-1, CLASSES), t.view(-1)),
    "ignore_index": ignoring,
    "flatten": lambda y, t: functional.cross_entropy(y.flatten(0, 1), t.flatten(), reduction="sum"),
    "none": lambda y, t: functional.cross_entropy(y.reshape(-1, CLASSES), t.reshape(-1), reduction="none"),
    "weighted": lambda y, t: nn.CrossEntropyLoss(torch.linspace(0.1, 2, CLASSES))(y.view(-1, CLASSES), t.view(-1)),
    "classes second": lambda y, t: functional.cross_entropy(y.transpose(1, 2), t),
    "classes second, none": lambda y, t: functional.cross_entropy(y.permute(0, 2, 1), t, reduction="none"),
    "shifted": lambda y, t: functional.cross_entropy(
        y[..., :-1, :].contiguous().float().view(-1, CLASSES), t[..., 1:].reshape(-1)
    ),
    "one row": lambda y, t: functional.cross_entropy(y[:, -1], t[:, -1]),
    "masked": lambda y, t: functional.cross_entropy(y[t > 100], t[t > 100]),
    "logarithms": lambda y, t: functional.nll_loss(functional.log_softmax(y, dim=-1).view(-1, CLASSES), t.view(-1)),
    "by name": lambda y, t: functional.cross_entropy(input=y.view(-1, CLASSES), target=t.view(-1)),
    "turned round": lambda y, t: functional.cross_entropy(y.transpose(0, 1).reshape(-1, CLASSES), t.mT.reshape(-1)),
}
READ: dict[str, Callable[[Any, Any], Any]] = {
    "smoothed": lambda y, t: functional.cross_entropy(y.view(-1, CLASSES), t.view(-1), label_smoothing=0.1),
    "probabilities": lambda y, t: functional.cross_entropy(
        y.view(-1, CLASSES), functional.one_hot(t.view(-1), CLASSES).float()
    ),
    "some classes": lambda y, t: functional.cross_entropy(y[..., :50].reshape(-1, 50), t.view(-1) % 50),
    "tempered": lambda y, t: functional.cross_entropy((y / 2).view(-1, CLASSES), t.view(-1)),
    "penalised": lambda y, t: y.square().mean() + functional.cross_entropy(y.view(-1, CLASSES), t.view(-1)),
    "across rows": lambda y, t: functional.log_softmax(y, dim=0).mean(),
    "logarithms": lambda y, t: functional.log_softmax(y, dim=-1).mean(),
    "stacked": lambda y, t: functional.cross_entropy(torch.cat([y, y]).view(-1, CLASSES), t.repeat(2, 1).view(-1)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_and_gradients_are_those_of_logits(loss: Callable[[Any, Any], Any], bias: bool) -> None:
    side = Side(True, bias)
    close(side.gradients(loss), Side(False, bias).gradients(loss))
    assert side.heads.fused == 1 and not side.said
    assert all(call.real is None for call in side.heads.pending), "nobody asked for the logits"


@pytest.mark.parametrize("loss", READ.values(), ids=READ)
def test_what_it_does_not_know_gets_the_logits(loss: Callable[[Any, Any], Any]) -> None:
    side = Side(True)
    assert all(map(torch.equal, side.gradients(loss), Side(False).gradients(loss)))
    assert not side.heads.fused and not side.said


def test_logits_that_were_written_to_are_the_ones_of_the_loss() -> None:
    def loss(logits: Any, targets: Any) -> Any:
        rows = logits.view(-1, CLASSES)
        logits[..., :10] = -5.0
        return functional.cross_entropy(rows, targets.view(-1))

    side = Side(True)
    assert all(map(torch.equal, side.gradients(loss), Side(False).gradients(loss)))


def test_logits_are_shown_without_being_computed() -> None:
    side = Side(True)
    logits = side.model(side.tokens)
    assert isinstance(logits, torch.Tensor) and logits.shape == (ROWS, LENGTH, CLASSES) and logits.requires_grad
    assert (logits.dtype, logits.device.type, len(logits), logits.dim()) == (torch.float32, "cpu", ROWS, 3)
    assert logits.grad_fn is not None and logits.untyped_storage().nbytes() == 4
    assert all(call.real is None for call in side.heads.pending)
    plain = Side(False).model(side.tokens)
    assert torch.equal(logits.detach(), plain) and torch.equal(logits.argmax(-1), plain.argmax(-1))
    assert repr(logits) == repr(plain) and logits.tolist() == plain.tolist()
    with torch.no_grad():
        assert type(side.model(side.tokens)) is torch.Tensor


def test_logits_that_are_read_after_the_update_are_those_before_it() -> None:
    read: list[Any] = []
    for lever in (True, False):
        side = Side(lever)
        optimizer = torch.optim.SGD(side.model.parameters(), lr=100.0)
        side.heads.before_updates(optimizer)
        logits = side.model(side.tokens)
        functional.cross_entropy(logits.flatten(0, 1), side.targets.flatten()).backward()
        optimizer.step()
        read.append(logits.detach() + 0)
        assert not side.said
    torch.testing.assert_close(*read)
    side.heads.leave_updates(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_weight_that_something_else_wrote_to_is_told() -> None:
    side = Side(True)
    logits = side.model(side.tokens)
    with torch.no_grad():
        side.model.head.weight.zero_()
    logits.sum()
    assert ["written to" in one for one in side.said] == [True]


def test_backwards_may_be_repeated_and_differentiated() -> None:
    def twice(side: Side) -> list[Any]:
        loss = LOSSES["view"](side.model(side.tokens), side.targets)
        parameters = [*side.model.parameters()]
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss * 2, parameters, create_graph=True)
        penalty = sum(one.square().sum() for one in second)
        return [*first, *second, *torch.autograd.grad(penalty, parameters)]

    side = Side(True)
    close(twice(side), twice(Side(False)))
    assert side.heads.fused == 1


def test_gradients_of_what_is_no_function_of_torchs_find_their_way() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            ctx.save_for_backward(logits.detach())
            return logits.square().sum()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * gradient

    own = [side.gradients(lambda y, t: Own.apply(functional.log_softmax(y, -1))) for side in (Side(True), Side(False))]
    close(*own)


def test_in_autocast_products_are_of_bfloat16() -> None:
    def loss(logits: Any, targets: Any) -> Any:
        assert logits.dtype is torch.bfloat16
        return LOSSES["view"](logits.float(), targets)

    side, plain = Side(True), Side(False)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = side.gradients(loss), plain.gradients(loss)
    assert side.heads.fused == 1 and ours[0].dtype is torch.float32
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


def test_copies_and_pickles_of_the_model_are_as_they_were() -> None:
    side = Side(True)
    copied, stored = copy.deepcopy(side.model), io.BytesIO()
    torch.save(side.model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    for model in (copied, loaded, pickle.loads(pickle.dumps(side.model))):
        assert type(model(side.tokens)) is torch.Tensor and model.head._compiled_call_impl is None
    side.heads.leave(side.model)
    assert type(side.model(side.tokens)) is torch.Tensor and "_compiled_call_impl" not in vars(side.model.head)


def test_hooks_on_the_head_see_its_logits() -> None:
    side, seen = Side(True), list[Any]()
    side.model.head.register_forward_hook(lambda module, given, made: seen.append(type(made)))
    side.gradients(LOSSES["view"])
    assert seen == [torch.Tensor] and not side.heads.fused


def test_it_leaves_itself_out_where_no_cross_entropy_takes_the_logits() -> None:
    side = Side(True)
    for _ in range(PATIENCE):
        side.gradients(READ["tempered"])
    assert len(side.said) == 1 and "no cross-entropy" in side.said[0]
    assert type(side.model(side.tokens)) is torch.Tensor


def test_an_error_of_its_own_leaves_the_loss_to_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(True)
    monkeypatch.setattr(functional, "linear_cross_entropy", None)
    assert all(map(torch.equal, side.gradients(LOSSES["view"]), Side(False).gradients(LOSSES["view"])))
    assert side.said and side.heads.off


def test_it_refuses_models_without_such_a_head() -> None:
    side = Side(False)
    with pytest.raises(Refused, match="no linear layer"):
        side.heads.change(nn.Sequential(nn.Linear(WIDTH, CLASSES - 1)))
    with pytest.raises(Refused, match="DataParallel"):
        side.heads.change(nn.DataParallel(side.model))


def test_where_it_applies() -> None:
    def why(**facts: Any) -> str:
        return LEVER.applies(context(True, **facts)).why

    assert LEVER.applies(context(True, roots=(HEAD,))).yes
    assert "logits are small" in why()
    for changed, said in (
        ({"compiled": True}, "compiles"), ({"autocast": "float16"}, "float16"),
        ({"wrapper": "FullyShardedDataParallel"}, "FullyShardedDataParallel"),
    ):  # fmt: skip
        assert said in why(roots=(msgspec.structs.replace(HEAD, **changed),))
    assert "2.11.0 has no" in why(roots=(HEAD,), torch="2.11.0")
    assert LEVER.applies(context(True, roots=(HEAD,), torch="2.14.0a0+git1")).yes
    assert LEVER.share(context(True)) == 0 < LEVER.share(context(False))
