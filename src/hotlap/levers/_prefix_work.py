"""Not a lever: what `_prefix_cache` keeps of calls that are alike, and of the last token's work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ._prefix_build import Builder, Last, Row
from ._prefix_tape import Growing, Made, Tape

LEAST: Final = (1 << 18, 1 << 26)
"""Numbers, on the host and on a GPU, whose copy takes longer than what it costs to look after one that is not made."""


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
        self.versions, self.norm = self._versions(), self._norm()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self.outside]

    def _norm(self) -> float:
        import torch

        weights = [tensor.detach() for tensor in self.outside if tensor.dtype.is_floating_point]
        return float(torch.nn.utils.get_total_norm(weights)) if weights else 0.0

    def same(self) -> bool:
        """Whether nothing was written to the weights, as far as their versions tell."""
        return self.versions == self._versions()

    def same_values(self) -> bool:
        """The same by their norm, which what is written to `weight.data` changes as well."""
        return self.norm == self._norm() or self.norm != self.norm


@dataclass
class Work:
    """The last token's work, with room for `most` tokens. kept: what was returned for each token, by the tensors'
    places in the output, None where only the last token's is; proofs: how often it agreed."""

    builder: Builder
    most: int
    run: Callable[[Any, Any], Sequence[Any]]
    kept: list[Any] = field(default_factory=list)
    looked: bool = False
    proofs: int = 0
    steps: int = 0
    token: Any = None
    place: Any = None
    replay: Callable[[], None] | None = None
    made: Sequence[Any] = ()


@dataclass
class Form:
    """Calls that differ in the tokens only. tokens: of the call before; filled: whether the caches hold what it
    computed; spec: how its output is put together."""

    tokens: Any = None
    tape: Tape | None = None
    outputs: list[Any] = field(default_factory=list)
    plan: Plan | None = None
    work: Work | None = None
    filled: bool = False
    limit: int | None = None
    unlike: int = 0
    plain: list[Any] = field(default_factory=list)
    spec: Any = None

    def ends_before(self, length: int) -> bool:
        """Whether a table of the model has no room for a sequence of so many tokens."""
        return self.limit is not None and length > self.limit


def room(work: Work, one: Last, values: Any) -> Any:
    """A buffer for what is returned for each token, with that of the first ones."""
    import torch

    dim = one.kinds.index(Row())
    with torch.inference_mode(False), torch.no_grad():
        shape = [*values.shape[:dim], work.most, *values.shape[dim + 1 :]]
        found = torch.empty(shape, dtype=values.dtype, device=values.device)
        found.narrow(dim, 0, values.shape[dim]).copy_(values)
    return found


def copy(kept: Any, dim: int) -> Any:
    """A copy for the caller; of many logits one that is made of those rows that are used."""
    import torch

    if dim == 1 and kept.dim() == 3 and kept.numel() >= LEAST[kept.device.type == "cuda"]:
        from ._lazy_logits import Product, Watch, alone, lazy_logits

        if alone(kept):
            with torch.inference_mode(False), torch.no_grad():
                watch = Watch(lambda: None, lambda name: None)
                return lazy_logits(Product(kept, None, None, kept.dtype, watch, rows=True))
    return torch.clone(kept, memory_format=torch.contiguous_format)


def looks_ahead(func: Any, args: Any, kwargs: Any, out: Any, mask: bool) -> Any:
    """Whether any token looks at a later one, (), boolean, on its device: by a softmax, or by what is added before."""
    import torch

    if not mask:
        if out.shape[-1] != out.shape[-2]:
            return torch.ones((), dtype=torch.bool)
        return (out.triu(1) != 0).any()
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    bias: Any = given.get("attn_bias", given.get("attn_mask"))
    length = args[0].shape[2]
    later = torch.ones(length, length, dtype=torch.bool, device=bias.device).triu(1)
    shut = ~bias if bias.dtype == torch.bool else bias <= torch.finfo(bias.dtype).min
    return (later & ~shut).any()
