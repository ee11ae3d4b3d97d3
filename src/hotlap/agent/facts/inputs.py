"""What a model is given in its first forwards: under which autocast, of which shapes, and how much of it is padding."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch

from ..tokens import INTEGERS
from ..torch_internals import is_plain, sizes
from . import Facts, Model, may_wait

AUTOCASTS = 3
"""Forwards after the first, whose autocast is told."""
LEAST_PLACES, MOST_NUMBERS = 8, 1 << 22
"""Of a row of a batch, from which one may be padded; numbers of a batch up to which it is looked at."""
IDS = 16
"""Between the smallest and the largest of them, from which whole numbers are taken for ids, not for flags."""
FORWARDS = 4
"""Of a module, of which the ids are looked at for padding."""
MEASURED_DIMS = 3
"""Of what was measured, such as images and sounds; a mask has fewer, or is of booleans."""


def describe_model(model: Model) -> Facts:
    """By its dtype: `autocast(dtype=float32)` is none."""
    device = model.device
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return {"autocast": None}  # a device that has none, as meta, may not be asked
    return {"autocast": str(torch.get_autocast_dtype(device)).removeprefix("torch.")}


def handed(model: Model, leaves: Any) -> Facts:
    """How many different shapes there are, and how often there is one token more than before."""
    tokens = next((tuple(leaf.shape) for leaf in leaves if leaf.dtype in INTEGERS and leaf.dim() == 2), (0, 0))
    seen = model.kept.setdefault("shapes", [])
    seen.append((tokens, tuple(map(sizes, leaves))))
    longer = [(rows, length + 1) == after for ((rows, length), _), (after, _) in pairwise(seen)]
    facts = {"shapes": len({shapes for _, shapes in seen}), "grows": sum(longer) / max(1, len(longer))}
    return facts | describe_model(model) if len(seen) <= AUTOCASTS else facts


def numbers(model: Model, leaves: Any) -> Facts:
    """Mean share (0 to 1) of the inputs that is padding, over the forwards that were read."""
    seen = model.kept["padded"] = model.kept.get("padded", 0) + 1
    parts = list(model.module().modules()) if seen <= FORWARDS else []
    steps = next((one for one in parts if isinstance(one, (torch.nn.RNNBase, torch.nn.MultiheadAttention))), None)
    if any(isinstance(one, torch.nn.Embedding) for one in parts):
        shares = padding(leaves)
    elif steps is not None:
        shares = padded_steps(leaves, bool(steps.batch_first))
    else:
        return {}
    found = zip(("padding", "padding_of_all"), shares, strict=True)
    return {name: model.facts[name] + (share - model.facts[name]) / seen for name, share in found}


def padding(handed: Iterable[Any]) -> tuple[float, float]:
    """Of the largest matrix of token ids among a forward's inputs, (rows, places), the share of places at one end of a
    row that only fill it up, and of those that do in all rows; 0 where real numbers of three dimensions or more are
    among them, as images beside their captions: how much is computed of which is not known. Waits for the device."""
    plain = [leaf for leaf in handed if is_plain(leaf)]
    if any(leaf.is_floating_point() and leaf.dim() >= MEASURED_DIMS for leaf in plain):
        return 0.0, 0.0
    found = [leaf for leaf in plain if leaf.dtype in (torch.int64, torch.int32)]
    found = [leaf for leaf in found if leaf.dim() == 2 and leaf.size(1) >= LEAST_PLACES and leaf.numel() > 0]
    found = [leaf for leaf in found if leaf.numel() <= MOST_NUMBERS and (not leaf.is_cuda or may_wait())]
    found = [leaf.detach().cpu() for leaf in found]
    ids = max(
        (leaf for leaf in found if int(leaf.max()) - int(leaf.min()) >= IDS),
        key=lambda leaf: leaf.numel(),
        default=None,
    )
    if ids is None:
        return 0.0, 0.0
    found_at = [(0.0, 0.0)]
    for at, flipped in ((0, ()), (-1, (1,))):
        fill = int(ids[:, at].mode().values)
        run = (ids == fill).flip(flipped).to(torch.int32).cumprod(1).sum(1)
        run = torch.where(run > 1, run, 0)  # one alone may be what it is by chance
        if fill >= 0:  # -100 in labels masks what is no padding, as prompts
            found_at.append((float(run.double().mean()) / ids.size(1), int(run.min()) / ids.size(1)))
    return max(found_at)


def padded_steps(handed: Iterable[Any], batch_first: bool) -> tuple[float, float]:
    """The same of sequences of numbers among a forward's inputs, (rows, steps, numbers) or (steps, rows, numbers):
    steps at one end that are all alike, in most of the rows, in the mean over all of these inputs. Of a row that is so
    from end to end, as the first input of a decoder, it is not known. Waits for the device."""
    found = [leaf for leaf in handed if is_plain(leaf) and leaf.is_floating_point() and leaf.dim() == MEASURED_DIMS]
    found = [leaf for leaf in found if 0 < leaf.numel() <= MOST_NUMBERS and (not leaf.is_cuda or may_wait())]
    found = [leaf.detach().cpu() if batch_first else leaf.detach().cpu().transpose(0, 1) for leaf in found]
    found = [rows for rows in found if rows.size(1) >= LEAST_PLACES]
    whole = sum(rows.numel() for rows in found)
    each = [tuple(rows.numel() / whole * share for share in _alike(rows)) for rows in found]
    return sum(one[0] for one in each), sum(one[1] for one in each)


def _alike(rows: Any) -> tuple[float, float]:
    """Of steps of rows those at one end that are the same in most rows, and those that are in all."""
    found = [(0.0, 0.0)]
    for at, flipped in ((0, ()), (-1, (1,))):
        fills, counts = rows[:, at].unique(dim=0, return_counts=True)
        if 2 * int(counts.max()) <= len(rows):
            continue
        run = (rows == fills[counts.argmax()]).all(2).flip(flipped).to(torch.int32).cumprod(1).sum(1)
        run = run[run < rows.size(1)]
        if len(run):
            run = torch.where(run > 1, run, 0)
            found.append((float(run.double().mean()) / rows.size(1), int(run.min()) / rows.size(1)))
    return max(found)
