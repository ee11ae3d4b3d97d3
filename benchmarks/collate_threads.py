"""Collation in the training process beside a neighbour: `torch.stack` of 128 images by teams of 16, 4 and 1 threads.

    python benchmarks/collate_threads.py --out benchmarks/results/collate-threads-h100.json

The neighbour is one process that multiplies matrices on as many threads as there are cores. Each case is a fresh
process of at most `--calls` calls or `--seconds` seconds. Why it matters: see `levers/host/cpu_threads.py`.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


def stacks(answer: Any, threads: int, calls: int, seconds: float) -> None:
    import torch

    torch.set_num_threads(threads)
    images = [torch.full((3, 224, 224), i, dtype=torch.uint8) for i in range(128)]
    torch.stack(images)
    before, begun, ms = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), []
    while len(ms) < calls and time.perf_counter() - begun < seconds:
        at = time.perf_counter()
        torch.stack(images)
        ms.append(1000 * (time.perf_counter() - at))
    after = resource.getrusage(resource.RUSAGE_SELF)
    ms.sort()
    answer.put({
        "threads": threads, "calls": len(ms), "median_ms": ms[len(ms) // 2], "p95_ms": ms[int(len(ms) * 0.95)],
        "max_ms": ms[-1], "cpu_ms": 1000 * (after.ru_utime - before.ru_utime) / len(ms),
        "involuntary": (after.ru_nivcsw - before.ru_nivcsw) / len(ms),
    })  # fmt: skip


def neighbour(threads: int, up: Any) -> None:
    import torch

    torch.set_num_threads(threads)
    one = torch.randn(1024, 1024)
    up.set()
    while True:
        one @ one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    for crowded in (False, True):
        other = None
        if crowded:
            up = SPAWN.Event()
            other = SPAWN.Process(target=neighbour, args=(cores, up), daemon=True)
            other.start()
            up.wait()
        for threads in dict.fromkeys((cores, min(4, cores), 1)):
            answer = SPAWN.Queue()
            process = SPAWN.Process(target=stacks, args=(answer, threads, args.calls, args.seconds))
            process.start()
            rows.append({"neighbour": crowded, **answer.get()})
            process.join()
            print(json.dumps(rows[-1]), flush=True)
        if other is not None:
            other.kill()
    if args.out:
        command = "python benchmarks/collate_threads.py"
        document = {"command": command, "date": time.strftime("%Y-%m-%d"), "cores": cores, "rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
