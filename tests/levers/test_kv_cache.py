"""`kv-cache`: what is computed from the caches is what the whole gives, and what can't be is left alone."""

import gc
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.levers.contexts import ROOT, context
from torch import nn
from torch.nn import functional

from hotlap.levers import _model_state, _prefix_compiled, _prefix_filled, _prefix_work
from hotlap.levers._base import Applies
from hotlap.levers._prefix_build import COLUMN, Row
from hotlap.levers._prefix_cache import CachedForward
from hotlap.levers._prefix_compiled import compiled
from hotlap.levers._prefix_rules import regrouped
from hotlap.levers._prefix_tape import Made, Size, Tape
from hotlap.levers.kv_cache import LEVER

VOCAB, DIM, HEADS, ROOM = 50, 16, 2, 96


class Layer(nn.Module):  # type: ignore[misc]
    """Attention of a kind, and an MLP."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.attend = attend
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Any, mask: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).split(DIM, dim=2)
        q, k, v = (part.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2) for part in (q, k, v))
        y = self.attend(q, k, v, mask)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(batch, length, DIM))
        return x + self.mlp(x)


def by_hand(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
    return scores.masked_fill(mask[:, :, :length, :length] == 0, -math.inf).softmax(-1) @ v


def made_anew(q: Any, k: Any, v: Any, mask: Any) -> Any:
    later = torch.triu(torch.full((q.shape[2], q.shape[2]), -math.inf), 1)
    return ((q @ k.mT) * k.shape[-1] ** -0.5 + later).softmax(-1) @ v


def fused(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_with_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[0, 0, :length, :length].bool())


def rotated(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """RoPE by halves, and a distance that is taken off the scores (ALiBi)."""
    places = torch.arange(q.shape[2])
    angles = places[:, None] / 100 ** (torch.arange(DIM // HEADS // 2) / 4)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    q, k = (x * cos + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin for x in (q, k))
    scores = q @ k.mT - 0.1 * (places[:, None] - places[None, :]).clamp(min=0)
    return scores.masked_fill(places[None, :] > places[:, None], -math.inf).softmax(-1) @ v


def windowed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Only the eight tokens before."""
    places = torch.arange(q.shape[2])
    far = places[:, None] - places[None, :]
    return (q @ k.mT).masked_fill((far < 0) | (far > 8), -math.inf).softmax(-1) @ v


def both_ways(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.mT).softmax(-1) @ v


def both_ways_fused(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v)


def with_the_last(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return fused(q, k + 0.1 * k[:, :, -1:], v, mask)


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, attend: Callable[..., Any] = by_hand, end: Callable[..., Any] = lambda head, x: head(x)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(ROOM, DIM)
        self.layers = nn.ModuleList([Layer(attend) for _ in range(2)])
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(ROOM, ROOM)).view(1, 1, ROOM, ROOM))
        self.end = end
        self.eval()

    def hidden(self, tokens: Any) -> Any:
        return self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))

    def forward(self, tokens: Any, scale: float = 1.0) -> Any:
        x = self.hidden(tokens) * scale
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.end(self.head, x)


class Decoder:
    """Calls a model and the one with caches with the same tokens, and compares."""

    def __init__(self, model: nn.Module, forward: Any = None, **options: Any) -> None:
        self.model = model
        self.whole = forward or model.forward
        self.why: list[tuple[str, bool]] = []
        options.setdefault("where", lambda: ("here",))
        self.cached = CachedForward(
            model, self.whole, unsteady=lambda: None, gave_up=lambda *why: self.why.append(why), **options
        )

    def go(self, tokens: Any, times: int, most: float = 1e-4, **kwargs: Any) -> Any:
        """Let a sequence grow. Returns its tokens."""
        for _ in range(times):
            got, whole = self.cached(tokens, **kwargs), self.whole(tokens, **kwargs)
            one, other = (x if isinstance(x, torch.Tensor) else next(iter(_tensors(x))) for x in (got, whole))
            assert one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
            assert type(got) is type(whole) or type(got).__name__ == "LazyLogits"
            assert float((one - other).abs().max()) <= most * float(other.abs().max())
            new = torch.randint(VOCAB, (len(tokens), 1))
            tokens = torch.cat([tokens, new], dim=1)
        return tokens


def _tensors(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, torch.Tensor)]


def prompt(length: int = 7, batch: int = 3) -> Any:
    return torch.randint(VOCAB, (batch, length))


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


# what is taken

CAUSAL = [by_hand, made_anew, fused, fused_with_mask, rotated, windowed]


@pytest.mark.parametrize("attend", CAUSAL)
def test_a_sequence_that_grows_is_computed_from_the_caches(attend: Callable[..., Any]) -> None:
    decoder = Decoder(Model(attend))
    decoder.go(prompt(), 40)
    assert not decoder.why and decoder.cached.cached >= 30


@pytest.mark.parametrize("attend", CAUSAL)
def test_only_the_last_token_is_computed(attend: Callable[..., Any]) -> None:
    decoder = Decoder(Model(attend))
    tokens = decoder.go(prompt(), 12)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None
    seen = _sizes(work.run, work.token, work.place)
    assert max(seen["addmm"]) == len(tokens), "each product of weights is of one token for each sequence"


def _sizes(run: Any, *args: Any) -> dict[str, list[int]]:
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[str, list[int]] = {}

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim():
                found.setdefault(func._schema.name.removeprefix("aten::"), []).append(out.shape[0])
            return out

    with Mode():
        run(*args)
    return found


@pytest.mark.parametrize("end", [
    lambda head, x: head(x[:, -1, :]),
    lambda head, x: head(x[:, [-1], :]),
    lambda head, x: head(x[:, -1:]),
    lambda head, x: (head(x), None),
    lambda head, x: {"logits": head(x), "loss": None, "of": "tokens"},
    lambda head, x: head(x).log_softmax(-1),
    lambda head, x: head(x.reshape(-1, DIM)).view(x.shape[0], -1, VOCAB),
    lambda head, x: head(functional.rms_norm(x, (DIM,)) / x.pow(2).mean(-1, keepdim=True).sqrt()),
])  # fmt: skip
def test_outputs_of_several_forms(end: Callable[..., Any]) -> None:
    decoder = Decoder(Model(fused, end))
    decoder.go(prompt(), 20)
    assert not decoder.why and decoder.cached.cached >= 10


def test_changes_in_place_of_what_it_makes_itself() -> None:
    class Inside(Model):
        def hidden(self, tokens: Any) -> Any:
            x = self.tok(tokens)
            x += self.pos(torch.arange(tokens.shape[1]))
            return x.mul_(2).relu_()

    decoder = Decoder(Inside())
    decoder.go(prompt(), 20)
    assert not decoder.why and decoder.cached.cached >= 10


@pytest.mark.parametrize("inference", [False, True])
def test_autocast_inside_is_taken_over(inference: bool) -> None:
    model = Model()
    mode = torch.inference_mode if inference else torch.no_grad

    def forward(tokens: Any) -> Any:
        with mode(), torch.autocast("cpu", torch.bfloat16):
            return model(tokens)

    decoder = Decoder(model, forward)
    with mode():
        decoder.go(prompt(), 20, most=0.05)
    assert not decoder.why and decoder.cached.cached >= 10


def test_the_next_prompt_may_be_of_another_length_and_batch() -> None:
    decoder = Decoder(Model())
    decoder.go(prompt(), 15)
    before = decoder.cached.cached
    decoder.go(prompt(20), 15)
    assert decoder.cached.cached == before + 14, "the prompt fills the caches, and the rest comes from them"
    decoder.go(prompt(5, batch=2), 15)
    decoder.go(prompt(9), 15)
    assert not decoder.why and decoder.cached.cached > before + 35


def test_other_tokens_than_those_of_the_call_before_are_computed_as_a_whole() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    before = decoder.cached.cached
    tokens[1, 2] = (tokens[1, 2] + 1) % VOCAB  # in place, and one longer than the last call
    decoder.go(tokens, 1)
    assert decoder.cached.cached == before
    decoder.go(tokens[:, :-4], 3)
    assert not decoder.why


def test_a_window_that_slides_is_computed_as_a_whole() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    before = decoder.cached.cached
    for _ in range(10):
        tokens = torch.cat([tokens[:, 1:], torch.randint(VOCAB, (3, 1))], dim=1)
        assert torch.equal(decoder.cached(tokens), decoder.model(tokens))
    assert decoder.cached.cached <= before + 1


def test_room_grows_and_ends_where_the_table_of_positions_does() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(60), ROOM - 60)
    assert tokens.shape[1] == ROOM and not decoder.why
    assert decoder.cached.cached >= ROOM - 60 - 12
    decoder.go(tokens, 1)
    beyond = torch.cat([tokens, tokens[:, :1]], dim=1)
    with pytest.raises(IndexError):
        decoder.model(beyond)
    with pytest.raises(IndexError):
        decoder.cached(beyond)


def test_what_a_script_writes_into_its_output_stays_its_own() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    old = decoder.cached(tokens)
    kept = old.clone()
    old[:, -1] = 0
    old[:, 0] = 0
    decoder.go(tokens[:, :-1], 1)
    tokens = decoder.go(tokens, 5)
    first = decoder.cached(tokens)
    decoder.go(prompt(), 10)
    assert float((first - decoder.model(tokens)).abs().max()) < 1e-4 and kept.shape == old.shape


@pytest.mark.parametrize("use", [
    lambda logits: logits[:, -1, :],
    lambda logits: logits[:, -1].mul_(2),
    lambda logits: logits[:, -1].float().div_(3).softmax(-1),
    lambda logits: (logits[:, -1], logits[:, -1, :].add_(1))[0],
    lambda logits: (logits[:, -1], logits[:, -2:].add_(1))[0],
    lambda logits: (logits[:, -2:], logits[:, -1].add_(1))[0],
    lambda logits: (logits[:, -1].zero_(), logits + 1)[1],
    lambda logits: (logits[0], logits.zero_())[0],
    lambda logits: (last := logits[:, -1], logits.mul_(2), last.add_(1), logits + last.unsqueeze(1))[-1],
    lambda logits: (logits[:, -1].add_(1), logits[torch.tensor([0, 2])])[1],
    lambda logits: (last := logits[:, -1], last.add_(1), logits[torch.tensor([0, 2])] + last[0])[-1],
    lambda logits: logits[torch.tensor([0, 2])].add_(1),
    lambda logits: (last := logits[:, -1, :], last.__setitem__(last < last.median(), -torch.inf), logits[:, -1])[-1],
    lambda logits: logits[:],
    lambda logits: logits[1:, -1],
    lambda logits: logits[..., -1, :],
    lambda logits: logits[:, -1, 3:],
    lambda logits: torch.stack([logits[row, -1].div_(row + 1) for row in range(len(logits))]),
    lambda logits: (logits[1, -1].zero_(), logits[-2, -1])[1],
    lambda logits: (logits[-1, ..., :].zero_(), logits[2, 0])[1],
])  # fmt: skip
def test_what_a_script_does_with_large_logits(use: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_work, "LEAST", (1, 1))
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    for _ in range(3):
        logits, whole = decoder.cached(tokens), decoder.model(tokens)
        assert type(logits).__name__ == "LazyLogits"
        assert torch.allclose(use(logits), use(whole), atol=1e-5)
        assert torch.allclose(logits + 0, whole, atol=1e-5)
        tokens = torch.cat([tokens, tokens[:, :1]], dim=1)
    again = decoder.cached(tokens)
    assert torch.allclose(again + 0, decoder.model(tokens), atol=1e-5), "of rows that were written to as well"


def test_large_logits_are_made_of_the_rows_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_work, "LEAST", (1, 1))
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    logits = decoder.cached(tokens)
    assert type(logits).__name__ == "LazyLogits"
    whole = decoder.model(tokens)
    assert torch.allclose(logits[:, -1, :], whole[:, -1], atol=1e-5)
    last = logits[:, -1, :]
    last /= 2
    assert torch.allclose(logits[:, -1], whole[:, -1] / 2, atol=1e-5)
    assert torch.allclose(logits.view(-1, VOCAB)[:5], whole.view(-1, VOCAB)[:5], atol=1e-5)
    tokens = torch.cat([tokens, tokens[:, :1]], dim=1)
    again = decoder.cached(tokens)
    assert torch.allclose(again + 0, decoder.model(tokens), atol=1e-5), "of the row that was written to as well"


# a model that changes


@pytest.mark.parametrize("change", [
    lambda model: model.head.weight.mul_(1.5),
    lambda model: model.tok.weight.add_(0.1),
    lambda model: model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()}),
    lambda model: model.layers.append(Layer(by_hand)),
    lambda model: setattr(model, "end", lambda head, x: head(x) * 2),
])  # fmt: skip
def test_a_model_that_changed_is_looked_at_anew(change: Callable[[Model], Any]) -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    change(decoder.model)
    before = decoder.cached.cached
    decoder.go(tokens, 1)
    assert decoder.cached.cached == before
    decoder.go(prompt(), 20)
    assert not decoder.why and decoder.cached.cached > before + 5


@pytest.mark.parametrize("half", [False, True])
def test_weights_that_are_written_past_their_version_are_seen_with_the_next_prompt(half: bool) -> None:
    model = Model()

    def forward(tokens: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return model(tokens)

    decoder = Decoder(model, forward)
    decoder.go(prompt(), 15, most=0.05 if half else 1e-4)
    for parameter in model.parameters():
        parameter.data.mul_(1.3)
    decoder.go(prompt(8), 15, most=0.05 if half else 1e-4)
    assert not decoder.why


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", [
    lambda w: w[1, 0:1].neg_(),
    lambda w: w[7].neg_(),
    lambda w: w.copy_(w.flip(0)),
    lambda w: w[:, 3].mul_(1.1),
    lambda w: w[2].add_(0.1),
])  # fmt: skip
def test_figures_tell_weights_apart(change: Callable[[Any], Any], dtype: Any) -> None:
    for size in (40, 300):  # taken with others, and by itself
        weights = [torch.randn(size, size).to(dtype), torch.randn(9)]
        plan = _prefix_work.Plan([], [], weights, False)
        assert plan.same_values()
        change(weights[0].data)
        assert not plan.same_values(), size


def test_ops_that_change_are_written_down_anew() -> None:
    """As with inference mode by a lever, which watches the first calls in another mode."""
    model, calls = Model(), [0]

    def forward(tokens: Any) -> Any:
        calls[0] += 1
        return model(tokens) if calls[0] < 5 else model(tokens).clone()

    decoder = Decoder(model, forward)
    decoder.whole = model.forward
    tokens = decoder.go(prompt(), 20)
    assert not decoder.why and decoder.cached.cached >= 5
    turns = Decoder(model, lambda tokens: model(tokens) if tokens.shape[1] % 2 else model(tokens) + 0)
    turns.go(tokens, 40)
    assert turns.why and turns.cached.cached == 0


def test_gradients_are_none_of_its_business() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    with torch.enable_grad():
        loss = decoder.cached(tokens).sum()
        loss.backward()
    assert decoder.model.head.weight.grad is not None
    decoder.go(tokens, 3)
    assert not decoder.why


def test_other_arguments_are_another_form() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    decoder.go(tokens, 10, scale=0.5)
    decoder.go(tokens, 5)
    assert not decoder.why


# what is left alone


class Recurrent(Model):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(DIM, DIM, batch_first=True)

    def hidden(self, tokens: Any) -> Any:
        return self.rnn(self.tok(tokens))[0]


class FromTheEnd(Model):
    def hidden(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        return self.tok(tokens) + self.pos(torch.arange(length - 1, -1, -1))


class OfTheMean(Model):
    def hidden(self, tokens: Any) -> Any:
        x = self.tok(tokens)
        return x - x.mean(dim=1, keepdim=True)


class ByTheLength(Model):
    def hidden(self, tokens: Any) -> Any:
        return self.tok(tokens) / tokens.shape[1]


class Summed(Model):
    def hidden(self, tokens: Any) -> Any:
        return self.tok(tokens).cumsum(dim=1)


class Shifted(Model):
    def hidden(self, tokens: Any) -> Any:
        x = self.tok(tokens)
        return x + functional.pad(x[:, :-1], (0, 0, 1, 0))


class Noisy(Model):
    def hidden(self, tokens: Any) -> Any:
        return functional.dropout(self.tok(tokens), 0.1, training=True)


class Counting(Model):
    def hidden(self, tokens: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return self.tok(tokens)


class Looking(Model):
    def hidden(self, tokens: Any) -> Any:
        x = self.tok(tokens)
        return x * 2 if bool((tokens == 3).any()) else x


class Scrambled(Model):
    """A view that mixes tokens of several sequences."""

    def hidden(self, tokens: Any) -> Any:
        x = self.tok(tokens)
        return x.transpose(0, 1).reshape(x.shape)


class FirstLooked(Model):
    def hidden(self, tokens: Any) -> Any:
        x = self.tok(tokens)
        return x + x[:, :1]


@pytest.mark.parametrize(("model", "why"), [
    (Model(both_ways), "later"), (Model(both_ways_fused), "later"), (Model(with_the_last), "later"),
    (Recurrent(), "not known"), (FromTheEnd(), "positions"), (OfTheMean(), "goes over tokens"),
    (ByTheLength(), "length"), (Summed(), "cumsum"), (Shifted(), "tokens"), (Noisy(), "random"),
    (Counting(), "leaves"), (Looking(), "hangs on values"), (Scrambled(), "mixes"), (FirstLooked(), "tokens"),
    (Model(end=lambda head, x: head(x.mean(1))), "goes over"), (Model(end=lambda head, x: head(x).mT), "not lie"),
    (Model(end=lambda head, x: x @ x.mT), "something else"), (Model(end=lambda head, x: head.weight), "did not make"),
    (Model(end=lambda head, x: head(x[:, 0])), "another token"),
])  # fmt: skip
def test_models_that_are_left_alone(model: Model, why: str) -> None:
    decoder = Decoder(model)
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(model, Noisy):
            patch.setattr(Decoder, "go", lambda self, tokens, times: [
                self.cached(torch.randint(VOCAB, (3, length))) for length in range(5, 15)
            ])  # fmt: skip
        decoder.go(prompt(), 20)
    assert len(decoder.why) == 1 and why in decoder.why[0][0], decoder.why
    assert not decoder.why[0][1] and decoder.cached.cached == 0, "before anything was computed from the caches"


class Longer(Model):
    """Does something else from 32 tokens on, or for each sixteenth length."""

    def __init__(self, how: str) -> None:
        super().__init__(fused)
        self.how = how

    def hidden(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        x = super().hidden(tokens)
        if self.how == "scale":
            return x * (2.0 if length > 32 else 1.0)
        if self.how == "crop":
            return x[:, -32:] if length > 32 else x
        return x * (1.5 if length % 16 == 0 else 1.0)


@pytest.mark.parametrize("how", ["scale", "crop", "each sixteenth"])
def test_a_model_that_does_something_else_for_longer_sequences(how: str) -> None:
    decoder = Decoder(Longer(how))
    decoder.go(prompt(), 60)
    decoder.go(prompt(40), 20)
    assert decoder.why or decoder.cached.cached == 0 or how == "scale", "right it is in any case"


class Asserting(Model):
    def hidden(self, tokens: Any) -> Any:
        assert tokens.shape[1] <= 50, "too long"
        return super().hidden(tokens)


def test_the_models_own_limit_is_kept() -> None:
    decoder = Decoder(Asserting(fused))
    tokens = decoder.go(prompt(), 43)
    assert not decoder.why and decoder.cached.cached > 30
    decoder.go(tokens, 1)
    with pytest.raises(AssertionError, match="too long"):
        decoder.cached(torch.cat([tokens, tokens[:, :1]], dim=1))


def test_no_more_tokens_are_tried_than_there_is_room_for() -> None:
    """An index beyond a table ends a process on a GPU."""
    model = Model(fused)
    longest: list[int] = []

    def forward(tokens: Any) -> Any:
        longest.append(tokens.shape[1])
        return model(tokens)

    for begin in (ROOM - 6, ROOM - 7):
        decoder = Decoder(model, forward)
        decoder.go(prompt(begin), ROOM - begin + 1)
        assert not decoder.why and max(longest) == ROOM


def late_open(q: Any, k: Any, v: Any, mask: Any) -> Any:
    later = torch.ones(ROOM, ROOM, dtype=torch.bool).triu(1)
    later[32:] = False
    return (q @ k.mT).masked_fill(later[: q.shape[2], : q.shape[2]], -math.inf).softmax(-1) @ v


def open_sigmoid(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.mT).sigmoid() @ v


def test_tokens_that_look_ahead_without_a_softmax_or_later_on() -> None:
    for attend in (late_open, open_sigmoid):
        decoder = Decoder(Model(attend))
        decoder.go(prompt(), 20)
        decoder.go(prompt(5), 20)
        assert [why for why, used in decoder.why if not used] and decoder.cached.cached == 0


class Seeing(dict[str, Any]):
    """Of a class of its own, which may hold anything."""


WEIGHTS = {"outside": torch.ones(DIM)}


@pytest.mark.parametrize("end", [
    lambda head, x: (head(x), x.shape[1]),
    lambda head, x: (head(x), Seeing(hidden=x)),
    lambda head, x: head(x * WEIGHTS["outside"]),
    lambda head, x: functional.linear(x, head.weight / x.shape[1]),
])  # fmt: skip
def test_outputs_and_weights_that_hang_on_more_than_the_tokens(end: Callable[..., Any]) -> None:
    decoder = Decoder(Model(fused, end))
    decoder.go(prompt(), 20)
    assert decoder.why and decoder.cached.cached == 0


@pytest.mark.parametrize("attend", [by_hand, fused])
def test_infinite_keys_of_the_last_text_are_gone(attend: Callable[..., Any]) -> None:
    model = Model(attend)
    model.tok.weight[VOCAB - 1] = math.inf
    cached = CachedForward(model, model.forward, where=lambda: 1, unsteady=lambda: None, gave_up=lambda *_: None)
    tokens = prompt(9) % (VOCAB - 1)
    for number in range(20):
        cached(tokens)
        new = torch.full((3, 1), VOCAB - 1 if number > 10 else 1)
        tokens = torch.cat([tokens, new], dim=1)
    tokens = prompt(6) % (VOCAB - 1)
    for _ in range(12):
        assert torch.allclose(cached(tokens), model(tokens), atol=1e-5)
        tokens = torch.cat([tokens, tokens[:, :1]], dim=1)


def test_an_interrupt_in_the_midst_leaves_no_hole() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None
    run = work.run

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    work.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        decoder.cached(tokens)
    work.run = run
    decoder.go(torch.cat([tokens, tokens[:, :1]], dim=1), 5)
    assert not decoder.why


def test_the_last_token_counts_by_itself_also_behind_a_long_prompt() -> None:
    whole = torch.randn(2, 900, 8)
    other = whole.clone()
    other[1, -1] *= 0.9
    assert float((whole - other).norm() / whole.norm()) < 3e-3
    assert _prefix_work.gap_of(other, whole, 1) > 0.09


def test_a_call_with_two_tensors_is_left_alone() -> None:
    model = Model()
    decoder = Decoder(model, lambda tokens, mask=None: model(tokens))
    decoder.go(prompt(), 3, mask=torch.ones(3, 7))
    assert "not one tensor" in decoder.why[0][0]


def test_a_model_whose_calls_never_go_on_is_left_alone() -> None:
    decoder = Decoder(Model())
    for _ in range(70):
        decoder.cached(prompt())
    assert "no call goes on" in decoder.why[0][0]


def test_hooks_are_called_as_ever() -> None:
    model = Model()
    calls: list[int] = []
    model.head.register_forward_hook(lambda *_: calls.append(1))
    decoder = Decoder(model, model)
    decoder.go(prompt(), 10)
    assert "hooks" in decoder.why[0][0] and len(calls) == 20


def test_a_hook_that_comes_later_is_called() -> None:
    model = Model()
    decoder = Decoder(model)
    tokens = decoder.go(prompt(), 15)
    calls: list[int] = []
    model.head.register_forward_hook(lambda *_: calls.append(1))
    decoder.cached(tokens)
    assert calls == [1] and decoder.cached.cached


@pytest.mark.parametrize("wrong", ["raises", "differs"])
def test_where_its_own_work_fails_the_script_gets_the_whole(wrong: str) -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 6)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and not decoder.why
    run = work.run

    def fails(*args: Any) -> Any:
        if wrong == "raises":
            raise RuntimeError("out of memory")
        return [one * 1.1 for one in run(*args)]

    work.run, work.proofs = fails, 0
    decoder.go(tokens, 5)
    assert ("out of memory" if wrong == "raises" else "differs by") in decoder.why[0][0]


def test_the_scripts_own_error_is_its_own() -> None:
    decoder = Decoder(Model())
    tokens = decoder.go(prompt(), 15)
    with pytest.raises(IndexError):
        decoder.cached(torch.full_like(tokens, VOCAB + 1))
    decoder.go(prompt(), 5)
    assert not decoder.why


# as a CUDA graph, with a recording that is not one


class Captures(list[Callable[[], None]]):
    """Recordings that do the work again."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        self.append(work)
        return work


def test_a_recorded_step_is_compared_with_an_ordinary_one() -> None:
    recorded = Captures()
    decoder = Decoder(Model(), capture=recorded)
    decoder.go(prompt(), 20)
    assert not decoder.why and len(recorded) == 1
    spoiled = Decoder(Model(), capture=lambda work: lambda: None)
    spoiled.go(prompt(), 20)
    assert spoiled.why, "a recording that does nothing has no output"


class Recorded(Decoder):
    """With a recording that does the work again, and a note of what happens in which order."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.seen: list[str] = []
        super().__init__(model, capture=self._capture, fetcher=lambda: self._fetch, **options)

    def _capture(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.seen.append("begun")
            work()

        work()
        return replay

    def _fetch(self, value: Any) -> Callable[[], bool]:
        self.seen.append("asked")

        def read() -> bool:
            self.seen.append("read")
            return bool(value)

        return read

    def begun(self, tokens: Any) -> list[str]:
        """What happens in a call, whose output is right."""
        self.seen.clear()
        self.go(tokens, 1)
        return list(self.seen)


def test_a_recording_is_begun_before_the_host_looks_and_one_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Recorded(Model())
    tokens = decoder.go(prompt(), 20)
    looks = (_model_state.Model, "harmless"), (_model_state.Model, "same_beside"), (_prefix_work.Plan, "same")
    for kind, name in looks:
        was: Callable[[Any], bool] = getattr(kind, name)

        def look(self: Any, was: Callable[[Any], bool] = was, name: str = name) -> bool:
            decoder.seen.append(name)
            return was(self)

        monkeypatch.setattr(kind, name, look)
    before = decoder.cached.cached
    decoder.seen.clear()
    got = _reads(decoder.cached, tokens)
    assert decoder.seen == ["asked", "harmless", "begun", "same_beside", "same", "read"] and got == 1, "each once"
    assert decoder.cached.cached == before + 1 and not decoder.why


def _reads(run: Any, *args: Any) -> int:
    """How often the host reads a value of a tensor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[str] = []

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.data_dependent_output in func.tags or func._schema.name == "aten::equal":
                found.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Mode():
        run(*args)
    return len(found)


@pytest.mark.parametrize("layers", [2, 12])
def test_few_functions_are_called_before_a_recording_is_begun(layers: int) -> None:
    """Of Python's, and by Python's; what is looked at for each layer is looked at within one of them."""
    model = Model()
    model.layers = nn.ModuleList([Layer(by_hand) for _ in range(layers)])
    decoder = Recorded(model)
    tokens = decoder.go(prompt(), 20)
    calls = {"before": 0, "after": 0}

    def count(frame: Any, event: str, arg: Any) -> None:
        if event in {"call", "c_call"}:
            calls["after" if "begun" in decoder.seen else "before"] += 1

    decoder.seen.clear()
    sys.setprofile(count)
    try:
        decoder.cached(tokens)
    finally:
        sys.setprofile(None)
    assert decoder.seen[:2] == ["asked", "begun"]
    assert calls["before"] <= 70, calls


def larger(model: Model) -> None:
    """A table of other tokens: to look these up in the old one would end a process on a GPU."""
    model.tok = nn.Embedding(2 * VOCAB, DIM)


def without_weight(model: Model) -> None:
    del model.head.weight
    model.head.weight = torch.ones(VOCAB, DIM)


@pytest.mark.parametrize(("change", "begins"), [
    (lambda model: model.head.weight.mul_(1.5), True),
    (lambda model: model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()}), True),
    (lambda model: model.layers[0].mlp.__setitem__(2, nn.ReLU()), False),
    (lambda model: setattr(model, "end", lambda head, x: head(x) * 2), False),
    (lambda model: setattr(model.tok.weight, "data", model.tok.weight.data[: VOCAB - 1]), True),
    (lambda model: setattr(model.head.weight, "data", model.head.weight.data.flip(0)), False),
    (lambda model: model.layers.__setitem__(0, Layer(by_hand)), False),
    (lambda model: model.double(), False),
    (lambda model: model.train(), False),
    (larger, False),
    (without_weight, False),
])  # fmt: skip
def test_what_is_begun_for_a_model_that_changed_is_not_used(change: Callable[[Model], Any], begins: bool) -> None:
    decoder = Recorded(Model())
    tokens = decoder.go(prompt() % (VOCAB - 1), 20) % (VOCAB - 1)
    decoder.go(tokens[:, :-3], 3)
    change(decoder.model)
    before = decoder.cached.cached
    assert ("begun" in decoder.begun(tokens)) == begins
    assert decoder.cached.cached == before and decoder.cached.changes == 1
    decoder.go(prompt() % (VOCAB - 1), 1)


def test_what_is_begun_for_another_text_is_not_used_and_looks_up_none_of_its_tokens() -> None:
    decoder = Recorded(Model())
    tokens = decoder.go(prompt(), 20)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None
    last, before = work.token.clone(), decoder.cached.cached
    other = tokens.clone()
    other[2, 3] = (other[2, 3] + 1) % VOCAB
    other[:, -1] = (last[:, 0] + 1) % VOCAB
    assert decoder.begun(other) == ["asked", "begun", "read"]
    assert torch.equal(work.token, last) and decoder.cached.cached == before
    tokens = decoder.go(torch.cat([other, other[:, :1]], dim=1), 5)
    assert decoder.cached.cached == before + 5
    for _ in range(5):  # beams change places, and go on
        tokens = decoder.go(tokens[torch.tensor([2, 0, 0])], 2)
    assert not decoder.why


def test_outputs_of_the_last_calls_stay_as_they_are_when_something_is_begun_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_prefix_work, "LEAST", (1, 1))
    decoder = Recorded(Model())
    tokens = decoder.go(prompt(), 20)
    old, whole = decoder.cached(tokens), decoder.model(tokens)
    assert type(old).__name__ == "LazyLogits"
    assert "begun" in decoder.begun(torch.cat([tokens[:, 1:], tokens[:, :2]], dim=1))
    assert torch.allclose(old + 0, whole, atol=1e-5)


@pytest.mark.parametrize("where", ["begun", "read"])
def test_an_interrupt_of_what_was_begun_leaves_no_hole(where: str) -> None:
    class Seen(list[str]):
        def append(self, item: str) -> None:
            if item == where:
                raise KeyboardInterrupt

    decoder = Recorded(Model())
    tokens = decoder.go(prompt(), 20)
    decoder.seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        decoder.cached(tokens)
    decoder.seen = []
    decoder.go(tokens if where == "read" else torch.cat([tokens, tokens[:, :1]], dim=1), 5)
    assert not decoder.why


# the tape


def test_an_op_may_make_numbers_beside_tensors() -> None:
    """As cuDNN's attention tells how long its sequences are."""
    x = torch.zeros(2, 3)
    tape = Tape(x)
    first, second = x.unbind()
    tape.note(torch.ops.aten.unbind.int, (x,), {}, [first, 7, second, None])
    assert not tape.odd and tape.ops[0].shapes == [(3,), None, (3,), None]
    assert tape.where(second) == Made(0, 2)


# views


@pytest.mark.parametrize(("old", "kinds", "new", "after"), [
    ((3, Size(1, 0), 8), (None, Row(), None), (Size(3, 0), 8), (Row(3), None)),
    ((Size(3, 0), 8), (Row(3), None), (3, Size(1, 0), 2, 4), (None, Row(), None, None)),
    ((3, 2, Size(1, 0), Size(1, 0)), (None, None, Row(), COLUMN), (6, Size(1, 0), Size(1, 0)), (None, Row(), COLUMN)),
    ((Size(1, 0), 1), (Row(), None), (1, Size(1, 0)), (None, Row())),
])  # fmt: skip
def test_views_keep_track_of_the_tokens(old: Any, kinds: Any, new: Any, after: Any) -> None:
    assert regrouped(old, kinds, new) == after


# how sequences begin, by a recording


class Begins(Decoder):
    """With recordings that do the work again, where `replay` is not another."""

    def __init__(self, model: nn.Module, monkeypatch: pytest.MonkeyPatch, replay: Any = None, **options: Any) -> None:
        self.refilled = 0
        run = _prefix_filled.Recorded.run

        def counted(recorded: Any, tokens: Any) -> Any:
            self.refilled += 1
            return run(recorded, tokens)

        def capture(work: Callable[[], None]) -> Callable[[], None]:
            work()
            filling = "Recorded" in work.__qualname__
            return replay if filling and replay is not None else work

        monkeypatch.setattr(_prefix_filled.Recorded, "run", counted)
        super().__init__(model, capture=capture, **options)


@pytest.mark.parametrize("attend", CAUSAL)
@pytest.mark.parametrize("end", [lambda head, x: head(x), lambda head, x: (head(x[:, -1]), None)])
def test_sequences_of_a_length_begin_by_a_recording(
    attend: Callable[..., Any], end: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Begins(Model(attend, end), monkeypatch)
    for _ in range(4):
        decoder.go(prompt(), 15)
    assert not decoder.why and decoder.refilled == 2, "the second one is recorded"
    decoder.go(prompt(9), 15)
    decoder.go(prompt(), 15)
    assert not decoder.why and decoder.refilled == 3


def test_now_and_then_a_sequence_begins_by_an_ordinary_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is nowhere where the model is looked at, such as a variable of the environment, shows there."""

    class Scaled(Model):
        def hidden(self, tokens: Any) -> Any:
            return super().hidden(tokens) * float(os.environ["HOTLAP_TEST_SCALE"])

    monkeypatch.setenv("HOTLAP_TEST_SCALE", "1.0")
    monkeypatch.setattr(_prefix_filled, "TRUSTED", 3)
    decoder = Begins(Scaled(), monkeypatch)
    for _ in range(4):
        decoder.go(prompt(), 15)
    assert decoder.refilled == 2
    monkeypatch.setenv("HOTLAP_TEST_SCALE", "2.0")
    decoder.go(prompt(), 15)
    form = next(iter(decoder.cached._forms.values()))
    assert form.unlike == 1 and decoder.refilled == 2 and not decoder.why, "its ops have other numbers now"


def test_an_error_of_the_scripts_own_in_a_recording_is_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Exception):
        pass

    def fails() -> None:
        raise Own

    decoder = Begins(Model(), monkeypatch, fails)
    for _ in range(3):
        decoder.go(prompt(), 15)
    assert not decoder.why and not decoder.refilled


def test_an_interrupt_while_a_beginning_is_recorded_leaves_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoils() -> None:
        work = next(iter(decoder.cached._forms.values())).work
        assert work is not None
        for cache, _ in work.builder.caches.values():
            cache.tensor.fill_(3.0)
        raise KeyboardInterrupt

    decoder = Begins(Model(), monkeypatch, spoils)
    decoder.go(prompt(), 15)
    first = prompt()
    with pytest.raises(KeyboardInterrupt):
        decoder.cached(first)
    decoder.go(torch.cat([first, first[:, :1]], dim=1), 10)
    assert not decoder.why


def test_what_is_returned_has_the_form_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Begins(Model(end=lambda head, x: {"long" if x.shape[1] > 12 else "short": head(x)}), monkeypatch)
    for _ in range(2):
        decoder.go(prompt(), 5)
        decoder.go(prompt(10), 5)
    assert list(decoder.cached(prompt(9))) == ["short"] and list(decoder.cached(prompt(14))) == ["long"]


def test_what_it_returned_at_the_beginning_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Begins(Model(), monkeypatch)
    for _ in range(3):
        decoder.go(prompt(), 15)
    first = prompt()
    output = decoder.cached(first)
    expected = output.clone()
    decoder.go(prompt(9), 5)
    decoder.go(prompt(), 5)
    assert decoder.refilled == 3 and torch.equal(output, expected)


@pytest.mark.parametrize("wrong", ["does nothing", "raises", "no room", "can not be captured"])
def test_a_recording_of_the_beginning_that_is_none_is_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    def spoils() -> None:
        work = next(iter(decoder.cached._forms.values())).work
        assert work is not None
        for cache, _ in work.builder.caches.values():
            cache.tensor.fill_(3.0)

    replay = {"does nothing": spoils, "raises": fails}.get(wrong)
    decoder = Begins(Model(), monkeypatch, replay, room=lambda size: wrong != "no room")
    if wrong == "can not be captured":
        monkeypatch.setattr(_prefix_filled.Plan, "figured", fails)  # in the capture only: the plan has been made
        monkeypatch.setattr(_prefix_filled.Plan, "same_values", lambda self: True)
        monkeypatch.setattr(_prefix_filled.Plan, "__post_init__", _without_figures)
    for _ in range(4):
        decoder.go(prompt(), 15)
    assert not decoder.why and not decoder.refilled and decoder.cached.cached >= 40


def _without_figures(plan: Any) -> None:
    plan.done = [op.func for op in plan.ops]
    plan.versions, plan.figures = plan._versions(), [0.0]


@pytest.mark.parametrize("change", [
    lambda m: m.layers[0].mlp[1].weight.data.mul_(1.5),
    lambda m: m.mask.data.fill_(1.0),
    lambda m: m.head.half().float(),
])  # fmt: skip
def test_a_recording_of_the_beginning_is_of_the_weights_as_they_are(
    change: Callable[[Model], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Begins(Model(), monkeypatch)
    for _ in range(3):
        decoder.go(prompt(), 15)
    assert decoder.refilled == 1
    change(decoder.model)
    for _ in range(3):
        decoder.go(prompt(), 15)
    assert decoder.why or decoder.refilled >= 2


# compiled

Run = Callable[[Any, Any], Any]


class Compiles(Decoder):
    """With a compiler that returns what `make` makes of the work, and a note of what is told."""

    def __init__(self, make: Callable[[Run], Run] = lambda run: run, **options: Any) -> None:
        self.times, self.told, self.make = 0, [], make
        super().__init__(Model(), compiler=self._compile, uncompiled=self.told.append, **options)

    told: list[str]

    def _compile(self, work: Any, token: Any, place: Any) -> Run:
        self.times += 1
        return self.make(work)


def test_it_is_compiled_once_a_second_sequence_begins_that_there_is_room_for() -> None:
    decoder = Compiles()
    decoder.go(prompt(), 40)
    assert decoder.times == 0 and decoder.cached.cached >= 30, "it may be the only one"
    before = decoder.cached.cached
    decoder.go(prompt(), 30)
    assert decoder.times == 1 and not decoder.why
    assert decoder.cached.cached == before + 27, "all but the prompt and two that are computed both ways"
    decoder.go(prompt(20), 30)
    assert decoder.times == 1
    assert next(iter(decoder.cached._forms.values())).work.plain is not None  # type: ignore[union-attr]


def test_steps_before_it_is_compiled_are_not_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, marked = Compiles(), []
    monkeypatch.setattr(decoder.cached, "_unsteady", lambda: marked.append(decoder.cached.cached))
    decoder.go(prompt(), 30)
    assert len(marked) >= 30 and max(marked) >= 20
    decoder.go(prompt(), 3)
    marked.clear()
    decoder.go(decoder.go(prompt(), 1), 20)
    assert not marked
    monkeypatch.setattr(_prefix_compiled, "MOST_PENDING", 5)
    short = Compiles()
    monkeypatch.setattr(short.cached, "_unsteady", lambda: marked.append(short.cached.cached))
    short.go(prompt(), 50)
    assert max(marked) < 40, "where no second one comes"


@pytest.mark.parametrize("when", ["at once", "in the first call", "wrong"])
def test_what_can_not_be_compiled_is_as_it_was(when: str) -> None:
    def make(run: Run) -> Run:
        if when == "at once":
            raise ValueError("no compiler")

        def made(*args: Any) -> Any:
            if when == "in the first call":
                raise OSError("no compiler")
            return [one * 1.1 for one in run(*args)]

        return made

    decoder = Compiles(make)
    for _ in range(3):
        decoder.go(prompt(), 25)
    assert decoder.times == 1 and not decoder.why and len(decoder.told) == 1
    assert ("differs by" if when == "wrong" else "no compiler") in decoder.told[0]
    assert decoder.cached.cached >= 60


def test_what_is_compiled_and_can_not_be_captured_is_recorded_as_it_was() -> None:
    def capture(work: Callable[[], None]) -> Callable[[], None]:
        if decoder.times == 1 and not decoder.told:
            raise RuntimeError("operation not permitted when stream is capturing")
        work()
        return work

    decoder = Compiles(capture=capture)
    for length in (6, 7, 8):
        decoder.go(prompt(length), 20)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and work.replay is not None and work.plain is None
    assert not decoder.why and len(decoder.told) == 1 and "captured" in decoder.told[0]


def test_steps_are_steady_where_nothing_will_be_compiled_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_compiled, "MOST_COMPILED", 1)
    decoder, marked = Compiles(), []
    decoder.go(prompt(), 20)
    decoder.go(prompt(), 70)  # with more room
    assert decoder.times == 1
    decoder.go(prompt(9), 3)
    monkeypatch.setattr(decoder.cached, "_unsteady", lambda: marked.append(1))
    decoder.go(prompt(), 40)
    assert not marked and not decoder.why


def test_it_is_compiled_anew_where_more_room_is_needed_and_not_for_ever() -> None:
    decoder = Compiles()
    decoder.go(prompt(), 20)
    for length in (20, 64, 64, 6, 64):
        decoder.go(prompt(length), 20)
    assert decoder.times == 2 and not decoder.why
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and work.most == ROOM - 1 and work.plain is not None


def test_what_is_compiled_is_recorded() -> None:
    recorded = Captures()
    decoder = Compiles(capture=recorded)
    for length in (6, 7, 8):
        decoder.go(prompt(length), 20)
    assert not decoder.why and len(recorded) == 2


@pytest.mark.parametrize("attend", [by_hand, fused])
def test_the_compiler_of_torch_takes_it(attend: Callable[..., Any]) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compile(work: Any, token: Any, place: Any) -> Any:
        made = compiled(work, token, place)
        return torch.compile(made._torchdynamo_orig_callable, backend=backend, fullgraph=True)

    decoder = Decoder(Model(attend), compiler=compile)
    for _ in range(2):
        decoder.go(prompt(), 20)
    assert not decoder.why and len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes]
    assert not any("bmm" in name for name in called), "products with one row are sums"
    assert sum("sum.dim" in name for name in called) == (4 if attend is by_hand else 0)


class Wholes:
    """A compiler that makes nothing else of a graph, but for the forwards over whole sequences: what `make` makes."""

    def __init__(self, make: Callable[[Any], Any] = lambda graph: graph) -> None:
        self.made, self.runs, self._make = 0, 0, make

    def __call__(self, graph: Any, *inputs: Any) -> Any:
        if len(inputs) == 2:
            return graph
        self.made += 1
        forward = self._make(graph)

        def run(tokens: Any) -> Any:
            self.runs += 1
            return forward(tokens)

        return run


@pytest.mark.parametrize("attend", CAUSAL)
@pytest.mark.parametrize("end", [lambda head, x: head(x), lambda head, x: (head(x[:, -1]), None)])
def test_beginnings_are_recorded_of_what_is_compiled(
    attend: Callable[..., Any], end: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Wholes()
    decoder = Begins(Model(attend, end), monkeypatch, compiler=compiler)
    for _ in range(4):
        decoder.go(prompt(), 15)
    assert not decoder.why and decoder.refilled == 2 and compiler.made == 1
    assert compiler.runs == 2 + 1 + 2, "at once, in the recording and its replay, and in two more"
    decoder.go(prompt(9), 15)
    decoder.go(prompt(9), 15)
    decoder.go(prompt(), 15)
    assert not decoder.why and decoder.refilled == 3 and compiler.made == 2


def _raises(graph: Any) -> Any:
    raise ValueError("no compiler")


def _fails(graph: Any) -> Any:
    def forward(tokens: Any) -> Any:
        raise OSError("no compiler")

    return forward


def _of_other_values(at: int) -> Callable[[Any], Any]:
    def make(graph: Any) -> Any:
        def forward(tokens: Any) -> Any:
            found = list(graph(tokens))
            found[at] = found[at] * 1.01
            return found

        return forward

    return make


def _looks_ahead(graph: Any) -> Any:
    return lambda tokens: [*graph(tokens)[:-1], torch.ones((), dtype=torch.bool)]


@pytest.mark.parametrize("make", [_raises, _fails, _of_other_values(0), _of_other_values(1), _looks_ahead])
def test_what_is_compiled_of_beginnings_and_wrong_is_not_used(
    make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Wholes(make)
    decoder = Begins(Model(), monkeypatch, compiler=compiler)
    for _ in range(4):
        decoder.go(prompt(), 15)
    before = compiler.runs
    assert not decoder.why and decoder.refilled == 2 and compiler.made == 1
    decoder.go(prompt(), 15)
    assert decoder.refilled == 3 and compiler.runs == before, "by a recording of the ordinary forward"


def test_a_compiled_beginning_sees_that_tokens_look_at_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tokens: what is masked hangs on them."""

    def by_tokens(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT
        causal = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        opened = (q[:, :1, :1, :1] > 1e6).expand(-1, 1, q.shape[2], q.shape[2])
        return scores.masked_fill(~(causal | opened), -math.inf).softmax(-1) @ v

    class Opens(Model):
        def hidden(self, tokens: Any) -> Any:
            return super().hidden(tokens) * torch.where(tokens[:, :1] == 0, 1e9, 1.0).unsqueeze(-1)

    compiler = Wholes()
    decoder = Begins(Opens(by_tokens), monkeypatch, compiler=compiler)
    for _ in range(3):
        decoder.go(prompt() % (VOCAB - 1) + 1, 15)
    if decoder.why:
        pytest.skip(f"such a model is left alone: {decoder.why}")
    opened = prompt()
    opened[:, 0] = 0
    decoder.go(opened, 3)
    assert decoder.why and "later" in decoder.why[0][0]


def test_a_recording_keeps_what_it_was_compiled_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constants lie where the recording reads them, which itself keeps nothing."""
    kept: list[Any] = []

    def make(graph: Any) -> Any:
        kept.append(weakref.ref(graph))
        return graph

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work if "Recorded" not in work.__qualname__ else lambda: None

    decoder = Decoder(Model(), capture=capture, compiler=Wholes(make))
    for _ in range(2):
        decoder.go(prompt(), 15)
    gc.collect()
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and work.recorded[7] is not None and len(kept) == 1 and kept[0]() is not None
    work.recorded[7] = None
    gc.collect()
    assert kept[0]() is None


@pytest.mark.parametrize("half", [False, True])
def test_the_compiler_of_torch_takes_a_beginning(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_compiled, "LARGE", 1)
    monkeypatch.setattr(_prefix_compiled, "WIDENED_ON", {"cpu"})
    model, graphs = Model(), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compile(work: Any, *inputs: Any) -> Any:
        made = compiled(work, *inputs)
        return torch.compile(made._torchdynamo_orig_callable, backend=backend, fullgraph=True)

    def forward(tokens: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            return model(tokens)

    decoder = Begins(model, monkeypatch, forward=forward, compiler=compile)
    for _ in range(4):
        decoder.go(prompt(), 15, most=0.05 if half else 1e-4)
    assert not decoder.why and decoder.refilled == 2 and len(graphs) == 2, "a token's work, and a whole sequence's"
    called = [str(node.target) for node in graphs[1].graph.nodes]
    assert any("slice" in name for name in called) == half, "the vocabulary is widened"
    assert not half or not any("_to_copy" in name and "constant" in name for name in called)


# the lever


def test_it_is_for_inference_with_inputs_that_grow() -> None:
    grows = msgspec.structs.replace(ROOT, softmax=True, training=False, shapes=9)

    def found(mode: str = "inference", **changes: Any) -> Applies:
        root = msgspec.structs.replace(grows, **changes)
        return LEVER.applies(context(False, mode=mode, roots=(root,)))

    assert found().yes
    assert "grow" in found(shapes=1).why and "attention" in found(softmax=False).why
    assert "compiles" in found(compiled=True).why and "trains" in found("train").why


@pytest.mark.parametrize("large", [1, 1 << 22])
def test_a_vocabulary_of_an_odd_size_is_widened_in_half_precision(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_compiled, "LARGE", large)
    monkeypatch.setattr(_prefix_compiled, "WIDENED_ON", {"cpu"})
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    model, made = Model(), []

    def forward(tokens: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return model(tokens)

    def compile(work: Any, token: Any, place: Any) -> Any:
        made.append(compiled(work, token, place))
        return made[0]

    decoder = Decoder(model, forward, compiler=compile)
    for _ in range(3):
        decoder.go(prompt(), 20, most=0.05)
    assert not decoder.why and len(made) == 1
    wide = [node for node in made[0].__self__.graph.nodes if "slice" in str(node.target)]
    assert len(wide) == (large == 1) and all(node.args[3] == VOCAB for node in wide)


def test_it_is_compiled_where_something_can_be_and_not_where_a_recipe_does_not_say_so() -> None:
    assert LEVER.variants(context(True)) == [{"compile": True}, {"compile": False}]
    assert LEVER.check({"compile": False}) is None is LEVER.check({"compile": True})
    assert all(LEVER.check(wrong) for wrong in ({}, {"compile": 1}, {"mode": "default"}))
    assert LEVER.environment({"compile": True}) and not LEVER.environment({"compile": False})


def test_a_script_gives_the_same_tokens(tmp_path: Path) -> None:
    """Through the whole of it: a recipe, a process, the zoo's decode loop. What is compiled is tested above: there it
    would take a minute."""
    script = Path(__file__).parents[2] / "benchmarks" / "zoo" / "decode.py"
    bare = [sys.executable, str(script), "--tiny", "--steps", "48", "--log-every", "4"]
    expected = _steps(bare)
    assert len(expected) == 12
    recipe, run = tmp_path / "r.toml", tmp_path / "run"
    settings = "[lever.settings]\ncompile = false\n"
    text = f'format = 1\nhotlap = "test"\n[[lever]]\nname = "kv-cache"\nrisk = "numeric"\n{settings}'
    recipe.write_text(text, encoding="utf-8")
    options = ("run", "--recipe", str(recipe), "--out", str(run))
    assert _steps([sys.executable, "-m", "hotlap", *options, *bare]) == expected
    rank = run / "rank-0"
    assert "kv-cache" in (rank / "levers.jsonl").read_text() and not (rank / "problems.jsonl").exists()


def _steps(command: list[str]) -> list[str]:
    """What a run prints of its steps, but for how long they took."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return [line.rsplit(" ", 2)[0] for line in done.stdout.splitlines() if line.startswith("step ")]
