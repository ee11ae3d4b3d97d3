"""Not a lever: the work of the token that will likely come next, begun before the script asks for it.

Most loops take the likeliest token. On a GPU the work for that one is begun as soon as its logits are there, on a
stream of its own, and so goes on while the host does what the script does with the token before it: reads it, keeps it,
decides whether to stop. A call whose tokens are those finds its output there. For any other call what was made is not
used, and what it left in the caches is written over; where that happens often, as with tokens that are drawn, it ends.

A token is only guessed where each table that tokens are looked up in has a row for every logit: an index out of range
ends a process on a GPU.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ._forward_graph import apart
from ._prefix_tape import TOKENS, Growing, Made, Outside
from ._prefix_work import Plan, Work

MOST_WRONG: Final = 3
RIGHT_FOR_WRONG: Final = 16
"""Guesses that have to be right for one more that may be wrong: that costs as long as a token's work takes."""
REGROUPING: Final = frozenset({"view", "_unsafe_view", "reshape", "alias", "detach", "clone", "_to_copy", "unsqueeze"})
"""Ops that leave tokens what they are."""

Likeliest = Callable[[Any], Callable[[Any], Any] | None]
"""Of rows of logits, (batch, n): what tells of such rows where each one's largest is, (batch, 1); None for `argmax`."""


class Aside(Protocol):
    """A stream beside the current one."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A recording that shares no memory with others."""

    def begin(self, work: Callable[[], None], after: bool) -> None:
        """after: what the current stream has been given so far; else it is known to be done, as far as that counts."""

    def join(self) -> None:
        """What the current stream is given from here on comes after what was begun."""

    def host(self, *shape: int, dtype: Any) -> Any:
        """Memory of the host's that the device writes to."""

    def sent(self) -> Callable[[], None]:
        """What it returns waits for what the current stream has been given so far."""

    def wait(self) -> None:
        """The host waits for what was begun."""


class Guess:
    """Of one work. length: of the sequence with the token that was guessed, 0 where nothing was begun; tokens: those of
    the last call that was asked about, on the host, where they stay until the call after the next one is asked about.

    There are two recordings, in turns: while one runs, to launch it again costs the host longer than another one does,
    and what the last one made can be read meanwhile. The next one need not wait for those reads: when it is begun the
    host has the tokens that it compares, from the stream that made them.

    Tokens are compared on the host: one copy of them is sent, and the token that was guessed has come with what was
    begun. To compare them on the device takes the host three launches and a wait.
    """

    def __init__(self, work: Work, rows: int, aside: Aside) -> None:
        import torch

        self.length, self.most = 0, work.most
        self.tokens: Any = None
        self._made: list[list[Any]] = [[], []]
        self._replays: list[Callable[[], None]] = []
        self._turn = 0
        self._aside, self._rows, self._run = aside, rows, work.run
        self._uses = work.builder.attributes  # what it reads and writes lives as long as this, which waits for it
        self._right, self._wrong, self._logits = 0, 0, -1
        self._likeliest: Callable[[Any], Any] | None = None
        self._ends = 0, 0
        token = work.token
        with torch.inference_mode(False):
            self._token, self._place = token.clone(), work.place.clone()
            self._likely = [aside.host(len(token), 1, dtype=token.dtype) for _ in range(2)]
            self._came = [aside.host(len(token) * (work.most + 1), dtype=token.dtype) for _ in range(2)]
        self._seen: Any = None
        self._side = 0

    def __del__(self) -> None:
        if self.length and not sys.is_finalizing():  # then its memory is nobody's any more
            with contextlib.suppress(RuntimeError):
                self._aside.wait()

    def record(self, made: Sequence[Any], likeliest: Likeliest, most: float) -> bool:
        """Whether recordings make for the token of the work what its own made, but for rounding (most: relative, of
        norms). Raises RuntimeError."""
        self._logits = _logits_in(made, self._rows)
        self._likeliest = likeliest(self._logits_of(made)) if self._logits >= 0 else None
        pairs = zip(self._made, self._likely, strict=True)
        return self._logits >= 0 and all(self._recorded(into, likely, made, most) for into, likely in pairs)

    def _recorded(self, into: list[Any], likely: Any, made: Sequence[Any], most: float) -> bool:
        def issue() -> None:
            into[:] = self._run(self._token, self._place)
            if self._likeliest is None:
                self._choose(into)
            else:
                self._token.copy_(self._likeliest(self._logits_of(into)))
            likely.copy_(self._token, non_blocking=True)
            self._place.add_(1)

        token, place = self._token.clone(), self._place.clone()
        self._replays.append(self._aside.capture(issue))
        self._aside.begin(self._replays[-1], True)
        self._aside.join()
        self._token.copy_(token)
        self._place.copy_(place)
        return not apart(into, made, most)

    def start(self, tokens: Any, made: Sequence[Any]) -> None:
        """After an ordinary call. made: by the work of its last token."""
        length = tokens.shape[1]
        if self._last(length):
            return
        self._choose(made)
        self._place.fill_(length)
        self._likely[1 - self._turn].copy_(self._token, non_blocking=True)
        self._saw(self._sent(tokens))
        self._begin(length, True)

    def ask(self, tokens: Any) -> Callable[[], bool]:
        """Whether these are the tokens that were expected. What it returns waits for them, and not for what was
        begun."""
        import torch

        before, likely, came = self._seen, self._likely[1 - self._turn], self._sent(tokens)
        self.tokens = came
        wait = self._aside.sent()

        def holds() -> bool:
            wait()
            right = bool(torch.equal(came[:, :-1], before) and torch.equal(came[:, -1:], likely))
            self._saw(came)
            self._right += right
            self._wrong += not right
            return right

        return holds

    def _sent(self, tokens: Any) -> Any:
        """Tokens on the host, once the current stream is so far, where those are not that were seen last."""
        there = self._came[1 - self._side][: tokens.numel()].view(tokens.shape)
        return there.copy_(tokens, non_blocking=True)

    def _saw(self, came: Any) -> None:
        self._seen, self._side = came, 1 - self._side

    def ended(self, length: int) -> None:
        """A sequence was so long in the last of its calls."""
        self._ends = self._ends[1], length

    @property
    def fails(self) -> bool:
        """Whether too many of them were wrong."""
        return self._wrong > MOST_WRONG + self._right // RIGHT_FOR_WRONG

    def join(self) -> None:
        """What is done from here on comes after what was begun."""
        if self.length:
            self._aside.join()
            self.length = 0

    def go_on(self, length: int) -> None:
        """With the token after the one that was right. length: of the sequence with that."""
        if not self._last(length):
            self._turn = 1 - self._turn
            self._begin(length, False)

    def _last(self, length: int) -> bool:
        """Whether there is no room for one more, or the last two sequences were so long."""
        return length >= self.most or self._ends == (length, length)

    def _begin(self, length: int, after: bool) -> None:
        self.length = length + 1
        self._aside.begin(self._replays[self._turn], after)

    @property
    def made(self) -> list[Any]:
        """By what was begun last."""
        return self._made[self._turn]

    def _logits_of(self, made: Sequence[Any]) -> Any:
        logits = made[self._logits]
        return logits.reshape(len(logits), -1)

    def _choose(self, made: Sequence[Any]) -> None:
        """The likeliest token is the next one."""
        import torch

        rows = self._logits_of(made)
        if self._token.dtype is torch.int64:
            torch.argmax(rows, -1, keepdim=True, out=self._token)
        else:
            self._token.copy_(rows.argmax(-1, keepdim=True))


def guess_for(work: Work, plan: Plan, aside: Callable[[], Aside], likeliest: Likeliest, most: float) -> Guess | None:
    """None where none can be made. The work has just been done, and is recorded. most: see `Guess.record`."""
    rows = rows_of(plan, work.token.dtype)
    if rows:
        with contextlib.suppress(RuntimeError):  # the device has no room for it
            guess = Guess(work, rows, aside())
            return guess if guess.record(work.made, likeliest, most) else None
    return None


def rows_of(plan: Plan, dtype: Any) -> int:
    """Of the smallest table that tokens are looked up in, as far as their dtype reaches; 0 where something else is done
    with them."""
    import torch

    tokens, rows = {TOKENS}, []
    for at, op in enumerate(plan.ops):
        if not op.uses & tokens:
            continue
        if op.name in REGROUPING:
            tokens.add(Made(at))
        elif op.name == "embedding" and op.args[1] in tokens and op.args[0] not in tokens:
            rows.append(_length(plan.ops, op.args[0]))
        else:
            return 0
    return min(*rows, torch.iinfo(dtype).max + 1) if rows else 0


def _length(ops: Sequence[Growing], table: Any) -> int:
    shape = table.tensor.shape if isinstance(table, Outside) else ops[table.op].shapes[table.out]
    return shape[0] if isinstance(shape[0], int) else 0


def _logits_in(made: Sequence[Any], rows: int) -> int:
    """Which of these has a number for most tokens; -1 where none has."""
    fits = [
        (one.shape[-1], at)
        for at, one in enumerate(made)
        if one.dtype.is_floating_point and one.dim() > 1 and one.numel() == len(one) * one.shape[-1] <= len(one) * rows
    ]
    return max(fits)[1] if fits else -1
