"""Masks that attention is given: what they leave out, and where they were made."""

from typing import Any, Final

import torch

from .op_call import OpCall, Place, recording, tensors
from .torch_internals import is_plain, storage, storage_reference

ATTENTION: Final = ("aten::_scaled_dot_product_", "aten::scaled_dot_product_")
MASKS: Final = ("attn_bias", "attn_mask")
"""Arguments of its kernels, for which a mask has become 0 and -inf; in inference mode it comes as it was given."""
LEAST, MOST_ELEMENTS, MOST_MASKS = 64, 2**22, 64
"""Positions from which a mask is looked at, and of a block; how many of its numbers are, and how many masks."""
MOST_MADE: Final = 1000
"""Tensors that may be masks, of which is known where they were made."""
HIDDEN: Final = -1e4
"""What a score has added that is left out, or less."""
CAUSAL, PADDED, NOTHING, PARTLY = "causal", "padded", "nothing", "partly"


class Masks:
    """Of a step op by op, and of the step after it."""

    def __init__(self) -> None:
        self._seen: list[tuple[Place, bool, Any, Place | None]] = []
        """Of attention: where, whether in the second step, what the mask hides, which is not waited for, and where it
        was made."""
        self._made: dict[int, tuple[Any, tuple[Place, ...]]] = {}
        """By its storage, the lines that made what may be a mask, the last first."""
        self.doing: tuple[Place, OpCall] | None = None

    def op(self, place: Place, call: OpCall, again: bool) -> None:
        """An op is about to be called. again: in the second step."""
        name, given = call.name, call.given
        if not name.startswith(ATTENTION):
            self.doing = (place, call)
            return
        if "backward" in name or len(self._seen) >= MOST_MASKS:
            return
        mask = next((given[of] for of in MASKS if isinstance(given.get(of), torch.Tensor)), None)
        if mask is None or mask.dim() < 2 or given.get("is_causal") or recording():
            return
        if min(mask.shape[-2:]) >= LEAST:
            made = next((one for one in self._lines(mask) if one != place), None)
            self._seen.append((place, again, _hides(mask), made))

    def done(self, made: Any) -> None:
        """The op was called."""
        doing, self.doing = self.doing, None
        if doing is None or not _may_be_one(made) or len(self._made) >= MOST_MADE or storage_reference is None:
            return
        place, call = doing
        before = next((lines for one in tensors(*call.args) if (lines := self._lines(one))), ())
        self._made[storage(made)] = (storage_reference(made.untyped_storage()), (place, *before[:2]))

    def _lines(self, tensor: Any) -> tuple[Place, ...]:
        """That made it, the last first; none where that is not known."""
        reference, lines = self._made.get(storage(tensor), (None, ())) if is_plain(tensor) else (None, ())
        return lines if reference is not None and not reference.expired() else ()

    def rows(self) -> list[tuple[Any, ...]]:
        """Lines of attention with masks: what these are, how many a step has, the share of the scores that they hide in
        whole blocks, and where they were made. One that leaves nothing out may be of rows that need no padding this
        once: only where two steps were looked at."""
        places: dict[Place, list[tuple[str, float, bool, Place | None]]] = {}
        for place, again, hides, made in self._seen:
            nothing, causal, padded, hidden = (0.0, 0.0, 0.0, 0.0) if hides is None else hides.tolist()
            kind = NOTHING if nothing else CAUSAL if causal else PADDED if padded else PARTLY
            places.setdefault(place, []).append((kind, hidden, again, made))
        found = []
        for place, those in places.items():
            first, kinds = sum(not again for *_, again, _ in those), {kind for kind, *_ in those}
            kind = kinds.pop() if len(kinds) == 1 else PADDED if kinds == {CAUSAL, PADDED} else PARTLY
            if first:
                known = PARTLY if kind == NOTHING and first == len(those) else kind
                found.append((*place, known, first, sum(hidden for _, hidden, *_ in those) / len(those), those[0][3]))
        return found


def _may_be_one(made: Any) -> bool:
    """Whether what an op made has a mask's shape: of truths, or a number for each pair of positions."""
    if not isinstance(made, torch.Tensor) or not is_plain(made) or made.dim() < 2 or min(made.shape[-2:]) < LEAST:
        return False
    return made.dtype is torch.bool or made.size(-1) == made.size(-2)


def _hides(mask: Any) -> Any:
    """Of a mask: whether it leaves nothing out, exactly what comes later, or that and what the rows of a batch are
    filled up with at their end; and the share of the scores that it leaves out in whole blocks. On its device, which is
    not waited for; None where it is learned, or no plain tensor."""
    if not is_plain(mask) or mask.requires_grad:
        return None
    for at in range(mask.dim() - 2):
        mask = mask if mask.stride(at) else mask.narrow(at, 0, 1)  # what is expanded is looked at once
    every = 1 + mask.numel() // MOST_ELEMENTS
    rows = torch.arange(0, mask.size(-2), every, device=mask.device, dtype=torch.int64)[:, None]
    later = torch.arange(mask.size(-1), device=mask.device, dtype=torch.int64) > rows
    square = mask.size(-1) == mask.size(-2)
    used, hidden = _parts(mask[..., ::every, :])
    filled = ~_parts(mask[..., -1:, :])[0]
    at_the_end = (filled[..., 1:] >= filled[..., :-1]).all()
    blocks = hidden[..., : mask.size(-1) // LEAST * LEAST].unflatten(-1, (-1, LEAST)).all(-1)
    causal = torch.where(later, hidden, used).all() & ~filled.any() & square
    padded = torch.where(later | filled, hidden, used).all() & at_the_end & square
    return torch.stack([used.all().float(), causal.float(), padded.float(), blocks.float().mean()])


def _parts(mask: Any) -> tuple[Any, Any]:
    """Scores that it leaves as they are, and those that it leaves out."""
    return (mask, ~mask) if mask.dtype is torch.bool else (mask == 0, mask <= HIDDEN)
