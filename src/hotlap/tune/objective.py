"""What a tune makes smaller: the time of a step, memory, or what a row costs; and how trials are measured by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any, Final, Literal

from hotlap.levers._base import Lever
from hotlap.records.errors import NothingMeasured
from hotlap.records.tune import Trial

Kind = Literal["time", "memory", "cost"]
KINDS: Final = ("time", "memory", "cost")
SLOWDOWN: Final = 0.1
CHEAPEST_FIRST: Final = (
    "allocator", "attention", "bf16-autocast", "compile", "compile-blocks", "linear-cross-entropy", "activation-budget",
    "checkpoint-blocks", "activation-offload", "optimizer-offload",
)  # fmt: skip
"""Levers that lower the peak, by what they usually cost a step: the first few make it shorter or little longer, then
come those that compute again (a forward at most), then those that copy over the bus. Others come after them by name,
and those that change training last of all."""
FASTER_TOO: Final = frozenset({"attention", "bf16-autocast", "compile", "compile-blocks"})
"""Levers for time that lower the peak on the way."""


@dataclass(frozen=True)
class Objective:
    """price: dollars an hour, for the cost. slowdown: of the step (0.1 is 10%), allowed where memory is saved."""

    kind: Kind = "time"
    price: float | None = None
    slowdown: float = SLOWDOWN

    @property
    def memory(self) -> bool:
        """Whether memory is what counts."""
        return self.kind == "memory"

    def allows(self, trial: Trial, base: Trial) -> bool:
        """Whether a trial is not too slow: only where memory counts is any slowdown allowed at all."""
        if not self.memory or not (trial.step_ms and base.step_ms):
            return True
        return trial.step_ms <= base.step_ms * (1 + self.slowdown)


def saves_memory(lever: Lever) -> bool:
    """Whether it is tried where memory counts."""
    return lever.saves_memory or lever.name in FASTER_TOO


def cheapness(lever: Lever) -> tuple[bool, int, str]:
    """A key that puts what costs little first."""
    known = CHEAPEST_FIRST.index(lever.name) if lever.name in CHEAPEST_FIRST else len(CHEAPEST_FIRST)
    return lever.risk == "semantic", known, lever.name


def peak_bytes(trial: Trial) -> int:
    """Peak memory: of the device where there is one, else resident memory of the process. Raises NothingMeasured."""
    peak = trial.peak_memory_bytes or trial.peak_rss_bytes
    if not peak:
        raise NothingMeasured("the command's memory is not known, so --objective memory has nothing to go by")
    return peak


def typical_bytes(trials: Sequence[Trial]) -> float | None:
    """The median peak over trials, None where it is unknown."""
    peaks = [trial.peak_memory_bytes or trial.peak_rss_bytes or 0 for trial in trials]
    return float(median(peaks)) if peaks and all(peaks) else None


def costs(objective: Objective, before: Sequence[Trial], after: Sequence[Trial]) -> dict[str, Any]:
    """Dollars for a million rows before and after (of steps where rows are not known); nothing without a price.

    Geometric means, as the speed-up that they stand beside.
    """
    if objective.price is None or not before or not after:
        return {}
    known = all(trial.rows for trial in (*before, *after))

    def dollars(trials: Sequence[Trial]) -> float:
        each_ms = geometric_mean((trial.step_ms or 0.0) / ((trial.rows or 1.0) if known else 1.0) for trial in trials)
        return (objective.price or 0.0) / 3_600_000 * each_ms * 1e6

    return {"cost_before": dollars(before), "cost_after": dollars(after), "cost_unit": "rows" if known else "steps"}
