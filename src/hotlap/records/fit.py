"""What `hotlap fit` found: `fit.json`."""

from typing import Final, Literal

import msgspec

from .run import Count, Environment

FIT_FILE: Final = "fit.json"
Verdict = Literal["yes", "no", "maybe", "tensors"]
"""Whether something fits. tensors: these alone do, by a run on a CPU, which does not tell of more."""
Shape = Literal["linear", "bent", "quadratic", "flat", "falling", "unclear", "unknown"]
"""How memory grows with the option. bent: flat or slower at first, then linear. flat: it does not change. unclear: the
runs agree with none of these. unknown: there were too few runs to tell."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Where a number lies: bytes, or ms. Measured: all three are the same.

    low: it is no less. likely: the best single number, None where the runs don't support one. high: it is no more; None
    where nothing is known of that (`at least low`).
    """

    low: float
    likely: float | None = None
    high: float | None = None


class Moments(msgspec.Struct, frozen=True, array_like=True):
    """One phase of a step. allocations: blocks that were taken in it; 0 where that differs from step to
    step. bytes: the most in tensors in each of some parts of it, which have as many of these."""

    allocations: Count
    bytes: tuple[Count, ...]


class FitRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the command with one value.

    value: of the option. outcome: `measured`; `memory`, it ran out; else why it was not measured, as why says. folder:
    of the run. peak_bytes: the most in tensors; reserved_bytes: the most that torch's CUDA allocator had of the device,
    or on a CPU that was resident of the process; both of the rank with the most. step_ms: of a typical step. moments:
    by phase of a steady step; empty where not known. varies: share of the peak by which those of the steps that were
    looked at differ. unusual: why the peak may not be a training step's, so that it is
    left out of what is predicted. wall_s: seconds that the run took.
    """

    value: int
    outcome: str
    why: str = ""
    folder: str
    peak_bytes: Count | None = None
    reserved_bytes: Count | None = None
    step_ms: float | None = None
    moments: dict[str, Moments] = {}
    varies: float = 0.0
    unusual: str = ""
    wall_s: float = 0.0


class FitValue(msgspec.Struct, frozen=True, kw_only=True):
    """What a value of the option takes. value: of the option. measured: a run had it, so nothing here is predicted.
    peak, reserved: bytes, as of `FitRun`; step_ms: of a step. None: not known. fits: into this machine's device."""

    value: int
    measured: bool
    peak: Range | None
    reserved: Range | None = None
    step_ms: Range | None = None
    fits: Verdict = "maybe"


class FitCard(msgspec.Struct, frozen=True, kw_only=True):
    """What fits into one device. memory_bytes: as torch sees it; usable_bytes: without what is set aside for all that
    lies outside of tensors. largest: value of the option that fits by the runs; at_most: no larger one does; None for
    either: not known. tensors_only: largest is of tensors alone, as runs on a CPU tell it of a GPU. fits: of each value
    in `Fit.values`, in order."""

    name: str
    memory_bytes: Count
    usable_bytes: Count
    largest: int | None = None
    at_most: int | None = None
    tensors_only: bool = False
    fits: tuple[Verdict, ...] = ()


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """`fit.json`: what values of one option of a command take in memory and time.

    option: as it stands in the command; own: its value there. device: `cuda` or `cpu`; on a CPU peaks are of the
    results of torch's operations, without what kernels take inside. shape: of the peak. device_card: this machine's
    device; cards: others that were wanted. predicted_to: largest value for which more than `at least` is said. notes:
    what the numbers do not tell. complete: all runs were made; why_incomplete: `interrupted`, or what the budget left
    out. wall_s: seconds in all.
    """

    version: int = 1
    command: tuple[str, ...]
    option: str
    own: int
    device: str = ""
    shape: Shape
    runs: tuple[FitRun, ...]
    values: tuple[FitValue, ...]
    device_card: FitCard | None = None
    cards: tuple[FitCard, ...] = ()
    predicted_to: int
    notes: tuple[str, ...] = ()
    complete: bool = True
    why_incomplete: str = ""
    wall_s: float = 0.0
    environment: Environment
