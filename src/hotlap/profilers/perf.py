"""What `perf stat` counted, as `perf stat -x,` writes it (perf-stat(1)).

Events are named without modifiers and units of the processor (`cpu_core/cycles/u` is `cycles`); those of one name are
added. Lines by core or by interval are not read.
"""

import math
import re
from pathlib import Path
from typing import Final

from hotlap.records.errors import RecordError, unable
from hotlap.records.profilers import PerfStat

MOST_BYTES: Final = 4 << 20
UNKNOWN: Final = re.compile(r"<not (supported|counted)>")
EVENT: Final = re.compile(r"(?:cpu\w*/)?(?P<name>[a-z][\w.-]{1,60})/?(?::?[ukhGHpPDSWe]*)", re.A)


def read_perf(path: Path) -> PerfStat:
    """Raises RecordError where there is no counter in it."""
    with unable(f"read {path}"):
        if path.stat().st_size > MOST_BYTES:
            raise RecordError(f"{path} is larger than {MOST_BYTES >> 20} MiB; a summary of `perf stat` is smaller")
        text = path.read_text(encoding="utf-8", errors="replace")
    counters: dict[str, float] = {}
    unknown: dict[str, None] = {}
    running, cpus = 100.0, None
    for line in text.splitlines():
        cells = line.split(",")
        match = EVENT.fullmatch(cells[2]) if len(cells) >= 5 and not line.startswith("#") else None
        if match is None:
            continue
        value, share, (metric, unit) = cells[0], cells[4], [*cells[5:], "", ""][:2]
        number = _number(value)
        if UNKNOWN.fullmatch(value):
            unknown[match["name"]] = None
        elif number is not None:
            counters[match["name"]] = counters.get(match["name"], 0.0) + number
            running = min(running, _number(share) or running)
            cpus = _number(metric) if unit == "CPUs utilized" else cpus
    if not counters:
        raise RecordError(f"{path} is not what `perf stat -x,` writes, or nothing could be counted")
    cycles, instructions = counters.get("cycles"), counters.get("instructions")
    return PerfStat(
        counters=counters,
        unknown=tuple(name for name in unknown if name not in counters),
        instructions_per_cycle=instructions / cycles if cycles and instructions is not None else None,
        cpus=cpus,
        running=running,
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
