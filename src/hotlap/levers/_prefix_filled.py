"""Not a lever: forwards over a whole sequence, of which keys and values go to the caches (`_prefix_cache`).

Each op of such a forward is looked at in Python, which takes longer than the forward. Where sequences begin with the
same length again, the second one is recorded, with all that is asked of it: whether tokens look at later ones, and
figures of the weights. A record is used where it gives what the ordinary call before it gave.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from ._call_inputs import ODD, put
from ._forward_graph import Capture, apart, restore_all, without_cached_casts
from ._prefix_tape import Tape, alike, taped
from ._prefix_work import Ahead, Plan, Work, taken_apart

MOST_RECORDED: Final = 4
"""Lengths, of each work: each record has memory of its own."""
TIMES_OUTPUT: Final = 8
"""What a record may take beside what it returns."""


class Filling:
    """A forward over `length` tokens. failed: why the caches were not filled, "" where they were."""

    def __init__(self, plan: Plan, work: Work, length: int) -> None:
        self.plan, self.work, self.length = plan, work, length
        self.failed = ""
        self._sources: dict[int, list[Any]] = {}
        for cache, _ in work.builder.caches.values():
            self._sources.setdefault(cache.made.op, []).append(cache)
        self._tape: Tape | None = None
        self.ahead = Ahead(work.builder.looks)

    def run(self, forward: Callable[..., Any], tokens: Any, args: Any, kwargs: Any) -> Any:
        """What the forward returns."""
        self._tape = tape = Tape(tokens)
        self.ahead = Ahead(self.work.builder.looks)
        with without_cached_casts(), taped(tape, self._seen):
            return forward(*args, **kwargs)

    def as_known(self, plain: Sequence[Any], output: Any) -> list[Any] | None:
        """The tensors that it returned; None where it did other ops than those that were written down."""
        leaves, others, _ = taken_apart(output)
        tensors = [leaf for leaf in leaves if leaf is not None]
        assert self._tape is not None, "it ran"
        known = alike(self.plan.ops, self._tape, self.length) and others == plain
        return tensors if known and len(tensors) == len(self.plan.outputs) else None

    def _seen(self, at: int, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if at in self._sources and at < len(self.plan.ops) and func is self.plan.done[at]:
            try:
                self._keep(at, out)
            except ODD as error:  # not in the midst of somebody's forward
                self.failed = str(error) or repr(error)
        self.ahead.see(at, func, args, kwargs, out)

    def _keep(self, at: int, out: Any) -> None:
        for cache in self._sources[at]:
            into = cache.tensor.narrow(cache.dim, 0, self.length)
            into.copy_(out[cache.made.out] if isinstance(out, (tuple, list)) else out)
            cache.tensor.narrow(cache.dim, self.length, self.work.most - self.length).zero_()  # it may be infinite


class Recorded:
    """The same as a CUDA graph. tensors: what it returns, each its own; length: of the sequence."""

    def __init__(self, filling: Filling, tokens: Any, args: Any, kwargs: Any) -> None:
        import torch

        with torch.inference_mode(False):
            self._tokens = tokens.clone()
        self._filling, self.length = filling, filling.length
        self._args, self._kwargs = put((args, kwargs), iter([self._tokens]))
        self.tensors: list[Any] = []
        self._asked: list[Any] = []
        self._replay: Callable[[], None] | None = None
        self._figures: list[float] = []

    def record(self, forward: Callable[..., Any], capture: Capture, plain: Sequence[Any], made: Sequence[Any]) -> bool:
        """Whether a replay fills the caches as they are filled, and returns what was made. Else all is as it was."""

        def issue() -> None:
            output = self._filling.run(forward, self._tokens, self._args, self._kwargs)
            self.tensors = self._filling.as_known(plain, output) or []
            self._asked[:] = [self._filling.ahead.found(self._tokens.device), self._filling.plan.figured()]

        caches = [cache.tensor for cache, _ in self._filling.work.builder.caches.values()]
        saved = [tensor.clone() for tensor in caches]
        try:
            self._replay = capture(issue)
            self._replay()
            looks_ahead, self._figures = self._answers()
            same = not looks_ahead and repr(self._figures) == repr(self._filling.plan.figures)
            right = same and not apart([*self.tensors, *caches], [*made, *saved])
        except (*ODD, AssertionError):
            right = False
        if not right or self._filling.failed or len(self.tensors) != len(made):
            restore_all(caches, saved)
            return False
        return True

    def run(self, tokens: Any) -> tuple[bool, bool]:
        """Fill the caches. Whether any token looks at a later one, and whether the weights are what they were."""
        assert self._replay is not None, "it was recorded"
        self._tokens.copy_(tokens)
        self._replay()
        looks_ahead, figures = self._answers()
        return looks_ahead, repr(figures) == repr(self._figures)

    def _answers(self) -> tuple[bool, list[float]]:
        """Waits for the device, once."""
        import torch

        looks_ahead, figures = self._asked
        asked = torch.cat([looks_ahead.double().view(1), figures]).tolist()
        return asked[0] != 0, asked[1:]
