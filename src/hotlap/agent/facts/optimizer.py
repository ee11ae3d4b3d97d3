"""An optimizer: which one, its options and groups, what it updates, and rows of it without a gradient."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..op_call import tensors
from ..torch_internals import is_plain
from . import Facts, may_wait

ROWS = 16_384
"""Of a matrix, from which its gradient is looked at for rows that are zero."""
LOOKED_AT = 2048
"""Rows of it that are, evenly over all."""


def describe_optimizer(optimizer: Any, parameters: Sequence[Any]) -> Facts:
    """Its class, options and groups, the tensors that it updates, and the share of idle rows."""
    idle, matrix = idle_rows(parameters)
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {
        "name": type(optimizer).__qualname__, "builtin": type(optimizer).__module__.startswith("torch.optim"),
        "tensors": len(parameters), "groups": len(optimizer.param_groups),
        "fused": _flag(group.get("fused")), "capturable": _flag(group.get("capturable")),
        "foreach": _flag(group.get("foreach", False)),
        "momentum": any(_flag(group.get("momentum")) for group in optimizer.param_groups),
        "sparse": any(p.grad is not None and p.grad.layout != torch.strided for p in parameters),
        "devices": sorted({str(p.device) for p in parameters}),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "idle": idle, "matrix": matrix, "counters": 0, "on_device": _on_device(optimizer),
        **_settings(optimizer, 0),
    }  # fmt: skip


def look_at_optimizer(optimizer: Any, facts: Facts) -> Facts:
    """Step counters on a device are read by each update; a state that was loaded may have put them there. A scheduler
    may change the settings of each group in its own way."""
    found = _settings(optimizer, facts["settings"]) | {"on_device": _on_device(optimizer)}
    if facts["builtin"] and not (facts["fused"] or facts["capturable"]):
        counters = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
        found["counters"] = sum(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in counters)
    return found


def _settings(optimizer: Any, before: int) -> Facts:
    """How many groups differ in a setting by now, at most, and in which."""
    groups = [tuple(_setting(group.get(name)) for name in optimizer.defaults) for group in optimizer.param_groups]
    if (settings := len({*groups})) < before:
        return {}
    each = zip(optimizer.defaults, zip(*groups, strict=True), strict=True)
    return {"settings": settings, "differ": [name for name, options in each if len({*options}) > 1]}


def _on_device(optimizer: Any) -> list[str]:
    """Settings that some group has as a tensor on a device: an update that is not fused has to ask for their values."""
    options = ((name, group.get(name)) for name in optimizer.defaults for group in optimizer.param_groups)
    return sorted({name for name, of in options if any(one.device.type != "cpu" for one in tensors(of))})


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _setting(value: Any) -> Any:
    """To tell one from another without a look at what may lie on a device."""
    return value if value is None or isinstance(value, (bool, int, float, str, tuple)) else id(value)


def idle_rows(parameters: Iterable[Any]) -> tuple[float, tuple[int, ...]]:
    """Of all elements, the share in rows of large matrices whose dense gradient is zero, and the largest such matrix's
    shape. Looks at LOOKED_AT rows of each or some more, and waits for the device."""
    whole, idle, largest = 0, 0.0, ()
    for parameter in parameters:
        whole += parameter.numel()
        gradient = parameter.grad
        if not is_plain(gradient) or gradient.dim() != 2:
            continue  # one that is shared out between ranks would be asked of them
        if len(gradient) < ROWS or (gradient.is_cuda and not may_wait()):
            continue
        some = gradient.detach()[:: len(gradient) // LOOKED_AT]
        share = float((some == 0).all(1).double().mean())
        if share == 1.0 and not gradient.detach().any():
            whole -= parameter.numel()  # as beside weights that begin at zero: it says nothing of rows
            continue
        idle += share * parameter.numel()
        largest = max(largest, tuple(gradient.shape))
    return (idle / whole, largest) if largest else (0.0, ())
