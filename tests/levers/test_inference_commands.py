"""Levers in commands that only infer: those that apply there do, and their wrappers work without gradients."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import LOADER, ROOT, context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap.agent.guard import Guard
from hotlap.agent.seams import Seams
from hotlap.levers import all_levers
from hotlap.levers._base import Context

INFERS = {
    "mode": "inference",
    "optimizers": (),
    "backwards": 0,
    "optimizer_steps": 0,
    "roots": (msgspec.structs.replace(ROOT, training=False, softmax=True),),
    "loaders": (
        msgspec.structs.replace(
            LOADER, training=False, default_collate=True, holds_tensors=True, rows=640, epoch_batches=20
        ),
    ),
}


def inferring(cuda: bool) -> Context:
    return context(cuda, {"loader-workers": {}} if cuda else None, **INFERS)


def test_levers_of_loaders_are_told_that_the_command_only_infers() -> None:
    lever, where = all_levers()["loader-workers"], inferring(cuda=True)
    assert lever.applies(where).yes and all(s["inference"] is True for s in lever.variants(where))
    assert all(lever.check(settings) is None for settings in lever.variants(where))
    assert lever.check({**lever.variants(where)[0], "inference": False})
    training = msgspec.structs.replace(where.facts, mode="train")
    assert not lever.applies(Context(where.diagnosis, training, where.environment, where.active)).yes


def test_levers_that_need_training_refuse() -> None:
    for name in ("accumulate", "fused-optimizer", "graph-optimizer", "checkpoint-blocks"):
        assert not all_levers()[name].applies(inferring(cuda=True)).yes, name


def test_an_evaluation_loader_of_a_training_command_is_left_alone() -> None:
    for inference, training, changed in [
        (False, (False,), 0),
        (False, (False, True), 1),
        (False, (True, False), 2),  # once changed, it is looked after each time
        (True, (False, True), 2),
    ]:
        seen: list[Any] = []
        seams = Seams(SimpleNamespace(begun=False, guard=Guard()))  # type: ignore[arg-type]
        seams.install("one", lambda seams, _: seams.on_loader(seen.append, inference=inference), {})  # noqa: B023
        loader = DataLoader(TensorDataset(torch.ones(4, 1)))
        for with_gradients in training:
            seams.loader(loader, with_gradients)
        assert seen == [loader] * changed


# Every lever that wraps the forward, on one without gradients: (lever, settings, on which model).
CONV = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))


class Hand(nn.Module):
    """Attention by hand, as in a decode loop."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(8, dim=-1)
        return (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v


IMAGES, TOKENS = torch.randn(2, 3, 12, 12), torch.randn(2, 5, 8)
FORWARDS: list[tuple[str, dict[str, Any], nn.Module, torch.Tensor, float]] = [
    ("bf16-autocast", {}, CONV, IMAGES, 0.02),
    ("channels-last", {}, CONV, IMAGES, 1e-5),
    ("attention", {}, Hand(), TOKENS, 1e-5),
    ("compile", {"mode": "default"}, CONV, IMAGES, 1e-5),
]


class ForwardSeams:
    """As `agent.seams.Seams`, for forwards."""

    def __init__(self) -> None:
        self.wraps: list[Callable[[Any, Any], Any]] = []
        self.changes: list[Callable[[Any], None]] = []
        self.refused: list[str] = []
        self.noted: list[str] = []
        self.agent = SimpleNamespace(append=lambda name, line: self.noted.append(line))

    def on_root(self, change: Callable[[Any], None], undo: Any = None) -> None:
        self.changes.append(change)

    def switch(self, on: Any, off: Any) -> None:
        on()

    def optimizers(self) -> list[Any]:
        return []

    def wrap_forward(self, wrap: Callable[[Any, Any], Any], order: int) -> None:
        self.wraps.append(wrap)

    def refuse(self, lever: str, why: str) -> None:
        self.refused.append(why)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("name", "settings", "model", "x", "off"), FORWARDS, ids=[case[0] for case in FORWARDS])
def test_forwards_without_gradients(
    name: str, settings: dict[str, Any], model: nn.Module, x: torch.Tensor, off: float, mode: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("hotlap.levers.compiler._graph.PASSES", [])
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # no C++ compiler's minute
    lever, seams = all_levers()[name], ForwardSeams()
    assert lever.applies(inferring(cuda=False)).yes and settings in lever.variants(inferring(cuda=False))
    model = model.eval()
    with torch.no_grad():
        expected = model(x)
    lever.install(seams, settings)  # type: ignore[arg-type]
    forward: Any = model._call_impl
    for change in seams.changes:
        change(model)
    for wrap in seams.wraps:
        forward = wrap(model, forward)
    with mode():
        for _ in range(6):
            output = forward(x)
    assert output.dtype == torch.float32 and not output.requires_grad and not seams.refused
    torch.testing.assert_close(output, expected, rtol=off, atol=off)
    assert name != "attention" or len(seams.noted) == 1, "one attention was rewritten"


def test_threads() -> None:
    """Set at import, whatever the command does then."""
    lever, where = all_levers()["cpu-threads"], inferring(cuda=False)
    assert lever.applies(where).yes and lever.variants(where) and lever.share(where) > 0
