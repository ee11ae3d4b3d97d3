"""Not a lever: attention by a constant mask that leaves many blocks empty goes to FlexAttention, which skips these.

A mask is divided into blocks of 128 by 128. FlexAttention computes those that hold something, and reads the mask itself
only in those that are not full. What it reads is a copy of the script's mask, made where the blocks are listed, so the
two can not come apart; that the script's mask stays what it was is what the lever `attention` guards.

A graph gets a call of `sparse_attention`, with the lists of blocks and the mask as its buffers. Where a compiler
follows it traces torch's own operator through it; where the graph runs as it is on a device, the operator is compiled
by itself; on the CPU it computes the whole and masks it.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import torch

from ._attention_graph import Site
from ._graph import hold
from .flex_attention import LEAST_EMPTY

BLOCK: Final = 128
"""Rows and columns of a block, torch's own default."""
LEAST_WIDTH: Final = 16
"""Channels of a head that torch's kernel takes at least."""
BUFFER: Final = "hotlap_sparse_"


@dataclass
class Request:
    """What the lever `flex-attention` asks for in this process. used: attention that went there; left: why other did
    not."""

    used: int = 0
    left: list[str] = field(default_factory=list)


REQUESTS: Final[list[Request]] = []


def block_counts(keep: Any) -> Any:
    """How much of each block (rows, columns) may be attended, a block's whole being BLOCK squared."""
    rows, columns = (-(-size // BLOCK) for size in keep.shape)
    whole = keep.new_zeros(rows * BLOCK, columns * BLOCK)
    whole[: keep.shape[0], : keep.shape[1]] = keep
    return whole.view(rows, BLOCK, columns, BLOCK).sum((1, 3))


def empty_share(keep: Any) -> float:
    """The share of blocks with nothing in them: of those that a causal kernel computes where the mask lies within the
    lower triangle, else of all."""
    used = block_counts(keep) > 0
    square = keep.shape[0] == keep.shape[1]
    causal = square and not bool(keep.triu(1).any())
    computed = torch.ones_like(used).tril().sum() if causal else used.numel()
    return 1.0 - int(used.sum()) / int(computed)


def unsuited(site: Site, keep: Any, empty: float) -> str | None:
    """Why attention by a constant mask (L, S), true where may be attended, does not go to FlexAttention; None where it
    may. empty: see `empty_share`."""
    if empty < LEAST_EMPTY:
        return f"its mask leaves {empty:.0%} of the blocks empty, less than {LEAST_EMPTY:.0%}"
    if site.dropout:
        return "dropout of the weights"
    fixed = site.shape[1:] if len(site.shape) == len(("batch", "heads", "L", "S")) else site.shape
    if any(type(size) is not int for size in (*fixed, *site.q.shape[-2:], *site.v.shape[-2:])):
        return "lengths that vary"
    if min(site.q.shape[-1], site.v.shape[-1]) < LEAST_WIDTH:
        return f"heads of fewer than {LEAST_WIDTH} channels"
    if not bool(keep.any(-1).all()):
        return "rows that attend to nothing"
    return None


@dataclass(frozen=True)
class Listed:
    """A mask (L, S) and torch's BlockMask of it. tensors: of both, as a graph holds them."""

    mask: Any
    blocks: Any

    @property
    def tensors(self) -> list[Any]:
        return [self.mask, *(part for part in self.blocks.as_tuple() if isinstance(part, torch.Tensor))]


KEPT: Final[list[Listed]] = []
"""The masks of this process, each once. A graph names them by their place, since it can hold numbers only."""


def kept(keep: Any) -> int:
    """The place of a mask among those kept."""
    for at, listed in enumerate(KEPT):
        mask = listed.mask
        if mask.shape == keep.shape and mask.device == keep.device and torch.equal(mask, keep):
            return at
    mask = keep.contiguous().clone()
    KEPT.append(Listed(mask, block_mask(mask)))
    return len(KEPT) - 1


def buffers(graph_module: Any, at: int) -> list[str]:
    """Names under which a graph module holds the tensors of a mask, put there at the first call."""
    tensors = KEPT[at].tensors
    names = [f"{BUFFER}{at}_{number}" for number in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        if name not in graph_module._buffers:
            hold(graph_module, name, tensor)
    return names


def block_mask(mask: Any) -> Any:
    """torch's BlockMask of a mask (L, S), which it goes on reading."""
    from torch.nn.attention.flex_attention import BlockMask

    counts = block_counts(mask)
    full = counts == BLOCK * BLOCK
    some = (counts > 0) & ~full
    return BlockMask.from_kv_blocks(
        *_columns(some), *_columns(full), BLOCK_SIZE=BLOCK, seq_lengths=tuple(mask.shape),
        mask_mod=lambda b, h, q, kv: mask[q, kv],
    )  # fmt: skip


def _columns(blocks: Any) -> tuple[Any, Any]:
    """How many blocks each row has, and their columns with those first, for all batches and heads."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return blocks.sum(-1, dtype=torch.int32)[None, None].contiguous(), order[None, None].contiguous()


def sparse_attention(q: Any, k: Any, v: Any, mask: Any, *tensors: Any, at: int, scale: float, alone: bool) -> Any:
    """Attention of q, k, v (batch, heads, length, channels) by the mask (L, S) kept at a place. tensors: its blocks, as
    the graph holds them; alone: no compiler follows, so the kernel is compiled here."""
    blocks = KEPT[at].blocks
    if alone:
        return _compiled()(q, k, v, block_mask=blocks, scale=scale)
    from torch.nn.attention import flex_attention as flex

    given = iter(tensors)
    parts = [next(given) if isinstance(part, torch.Tensor) else part for part in blocks.as_tuple()[:-1]]
    options = flex._apply_kernel_options(q, k, v, False, None)
    attend = torch.ops.higher_order.flex_attention
    # The operator, and not its wrapper, which compiles itself where nothing captures it and trains on no CPU.
    return attend(q, k, v, _as_it_is, (*parts, _read), scale, options, (), (mask,))[0]


def _as_it_is(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score


def _read(b: Any, h: Any, q: Any, kv: Any, mask: Any) -> Any:
    return mask[q, kv]


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
