"""Runs a training script with speed options set from outside, for scripts that have none of their own.

    python field_launcher.py --tf32 --bf16 --compile --channels-last --fused --workers 8 train.py ARGS...
    python field_launcher.py --tf32 -m package.module ARGS...

Precision, compilation and memory format are put into the outermost module with parameters at its call.
"""

import argparse
import functools
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def to_float(value: Any) -> Any:
    """Give outputs of autocast back as float32, as Accelerate does: losses outside of it then work."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


def to_channels_last(value: Any) -> Any:
    image = isinstance(value, torch.Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if image else value


def patch_modules(options: argparse.Namespace) -> None:
    """Wrap the call of the outermost module that has parameters."""
    original, inside, seen = torch.nn.Module.__call__, [False], set[int]()

    def first_call(module: torch.nn.Module) -> None:
        seen.add(id(module))
        if options.channels_last:
            module.to(memory_format=torch.channels_last)
        if options.compile:
            module.compile()

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inside[0] or torch.compiler.is_compiling() or next(module.parameters(), None) is None:
            return original(module, *args, **kwargs)
        inside[0] = True
        try:
            if module.training and id(module) not in seen:
                first_call(module)
            if options.channels_last:
                args, kwargs = tree_map(to_channels_last, (args, kwargs))
            with torch.autocast("cuda", torch.bfloat16, enabled=options.bf16):
                result = original(module, *args, **kwargs)
            return tree_map(to_float, result) if options.bf16 else result
        finally:
            inside[0] = False

    torch.nn.Module.__call__ = call


def patch_optimizer(kind: Any) -> None:
    """Make `fused=True` the default where all parameters are on a GPU."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        groups = list(params)
        inner = [group["params"] if isinstance(group, dict) else group for group in groups]
        tensors = [each for group in inner for each in ([group] if isinstance(group, torch.Tensor) else group)]
        named = any(isinstance(each, tuple) for each in tensors)
        if not named and kwargs.get("foreach") is None and all(each.is_cuda for each in tensors):
            kwargs["fused"] = True
        original(self, groups, *args, **kwargs)

    kind.__init__ = init


def patch_loaders(workers: int) -> None:
    """Give loaders without workers some, pin their batches and keep workers over epochs."""
    original = torch.utils.data.DataLoader.__init__

    @functools.wraps(original)
    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) < 4 and not isinstance(dataset, torch.utils.data.IterableDataset):
            kwargs["num_workers"] = kwargs.get("num_workers") or workers
            kwargs |= {"persistent_workers": True, "pin_memory": torch.cuda.is_available()}
        original(self, dataset, *args, **kwargs)

    torch.utils.data.DataLoader.__init__ = init


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--tf32", "--bf16", "--compile", "--channels-last", "--fused", "-m"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    if options.bf16 or options.compile or options.channels_last:
        patch_modules(options)
    for kind in FUSED if options.fused else ():
        patch_optimizer(kind)
    if options.workers:
        patch_loaders(options.workers)
    sys.argv = [options.script, *options.args]
    if options.m:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
