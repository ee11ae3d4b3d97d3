"""Ops that training scripts call and that may be far from the memory roofline, beside other ways to compute them.

python benchmarks/slow_ops.py --out slow-ops.json [--seconds 55] [--only cumsum,index] [--tiny]

Each op is timed in turns with its candidates and with a plain copy that moves the same bytes: those that the op must
read and write at least. Share: the copy's time over the op's. Times are between CUDA events around a few calls, so they
are those of eager code: an op that issues many kernels is bound by the host where the input is small. `--tiny` runs on
the CPU, which tells only that it runs. Errors are against float64, the library's first.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import torch
from slow_ops_cases import GROUPS, Call, Case, Machine, Row
from torch import Tensor

from hotlap.trace.peaks import peaks_of

ROUNDS: Final = 7
AIM_MS: Final = 0.4
"""Of a measurement: as many calls as that takes, one at least."""
SLOW_MS: Final = 30.0
"""A call that takes longer is measured three times only."""
SLOWEST_MS: Final = 200.0
"""A form whose call takes longer is measured once, after its first."""
NOTE: Final = (
    f"medians of {ROUNDS} rounds, fewer of slow ones; all forms of an op and a copy of the same bytes in turns; "
    "of_copy: the copy's time over the op's; errors over the largest and the rms of the float64 result"
)


def add_errors(m: Machine, op: str, of: str, calls: dict[str, Call], exact: Tensor) -> None:
    """Largest and rms error, over the largest and the rms of the exact result; and how many elements are NaN or
    infinite otherwise than in the exact one."""
    for title, call in calls.items():
        got = call().double()
        same = torch.isfinite(got) & torch.isfinite(exact)
        error, right = (got - exact)[same], exact[same]
        strange = ~same & ~(got.isnan() & exact.isnan()) & (got != exact)
        worst, most = (float(t.abs().max()) if t.numel() else 0.0 for t in (error, right))
        rms, of_exact = (float(t.square().mean().sqrt()) if t.numel() else 0.0 for t in (error, right))
        m.errors.append({
            "op": op, "of": of, "form": title, "largest": worst / most if most else worst,
            "rms": rms / of_exact if of_exact else rms, "non_finite_elsewhere": int(strange.sum()),
        })  # fmt: skip


def measure(m: Machine, case: Case) -> list[Row]:
    """A row for each form and for the copy, which takes its turn with them."""
    source, target = (torch.empty(max(1, case.least // 2), dtype=torch.uint8, device=m.device) for _ in range(2))
    forms = {"copy": partial(target.copy_, source), **case.forms}
    for call in forms.values():
        call()  # kernels are loaded, or compiled
    first = {title: m.elapsed(call, 1) for title, call in forms.items()}
    kept = [title for title in forms if first[title] <= SLOWEST_MS]
    times: dict[str, list[float]] = {title: [] if title in kept else [first[title]] for title in forms}
    for turn in range(ROUNDS if max(first[title] for title in kept) < SLOW_MS else 3):
        for title in kept[:: 1 if turn % 2 else -1]:
            calls = max(1, min(20, int(AIM_MS / max(first[title], 1e-3))))
            times[title].append(m.elapsed(forms[title], calls))
    ms = {title: statistics.median(measured) for title, measured in times.items()}
    return [
        {
            "op": case.op, "of": case.of, "form": title, "ms": round(ms[title], 5),
            "least_ms": round(min(measured), 5), "most_ms": round(max(measured), 5), "rounds": len(measured),
            "gbs": round(case.least / ms[title] / 1e6, 2), "of_copy": round(ms["copy"] / ms[title], 4),
            "times_library": round(ms["library"] / ms[title], 3), "least_bytes": case.least,
        }
        for title, measured in times.items()
    ]  # fmt: skip


def run(m: Machine, groups: list[str], seconds: float) -> tuple[list[Row], list[str]]:
    """Rows, and the cases that the time did not suffice for."""
    until, rows, left_out = time.perf_counter() + seconds, list[Row](), list[str]()
    for group in groups:
        for case in GROUPS[group](m):
            if time.perf_counter() > until:
                left_out.append(f"{case.op} {case.of}")
                continue
            rows += measure(m, case)
            if case.exact is not None:
                add_errors(m, case.op, case.of, case.forms, case.exact())
        print(f"{group}: {seconds - until + time.perf_counter():.1f} s", file=sys.stderr, flush=True)
    return rows, left_out


def table(rows: list[Row]) -> Iterator[str]:
    """The library's rows, each with the best of its candidates. The furthest from the copy last: it is what is seen."""
    yield f"{'share':>6} {'ms':>9} {'GB/s':>7}  {'op':30} {'input':58} best candidate"
    for row in sorted((row for row in rows if row["form"] == "library"), key=lambda row: -row["of_copy"]):
        same = (r for r in rows if (r["op"], r["of"]) == (row["op"], row["of"]))
        best = min((r for r in same if r["form"] not in ("library", "copy")), key=lambda r: r["ms"], default=None)
        other = f"{best['form']} {best['ms']:.3f} ms, {best['times_library']:.2f} x" if best else ""
        yield f"{row['of_copy']:6.1%} {row['ms']:9.3f} {row['gbs']:7.0f}  {row['op']:30} {row['of']:58} {other}"


def error_table(errors: list[Row]) -> Iterator[str]:
    yield f"{'largest':>9} {'rms':>9} {'other non-finite':>17}  op, input: form"
    for row in errors:
        of = f"{row['op']}, {row['of']}: {row['form']}"
        yield f"{row['largest']:9.1e} {row['rms']:9.1e} {row['non_finite_elsewhere']:17}  {of}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--seconds", type=float, default=55.0, help="cases that begin later are left out")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of ops, by commas")
    parser.add_argument("--tiny", action="store_true", help="small inputs, on the CPU")
    args = parser.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device; --tiny tries it on the CPU")
    torch.manual_seed(0)
    m = Machine("cpu" if args.tiny else "cuda", args.tiny)
    rows, left_out = run(m, args.only.split(","), args.seconds)
    device = "CPU" if args.tiny else torch.cuda.get_device_name()
    peaks = peaks_of(device)
    print("\n".join([*error_table(m.errors), "", *table(rows)]), *(f"left out: {of}" for of in left_out), sep="\n")
    found = {
        "command": f"python benchmarks/slow_ops.py {' '.join(sys.argv[1:])}".strip(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{device}, {os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "peak_gbs": peaks.memory_gbs if peaks else None,
        "note": NOTE,
        "left_out": left_out,
        "errors": m.errors,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
