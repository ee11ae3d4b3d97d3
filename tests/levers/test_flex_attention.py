"""Sparse constant masks through FlexAttention: on the CPU, where torch computes the whole and masks it."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contexts import ROOT, context
from torch import nn

from agent.harness import Runner, check_clean
from hotlap.agent.seams import Refused
from hotlap.levers import _attention_build, _attention_flex, _graph
from hotlap.levers._attention_flex import REQUESTS, Request, block_mask, empty_share, sparse_attention
from hotlap.levers.attention import LEVER as ATTENTION
from hotlap.levers.attention import PATIENCE
from hotlap.levers.flex_attention import LEAST_EMPTY, LEVER
from hotlap.records.run import Lever

B, H, T, D = 2, 2, 40, 16
AT = torch.arange(T)
CAUSAL = AT[:, None] >= AT
WINDOW = CAUSAL & (AT[:, None] - AT < 6)
DOCUMENTS = CAUSAL & (AT[:, None] // 10 == AT // 10)
PREFIX = (AT[:, None] // 8 == AT // 8) | (AT < 8)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(_attention_flex, "BLOCK", 8)
    yield
    _graph.PASSES.clear()
    REQUESTS.clear()
    _attention_flex.KEPT.clear()


class Attention(nn.Module):
    """By hand; the mask is a buffer."""

    def __init__(self, mask: Any = WINDOW, fill: float = float("-inf"), dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.drop, self.fill = nn.Linear(H * D, 3 * H * D), nn.Dropout(dropout), fill
        self.register_buffer("mask", mask.clone())

    def masked(self, scores: Any) -> Any:
        return scores.masked_fill(~self.mask, self.fill)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.view(len(x), -1, H, D).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = self.drop(self.masked(q @ k.transpose(-2, -1) * 0.25).softmax(-1))
        return (weights @ v).transpose(1, 2).reshape(x.shape)


class Bias(Attention):
    """The mask as something that is added, as in older code."""

    def masked(self, scores: Any) -> Any:
        return scores + torch.zeros(T, T).masked_fill(~self.mask, -1e9)


class Distance(Attention):
    """ALiBi's, which weighs what is near: no mask alone."""

    def masked(self, scores: Any) -> Any:
        return (scores - 0.1 * (AT[:, None] - AT).abs()).masked_fill(~self.mask, self.fill)


class PerHead(Attention):
    def masked(self, scores: Any) -> Any:
        return scores.masked_fill(~torch.stack((self.mask, self.mask))[None], self.fill)


class Learnt(Attention):
    """Part of the mask is known when it runs."""

    def masked(self, scores: Any) -> Any:
        return scores.masked_fill(~self.mask | (self.qkv.weight[:1, :1] > 1e3), self.fill)


class Seams:
    """What a lever asks of the agent."""

    def __init__(self, known: bool = True) -> None:
        self.lines: list[dict[str, Any]] = []
        self.refused: list[tuple[str, str]] = []
        self.wraps: list[tuple[int, Any]] = []
        self.empty = 0.0
        script = SimpleNamespace(empty_blocks=self.saw)
        self.agent = SimpleNamespace(append=lambda _, line: self.lines.append(json.loads(line)), script=script)

    def saw(self, roots: list[Any], share: float) -> None:
        assert roots
        self.empty = max(self.empty, share)

    def refuse(self, lever: str, why: str) -> None:
        self.refused.append((lever, why))

    def switch(self, on: Any, off: Any) -> None:
        on()

    def wrap_forward(self, wrap: Any, order: int) -> None:
        self.wraps.append((order, wrap))

    def put_in(self, model: nn.Module) -> Any:
        forward: Any = model.forward
        for _, wrap in sorted(self.wraps, key=lambda one: one[0]):
            forward = wrap(model, forward)
        return forward


def with_levers(model: nn.Module, settings: dict[str, Any] | None = None) -> tuple[Any, Seams]:
    """The model's forward as both levers leave it; flex-attention is installed first, as by a recipe in any order."""
    seams = Seams()
    LEVER.install(seams, {})
    ATTENTION.install(seams, settings or {})
    return seams.put_in(model), seams


def outcome(model: nn.Module, forward: Any, x: Any) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = forward(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def check_same(model: nn.Module, forward: Any, length: int = T) -> None:
    x = torch.randn(B, length, H * D, dtype=torch.float64)
    for found, wanted in zip(outcome(model, forward, x), outcome(model, model, x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


SPARSE = {
    "window": Attention(),
    "prefix": Attention(PREFIX),
    "added": Bias(),
}


@pytest.mark.parametrize("model", SPARSE.values(), ids=SPARSE)
def test_sparse_masks_go_through_flex_attention(model: nn.Module) -> None:
    model = model.double()
    forward, seams = with_levers(model)
    check_same(model, forward)
    (line,) = seams.lines
    assert (line["rewritten"], line["masked"], line["sparse"], line["left"], line["unchecked"]) == (1, 1, 1, [], [])
    assert seams.empty == line["empty"] >= LEAST_EMPTY
    for _ in range(PATIENCE):
        forward(torch.randn(B, T, H * D).double())
    assert not seams.refused


FULL_ROW = WINDOW.clone()
FULL_ROW[20] = False
DENSE = {
    "causal": (Attention(CAUSAL), "no constant mask but causal ones"),
    "half of the blocks": (Attention(CAUSAL & (AT[:, None] - AT < 30)), "of the blocks empty, less than"),
    "rows with nothing": (Attention(FULL_ROW, -1e9), "rows that attend to nothing"),
    "a bias too": (Distance(), "no constant mask but causal ones"),
    "per head": (PerHead(), "no constant mask but causal ones"),
    "learnt": (Learnt(), "no constant mask but causal ones"),
}


@pytest.mark.parametrize(("model", "why"), DENSE.values(), ids=DENSE)
def test_other_masks_stay_where_they_were(model: nn.Module, why: str) -> None:
    model = model.double()
    forward, seams = with_levers(model)
    x = torch.randn(B, T, H * D).double()
    for _ in range(PATIENCE):
        torch.testing.assert_close(forward(x), model(x))
    ((lever, said),) = seams.refused
    assert all(line["rewritten"] and not line["sparse"] for line in seams.lines)
    assert lever == "flex-attention" and why in said


def test_dropout_is_refused() -> None:
    model = Attention(dropout=0.1)
    forward, seams = with_levers(model)
    for _ in range(PATIENCE):
        forward(torch.randn(B, T, H * D))
    assert seams.lines[0]["sparse"] == 0
    assert "dropout of the weights" in seams.refused[0][1]


def test_a_mask_that_changes_is_passed_as_it_is_from_then_on() -> None:
    model = Attention().double()
    forward, seams = with_levers(model)
    check_same(model, forward)
    model.mask.copy_(DOCUMENTS)
    check_same(model, forward)
    model.mask = PREFIX.clone()
    check_same(model, forward)
    assert [line["sparse"] for line in seams.lines] == [1, 0]


def test_other_batches_take_it_and_other_lengths_do_not() -> None:
    class Any_(Attention):
        def masked(self, scores: Any) -> Any:
            at = torch.arange(scores.size(-1))
            near = (at[:, None] >= at) & (at[:, None] - at < 6)
            return scores.masked_fill(~near, self.fill)

    model = Any_().double()
    forward, seams = with_levers(model)
    for shape in ((B, T), (3, T), (5, 30), (5, 35)):
        x = torch.randn(*shape, H * D).double()
        torch.testing.assert_close(forward(x), model(x))
    assert [line["sparse"] for line in seams.lines] == [1, 1, 0]


def test_a_wrong_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block less than the script's mask has: the comparison on random tensors finds it, and the script's own form
    stays."""

    def wrong(mask: Any) -> Any:
        less = mask.clone()
        less[16:24, 16:24] = False
        return block_mask(less)

    monkeypatch.setattr(_attention_flex, "block_mask", wrong)
    monkeypatch.setattr(
        _attention_flex, "_read", lambda b, h, q, kv, mask: mask[q, kv] & ((q // 8 != 2) | (kv // 8 != 2))
    )
    model = Attention().double()
    forward, seams = with_levers(model)
    check_same(model, forward)
    assert seams.lines[0]["rewritten"] == 0 and "it differs by" in seams.lines[0]["left"][0]


def test_inside_a_checkpoint_it_stays_where_it_was() -> None:
    class Computed(Attention):
        def masked(self, scores: Any) -> Any:
            return scores.masked_fill(~((AT[:, None] >= AT) & (AT[:, None] - AT < 6)), self.fill)

        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    model = Computed().double()
    forward, seams = with_levers(model)
    check_same(model, forward)
    assert [(line["rewritten"], line["sparse"]) for line in seams.lines] == [(1, 0)]


def test_one_list_of_blocks_for_all_layers() -> None:
    model = nn.Sequential(*(Attention() for _ in range(3))).double()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    whole = Model()
    forward, seams = with_levers(whole)
    check_same(whole, forward)
    assert seams.lines[0]["sparse"] == 3 and len(_attention_flex.KEPT) == 1


@pytest.mark.parametrize(
    "mask", [WINDOW, DOCUMENTS, PREFIX, WINDOW[:20]], ids=["window", "documents", "prefix", "wide"]
)
def test_blocks_hold_the_mask(mask: Any) -> None:
    blocks = block_mask(mask)
    wanted = torch.stack([torch.stack([part.any() for part in row.split(8, 1)]) for row in mask.split(8)])
    assert torch.equal(blocks.to_dense()[0, 0].bool(), wanted)
    full = sum(bool(part.all()) and part.numel() == 64 for row in mask.split(8) for part in row.split(8, 1))
    assert int(blocks.full_kv_num_blocks.sum()) == full
    assert blocks.shape[-2:] == mask.shape


def test_the_share_of_empty_blocks() -> None:
    assert empty_share(CAUSAL) == 0.0 and empty_share(torch.ones(T, T, dtype=torch.bool)) == 0.0
    assert empty_share(WINDOW) == pytest.approx(1 - 9 / 15), "of the 15 blocks of a causal mask"
    assert empty_share(PREFIX) == pytest.approx(1 - 9 / 25)


def test_traced_by_a_compiler_gradients_are_the_same() -> None:
    """As Inductor traces it. torch's kernels for the CPU do not train, so what is traced runs as it is."""
    from torch._dynamo.backends.debugging import aot_eager

    model = Attention().double()
    REQUESTS.append(Request())
    forward = torch.compile(
        model.forward, backend=lambda graph, inputs: aot_eager(rewritten(graph, inputs, model), inputs)
    )
    check_same(model, forward)
    assert REQUESTS[0].used == 1


def rewritten(graph: Any, inputs: list[Any], model: nn.Module) -> Any:
    from hotlap.levers._attention_masks import Guard
    from hotlap.levers._attention_rewrite import rewrite

    assert rewrite(graph, inputs, [model], Guard(), True, False).sparse == 1
    assert any(node.target is sparse_attention for node in graph.graph.nodes)
    return graph


def test_parity_draws_as_dropout_by_hand_does() -> None:
    """Where attention has dropout, the run that proves parity uses the kernel that draws the same numbers."""
    seen: list[Any] = []
    by_math = _attention_build.by_math
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _attention_build, "by_math", lambda *args, **kwargs: (seen.append(1), by_math(*args, **kwargs))[1]
        )
        model = Attention(dropout=0.5)
        seams = Seams()
        ATTENTION.install(seams, {"same_random": True})
        forward, x = seams.put_in(model), torch.randn(B, T, H * D)
        torch.manual_seed(3)
        expected = model(x)
        torch.manual_seed(3)
        torch.testing.assert_close(forward(x), expected)
    assert seen


def test_without_attention_it_has_nothing_to_change() -> None:
    seams = Seams()
    LEVER.install(seams, {})
    with pytest.raises(Refused, match="the lever attention"):
        seams.put_in(Attention())


def test_when_it_applies() -> None:
    def why(active: Any = None, cuda: bool = True, capability: Any = (9, 0), **root: Any) -> str:
        roots = (msgspec.structs.replace(ROOT, **root),)
        active = {"attention": {}} if active is None else active
        applies = LEVER.applies(context(cuda, active, roots=roots, capability=capability))
        return "" if applies.yes else applies.why

    assert why(empty_blocks=0.9) == "" == why(empty_blocks=LEAST_EMPTY)
    assert "leaves 40% of its blocks empty" in why(empty_blocks=0.3)
    assert "is not in" in why({"compile": {"mode": "default"}}, empty_blocks=0.9)
    assert "CPU" in why(cuda=False, empty_blocks=0.9)
    assert "older" in why(capability=(7, 5), empty_blocks=0.9)
    assert LEAST_EMPTY == _attention_flex.LEAST_EMPTY


def test_a_script_trains_the_same(runner: Runner) -> None:
    """And what attention saw of its mask is what flex-attention decides from."""
    levers = (Lever(name="flex-attention"), Lever(name="attention"))
    bare = runner.bare("windowed.py")
    ran = runner.forked("windowed.py", levers=levers)
    check_clean(ran)
    assert ran.losses == pytest.approx(bare.losses, rel=1e-5) and len(bare.losses) == 5
    assert ran.facts.roots[0].empty_blocks == pytest.approx(1 - 11 / 21)
    assert '"sparse": 1' in (ran.ranks[0] / "attention.jsonl").read_text()
