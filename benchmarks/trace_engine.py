"""How fast a trace is read, beside the floor, plain JSON and HTA: time, CPU time and peak memory.

    python benchmarks/trace_engine.py TRACE.json --hta /tmp/hta/bin/python --repeats 5

Each way runs in a process of its own, in turns, so that all see the same machine. `floor`: the file read and decoded by
msgspec into one typed struct per event, `args` left raw: nothing that decodes every event can be faster. `serial` and
`parallel`: hotlap's read() with one process, and with one a core, then its windows and its table of work. `gzip`: the
same of the packed file. `analyses`: what `hotlap trace --no-what-if` computes, from the file; `what-if`: replay too.
`hta`: its load alone.

Memory is the sum of the processes' proportional set sizes, sampled every 20 ms; time is of the work, without imports.
`--larger N` makes a file of N times the events (ids and times shifted) and reads it too.
"""

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]

BEGIN = """
import json, os, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
"""
MEASURE = """
def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)
print("READY", flush=True)
cpu, wall = used(), time.perf_counter()
rows = work()
print("RESULT" + json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": used() - cpu, "rows": rows}), flush=True)
"""
OURS = """
from hotlap.trace.read import read
from hotlap.trace.steps import find_windows
from hotlap.trace.view import View
def work():
    trace = read(path, processes=PROCESSES)
    View(trace, find_windows(trace)[0]).work
    return len(trace.host) + len(trace.device)
"""
ALL = """
from hotlap.trace.answer import Options, answer, view_of
from hotlap.trace.read import read
def work():
    trace = read(path)
    answer(view_of(trace), 0, Options(what_if=WHAT_IF))
    return len(trace.host) + len(trace.device)
"""
WAYS = {
    "floor": """
import msgspec
class Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")
class Document(msgspec.Struct):
    traceEvents: list[Event]
def work():
    return len(msgspec.json.decode(path.read_bytes(), type=Document).traceEvents)
""",
    "json": """
def work():
    return len(json.loads(path.read_bytes())["traceEvents"])
""",
    "serial": OURS.replace("PROCESSES", "1"),
    "parallel": OURS.replace("PROCESSES", "None"),
    "gzip": OURS.replace("PROCESSES", "None"),
    "analyses": ALL.replace("WHAT_IF", "False"),
    "what-if": ALL.replace("WHAT_IF", "True"),
    "hta": """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def work():
    return len(TraceAnalysis(trace_files={0: str(path)}, trace_dir="").t.get_trace(0))
""",
}


def run(way: str, python: str, path: Path, environ: dict[str, str]) -> dict[str, float]:
    """One way, once."""
    command = [python, "-c", BEGIN + WAYS[way] + MEASURE, str(path)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environ})
    root, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        peak = max(peak, held(root))
        time.sleep(0.02)
    out, error = process.communicate()
    line = next((line for line in out.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise SystemExit(f"{way}: {error[-2000:]}")
    return {**json.loads(line.removeprefix("RESULT")), "peak_mib": peak / (1 << 20)}


def held(root: psutil.Process) -> int:
    """Memory of a process and its children, shared pages counted once."""
    total = 0
    try:
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return total


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def enlarged(text: bytes, times: int) -> Iterator[bytes]:
    """The trace, and its events again with ids and times shifted."""
    begin = re.search(rb'"traceEvents": \[\s*', text)
    assert begin is not None
    end = text.rindex(b"\n  ]")
    head, events, tail = text[: begin.end()], text[begin.end() : end], text[end:]
    ids = re.compile(rb'("ts": |"correlation": |"External id": |"Sequence number": )(\d+)')
    yield head
    for turn in range(times):
        for start, stop in parts(events):
            yield ids.sub(partial(shifted, turn), events[start:stop])
        if turn + 1 < times:
            yield b",\n  "
    yield tail


def shifted(turn: int, match: "re.Match[bytes]") -> bytes:
    by = 10_000_000 if match[1] == b'"ts": ' else 5_000_000
    return match[1] + b"%d" % (int(match[2]) + turn * by)


def parts(text: bytes, size: int = 8 << 20) -> Iterator[tuple[int, int]]:
    """Where to cut a text between events."""
    start = 0
    while start < len(text):
        stop = text.find(b"\n  },", start + size)
        stop = len(text) if stop < 0 else stop
        yield start, stop
        start = stop


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta", help="the Python that has traceinsight 0.6.1")
    parser.add_argument("--hta-repeats", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--without", default="", help="ways to leave out, by comma")
    parser.add_argument("--larger", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg(),
        "bytes": asked.trace.stat().st_size,
    }
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "trace.json.gz"
        environ = {"HOTLAP_CACHE": str(Path(folder) / "cache")}
        ways = [way for way in WAYS if way != "hta" and way not in asked.without.split(",")]
        if "gzip" in ways:
            with asked.trace.open("rb") as source, gzip.open(packed, "wb", 6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            found["gzip_bytes"] = packed.stat().st_size
        runs: dict[str, list[dict[str, float]]] = {}
        for turn in range(asked.repeats):
            for way in [*ways, *(["hta"] if asked.hta and turn < asked.hta_repeats else [])]:
                python = asked.hta if way == "hta" else sys.executable
                runs.setdefault(way, []).append(run(way, python, packed if way == "gzip" else asked.trace, environ))
                print(way, runs[way][-1], file=sys.stderr, flush=True)
        found["ways"] = table(runs)
        found["against"] = against(found["ways"], found["bytes"])
        if asked.larger:
            larger = Path(folder) / "larger.json"
            with larger.open("wb") as target:
                for piece in enlarged(asked.trace.read_bytes(), asked.larger):
                    target.write(piece)
            once = {way: [run(way, sys.executable, larger, environ)] for way in ("serial", "parallel")}
            found["larger"] = {"times": asked.larger, "bytes": larger.stat().st_size, "ways": table(once)}
            for way, row in found["larger"]["ways"].items():
                small = found["ways"][way]
                growth = {k: round(row[k]["median"] / small[k]["median"], 2) for k in ("wall_s", "cpu_s", "peak_mib")}
                found["larger"][f"{way}_growth"] = {**growth, "rows": round(row["rows"] / small["rows"], 2)}
    found["load_after"] = os.getloadavg()
    print(json.dumps(found, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def table(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for way, rows in runs.items():
        made[way] = {key: spread([row[key] for row in rows]) for key in ("wall_s", "cpu_s", "peak_mib")}
        made[way] |= {"runs": len(rows), "rows": rows[0]["rows"]}
    return made


def against(ways: dict[str, Any], size: int) -> dict[str, float]:
    """The ratios that the targets are about."""
    made = {}
    for way in ("serial", "parallel", "analyses", "what-if"):
        if way in ways:
            for key in ("wall_s", "cpu_s"):
                mine = ways[way][key]["median"]
                made[f"{way} {key} / floor"] = round(mine / ways["floor"][key]["median"], 2)
                if "hta" in ways:
                    made[f"hta {key} / {way}"] = round(ways["hta"][key]["median"] / mine, 1)
            made[f"{way} peak memory / bytes of JSON"] = round(ways[way]["peak_mib"]["max"] * (1 << 20) / size, 2)
    return made


if __name__ == "__main__":
    sys.exit(main())
