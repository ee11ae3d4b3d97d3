"""Masks that attention is given and does not need: they leave nothing out, or no more than `is_causal` does."""

from typing import Any, Final

import torch

from .op_call import OpCall, Place, recording
from .torch_internals import is_plain

ATTENTION: Final = ("aten::_scaled_dot_product_", "aten::scaled_dot_product_")
MASKS: Final = ("attn_bias", "attn_mask")
"""Arguments of its kernels, for which a mask has become 0 and -inf; in inference mode it comes as it was given."""
LEAST, MOST_ELEMENTS, MOST_MASKS = 64, 2**22, 64
"""Positions from which a mask is looked at, how many of its numbers are, and how many masks."""
HIDDEN: Final = -1e4
"""What a score has added that is left out, or less."""
CAUSAL, NOTHING = "causal", "nothing"


class Masks:
    """Of a step op by op, and of the step after it."""

    def __init__(self) -> None:
        self._seen: list[tuple[Place, bool, Any]] = []
        """Of attention: where, whether in the second step, and what the mask hides, which is not waited for."""

    def op(self, place: Place, call: OpCall, again: bool) -> None:
        """An op is about to be called. again: in the second step."""
        name, given = call.name, call.given
        if not name.startswith(ATTENTION) or "backward" in name or len(self._seen) >= MOST_MASKS:
            return
        mask = next((given[of] for of in MASKS if isinstance(given.get(of), torch.Tensor)), None)
        if mask is not None and not given.get("is_causal") and (hides := _hides(mask)) is not None:
            self._seen.append((place, again, hides))

    def rows(self) -> list[tuple[Any, ...]]:
        """Lines of attention all of whose masks are alike: what they are, and how many a step has. One that leaves
        nothing out may be of rows that need no padding this once: only where two steps were looked at."""
        kinds: dict[Place, list[tuple[str, bool]]] = {}
        for place, again, hides in self._seen:
            nothing, causal = hides.tolist()
            kinds.setdefault(place, []).append((NOTHING if nothing else CAUSAL if causal else "", again))
        found = []
        for place, those in kinds.items():
            kind, first = those[0][0], sum(not again for _, again in those)
            alike = {each for each, _ in those} == {kind} and first
            if alike and (kind == CAUSAL or (kind == NOTHING and first < len(those))):
                found.append((*place, kind, first))
        return found


def _hides(mask: Any) -> Any:
    """Two truths about a mask: that it leaves nothing out, and that it leaves out exactly what comes later. On its
    device, which is not waited for; None where it is small, or learned."""
    if not is_plain(mask) or mask.requires_grad or mask.dim() < 2 or min(mask.shape[-2:]) < LEAST or recording():
        return None
    for at in range(mask.dim() - 2):
        mask = mask if mask.stride(at) else mask.narrow(at, 0, 1)  # what is expanded is looked at once
    every = 1 + mask.numel() // MOST_ELEMENTS
    rows = torch.arange(0, mask.size(-2), every, device=mask.device, dtype=torch.int64)[:, None]
    later = torch.arange(mask.size(-1), device=mask.device, dtype=torch.int64) > rows
    square, mask = mask.size(-1) == mask.size(-2), mask[..., ::every, :]
    used, hidden = (mask, ~mask) if mask.dtype is torch.bool else (mask == 0, mask <= HIDDEN)
    return torch.stack([used.all(), torch.where(later, hidden, used).all() & square])
