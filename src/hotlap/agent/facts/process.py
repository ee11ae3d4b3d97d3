"""The process: which one, of which versions, how torch is set in it, its device and memory."""

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import torch

from hotlap.records.whose import INSTALLED

from ..host import WARM_STEPS, Cost
from ..process_tree import peak_rss
from ..torch_internals import BF16_CHECKS, nccl_number
from . import Facts, Script

MOST: Final = 2000
STANDARD: Final = f"{os.path.dirname(os.__file__)}{os.sep}"
ATTRIBUTES: Final = vars(ModuleType)["__dict__"].__get__
"""Of a module, without asking it, which a lazy one acts on."""


def describe_process(script: Script) -> Facts:
    """Its id, rank, arguments, versions, device, torch's settings and peaks of memory."""
    agent, on_cuda = script.agent, script.on_cuda
    return {
        "pid": os.getpid(), "torch_imported": agent.torch_imported, "rank": agent.rank, "world": agent.world,
        "argv": [str(argument) for argument in sys.argv],
        "python": sys.version.split()[0], "torch": str(torch.__version__), "cuda": torch.version.cuda,
        "cudnn": _cudnn() if on_cuda else None,
        "nccl": _nccl() if on_cuda else None,
        "imported": imported() if script.ended else {},
        "own_files": own_files() if script.ended else [],
        "device": script.device,
        "device_name": torch.cuda.get_device_name() if on_cuda else None,
        "device_uuid": f"GPU-{torch.cuda.get_device_properties().uuid}" if on_cuda else None,
        "capability": list(torch.cuda.get_device_capability()) if on_cuda else None,
        "threads": torch.get_num_threads(),
        "tf32_matmul": tf32_matmul(),
        "cpu_bf16": any(check() for check in BF16_CHECKS),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "seeded": agent.session.seed is not None and torch.initial_seed() != agent.session.seed,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_cuda else None,
        "memory": _memory(agent.host.cost) if on_cuda else None,
        "peak_rss_bytes": peak_rss(),
        "raised": agent.peaks.facts(),
    }  # fmt: skip


def _memory(cost: Cost) -> dict[str, int]:
    """Of the current device: counters that the allocator keeps on the host."""
    stats = torch.cuda.memory_stats()
    return {
        "peak_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "total_bytes": torch.cuda.get_device_properties().total_memory,
        "retries": stats.get("num_alloc_retries", 0),
        "late_mallocs": cost.sums.mallocs,
        "late_retries": cost.sums.retries,
        "since": WARM_STEPS,
        "step": WARM_STEPS + cost.steps,
    }


def _cudnn() -> str | None:
    """The version of cuDNN that was loaded."""
    try:
        number = torch.backends.cudnn.version()
    except RuntimeError:  # another one than torch was built with
        return None
    if not number:
        return None
    major, size = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{size // 100}.{size % 100}"


def _nccl() -> str | None:
    """The version of NCCL that torch was linked with."""
    number = nccl_number()
    return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}" if number else None


def tf32_matmul() -> bool:
    """Whether matrix products of float32 are in TF32. This knows what was set by either API; the old one raises where
    the script used the new one."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def own_files() -> list[str]:
    """Of the modules that were imported, the files of those that are in no installed package."""
    found = {file for _, file in _modules() if not any(mark in file for mark in INSTALLED)}
    return sorted(file for file in found if not file.startswith(STANDARD))[:MOST]


def _modules() -> Iterator[tuple[str, str]]:
    """Their names and files."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or type(name) is not str:
            continue
        file = ATTRIBUTES(module).get("__file__")
        if type(file) is str:
            yield name, file


def imported() -> dict[str, list[str]]:
    """By folder of installed packages the first names of what was imported from it: which versions these are, hotlap
    asks afterwards (`launch/packages.py`)."""
    found: dict[str, set[str]] = {}
    for name, file in _modules():
        for mark in INSTALLED:
            folder, here, _ = file.partition(mark)
            if here:
                found.setdefault(folder + mark[:-1], set()).add(name.partition(".")[0])
    return {folder: sorted(names)[:MOST] for folder, names in found.items()}
