"""Does any broken trace crash or hang the reader?

    python benchmarks/trace_fuzz.py --files 100000 --jobs 2

Each file is an excerpt of a real trace, broken as `tests/trace/mutations.py` says by a seed of its own; `--only SEED`
reads one again. A file must give a Trace or a RecordError. What a Trace holds must then survive its steps and a view.
Blocks are made a thousand times smaller than the reader's, so that small files are cut too.
"""

import argparse
import faulthandler
import io
import json
import platform
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "trace"))

import mutations  # noqa: E402 - what the tests use

import hotlap  # noqa: E402
from hotlap.records.errors import RecordError  # noqa: E402
from hotlap.trace import decode, source  # noqa: E402
from hotlap.trace.read import read_stream  # noqa: E402
from hotlap.trace.steps import find_windows  # noqa: E402
from hotlap.trace.view import View  # noqa: E402

source.BLOCK, decode.PART = 4 << 10, 1 << 10  # type: ignore[misc]
HANG_S = 600.0


def outcome(text: bytes) -> str:
    """What reading it ends in."""
    try:
        trace = read_stream(io.BytesIO(text), "broken", processes=1)
    except RecordError:
        return "refused"
    window, _ = find_windows(trace)
    View(trace, window).work  # noqa: B018 - made when it is asked for
    if trace.losses.events or trace.losses.why:
        return "read with losses"
    return "read after repairs" if trace.losses.repaired else "read whole"


def read_all(seeds: Sequence[int]) -> dict[str, Any]:
    """Break and read a file for each seed."""
    whole = list(mutations.excerpts().values())
    by_kind: dict[str, Counter[str]] = {}
    failures, slowest, begun, size = [], (0.0, -1), time.monotonic(), 0
    for done, seed in enumerate(seeds):
        kind, text = mutations.mutated(seed, whole)
        size += len(text)
        if done % 100 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        start = time.monotonic()
        try:
            result = outcome(text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            result = "failed"
            failures.append({"seed": seed, "kind": kind, "error": f"{type(error).__name__}: {error}"[:300]})
            print(f"seed {seed} ({kind}):\n{traceback.format_exc()[-1500:]}", file=sys.stderr, flush=True)
        slowest = max(slowest, (time.monotonic() - start, seed))
        by_kind.setdefault(kind.split("+")[0], Counter())[result] += 1
        if done % 1000 == 999:
            said = f"{done + 1} files from {seeds[0]}, {len(failures)} failures, {time.monotonic() - begun:.0f} s"
            print(said, file=sys.stderr, flush=True)
    faulthandler.cancel_dump_traceback_later()
    return {
        "by_kind": by_kind,
        "bytes": size,
        "slowest": slowest,
        "failures": failures,
        "cpu_seconds": time.process_time(),
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    seeds = [asked.only] if asked.only is not None else range(asked.first, asked.first + asked.files)
    begun = time.monotonic()
    with ProcessPoolExecutor(asked.jobs) as pool:
        parts = list(pool.map(read_all, [seeds[job :: asked.jobs] for job in range(asked.jobs)]))
    by_kind: dict[str, Counter[str]] = {}
    for part in parts:
        for kind, counts in part["by_kind"].items():
            by_kind.setdefault(kind, Counter()).update(counts)
    failures = [failure for part in parts for failure in part["failures"]]
    slowest = max(part["slowest"] for part in parts)
    found = {
        "command": f"python benchmarks/trace_fuzz.py --files {len(seeds)} --first {asked.first} --jobs {asked.jobs}",
        "hotlap": hotlap.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "files": len(seeds),
        "mean_bytes": round(sum(part["bytes"] for part in parts) / len(seeds)),
        "outcomes": dict(sorted(sum(by_kind.values(), Counter()).items())),
        "by_kind": {kind: dict(sorted(counts.items())) for kind, counts in sorted(by_kind.items())},
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(sum(part["cpu_seconds"] for part in parts), 1),
        "slowest": {"seconds": round(slowest[0], 3), "seed": slowest[1]},
        "peak_rss_mib": max(part["rss"] for part in parts),
        "failures": failures,
    }
    print(json.dumps(found, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
