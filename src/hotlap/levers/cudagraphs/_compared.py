"""Not a lever: whether a recording gives what an ordinary call gives (`_training_graph`)."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

TOLERANCE: Final = 0.001
"""Relative (of norms) difference that a replay may show: captured kernels may be other ones, for want of workspace."""

TIMES_SPREAD: Final = 3.0
"""How many times as far as two ordinary calls differ a replay may lie from one of them."""

MOST_SPREAD: Final = 0.01
"""Of a tensor that itself differs less between two ordinary calls. A GPT's gradients in bfloat16, through cuDNN's
attention: 0.14% and 0.19% in two of seven recordings on H100s."""
ROUNDING: Final = 1e-6
"""Of the norm of the gradients of one module: one that lies apart by less is the same but for rounding. The gradient of
a key's bias is zero, and what rounding leaves of it (1e-8 to 1e-7 of that of the key's weight) may be another by other
kernels and yet the same in two ordinary calls. Not of all modules: some learn by gradients a million times smaller."""
NOISE: Final = 0.1
"""From here on what two calls differ by says nothing of other tensors: gradients that are zero but for rounding, as a
key's bias has."""


def difference(
    got: Sequence[Any],
    expected: Sequence[Any],
    most: float = TOLERANCE,
    spread: Sequence[Any] = (),
    gradients: Sequence[str] = (),
) -> str:
    """Why tensors of a replay are not those of an ordinary call, "" if they are, but for rounding (most: relative, of
    norms). spread: those of another such call. Where a tensor of that is another, it may lie so many times as far, or,
    up to MOST_SPREAD, as the one that differs most and is not just noise: two sums in other orders may nearly agree.
    gradients: what the last ones are gradients of."""
    import torch

    pairs = zip(spread, expected, strict=True) if spread else ()
    differences = [0.0 if torch.equal(one, other) else relative_error(one, other) for one, other in pairs]
    widest = max((error for error in differences if error < NOISE), default=0.0)
    outputs = len(expected) - len(gradients)
    negligible = _negligible(expected[outputs:], gradients)
    for at, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return "its replay returns other shapes"
        if torch.equal(one, other) or (at >= outputs and norm(one - other) <= negligible[at - outputs]):
            continue
        gap = relative_error(one, other)
        allowed = most
        if spread and differences[at]:
            allowed = max(most, TIMES_SPREAD * differences[at], min(MOST_SPREAD, TIMES_SPREAD * widest))
        if not gap <= allowed:
            of = f" in the gradient of {gradients[at - outputs]}" if at >= outputs else ""
            return f"its replay differs by {gap:.2%} from an ordinary call{of}"
    return ""


def _negligible(gradients: Sequence[Any], names: Sequence[str]) -> list[float]:
    """By how much each may lie apart."""
    modules = [name.rpartition(".")[0] or name for name in names]
    squares: dict[str, float] = {}
    for module, gradient in zip(modules, gradients, strict=True):
        squares[module] = squares.get(module, 0.0) + norm(gradient) ** 2
    return [ROUNDING * math.sqrt(squares[of]) if math.isfinite(squares[of]) else 0.0 for of in modules]


def norm(tensor: Any) -> float:
    """Root of the sum of squares."""
    return float(tensor.detach().double().norm())


def relative_error(value: Any, exact: Any) -> float:
    """Norm of the difference over the norm. NaN where one has them; infinities and NaN at the same places are equal."""
    a, b = value.detach().double(), exact.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a - b).masked_fill(same, 0.0).norm()
    scale = b.masked_fill(~b.isfinite(), 0.0).norm()
    return float(gap / scale) if float(scale) else float(gap)


def tried(work: Callable[[], Any]) -> tuple[Any, str]:
    """What it returns, and ""; or None, and why the script's own code failed, as an ordinary call may not."""
    try:
        return work(), ""
    except Exception as error:  # noqa: BLE001 - whatever models, and what they call, may raise
        return None, (str(error).strip() or repr(error)).splitlines()[0][:200]


@contextlib.contextmanager
def without_cached_casts() -> Iterator[None]:
    """Autocast then casts weights where they are used: the script's cache of casts may be gone at a replay."""
    import torch

    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
