"""Not a lever: scans in chunks, which take the place of `aten::cumsum` where they were measured to win.

They stand in torch's dispatcher, beneath autograd, autocast and vmap, so those do what they do with the library's, and
code that is traced or compiled holds the op itself. What is left to the library goes to `aten::cumsum.out`, which
nothing stands before.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

TILES: Final = (512, 4096)
"""Lengths of a chunk."""
NARROW: Final = 32
"""Columns below which the library's scan over an outer dimension fills no warp: rows are laid out first."""
LONG: Final = 1 << 17
"""Length from which a row is scanned in chunks. On an H100 the library takes 0.09 ms for rows of 65536 and 1.5 for
those of 1048576, chunks take 0.15 to 0.2 for either: launches of four kernels."""
TAKEN: Final = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
"""Types of sums, and, with bool, of what is summed."""
PATIENCE: Final = 8
"""Outermost forwards in which some scan must have been taken."""
Wins = Mapping[str, tuple[int, int]]
"""By whether the last dimension is scanned: rows at most, their length at least."""


class Scans:
    """What stands in the place of the library's. used: scans that were done in chunks. key: of the dispatcher."""

    def __init__(self, wins: Wins, give_up: Callable[[], None], key: str = "CUDA") -> None:
        self.wins, self.give_up, self.key = wins, give_up, key
        self.forwards = self.used = 0
        self.off = False
        self.placed: Any = None
        self.put_in()

    def put_in(self) -> None:
        """Take the place of the library's."""
        import torch

        if self.placed is not None:
            return
        self.placed = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # "Overriding a previously registered kernel", which is what is meant
            warnings.simplefilter("ignore")
            self.placed.impl("cumsum", self.cumsum, self.key)

    def take_out(self) -> None:
        """Leave it to the library again."""
        self.placed._destroy()
        self.placed = None

    def watch(self, _: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward: say once where no scan is taken."""

        def with_scans(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            self.forwards += 1
            if self.forwards == PATIENCE and not self.used:
                self.off = True
                self.give_up()
            return output

        return with_scans

    def cumsum(self, x: Any, dim: int, *, dtype: Any = None) -> Any:
        """aten::cumsum. Sums of integers are int64 where no dtype is asked for."""
        import torch

        with torch._C.DisableTorchFunction():  # the script's subclasses and modes have seen the call
            if dtype is None:
                dtype = x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
            if self.takes(x, dim, dtype):
                self.used += 1
                flat = x.to(dtype).contiguous().view(math.prod(x.shape[: dim % x.ndim]), x.shape[dim], -1)
                return in_chunks(flat).view(x.shape)
            return torch.cumsum(x, dim, dtype=dtype, out=torch.empty(x.shape, dtype=dtype, device=x.device))

    def takes(self, x: Any, dim: int, dtype: Any) -> bool:
        """Whether a scan is one of those that chunks win, and an ordinary one."""
        import torch

        if self.off or not x.numel() or not -x.ndim <= dim < x.ndim or any(getattr(x, "names", ())):
            return False
        if _name(dtype) not in TAKEN or (x.dtype is not torch.bool and _name(x.dtype) not in TAKEN):
            return False
        most, least = self.wins["last" if dim in (-1, x.ndim - 1) else "other"]
        length = x.shape[dim]
        # CUB scans a tensor of one row, and is fast.
        return bool(length >= least and length < x.numel() <= most * length)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def in_chunks(x: Any) -> Any:
    """Scans of chunks, a scan of their sums, and the sums added, in the dtype of x: (outer, length, inner), contiguous.
    Half precisions are added in float32, rounded once. Integers wrap around as they do one by one."""
    outer, length, inner = x.shape
    if 1 < inner < NARROW:  # with the inner dimension moved out, and back
        rows = in_chunks(x.transpose(1, 2).contiguous().view(outer * inner, length, 1))
        return rows.view(outer, inner, length).transpose(1, 2).contiguous()
    chunk = min(TILES[1], max(TILES[0], 1 << (length.bit_length() // 2)))
    if length < (LONG if inner == 1 else 2 * chunk):
        return _scanned(x).to(x.dtype)
    chunks = -(-length // chunk)
    padded = x if length == chunks * chunk else _padded(x, chunks * chunk - length)
    local = _scanned(padded.view(outer * chunks, chunk, inner)).view(outer, chunks, chunk, inner)
    ends = _scanned(local[:, :, -1])
    return _added(local, ends, x)


def _scanned(x: Any) -> Any:
    """By the library, without a last dimension of 1, so that it sees the innermost one."""
    import torch

    out = torch.empty(x.shape, dtype=_wide(x), device=x.device)
    last = x.shape[2] == 1
    torch.cumsum(x.squeeze(2) if last else x, 1, dtype=out.dtype, out=out.squeeze(2) if last else out)
    return out


def _padded(x: Any, more: int) -> Any:
    from torch.nn.functional import pad

    return pad(x, (0, 0, 0, more))


def _wide(x: Any) -> Any:
    import torch

    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def _added(local: Any, ends: Any, x: Any) -> Any:
    """The sums up to each chunk's end, added to the chunks that follow. local: (outer, chunks, chunk, inner)."""
    import torch

    before = ends[:, :-1].unsqueeze(2)
    if local.dtype == x.dtype:
        local[:, 1:].add_(before)
        out = local
    else:
        out = torch.empty(local.shape, dtype=x.dtype, device=x.device)
        out[:, 0] = local[:, 0]
        torch.add(local[:, 1:], before, out=out[:, 1:])
    return out.view(x.shape[0], -1, x.shape[2])[:, : x.shape[1]].contiguous()
