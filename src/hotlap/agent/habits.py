"""What scripts do that costs each step, and that can be asked of torch: switches for debugging, hooks, idle rows."""

import os
from collections.abc import Iterable
from typing import Any

import torch

ROWS = 16_384
"""Of a matrix, from which its gradient is looked at for rows that are zero."""
LOOKED_AT = 2048
"""Rows of it that are, evenly over all."""


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
