"""Not a lever: what `_prefix_cache` keeps of calls that are alike, and of the last token's work."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from typing import Any, Final

from ._call_inputs import ODD
from ._forward_graph import relative_error
from ._prefix_build import Builder, Last, Looks
from ._prefix_tape import Growing, Made, Tape

LEAST: Final = (1 << 18, 1 << 26)
"""Numbers, on the host and on a GPU, whose copy takes longer than what it costs to look after one that is not made."""
STRIDE: Final = 61
MANY: Final = 1 << 16
"""Numbers of a weight from which on it is summed by itself: a kernel for each of hundreds of weights takes longer than
to read them all."""
LEAST_ROW: Final = 64
"""Numbers of a weight's last dimension that are summed in float32 first: to widen them all takes four times as long,
and a sum of few still shows that one of them is another."""

Fetch = Callable[[Any], Callable[[], bool]]
"""Sends for a truth value, (), that a device computes; what it returns waits for that, and for nothing issued later."""


def fetch(value: Any) -> Callable[[], bool]:
    """A `Fetch` that reads it where it is."""
    return lambda: bool(value)


@dataclass
class Plan:
    """What two calls have in common. outputs: of the forward, in the order of its tensors; outside: tensors of the
    model that are read; half: whether it reckons in half precision."""

    ops: list[Growing]
    outputs: list[Made]
    outside: list[Any]
    half: bool

    def __post_init__(self) -> None:
        self.done = [op.func for op in self.ops]
        self.versions, self.figures = self._versions(), self.figured().tolist()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self.outside]

    def figured(self) -> Any:
        """What tells values of the weights apart without keeping them, (3,), float64: a norm, the sum, and a sum of
        some of them, which other places make another. Small ones are taken together."""
        import torch

        weights = [tensor.detach() for tensor in self.outside if tensor.dtype.is_floating_point]
        if not weights:
            return torch.zeros(3, dtype=torch.float64, device=self.outside[0].device if self.outside else None)
        by_dtype: dict[Any, list[Any]] = {}
        for w in weights:
            by_dtype.setdefault(w.dtype, []).append(w)
        norms = [
            torch.stack(list(torch._foreach_norm(of, 2.0, torch.promote_types(dtype, torch.float32)))).double()
            for dtype, of in by_dtype.items()
        ]
        small = [w.flatten().float() for w in weights if w.numel() < MANY]
        large = [w for w in weights if w.numel() >= MANY]
        sums = torch.cat([*small, *map(_summed, large)]).double().sum()
        places = torch.cat([*(w[::3] for w in small), *(w.flatten()[::STRIDE].float() for w in large)])
        return torch.stack([torch.cat(norms).norm(), sums, places.double().sum()])

    def same(self) -> bool:
        """Whether nothing was written to the weights, as far as their versions tell."""
        return self.versions == self._versions()

    def same_values(self) -> bool:
        """The same by figures, which what is written to `weight.data` changes as well."""
        return repr(self.figures) == repr(self.figured().tolist())


@dataclass
class Work:
    """The last token's work, with room for `most` tokens. kept: what was returned for each token, by the tensors'
    places in the output, None where only the last token's is; proofs: how often it agreed; plain: what `run` was before
    it was compiled, None where it is not; recorded: forwards that fill the caches, by the length (`_prefix_filled`),
    None where that failed; guess: the token that will likely come, begun ahead (`_prefix_guess`)."""

    builder: Builder
    most: int
    run: Callable[[Any, Any], Sequence[Any]]
    plain: Callable[[Any, Any], Sequence[Any]] | None = None
    kept: list[Any] = field(default_factory=list)
    proofs: int = 0
    token: Any = None
    place: Any = None
    replay: Callable[[], None] | None = None
    made: Sequence[Any] = ()
    recorded: dict[int, Any] = field(default_factory=dict)
    guess: Any = None

    def keep(self, tensors: Sequence[Any]) -> None:
        """What a forward over a whole sequence returned: of each token, where that is returned."""
        pairs = zip(self.builder.results, tensors, strict=True)
        self.kept = [None if one.dim is None else room(self, one, tensor) for one, tensor in pairs]

    def given(self, tensors: Sequence[Any], length: int) -> list[Any]:
        """The caller's own of what was just kept, or of what was not."""
        every = zip(tensors, self.builder.results, self.kept, strict=True)
        return [t.clone() if kept is None else copy(kept.narrow(one.dim, 0, length), one.dim) for t, one, kept in every]

    def of_last(self, tensors: Sequence[Any], length: int) -> list[Any]:
        """Of what a forward over `length` tokens returned, what belongs to the last one."""
        pairs = zip(tensors, self.builder.results, strict=True)
        return [t if one.dim is None else t.narrow(one.dim, length - 1, 1) for t, one in pairs]


@dataclass
class Form:
    """Calls that differ in the tokens only. fetch: whether they go on with one another; tokens: of the call before;
    filled: whether the caches hold what it computed; compiled: how often its work was; begun: lengths that sequences
    began with; spec: how its output is put together."""

    fetch: Fetch
    tokens: Any = None
    tape: Tape | None = None
    outputs: list[Any] = field(default_factory=list)
    plan: Plan | None = None
    work: Work | None = None
    filled: bool = False
    limit: int | None = None
    unlike: int = 0
    compiled: int = 0
    begun: set[int] = field(default_factory=set)
    plain: list[Any] = field(default_factory=list)
    spec: Any = None

    def ends_before(self, length: int) -> bool:
        """Whether a table of the model has no room for a sequence of so many tokens."""
        return self.limit is not None and length > self.limit


def _summed(weight: Any) -> Any:
    """Of each row its sum, float32; of short rows, of all, float64."""
    import torch

    if weight.dim() > 1 and weight.shape[-1] >= LEAST_ROW:
        return weight.sum(-1, dtype=torch.promote_types(weight.dtype, torch.float32)).flatten()
    return weight.sum(dtype=torch.float64).view(1)


def taken_apart(output: Any) -> tuple[list[Any], list[Any], Any]:
    """The leaves of an output: tensors, and what is none, each None where the other is, and their structure."""
    import torch
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten(output)
    tensors = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    return tensors, [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec


def room(work: Work, one: Last, values: Any) -> Any:
    """A buffer for what is returned for each token, with that of the first ones."""
    import torch

    dim = one.dim
    assert dim is not None, "it is of each token"
    with torch.inference_mode(False), torch.no_grad():
        shape = [*values.shape[:dim], work.most, *values.shape[dim + 1 :]]
        found = torch.empty(shape, dtype=values.dtype, device=values.device)
        found.narrow(dim, 0, values.shape[dim]).copy_(values)
    return found


def copy(kept: Any, dim: int | None) -> Any:
    """A copy for the caller; of many logits one that is made of those rows that are used."""
    import torch

    if dim == 1 and kept.dim() == 3 and kept.numel() >= LEAST[kept.is_cuda]:
        lazy = _lazy_logits()
        if lazy.alone(kept):
            with lazy.ordinary():
                return lazy.lazy_logits(lazy.Product(kept, None, None, kept.dtype, lazy.NOBODY, rows=True))
    return torch.clone(kept, memory_format=torch.contiguous_format)


@cache
def _lazy_logits() -> Any:
    from . import _lazy_logits  # it needs torch at once

    return _lazy_logits


def gap_of(one: Any, other: Any, dim: int | None) -> float:
    """Of the last token, and of the whole, the largest relative difference: of norms, of each sequence by itself."""
    pairs = [(one, other)]
    if dim is not None:
        last = one.shape[dim] - 1
        pairs.append((one.narrow(dim, last, 1), other.narrow(dim, last, 1)))
    rows = [row for a, b in pairs for row in (zip(a, b, strict=True) if b.dim() > 1 else [(a, b)])]
    gaps = list(starmap(relative_error, rows))
    return float("nan") if any(map(math.isnan, gaps)) else max(gaps)


class Ahead:
    """Whether tokens look at later ones, as seen while a forward runs."""

    def __init__(self, looks: Sequence[Looks]) -> None:
        self._looks: dict[int, list[Looks]] = {}
        for look in looks:
            self._looks.setdefault(look.op, []).append(look)
        self._found: list[Any] = []
        self._failed = False

    def see(self, at: int, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An op of the tape; in the midst of somebody's forward nothing is raised."""
        for look in self._looks.get(at, ()):
            try:
                shown = looked_at(look, func, args, kwargs, out)
                self._found.append(ahead(look.by, shown, args[0].shape[2] if look.by == "mask" else 0))
            except ODD:
                self._failed = True

    def any(self) -> bool:
        """Waits for the device."""
        return self._failed or bool(self._found and self.found(self._found[0].device))

    def found(self, device: Any) -> Any:
        """The same on the device that computes it, (). Raises ValueError where that is not known."""
        import torch

        if self._failed:
            raise ValueError("it is not known whether tokens look at later ones")
        return torch.stack(self._found or [torch.zeros((), dtype=torch.bool, device=device)]).any()


def looked_at(look: Looks, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """What of an op says it."""
    if look.by != "mask":
        return out if look.by == "output" else args[0]
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("attn_bias", given.get("attn_mask"))


def ahead(by: str, shown: Any, length: int) -> Any:
    """Whether any token looks at a later one, (), boolean, on its device. length: of the sequence."""
    import torch

    if by != "mask":
        if shown.shape[-1] != shown.shape[-2]:
            return torch.ones((), dtype=torch.bool, device=shown.device)
        return (shown.triu(1) != 0).any()
    bias = shown
    later = torch.ones(length, length, dtype=torch.bool, device=bias.device).triu(1)
    shut = ~bias if bias.dtype == torch.bool else bias <= torch.finfo(bias.dtype).min
    return (later & ~shut).any()
