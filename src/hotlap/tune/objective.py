"""What a tune was asked for, and what it makes smaller: the time of a step, memory, or what a row costs."""

from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import Any, Final, Literal

import msgspec

from hotlap.experiment.side import SECONDS, SEED, STEPS
from hotlap.levers._base import Lever
from hotlap.records.errors import NothingMeasured
from hotlap.records.tune import Trial

Kind = Literal["time", "memory", "cost"]
KINDS: Final = ("time", "memory", "cost")
SLOWDOWN: Final = 0.1
UNKNOWN_ORDER: Final = 100


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; kept as `request.json`, so that `--resume` needs no command again.

    price: dollars an hour, for the cost. slowdown: of the step (0.1 is
    10%), allowed where memory is saved.
    """

    command: tuple[str, ...]
    cwd: str
    budget_s: float = 600.0
    steps: int = STEPS
    seconds: float = SECONDS
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    objective: Kind = "time"
    price: float | None = None
    slowdown: float = SLOWDOWN
    seed: int = SEED


def saves_memory(lever: Lever) -> bool:
    """Whether it is tried where memory counts."""
    return lever.saves_memory or lever.memory_order < UNKNOWN_ORDER


def cheapness(lever: Lever) -> tuple[bool, int, str]:
    """A key that puts what costs little first."""
    return lever.risk == "semantic", lever.memory_order, lever.name


def peak_bytes(trial: Trial) -> int:
    """Peak memory: of the device where there is one, else resident memory of the process. Raises NothingMeasured."""
    peak = trial.peak_memory_bytes or trial.peak_rss_bytes
    if not peak:
        raise NothingMeasured("the command's memory use is unknown, so --objective memory can't compare anything")
    return peak


def typical_bytes(trials: Sequence[Trial]) -> float | None:
    """The median peak, None where it is unknown."""
    peaks = [trial.peak_memory_bytes or trial.peak_rss_bytes or 0 for trial in trials]
    return float(median(peaks)) if peaks and all(peaks) else None


def costs(price: float | None, before: Sequence[Trial], after: Sequence[Trial], ratio: float) -> dict[str, Any]:
    """Dollars for a million rows before and after (of steps where rows are not known); nothing without a price. ratio:
    the speed-up that they stand beside."""
    if price is None or not before or not after:
        return {}
    known = all(trial.rows for trial in (*before, *after))
    each_ms = geometric_mean((trial.step_ms or 1.0) / ((trial.rows or 1.0) if known else 1.0) for trial in before)
    dollars = price / 3_600_000 * each_ms * 1e6
    return {"cost_before": dollars, "cost_after": dollars / ratio, "cost_unit": "rows" if known else "steps"}
