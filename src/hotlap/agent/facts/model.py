"""An outermost module: its class, what it is made of, where it is called, and what of it is trained."""

import sys
from typing import Any

import torch

from ..methods import owner
from ..torch_internals import IMPL, Convolution, Dropout
from . import Facts, Model, Script, place_of, size


def describe_model(model: Model) -> Facts:
    """Its class, sizes, devices, dtypes and layers, and what of it is compiled."""
    module = model.module()
    modules, parameters = list(module.modules()), list(module.parameters())
    wrapped = isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel))
    kind, numbers = type(module.module if wrapped else module), size(parameters)  # what the user calls his model
    convolutions = [one for one in modules if isinstance(one, Convolution)]
    four = [one for one in convolutions if isinstance(one, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))]
    kinds = {base.__name__ for one in modules for base in type(one).__mro__}
    compiled = model.facts["compiled"] or "OptimizedModule" in kinds or any(map(_compiled_in_place, modules[1:]))
    return {
        "name": kind.__qualname__, "parameters": numbers, "modules": len(modules),
        "devices": sorted({str(p.device) for p in parameters}),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "double": size([one for one in parameters if one.dtype == torch.float64]) / max(1, numbers),
        "conv": len(convolutions), "conv_input_4d": bool(four), "channels_last": any(map(_in_nhwc, four)),
        "dropout": sum(1 for one in modules if isinstance(one, Dropout) and one.p > 0),
        "embeds": any(isinstance(one, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for one in modules),
        "sparse": any(getattr(one, "sparse", False) is True for one in modules),
        "compiled": compiled or isinstance(module, torch.jit.ScriptModule),  # which torch.compile leaves as it is
        "wrapper": type(module).__name__ if hasattr(module, "module") else None,
        "owner": owner(sys._getframe()),
        **place_of(kind, "forward"),
    }  # fmt: skip


def look_at_model(model: Model, script: Script) -> Facts:
    """Which other outermost modules lie in it, as it calls them too; how many of its parameters optimizers hold, or
    have held."""
    module = model.module()
    for inner in module.modules():
        if inner is not module and (part := script.roots.get(id(inner))) is not None:
            part.facts["part_of"] = model.facts["name"]
    parameters, optimized = list(module.parameters()), script.optimized
    if not optimized:
        return {}
    graded = [one for one in parameters if one.grad is not None]
    unused = sum(id(one) not in optimized for one in graded) / max(1, len(graded))
    return {
        "optimized": max(model.facts["optimized"], size([one for one in parameters if id(one) in optimized])),
        "frozen": not any(one.requires_grad for one in parameters),
        "with_gradients": size(graded),
        "unused": min(model.facts.get("unused", 1.0), unused),
    }


def _in_nhwc(convolution: Any) -> bool:
    """Whether its weight lies so. One that a hook makes before each forward is not there between them."""
    weight = getattr(convolution, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 4:
        return False
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _compiled_in_place(module: Any) -> bool:
    """Whether `module.compile()` was called: by the script, or before the agent put its observer there."""
    call = getattr(module, IMPL)
    return bool(call.root.compiled) if hasattr(call, "root") else call is not None
