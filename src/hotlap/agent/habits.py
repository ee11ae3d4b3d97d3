"""What scripts do that costs each step, and that can be asked of torch: switches for debugging, hooks, idle rows,
padding, denormal numbers."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import torch

ROWS = 16_384
"""Of a matrix, from which its gradient is looked at for rows that are zero."""
LOOKED_AT = 2048
"""Rows of it that are, evenly over all."""
LEAST_PLACES, MOST_NUMBERS = 8, 1 << 22
"""Of a row of a batch, from which one may be padded; numbers of a batch up to which it is looked at."""
IDS = 16
"""Between the smallest and the largest of them, from which whole numbers are taken for ids, not for flags."""
SAMPLED, MOST_TENSORS = 4096, 256
"""Numbers of a tensor that are looked at for denormal ones, and tensors."""


def switches() -> list[str]:
    """Switches for debugging that are on now."""
    fill = getattr(torch.utils, "deterministic", None)
    found = {
        "detect_anomaly": torch.is_anomaly_enabled(),
        "fill_uninitialized_memory": torch.are_deterministic_algorithms_enabled()
        and bool(getattr(fill, "fill_uninitialized_memory", False)),
        "CUDA_LAUNCH_BLOCKING": os.environ.get("CUDA_LAUNCH_BLOCKING") == "1",
        "set_sync_debug_mode": torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode() != 0,
    }
    return [name for name, on in found.items() if on]


def _may_wait() -> bool:
    """Whether the host may wait for the device here: not while a graph is recorded, nor where the script forbids it."""
    return torch.cuda.get_sync_debug_mode() == 0 and not torch.cuda.is_current_stream_capturing()


def hooks_of(module: Any) -> int:
    """Hooks on the forwards of a module and all that it holds."""
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in module.modules())


def idle_rows(parameters: Iterable[Any]) -> tuple[float, tuple[int, ...]]:
    """Of all elements, the share in rows of large matrices whose dense gradient is zero, and the largest such matrix's
    shape. Looks at LOOKED_AT rows of each or some more, and waits for the device."""
    whole, idle, largest = 0, 0.0, ()
    for parameter in parameters:
        whole += parameter.numel()
        gradient = parameter.grad
        if type(gradient) is not torch.Tensor or gradient.layout != torch.strided or gradient.dim() != 2:
            continue  # one that is shared out between ranks would be asked of them
        if len(gradient) < ROWS or (gradient.is_cuda and not _may_wait()):
            continue
        some = gradient.detach()[:: len(gradient) // LOOKED_AT]
        share = float((some == 0).all(1).double().mean())
        if share == 1.0 and not gradient.detach().any():
            continue  # as beside weights that begin at zero: it says nothing of rows
        idle += share * parameter.numel()
        largest = max(largest, tuple(gradient.shape))
    return (idle / whole, largest) if largest else (0.0, ())


def padding(leaf: Any) -> tuple[float, float]:
    """Of a batch's rows of ids (rows, places), or of vectors (rows, places, channels), the share of places at an end of
    a row that are filled up, and of those that are in all rows. None of one on a device, which would be waited for."""
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.layout != torch.strided:
        return 0.0, 0.0
    if leaf.dim() not in (2, 3) or leaf.size(1) < LEAST_PLACES or not 0 < leaf.numel() <= MOST_NUMBERS:
        return 0.0, 0.0
    leaf = leaf.detach()
    if leaf.dim() == 3:
        ends = [(leaf == 0).all(2)] * 2 if leaf.is_floating_point() else []
    elif leaf.dtype in (torch.int64, torch.int32) and int(leaf.max()) - int(leaf.min()) >= IDS:
        fills = [int(leaf[:, at].mode().values) for at in (0, -1)]
        ends = [(leaf == fill) & (fill >= 0) for fill in fills]  # -100 in labels masks what is no padding, as prompts
    else:
        ends = []
    found = [(0.0, 0.0)]
    for same, flipped in zip(ends, ((), (1,)), strict=False):
        run = same.flip(flipped).to(torch.int32).cumprod(1).sum(1)
        run = torch.where(run > 1, run, 0)  # one alone may be what it is by chance
        found.append((float(run.double().mean()) / leaf.size(1), int(run.min()) / leaf.size(1)))
    return max(found)


def denormal_share(tensors: Iterable[Any]) -> float:
    """Of the numbers other than zero in a tensor on the CPU, the share too small to be normal: the largest among them.
    SAMPLED of each are looked at."""
    largest = 0.0
    for tensor in itertools.islice(tensors, MOST_TENSORS):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            continue
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.numel() < SAMPLED:
            continue
        some = tensor.detach().reshape(-1)[:: tensor.numel() // SAMPLED | 1].abs()  # an odd stride meets all columns
        others = some > 0
        small = int((others & (some < torch.finfo(some.dtype).tiny)).sum())
        largest = max(largest, small / max(1, int(others.sum())) if small else 0.0)
    return largest
