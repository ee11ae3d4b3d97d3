"""Run by the job's own Python: measures matrix products and a copy on the device that torch would use; prints JSON.

Standard library and torch only. Products of N×N matrices, a multiply and an add as two FLOPs; a copy moves each byte
twice. Of each the best of REPEATS: what else runs on the machine only makes it slower.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

REPEATS = 7
SECONDS = 0.05
"""A repetition takes at least so long."""
ENOUGH_S = 3.0
"""No repetition begins after so long."""
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
SIZE = 8192 if CUDA else 1024
BYTES = (2 << 30) if CUDA else (256 << 20)


def best(act: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    act()
    calls, found, begun = 1, float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        if time.perf_counter() - begun > ENOUGH_S and found < float("inf"):
            break
        while True:
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                act()
            wait()
            took = time.perf_counter() - start
            if took >= SECONDS:
                break
            calls *= 2
        found = min(found, took / calls)
    return found


def wait() -> None:
    """Until the device is done."""
    if CUDA:
        torch.cuda.synchronize()


def product(dtype: torch.dtype, tf32: bool = False, size: int = SIZE) -> float | None:
    """TFLOP/s; None where the device or torch can't."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        a, b = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=DEVICE, dtype=dtype)
        return 2 * size**3 / best(lambda: torch.mm(a, b, out=out)) / 1e12
    except RuntimeError:  # no such kernel, or no memory for it
        return None


def cpu_bf16() -> bool:
    """Whether the processor has such products; without, torch takes minutes for one."""
    known = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(known is not None and known())


def copy() -> float:
    """GB/s."""
    source = torch.zeros(BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * BYTES / best(lambda: target.copy_(source)) / 1e9


def main() -> None:
    """Print what was measured, as JSON."""
    capability = torch.cuda.get_device_capability() if CUDA else (0, 0)
    measured = {
        "name": torch.cuda.get_device_name() if CUDA else "cpu",
        "fp32": product(torch.float32),
        "memory_gbs": copy(),
        "bf16": product(torch.bfloat16) if CUDA or cpu_bf16() else None,
        "fp16": product(torch.float16) if CUDA else None,
        "tf32": product(torch.float32, tf32=True) if capability >= (8, 0) else None,
        "fp64": None if CUDA else product(torch.float64),  # on CUDA cuBLAS takes tensor cores where there are any
        "fp64_tensor": product(torch.float64, size=SIZE // 2) if capability >= (8, 0) else None,
        "source": f"measured with torch {torch.__version__}: products of {SIZE}, copies of {BYTES >> 20} MiB",
    }
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
