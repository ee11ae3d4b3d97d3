"""What Nsight Compute measured of kernels: `ncu --csv --page raw`, a row a launch and a column a metric.

Four metrics are read: `gpu__time_duration.sum` and, as `.avg.pct_of_peak_sustained_elapsed`, `sm__throughput`,
`gpu__compute_memory_throughput` and `gpu__dram_throughput` (`dram__throughput` in some versions). ncu runs each kernel
alone, several times over, with empty caches: its times are not those of the step.
"""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from hotlap.records.errors import RecordError, unable
from hotlap.records.profilers import KernelCounters
from hotlap.records.trace import OpRoofline, RankTrace

MOST_BYTES: Final = 256 << 20
NAME: Final = "Kernel Name"
TIME: Final = "gpu__time_duration.sum"
PEAK: Final = ".avg.pct_of_peak_sustained_elapsed"
SM: Final = (f"sm__throughput{PEAK}",)
MEMORY: Final = (f"gpu__compute_memory_throughput{PEAK}",)
DRAM: Final = (f"dram__throughput{PEAK}", f"gpu__dram_throughput{PEAK}")
UNITS: Final = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
"""ns in `ns` or `nsecond`, `us` or `usecond`, `ms` or `msecond`, `s` or `second`, by the first letter."""
BUSY: Final = 60.0
"""Percent below which ncu's rules say that neither arithmetic nor memory limits a kernel, but latency."""
CASTS: Final = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool)\)(?=\d)")
SPACES: Final = re.compile(r"(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)+")
SUFFIX: Final = re.compile(r"(?<=\d)(?:ul|l|u)\b")


class _Launch(NamedTuple):
    ns: float | None
    sm: float | None
    memory: float | None
    dram: float | None


def read_ncu(path: Path) -> tuple[KernelCounters, ...]:
    """By kernel, most time first. Raises RecordError."""
    try:
        with unable(f"read {path}"), path.open(encoding="utf-8", errors="replace", newline="") as file:
            if path.stat().st_size > MOST_BYTES:
                raise RecordError(
                    f"{path} is larger than {MOST_BYTES >> 20} MiB; export fewer launches (ncu --launch-count)"
                )
            return _by_kernel(path, (line for line in file if line.startswith('"')))
    except csv.Error as error:
        raise RecordError(f"{path} is not what `ncu --csv --page raw` prints: {error}") from error


def _by_kernel(path: Path, lines: Iterable[str]) -> tuple[KernelCounters, ...]:
    rows = csv.DictReader(lines)
    columns = rows.fieldnames or ()
    if NAME not in columns or "Metric Name" in columns:
        raise RecordError(f"{path} is not what `ncu --csv --page raw` prints: a row a launch, a column a metric")
    if not {TIME, *SM, *MEMORY, *DRAM} & set(columns):
        raise RecordError(f"{path} has none of {TIME}, {SM[0]}, {DRAM[0]}; record them with `ncu --set basic`")
    units = next(rows, {})
    scale = UNITS.get((units.get(TIME) or "")[:1])
    found: dict[str, list[_Launch]] = {}
    for row in rows:
        time = _number(row, (TIME,))
        ns = time * scale if time is not None and scale else None
        launch = _Launch(ns, _number(row, SM), _number(row, MEMORY), _number(row, DRAM))
        found.setdefault(row.get(NAME) or "", []).append(launch)
    kernels = [_of_kernel(name, launches) for name, launches in found.items()]
    return tuple(sorted(kernels, key=lambda kernel: (-(kernel.ns or 0.0), kernel.name)))


def _of_kernel(name: str, launches: list[_Launch]) -> KernelCounters:
    times = [one.ns for one in launches if one.ns is not None]
    sm, memory = (_mean([(one.ns, one[at]) for one in launches]) for at in (1, 2))
    return KernelCounters(
        name=name[:20_000],
        calls=len(launches),
        ns=sum(times) if len(times) == len(launches) else None,
        sm=sm,
        memory=memory,
        dram=_mean([(one.ns, one.dram) for one in launches]),
        limit=_limit(sm, memory),
    )


def _limit(sm: float | None, memory: float | None) -> str:
    if sm is None or memory is None:
        return ""
    if max(sm, memory) < BUSY:
        return "latency"
    return "compute" if sm > memory else "memory"


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


# beside a trace


def with_rooflines(kernels: Sequence[KernelCounters], ranks: Sequence[RankTrace]) -> tuple[KernelCounters, ...]:
    """The kernels with the ops that launch them in traces, and what these reach of their rooflines."""
    ops: dict[str, list[OpRoofline]] = {}
    for row in (row for rank in ranks for row in rank.roofline if row.of_peak is not None):
        for name in row.kernels:
            ops.setdefault(same_name(name), []).append(row)
    return tuple(_beside(kernel, ops.get(same_name(kernel.name), [])) for kernel in kernels)


def _beside(kernel: KernelCounters, rows: list[OpRoofline]) -> KernelCounters:
    if not rows:
        return kernel
    most = max(rows, key=lambda row: row.ns)
    share = _mean([(row.ns, row.of_peak) for row in rows])
    return msgspec.structs.replace(kernel, op=most.op, of_peak=share)


def same_name(name: str) -> str:
    """A kernel's name as both ncu and CUPTI have it: ncu writes `<(int)4, (unsigned long)2>` and `char *` where CUPTI
    writes `<4, 2ul>` and `char*`, parameters of templates by number, and may leave out namespaces. So without
    namespaces and parameters."""
    name = SUFFIX.sub("", CASTS.sub("", SPACES.sub("", name.removeprefix("void "))))
    return _without_parameters(name).replace(" ", "")


def _without_parameters(name: str) -> str:
    """Cut at the first bracket that is in no template."""
    depth = 0
    for at, char in enumerate(name):
        depth += (char == "<") - (char == ">" and name[at - 1 : at] != "-")
        if char == "(" and depth <= 0:
            return name[:at]
    return name
