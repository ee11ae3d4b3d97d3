"""Does any broken memory snapshot end in anything but windows or a RecordError?

    python benchmarks/fuzz_snapshots.py --files 100000 --out benchmarks/results/snapshot-read.json

Each file is a snapshot broken as `tests/memory/snapshots.py` says by a seed of its own; `--only SEED` reads one again.
All are read in processes with the reader's bound on memory, without its process for each file, so that what the
process would hide is seen: a crash there ends a batch, and counts as one. Every `--whole`th file is read as users read
it, too.
"""

import argparse
import io
import json
import platform
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "memory"))

import snapshots  # noqa: E402 - what the tests use

from hotlap.memory.snapshot import LEAST_MEMORY, read_snapshot, windows  # noqa: E402
from hotlap.records.errors import RecordError  # noqa: E402
from hotlap.records.memory import MemoryWindow  # noqa: E402

BATCH = 1000


def outcome(made: bytes) -> str:
    try:
        packed = msgspec.msgpack.encode(windows(io.BytesIO(made)))
    except RecordError:
        return "refused"
    except OverflowError:
        return "refused: sums"
    except MemoryError:
        return "refused: memory"
    return "read" if msgspec.msgpack.decode(packed, type=list[MemoryWindow]) else "read, empty"


def batch(first: int, last: int, whole: int) -> dict[str, Any]:
    bound = psutil.Process().memory_info().vms + LEAST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.getrlimit(resource.RLIMIT_AS)[1]))
    counts: dict[str, Counter[str]] = {}
    failures, slowest = [], (0.0, -1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        for seed in range(first, last):
            kind, made = snapshots.mutated(seed)
            start = time.monotonic()
            try:
                result = outcome(made)
                slowest = max(slowest, (time.monotonic() - start, seed))
                if seed % whole == 0:
                    path.write_bytes(made)
                    try:
                        read_snapshot(path)
                        again = "read"
                    except RecordError as error:
                        again = "refused" if str(path) in str(error) else "does not name the file"
                    if again != result.partition(":")[0].partition(",")[0]:
                        failures.append({"seed": seed, "kind": kind, "error": f"{result} here, {again} in a process"})
                    counts.setdefault("in a process each", Counter())[again] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
                result = "failed"
                failures.append({"seed": seed, "kind": kind, "error": f"{type(error).__name__}: {error}"[:300]})
                print(f"seed {seed} ({kind}):\n{traceback.format_exc()[-1500:]}", file=sys.stderr, flush=True)
            counts.setdefault(kind, Counter())[result] += 1
    return {"counts": counts, "failures": failures, "slowest": slowest}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--whole", type=int, default=100)
    parser.add_argument("--out", type=Path, help="the figures go into this document, under `fuzz`")
    given = parser.parse_args()
    if given.only is not None:
        print(snapshots.mutated(given.only)[0], outcome(snapshots.mutated(given.only)[1]))
        return 0
    begun, last = time.monotonic(), given.first + given.files
    counts: dict[str, Counter[str]] = {}
    failures, slowest = [], (0.0, -1)
    for first in range(given.first, last, BATCH):
        with ProcessPoolExecutor(1) as pool:
            try:
                part = pool.submit(batch, first, min(last, first + BATCH), given.whole).result()
            except BrokenProcessPool:
                failures.append({"seed": first, "kind": "batch", "error": "the process crashed"})
                continue
        for kind, found in part["counts"].items():
            counts.setdefault(kind, Counter()).update(found)
        failures += part["failures"]
        slowest = max(slowest, part["slowest"])
        if first % (10 * BATCH) == 0:
            said = f"{first} of {last}, {len(failures)} failures, {time.monotonic() - begun:.0f} s"
            print(said, file=sys.stderr, flush=True)
    found = {
        "command": f"python benchmarks/fuzz_snapshots.py --files {given.files} --first {given.first}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "files": given.files,
        "outcomes": {kind: dict(sorted(one.items())) for kind, one in sorted(counts.items())},
        "seconds": round(time.monotonic() - begun, 1),
        "slowest": {"seconds": round(slowest[0], 3), "seed": slowest[1]},
        "failures": failures,
    }
    print(json.dumps(found, indent=1))
    if given.out:
        before = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps({**before, "fuzz": found}, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
