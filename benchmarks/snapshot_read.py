"""How long a memory snapshot of a gigabyte takes to read, and how much memory.

    python benchmarks/snapshot_read.py --gigabytes 1 --out benchmarks/results/snapshot-read.json

No GPU is needed: the snapshots are made here, of what torch puts into them, by Python's pickler as torch does. `deep`:
of today, with C++ frames (torch's default); `python`: of today, Python frames alone, so more events; `early`: of torch
2.0, whose frames are shared by the events of one allocation alone. Each is read in a process of its own. `plain`:
Python's unpickler alone, for comparison. `reader_mib`: of the process that unpickles; `own_mib`: of the one that asks.
"""

import argparse
import gc
import json
import os
import pickle
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BASE = 0x7F2A00000000
LIVE = 500
STACKS = 4000
"""Different ones: a step of a model allocates at some thousand places."""
TRIAL = 20_000
READ = """
import json, resource, sys, time
from pathlib import Path
from hotlap.memory.snapshot import read_snapshot
begun = time.perf_counter()
(window,) = read_snapshot(Path(sys.argv[1]))
took = time.perf_counter() - begun
reader, own = (resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
cpu = reader.ru_utime + reader.ru_stime + own.ru_utime + own.ru_stime
print(json.dumps({"seconds": took, "cpu_seconds": cpu, "reader_mib": reader.ru_maxrss >> 10,
                  "own_mib": own.ru_maxrss >> 10, "events": len(window.events.times), "left_out": window.left_out,
                  "stacks": len(window.stacks), "blocks": len(window.blocks.bytes)}))
"""
PLAIN = """
import gc, json, pickle, resource, sys, time
gc.disable()
begun = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    found = pickle.load(file)
took = time.perf_counter() - begun
own = resource.getrusage(resource.RUSAGE_SELF)
cpu = own.ru_utime + own.ru_stime
print(json.dumps({"seconds": took, "cpu_seconds": cpu, "reader_mib": own.ru_maxrss >> 10}), flush=True)
import os
os._exit(0)
"""


def stacks(depth: int, cpp: bool) -> list[list[dict[str, Any]]]:
    """What allocates: lists of frames, which are shared."""
    library = "/opt/conda/lib/python3.11/site-packages/torch/nn/modules"
    files = [*(f"/home/ada/project/{at}.py" for at in range(20)), *(f"{library}/{at}.py" for at in range(80))]
    python = [{"name": f"f{at}", "filename": files[at % 100], "line": at % 900 + 1} for at in range(2000)]
    native = [{"name": f"at::native::f{at}(at::Tensor const&)", "filename": "??", "line": 0} for at in range(2000)]
    made = []
    for at in range(STACKS):
        count = depth + at % (depth // 2) - depth // 4
        inner = count * 2 // 3 if cpp else 0
        made.append(
            [native[(at * 13 + step * 7) % 2000] for step in range(inner)]
            + [python[(at * 13 + step * 7) % 2000] for step in range(count - inner)]
        )
    return made


def today(allocations: int, depth: int, cpp: bool) -> dict[str, Any]:
    """Each event has a list of frames of its own, as torch makes one for each context; the two of a free share it."""
    rng = random.Random(36)
    known = stacks(depth, cpp)
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int, int]] = []
    time = 1_700_000_000_000_000

    def add(action: str, at: int, size: int, frames: list[Any]) -> None:
        rest = {"stream": 0, "time_us": time, "compile_context": "N/A", "user_metadata": ""}
        trace.append({"action": action, "addr": at, "size": size, **rest, "frames": frames})

    for _ in range(allocations):
        at, size, stack = BASE + 512 * rng.randrange(1 << 27), rng.randrange(1, 1 << 27), rng.randrange(STACKS)
        time += rng.randrange(40)
        add("alloc", at, size, [*known[stack]])
        live.append((at, size, stack))
        if len(live) > LIVE:
            at, size, _ = live.pop(rng.randrange(LIVE))
            frames = [*known[rng.randrange(STACKS)]]
            add("free_requested", at, size, frames)
            add("free_completed", at, size, frames)
    blocks = [
        {"address": at, "size": -(-size // 512) * 512, "requested_size": size, "state": "active_allocated",
         "frames": known[stack]}
        for at, size, stack in live
    ]  # fmt: skip
    total = sum(one["size"] for one in blocks)
    sizes = {"total_size": total, "allocated_size": total, "active_size": total, "requested_size": total}
    place = {"device": 0, "address": BASE, **sizes, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
    segment = {**place, "is_expandable": False, "frames": [], "blocks": blocks}
    traces = [trace, *([] for _ in range(7))]
    return {"segments": [segment], "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def early(allocations: int) -> dict[str, Any]:
    """Of torch 2.0: the events of an allocation share its list of frames, no others do; there are no times."""
    made = today(allocations, 16, cpp=False)
    by_address: dict[int, list[dict[str, Any]]] = {}
    for entry in made["device_traces"][0]:
        if entry["action"] == "alloc":
            by_address[entry["addr"]] = [dict(frame) for frame in entry["frames"]]
        entry["frames"] = by_address[entry["addr"]]
        del entry["time_us"], entry["compile_context"], entry["user_metadata"]
    for block in made["segments"][0]["blocks"]:
        past = {"addr": block.pop("address"), "real_size": block.pop("requested_size"), "frames": block.pop("frames")}
        block["history"] = [past]
    return made


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "deep": lambda allocations: today(allocations, 60, cpp=True),
    "python": lambda allocations: today(allocations, 16, cpp=False),
    "early": early,
}


def write(kind: str, size: float, path: Path) -> None:
    """A file of about so many bytes."""
    gc.disable()
    a_piece = (len(pickle.dumps(KINDS[kind](2 * TRIAL))) - len(pickle.dumps(KINDS[kind](TRIAL)))) / TRIAL
    with path.open("wb") as file:
        pickle.dump(KINDS[kind](int(size / a_piece)), file)


def measured(script: str, path: Path, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-c", script, str(path)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    made: dict[str, Any] = {}
    for name in ("seconds", "cpu_seconds"):
        found = [round(run.pop(name), 2) for run in runs]
        made[name] = {"median": statistics.median(found), "all": found}
    return {**made, **runs[-1]}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--write", nargs=2, metavar=("KIND", "PATH"), help="only write this file")
    parser.add_argument("--out", type=Path, help="the figures go into this document, under `read`")
    given = parser.parse_args()
    if given.write:
        write(given.write[0], given.gigabytes * 1e9, Path(given.write[1]))
        return 0
    words = f"--gigabytes {given.gigabytes:g} --repeats {given.repeats} --kinds {given.kinds}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        for kind in given.kinds.split(","):
            write_it = [sys.executable, __file__, "--gigabytes", str(given.gigabytes), "--write", kind, str(path)]
            subprocess.run(write_it, check=True)  # in a process whose memory is gone before the file is read
            row = {
                "command": f"python benchmarks/snapshot_read.py {words}",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "load_before": round(os.getloadavg()[0], 2),
                "bytes": path.stat().st_size,
                **measured(READ, path, given.repeats),
                "plain": measured(PLAIN, path, 1),
                "load_after": round(os.getloadavg()[0], 2),
            }
            path.unlink()
            print(kind, json.dumps(row, indent=1), flush=True)
            if given.out:
                before = json.loads(given.out.read_text()) if given.out.exists() else {}
                before.setdefault("read", {})[kind] = row
                given.out.write_text(json.dumps(before, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
