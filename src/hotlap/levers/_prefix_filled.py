"""Not a lever: forwards over a whole sequence, of which keys and values go to the caches (`_prefix_cache`).

Each op of such a forward is looked at in Python, which takes longer than the forward. Where sequences begin with the
same length again, the second one is recorded, with all that is asked of it: whether tokens look at later ones, and
figures of the weights. A record is used where it gives what the ordinary call before it gave; each sixteenth call is an
ordinary one all the same, which shows what of the script's code no look at the model shows.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from ._autocast import without_autocast
from ._call_inputs import ODD, put
from ._forward_graph import TOLERANCE, Capture, apart, restore_all, tried, without_cached_casts
from ._prefix_build import Cache
from ._prefix_tape import Tape, alike, taped
from ._prefix_whole import whole
from ._prefix_work import Ahead, Form, Plan, Work, taken_apart

MOST_RECORDED: Final = 4
"""Lengths, of each work."""
TRUSTED: Final = 16
"""Uses of a record, of which the last is an ordinary call in its place."""


class Filling:
    """A forward over `length` tokens. failed: why the caches were not filled, "" where they were; makes: bytes of all
    that its ops make."""

    def __init__(self, plan: Plan, work: Work, length: int) -> None:
        self.plan, self.length = plan, length
        self.caches = [cache for cache, _ in work.builder.caches.values()]  # and not the work, which holds recordings
        self.failed, self.makes = "", 0
        self._sources: dict[int, list[Any]] = {}
        for cache in self.caches:
            self._sources.setdefault(cache.made.op, []).append(cache)
        self._tape: Tape | None = None
        self._looks, self._most = work.builder.looks, work.most
        self.ahead = Ahead(self._looks)

    def run(self, forward: Callable[..., Any], tokens: Any, args: Any, kwargs: Any) -> Any:
        """What the forward returns."""
        self._tape = tape = Tape(tokens)
        self.ahead, self.makes = Ahead(self._looks), 0
        with without_cached_casts(), taped(tape, self._seen):
            return forward(*args, **kwargs)

    def as_known(self, form: Form, output: Any) -> list[Any] | None:
        """The tensors that it returned; None where it did other ops than those that were written down, or returns
        something else."""
        leaves, plain, spec = taken_apart(output)
        tensors = [leaf for leaf in leaves if leaf is not None]
        assert self._tape is not None, "it ran"
        known = alike(self.plan.ops, self._tape, self.length) and plain == form.plain and spec == form.spec
        return tensors if known and len(tensors) == len(self.plan.outputs) else None

    def _seen(self, at: int, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if at in self._sources and at < len(self.plan.ops) and func is self.plan.done[at]:
            try:
                self._keep(at, out)
            except ODD as error:  # not in the midst of somebody's forward
                self.failed = str(error) or repr(error)
        if not func.is_view:
            made = out if isinstance(out, (tuple, list)) else [out]
            self.makes += sum(getattr(one, "nbytes", 0) for one in made)
        self.ahead.see(at, func, args, kwargs, out)

    def graph(self) -> Any:
        """The forward as a graph that `run_by` takes. Raises Unfit, TooLong."""
        return whole(self.plan, [cache.made for cache in self.caches], self._looks, self.length)

    def run_by(self, forward: Callable[[Any], Sequence[Any]], tokens: Any) -> tuple[list[Any], Any]:
        """The tensors that the forward returns, and whether any token looks at a later one. forward: `graph`, or what
        was compiled of it."""
        *found, looks_ahead = forward(tokens)
        outputs = len(self.plan.outputs)
        for cache, values in zip(self.caches, found[outputs:], strict=True):
            self._put(cache, values)
        return found[:outputs], looks_ahead

    def _keep(self, at: int, out: Any) -> None:
        for cache in self._sources[at]:
            self._put(cache, out[cache.made.out] if isinstance(out, (tuple, list)) else out)

    def _put(self, cache: Cache, values: Any) -> None:
        cache.tensor.narrow(cache.dim, 0, self.length).copy_(values)
        cache.tensor.narrow(cache.dim, self.length, self._most - self.length).zero_()  # it may be infinite


class Recorded:
    """The same as a CUDA graph. tensors: what it returns, each its own; length: of the sequence; takes: bytes, at most:
    tensors that are gone make room for others in the recording too."""

    def __init__(self, filling: Filling, tokens: Any, args: Any, kwargs: Any) -> None:
        import torch

        with torch.inference_mode(False):
            self._tokens = tokens.clone()
        self._filling, self.length, self.takes = filling, filling.length, filling.makes
        self._times = 0
        self._uses: Any = None
        self._args, self._kwargs = put((args, kwargs), iter([self._tokens]))
        self.tensors: list[Any] = []
        self._asked: list[Any] = []
        self._replay: Callable[[], None] | None = None
        self._figures: list[float] = []

    @property
    def tokens(self) -> Any:
        """A sequence of its length."""
        return self._tokens

    def graph(self) -> Any:
        """See `Filling.graph`."""
        return self._filling.graph()

    def trusted(self) -> bool:
        """Whether this use of it is one without another look."""
        self._times += 1
        return self._times % TRUSTED != 0

    def record(self, forward: Callable[..., Any], capture: Capture, form: Form, made: Sequence[Any]) -> bool:
        """Whether a replay fills the caches as they are filled, and returns what was made. Else all is as it was."""

        def issue() -> None:
            output = self._filling.run(forward, self._tokens, self._args, self._kwargs)
            self.tensors = self._filling.as_known(form, output) or []
            self._asked[:] = [self._filling.ahead.found(self._tokens.device), self._filling.plan.figured()]

        return self._right(issue, capture, made, TOLERANCE)

    def record_compiled(
        self, forward: Callable[[Any], Sequence[Any]], capture: Capture, made: Sequence[Any], most: float
    ) -> bool:
        """The same, of what was compiled. most: the greatest relative difference of norms."""

        def issue() -> None:
            with torch.no_grad(), without_autocast(self._tokens.device):
                self.tensors, looks_ahead = self._filling.run_by(forward, self._tokens)
                self._asked[:] = [looks_ahead, self._filling.plan.figured()]

        import torch

        self._uses = forward  # its constants, which a recording does not keep
        return self._right(issue, capture, made, most)

    def _right(self, issue: Callable[[], None], capture: Capture, made: Sequence[Any], most: float) -> bool:
        """Whether a recording of this does the same. Else all is as it was."""

        def right() -> bool:
            self._replay = capture(issue)
            self._replay()
            looks_ahead, self._figures = self._answers()
            same = not looks_ahead and repr(self._figures) == repr(self._filling.plan.figures)
            return same and not apart([*self.tensors, *caches], [*made, *saved], most)

        caches = [cache.tensor for cache in self._filling.caches]
        saved = [tensor.clone() for tensor in caches]
        is_right, _ = tried(right)  # the script's own code runs in it
        if is_right and not self._filling.failed:
            return True
        restore_all(caches, saved)
        self.tensors, self._asked, self._replay = [], [], None
        return False

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
