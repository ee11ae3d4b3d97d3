"""The lever kv-cache: work of the likeliest token, begun before the script asks for it."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.levers.test_kv_cache import DIM, VOCAB, Decoder, Layer, Model, _reads, by_hand, fused, larger, prompt
from torch import nn

from hotlap.levers import _model_state, _prefix_guess, _prefix_work


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


class Stream:
    """A stream beside the current one. late: what is begun on it is done when it is waited for, else at once."""

    def __init__(self, late: bool) -> None:
        self.late, self.begun, self.waited, self.sends = late, 0, 0, 0
        self._todo: list[Callable[[], None]] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def begin(self, work: Callable[[], None], after: bool) -> None:
        assert not self._todo, "what was begun before is joined first"
        self.begun += 1
        self._todo.append(work)
        if not self.late:
            self.join()

    def join(self) -> None:
        while self._todo:
            self._todo.pop()()

    def host(self, *shape: int, dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype)

    def sent(self) -> Callable[[], None]:
        self.sends += 1
        return self._came

    def _came(self) -> None:
        self.sends -= 1

    def wait(self) -> None:
        self.waited += 1
        self.join()


class Guesses(Decoder):
    """Greedily, and with a note of what is recorded."""

    def __init__(self, model: nn.Module, late: bool = True, **options: Any) -> None:
        self.streams: list[Stream] = []
        self.replayed = 0
        super().__init__(model, capture=self._capture, aside=lambda: self._stream(late), **options)

    def _stream(self, late: bool) -> Stream:
        self.streams.append(Stream(late))
        return self.streams[-1]

    def _capture(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replayed += 1
            work()

        work()
        return replay

    @property
    def begun(self) -> int:
        return sum(stream.begun for stream in self.streams)

    def greedily(self, tokens: Any, times: int) -> Any:
        """Let a sequence grow by the likeliest token."""
        for _ in range(times):
            tokens = self.next(tokens)
        return tokens

    def next(self, tokens: Any) -> Any:
        """The same, by a token."""
        got, whole = self.cached(tokens), self.whole(tokens)
        assert torch.allclose(got + 0, whole, atol=1e-5)
        return torch.cat([tokens, whole[:, -1].argmax(-1, keepdim=True)], dim=1)

    @property
    def guess(self) -> Any:
        work = next(iter(self.cached._forms.values())).work
        return None if work is None else work.guess


late = pytest.mark.parametrize("late", [True, False])


@late
@pytest.mark.parametrize("attend", [by_hand, fused])
def test_the_likeliest_token_is_begun_with_the_call_before(attend: Callable[..., Any], late: bool) -> None:
    decoder = Guesses(Model(attend), late)
    tokens = decoder.greedily(prompt(), 12)
    begun, replayed, before = decoder.begun, decoder.replayed, decoder.cached.cached
    tokens = decoder.greedily(tokens, 20)
    assert decoder.begun == begun + 20 and decoder.replayed == replayed and decoder.cached.cached == before + 20
    assert _reads(decoder.cached, tokens) == 2, "whether it is that token, and whether it is the same text"
    assert not decoder.streams[-1].sends, "what was sent is waited for"
    for length, batch in ((5, 3), (9, 3), (9, 3), (6, 2), (5, 3)):
        decoder.greedily(prompt(length, batch), 15)
    assert not decoder.why


@late
def test_it_ends_where_there_is_no_more_room(late: bool) -> None:
    decoder = Guesses(Model(), late)
    tokens = decoder.greedily(prompt(), 60)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and tokens.shape[1] > 64 and not decoder.why
    decoder.greedily(prompt(), work.most - 6)
    assert not decoder.guess.length, "there is no room for one more"
    decoder.greedily(prompt(), 12)
    assert not decoder.why


@late
def test_it_ends_where_the_last_sequences_did(late: bool) -> None:
    decoder = Guesses(Model(), late)
    for _ in range(3):
        decoder.greedily(prompt(), 20)
    assert not decoder.guess.length, "as the two before"
    tokens = decoder.greedily(prompt(), 25)
    begun = decoder.begun
    decoder.greedily(tokens, 5)
    assert decoder.begun == begun + 5 and not decoder.why


@late
def test_tokens_that_are_drawn_are_not_guessed_for_long(late: bool) -> None:
    decoder = Guesses(Model(), late)
    decoder.go(prompt(), 40)
    assert decoder.guess is None and decoder.begun <= 2 + _prefix_guess.MOST_WRONG + 1 and not decoder.why
    decoder.go(prompt(), 30)


@late
def test_after_many_that_were_right_some_may_be_wrong(late: bool) -> None:
    decoder = Guesses(Model(), late)
    for _ in range(12):
        tokens = decoder.greedily(prompt(), 36)
        tokens[1, -1] = (tokens[1, -1] + 1) % VOCAB
        decoder.greedily(tokens, 2)
    assert decoder.guess is not None and not decoder.why


@late
@pytest.mark.parametrize("change", [
    lambda model: model.head.weight.mul_(1.5),
    lambda model: model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()}),
    lambda model: model.layers[0].mlp.__setitem__(2, nn.ReLU()),
    lambda model: setattr(model, "end", lambda head, x: head(x) * 2),
    lambda model: setattr(model.head.weight, "data", model.head.weight.data.flip(0)),
    lambda model: model.layers.__setitem__(0, Layer(by_hand)),
    larger,
])  # fmt: skip
def test_what_was_begun_of_a_model_that_changed_is_not_used(change: Callable[[Model], Any], late: bool) -> None:
    decoder = Guesses(Model(), late)
    tokens = decoder.greedily(prompt(), 14)
    change(decoder.model)
    before = decoder.cached.cached
    tokens = decoder.next(tokens)
    assert decoder.cached.cached == before and decoder.cached.changes == 1
    decoder.greedily(tokens, 14)
    decoder.greedily(prompt(), 14)
    assert decoder.guess.length and not decoder.why


def test_a_token_is_begun_before_the_host_looks_for_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Guesses(Model())
    tokens = decoder.greedily(prompt(), 14)
    seen = []
    looks = [(_model_state.Model, name) for name in ("in_place", "same_parts", "same_beside")]
    for kind, name in [*looks, (_prefix_work.Plan, "same"), (Stream, "begin")]:
        was: Callable[..., Any] = getattr(kind, name)

        def look(*args: Any, was: Callable[..., Any] = was, name: str = name) -> Any:
            seen.append(name)
            return was(*args)

        monkeypatch.setattr(kind, name, look)
    decoder.cached(tokens)
    assert seen == ["in_place", "begin", "same_parts", "same_beside", "same"]


@late
def test_the_second_token_is_begun_with_a_recorded_beginning(late: bool) -> None:
    decoder = Guesses(Model(), late)
    for length in (15, 13, 17):
        decoder.greedily(prompt(), length)
    begun, before = decoder.begun, decoder.cached.cached
    tokens = decoder.next(prompt())
    assert decoder.begun == begun + 1 and decoder.guess.length == tokens.shape[1]
    replayed = decoder.replayed
    tokens = decoder.next(tokens)
    assert decoder.cached.cached == before + 1 and decoder.replayed == replayed
    decoder.greedily(tokens, 8)
    other = decoder.next(prompt())
    other[:, -1] = (other[:, -1] + 1) % VOCAB
    decoder.greedily(decoder.next(other), 8)
    assert not decoder.why


@late
def test_a_guess_behind_other_tokens_is_not_used(late: bool) -> None:
    decoder = Guesses(Model(), late)
    tokens = decoder.greedily(prompt(), 14)
    other = tokens.clone()
    other[2, 3] = (other[2, 3] + 1) % VOCAB
    tokens = decoder.next(other)
    tokens = decoder.greedily(tokens, 6)
    for _ in range(3):  # beams change places, and go on
        tokens = decoder.greedily(tokens[torch.tensor([2, 0, 0])], 3)
    assert not decoder.why


class MoreLogits(Model):
    """For which there are no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(DIM, VOCAB + 1)


class LooksElsewhere(Model):
    """Tokens count as numbers as well."""

    def hidden(self, tokens: Any) -> Any:
        return super().hidden(tokens) + tokens.unsqueeze(-1) / VOCAB


class LooksUpTwice(Model):
    """In a table with fewer rows as well."""

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Embedding(VOCAB - 1, DIM)

    def hidden(self, tokens: Any) -> Any:
        return super().hidden(tokens) + self.few(tokens)


@pytest.mark.parametrize("model", [MoreLogits, LooksElsewhere, LooksUpTwice])
def test_no_token_is_guessed_that_might_not_be_there(model: type[Model]) -> None:
    decoder = Guesses(model())
    decoder.go(prompt() % (VOCAB - 2), 0)
    tokens = prompt() % (VOCAB - 2)
    for _ in range(16):
        got, whole = decoder.cached(tokens), decoder.whole(tokens)
        assert torch.allclose(got + 0, whole, atol=1e-5)
        tokens = torch.cat([tokens, whole[:, -1, : VOCAB - 2].argmax(-1, keepdim=True)], dim=1)
    assert decoder.cached.cached and decoder.guess is None and not decoder.why


class FewTokens(Model):
    """Whose tokens are of a dtype that has no room for all logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(200, DIM), nn.Linear(DIM, 200)

    def forward(self, tokens: Any, scale: float = 1.0) -> Any:
        return super().forward(tokens.long(), scale)


def test_no_token_is_guessed_for_which_its_dtype_has_no_room() -> None:
    decoder = Guesses(FewTokens())
    tokens = prompt().to(torch.int8)
    for _ in range(16):
        got, whole = decoder.cached(tokens), decoder.whole(tokens)
        assert torch.allclose(got + 0, whole, atol=1e-5)
        tokens = torch.cat([tokens, whole[:, -1, :VOCAB].argmax(-1, keepdim=True).to(torch.int8)], dim=1)
    assert decoder.cached.cached and decoder.guess is None and not decoder.why


@pytest.mark.parametrize("after", [True, False])
def test_an_interrupt_of_the_first_one_leaves_no_hole(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Guesses(Model())
    tokens = decoder.greedily(prompt(), 20)
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % VOCAB
    begin = Stream.begin

    def interrupted(stream: Stream, *args: Any) -> None:
        if after:
            begin(stream, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.cached(other)
    whole = decoder.whole(other)
    decoder.greedily(torch.cat([other, whole[:, -1].argmax(-1, keepdim=True)], dim=1), 6)
    assert not decoder.why


@pytest.mark.parametrize("where", ["ask", "_sent", "_saw", "join", "go_on"])
@late
def test_an_interrupt_leaves_no_hole(where: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Guesses(Model(), late)
    tokens = decoder.greedily(prompt(), 14)

    done = getattr(_prefix_guess.Guess, where)

    def interrupted(*args: Any) -> Any:
        if where == "_sent":
            done(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_prefix_guess.Guess, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.cached(tokens)
    decoder.greedily(decoder.next(tokens), 6)
    decoder.greedily(prompt(), 6)
    assert not decoder.why


@late
def test_outputs_stay_as_they_were(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_work, "LEAST", (1, 1))
    decoder = Guesses(Model(), late)
    tokens = decoder.greedily(prompt(), 14)
    kept = []
    for _ in range(6):
        kept.append((decoder.cached(tokens), decoder.whole(tokens)))
        tokens = torch.cat([tokens, kept[-1][1][:, -1].argmax(-1, keepdim=True)], dim=1)
    decoder.greedily(prompt(), 6)
    assert all(torch.allclose(got + 0, whole, atol=1e-5) for got, whole in kept)


def test_what_was_begun_is_waited_for_before_its_memory_is_anyones(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(stream: Stream, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None  # which holds nothing, as a graph does

    monkeypatch.setattr(Stream, "capture", capture)
    decoder = Guesses(Model())
    decoder.greedily(prompt(), 8)
    streams = decoder.streams
    assert [stream.waited for stream in streams] == [0]
    del decoder
    gc.collect()
    assert [stream.waited for stream in streams] == [1]


@pytest.mark.parametrize("wrong", ["raises", "does nothing"])
def test_a_recording_that_is_none_is_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(stream: Stream, work: Callable[[], None]) -> Callable[[], None]:
        if wrong == "raises":
            raise RuntimeError("out of memory")
        work()
        return lambda: next(iter(decoder.cached._forms.values())).work.guess  # type: ignore[union-attr]

    monkeypatch.setattr(Stream, "capture", capture)
    if wrong == "does nothing":
        monkeypatch.setattr(_prefix_guess, "apart", lambda *_: "its replay differs")
    decoder = Guesses(Model())
    decoder.greedily(prompt(), 20)
    assert decoder.guess is None and decoder.replayed and not decoder.why


def test_steps_before_it_is_compiled_are_not_steady() -> None:
    marked: list[int] = []
    decoder = Guesses(Model(), compiler=lambda work, token, place: work)
    decoder.cached._unsteady = lambda: marked.append(decoder.begun)
    decoder.greedily(prompt(), 30)
    assert len(marked) >= 30 and decoder.begun > 15, "it will be compiled with the next sequence"
    decoder.greedily(prompt(), 30)
    marked.clear()
    decoder.greedily(prompt(), 30)
    assert not marked and not decoder.why
