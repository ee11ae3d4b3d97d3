"""What Nsight Compute measured of kernels: `ncu --csv --page raw`, a row a launch and a column a metric.

Three metrics are read: `gpu__time_duration.sum`, `sm__throughput.avg.pct_of_peak_sustained_elapsed` and the same of
`dram__throughput` (`gpu__dram_throughput` in older versions). ncu runs each kernel alone, at fixed clocks, several
times over: its times are not those of the step.
"""

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hotlap.records.errors import RecordError
from hotlap.records.profilers import KernelCounters

MOST_BYTES: Final = 256 << 20
HEADER: Final = '"ID",'
NAME: Final = "Kernel Name"
TIME: Final = "gpu__time_duration.sum"
PEAK: Final = ".avg.pct_of_peak_sustained_elapsed"
SM: Final = (f"sm__throughput{PEAK}",)
DRAM: Final = (f"dram__throughput{PEAK}", f"gpu__dram_throughput{PEAK}")
UNITS: Final = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
"""ns in `ns` or `nsecond`, `us` or `usecond`, `ms` or `msecond`, `s` or `second`, by the first letter."""


def read_ncu(path: Path) -> tuple[KernelCounters, ...]:
    """By kernel, most time first. Raises RecordError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RecordError(
                f"{path} is larger than {MOST_BYTES >> 20} MiB; export fewer launches (ncu --launch-count)"
            )
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return _by_kernel(path, (line for line in file if line.startswith('"')))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except csv.Error as error:
        raise RecordError(f"{path} is not what `ncu --csv --page raw` prints: {error}") from error


def _by_kernel(path: Path, lines: Iterable[str]) -> tuple[KernelCounters, ...]:
    rows = csv.DictReader(lines)
    columns = rows.fieldnames or ()
    if NAME not in columns or "Metric Name" in columns:
        raise RecordError(f"{path} is not what `ncu --csv --page raw` prints: a row a launch, a column a metric")
    if not {TIME, *SM, *DRAM} & set(columns):
        raise RecordError(f"{path} has none of {TIME}, {SM[0]}, {DRAM[0]}; record them with `ncu --set basic`")
    units = next(rows, {})
    scale = UNITS.get((units.get(TIME) or "")[:1])
    found: dict[str, list[tuple[float | None, float | None, float | None]]] = {}
    for row in rows:
        time = _number(row, (TIME,))
        ns = time * scale if time is not None and scale else None
        found.setdefault(row.get(NAME) or "", []).append((ns, _number(row, SM), _number(row, DRAM)))
    kernels = [_of_kernel(name, launches) for name, launches in found.items()]
    return tuple(sorted(kernels, key=lambda kernel: (-(kernel.ns or 0.0), kernel.name)))


def _of_kernel(name: str, launches: list[tuple[float | None, float | None, float | None]]) -> KernelCounters:
    times = [ns for ns, _, _ in launches if ns is not None]
    return KernelCounters(
        name=name[:20_000],
        calls=len(launches),
        ns=sum(times) if len(times) == len(launches) else None,
        sm=_mean([(ns, sm) for ns, sm, _ in launches]),
        dram=_mean([(ns, dram) for ns, _, dram in launches]),
    )


def _mean(measured: list[tuple[float | None, float | None]]) -> float | None:
    """By time, where all times are known."""
    known = [(ns, value) for ns, value in measured if value is not None]
    timed = all(ns for ns, _ in known)
    weights = [ns if timed and ns else 1.0 for ns, _ in known]
    total = sum(weights)
    return sum(weight * value for weight, (_, value) in zip(weights, known, strict=True)) / total if known else None


def _number(row: dict[str, str], names: tuple[str, ...]) -> float | None:
    """The first of these that is a number; ncu writes thousands with commas, and `n/a`."""
    for name in names:
        try:
            value = float((row.get(name) or "").replace(",", ""))
        except ValueError:
            continue
        if math.isfinite(value) and 0 <= value < 1e18:
            return value
    return None


__all__ = ["read_ncu"]
