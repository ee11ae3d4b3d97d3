"""hotlap's device time beside that of HTA (`traceinsight`), and what every difference between them comes from.

    python -m venv /tmp/hta && /tmp/hta/bin/pip install traceinsight==0.6.1
    python benchmarks/trace_vs_hta.py --hta /tmp/hta/bin/python TRACE...

HTA's numbers are then made a second time, from hotlap's tables, by HTA's own rules:

* Times are rounded inwards to whole µs: ceil(start), floor(end). A kernel loses 1 µs on average, so idle time grows by
  that for every kernel, and short ones come out empty or backwards (length -1), which its sums take as they are.
* Work is kept if its correlation is that of a host event that begins before the last `ProfilerStep#` annotation, the
  GPU's copy of it included. So the last step is dropped, but for what is launched before the GPU comes to it; where the
  host runs far ahead that is the whole last step. Work whose launch was not recorded is dropped.
* Host ops that have a `stream` among their args (Inductor's `triton_...`) count as GPU work, and as compute.
* idle = from the first work to the end of the last, without the union of work; compute = union of work that is not
  communication or memory by name; the rest is non-compute.

Where the second set equals the first, hotlap read the trace as HTA did and the rules are all that differs.
"""

import argparse
import gzip
import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import hotlap
from hotlap.trace.intervals import Ints, union
from hotlap.trace.read import read
from hotlap.trace.tables import Trace

HTA = """
import json, logging, resource, sys, time
logging.disable(logging.CRITICAL)
def used():
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
def cpu():
    return sum(u.ru_utime + u.ru_stime for u in used())
from hta.trace_analysis import TraceAnalysis
wall, busy = time.perf_counter(), cpu()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
loaded, load_busy = time.perf_counter() - wall, cpu() - busy
wall = time.perf_counter()
times = analysis.get_temporal_breakdown(visualize=False).to_dict("records")[0]
broken = time.perf_counter() - wall
kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
print("RESULT" + json.dumps({
    "load_s": loaded, "load_cpu_s": load_busy, "breakdown_s": broken,
    "peak_rss_mib": max(u.ru_maxrss for u in used()) >> 10,
    "times": {k: v for k, v in times.items() if "(us)" in k}, "kinds": kinds.to_dict("records")}, default=float))
"""


def run_hta(python: str, path: Path) -> dict[str, Any]:
    """HTA's answers about one trace, and what they cost."""
    done = subprocess.run([python, "-c", HTA, str(path)], capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        return {"error": done.stderr.strip().splitlines()[-1][:300]}
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return found


def split(work: pl.DataFrame, starts: Ints, ends: Ints) -> dict[str, float]:
    """Idle, compute and other time of work in µs, from its first start to its last end."""
    compute = is_compute(work)
    return named(union(starts, ends).total, union(starts[compute], ends[compute]).total, starts, ends, 1000)


def is_compute(work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    talks = work["name"].str.contains("(?i)nccl").to_numpy()
    return (work["cat"] == "kernel").to_numpy() & ~talks


def named(busy: int, compute: int, starts: Ints, ends: Ints, scale: int) -> dict[str, float]:
    span = int(ends.max() - starts.min())
    times = {"idle": span - busy, "compute": compute, "non_compute": busy - compute, "kernel": span}
    return {f"{name}_time(us)": round(value / scale, 3) for name, value in times.items()}


def merged(starts: Ints, ends: Ints) -> int:
    """The length of a union as HTA takes it: backward intervals that stand alone count as negative."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] > reach[:-1]
    group = np.cumsum(first) - 1
    last = np.full(int(group[-1]) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, group, ends)
    return int((last - starts[first]).sum())


def by_rules_of_hta(trace: Trace, path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The events that HTA takes, rounded as it does, and not rounded."""
    stepped = pl.col("name").str.starts_with("ProfilerStep") & (pl.col("cat") == "annotation")
    marks = pl.concat([table.filter(stepped)["start"] for table in (trace.host, trace.device)])
    last = int((-(-marks // 1000)).max())  # type: ignore[arg-type]
    known = trace.host.filter(-(-pl.col("start") // 1000) < last)["correlation"].unique()
    work = trace.work.filter(pl.col("correlation").is_in(known.implode()) & (pl.col("correlation") >= 0))
    begun, ended = work["start"].to_numpy(), (work["start"] + work["dur"]).to_numpy()
    compute = is_compute(work)
    extra = [times for times in host_ops_with_stream(path) if -(-times[0] // 1000) < last]
    starts = -(-np.concatenate([begun, [times[0] for times in extra]]).astype(np.int64) // 1000)
    ends = np.concatenate([ended, [times[1] for times in extra]]).astype(np.int64) // 1000
    counts = np.concatenate([compute, np.ones(len(extra), bool)])
    rounded = named(merged(starts, ends), merged(starts[counts], ends[counts]), starts, ends, 1)
    return rounded, split(work, begun, ended)


def host_ops_with_stream(path: Path) -> list[tuple[int, int]]:
    """(start, end) in ns of host ops that have a stream, from the plain JSON."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        events = json.loads(file.read(), parse_float=Decimal)["traceEvents"]
    ops = [e for e in events if e.get("cat") == "cpu_op" and e.get("args", {}).get("stream", -1) >= 0]
    return [(int(op["ts"] * 1000), int((op["ts"] + op["dur"]) * 1000)) for op in ops]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta", required=True, help="the Python that has traceinsight 0.6.1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("traces", nargs="+", type=Path)
    asked = parser.parse_args()
    rows = []
    for path in asked.traces:
        trace = read(path)
        work = trace.work
        starts = work["start"].to_numpy()
        theirs = run_hta(asked.hta, path)
        row: dict[str, Any] = {"trace": path.name, "hta": theirs.get("times", theirs)}
        if len(trace.host.filter(pl.col("name").str.starts_with("ProfilerStep"))):
            row["hotlap_by_rules_of_hta"], row["its_work_without_rounding"] = by_rules_of_hta(trace, path)
            row["equal"] = row["hotlap_by_rules_of_hta"] == row["hta"]
        row["hotlap_whole_trace"] = split(work, starts, starts + work["dur"].to_numpy())
        row["work"] = len(work)
        row["work_without_launch"] = int((work["launch"] < 0).sum())
        row["hta_kinds"] = theirs.get("kinds")
        rows.append(row)
        print(json.dumps(row, indent=1), file=sys.stderr, flush=True)
    names = " ".join(path.name for path in asked.traces)
    found = {
        "command": f"python benchmarks/trace_vs_hta.py --hta PYTHON {names}",
        "hotlap": hotlap.__version__,
        "hta": "traceinsight 0.6.1",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "traces": rows,
    }
    print(json.dumps(found, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
