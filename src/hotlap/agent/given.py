"""What ops of a step are given that they would not need: masks that say nothing, or no more than `is_causal`; tensors
that live from step to step and are copied to the device in each."""

from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from .torch_internals import CALL_CODE, has_storage, is_capturing, storage, storage_reference, version_of

ATTENTION: Final = ("aten::_scaled_dot_product_", "aten::scaled_dot_product_")
MASKS: Final = ("attn_bias", "attn_mask")
"""Arguments of its kernels, for which a mask has become 0 and -inf; in inference mode it comes as it was given."""
LEAST, MOST_ELEMENTS, MOST_MASKS = 64, 2**22, 64
"""Positions from which a mask is looked at, how many of its numbers are, and how many masks."""
HIDDEN: Final = -1e4
"""What a score has added that is left out, or less."""
CAUSAL, NOTHING = "causal", "nothing"
COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::to"})
STAGED: Final = 0.5
"""Of what is copied, from which on a step that writes as much there has other numbers to copy."""
MOST_COPIES: Final = 1000
BY_INDEX: Final = ("index", "scatter")
"""In the names of ops that write only where an index says."""
VALUES: Final = ("values", "source", "src", "value")
"""What they write, as an argument."""

Place = tuple[int, int, str]
View = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class Copy(NamedTuple):
    """Of what is on the host. reference: weak, so that no other storage gets its address. size: bytes."""

    place: Place
    reference: Any
    size: int
    version: int


class Given:
    """Of a step op by op, and of the step after it."""

    def __init__(self) -> None:
        self.again = False
        """The first step is over."""
        self._masks: list[tuple[Place, bool, Any]] = []
        """Of attention: where, whether in the second step, and what the mask hides, which is not waited for."""
        self._copies: dict[View, Copy] = {}
        self._written: Counter[int] = Counter()
        """Bytes, by storage."""
        self._copied: dict[View, bool] = {}
        """Of these, what the second step copies too, and whether others than this thread write to it."""

    def op(self, place: Place, name: str, schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An op is about to be called."""
        given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
        if name.startswith(ATTENTION) and "backward" not in name and len(self._masks) < MOST_MASKS:
            mask = next((given[of] for of in MASKS if isinstance(given.get(of), torch.Tensor)), None)
            if mask is not None and not given.get("is_causal") and (hides := _hides(mask)) is not None:
                self._masks.append((place, self.again, hides))
        if (of := _copied(name, given)) is not None:
            at, version = _view(of), _version(of)
            if self.again and at in self._copies:
                self._copied[at] = version != self._copies[at].version and not self._written[at[0]]
            elif not self.again and len(self._copies) < MOST_COPIES and storage_reference is not None:
                reference = storage_reference(of.untyped_storage())
                self._copies[at] = Copy(place, reference, of.numel() * of.element_size(), version)
        for one in schema.arguments:
            if one.alias_info and one.alias_info.is_write:
                for to in filter(_is_on_host, _tensors(given.get(one.name))):
                    self._written[storage(to)] += _bytes_written(name, to, given)

    def copied(self) -> list[tuple[Any, ...]]:
        """Lines that copy the same part of the same storage in both steps, little of which these write: bytes."""
        sizes: Counter[Place] = Counter()
        for view, by_others in self._copied.items():
            one = self._copies[view]
            if not by_others and not one.reference.expired() and self._written[view[0]] < STAGED * one.size:
                sizes[one.place] += one.size
        return [(*place, size) for place, size in sizes.most_common()]

    def masks(self) -> list[tuple[Any, ...]]:
        """Lines of attention all of whose masks are alike: what they are, and how many a step has. One that leaves
        nothing out may be of rows that need no padding this once: only where two steps were looked at."""
        kinds: dict[Place, list[tuple[str, bool]]] = {}
        for place, again, hides in self._masks:
            nothing, causal = hides.tolist()
            kinds.setdefault(place, []).append((NOTHING if nothing else CAUSAL if causal else "", again))
        found = []
        for place, those in kinds.items():
            kind, first = those[0][0], sum(not again for _, again in those)
            alike = {each for each, _ in those} == {kind} and first
            if alike and (kind == CAUSAL or (kind == NOTHING and first < len(those))):
                found.append((*place, kind, first))
        return found


def outside_of_modules(frame: FrameType | None) -> bool:
    """Whether no module is being called around a frame."""
    while frame is not None and CALL_CODE is not None:
        if frame.f_code is CALL_CODE:
            return False
        frame = frame.f_back
    return CALL_CODE is not None


def _is_on_host(one: Any) -> bool:
    known = isinstance(one, torch.Tensor) and one.layout is torch.strided and has_storage(one)
    return bool(known and one.device.type == "cpu")


def _view(one: Any) -> View:
    return storage(one), one.storage_offset(), tuple(one.shape), tuple(one.stride())


def _copied(name: str, given: dict[str, Any]) -> Any:
    """What an op copies from the host to a device; None where it does not. Not memory that numpy or other processes
    write to, as workers of a loader do."""
    if name not in COPIES:
        return None
    of: Any = given.get("src", given.get("self"))
    to = given["self"].device if "src" in given else given.get("device")
    if to is None or torch.device(to).type == "cpu" or not _is_on_host(of):
        return None
    return of if of.untyped_storage().resizable() and of.numel() else None


def _version(one: Any) -> int:
    return 0 if one.is_inference() else int(version_of(one))


def _bytes_written(name: str, to: Any, given: dict[str, Any]) -> int:
    """Into a tensor; by an index no more than there are values."""
    count = int(to.numel())
    if any(part in name for part in BY_INDEX):
        count = min(count, max((int(one.numel()) for of in VALUES for one in _tensors(given.get(of))), default=count))
    return count * int(to.element_size())


def _tensors(of: Any) -> list[Any]:
    return [one for one in (of if isinstance(of, (list, tuple)) else [of]) if isinstance(one, torch.Tensor)]


def _hides(mask: Any) -> Any:
    """Two truths about a mask: that it leaves nothing out, and that it leaves out exactly what comes later. On its
    device, which is not waited for; None where it is small, or learned."""
    plain = type(mask) is torch.Tensor and mask.layout is torch.strided and not mask.requires_grad
    if not plain or mask.dim() < 2 or min(mask.shape[-2:]) < LEAST:
        return None
    if torch.cuda.is_initialized() and is_capturing():
        return None
    for at in range(mask.dim() - 2):
        mask = mask if mask.stride(at) else mask.narrow(at, 0, 1)  # what is expanded is looked at once
    every = 1 + mask.numel() // MOST_ELEMENTS
    rows = torch.arange(0, mask.size(-2), every, device=mask.device, dtype=torch.int64)[:, None]
    later = torch.arange(mask.size(-1), device=mask.device, dtype=torch.int64) > rows
    square, mask = mask.size(-1) == mask.size(-2), mask[..., ::every, :]
    used, hidden = (mask, ~mask) if mask.dtype is torch.bool else (mask == 0, mask <= HIDDEN)
    return torch.stack([used.all(), torch.where(later, hidden, used).all() & square])
