"""`diagnosis.json`: what the time of a run is lost to."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from .memory import Frame, MemoryUsage
from .run import Phases
from .utilisation import Utilisation
from .whose import INSTALLED

Clock = Literal["host", "device"]
Bound = Literal["input", "h2d", "launch", "sync", "compute", "bandwidth", "memory", "communication", "unknown"]


def bound_text(bound: Bound) -> str:
    """`input-bound`; what is not known is said."""
    return "bound unknown" if bound == "unknown" else f"{bound}-bound"


NOT_STEADY: Final = "step time is not steady"
"""Begins what `unknown` says of steps that one number does not stand for."""
COMPARE: Final = "run again, and compare"
"""Ends what `next` says of a change in the source."""
WAITS: Final = "the host waits for the device: "
"""Begins the title of a finding of such a wait; what makes the host wait follows."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the user's source. None: not known."""

    file: str
    line: int | None = None
    function: str | None = None


def framed(frame: Frame | None) -> Place | None:
    """A frame as a place."""
    return None if frame is None else Place(file=frame[0], line=frame[1], function=frame[2])


def installed_text(frame: Frame) -> str:
    """A frame in an installed package, as `torchvision/models/resnet.py:155`."""
    file = max((frame[0].rpartition(folder)[2] for folder in INSTALLED), key=lambda one: -len(one))
    return f"{file}:{frame[1]}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause. The screen shows those that are wrong or beneath, or about the peak of memory, always.

    id: its name; docs/run.md has them all. bound: what it makes the step wait for. share: what it takes of the loop's
    time (0 to 1), which is that of the steps but where others lie between, 0 where that is not known; cost_ms: ms that
    a step could win back, None unknown; evidence: the numbers it rests on; why: it costs time; instead: what to do;
    levers: what helps. wrong: nothing is slow, but learning something else than was meant. beneath: a lack of the
    machine's that makes other findings longer, so its share is 0, and cost_ms an upper bound. named: it is a cause, not
    only the place where the time is.
    """

    id: str
    bound: Bound
    share: float
    cost_ms: float | None = None
    title: str = ""
    where: Place | None = None
    evidence: str = ""
    why: str = ""
    instead: str = ""
    levers: tuple[str, ...] = ()
    wrong: bool = False
    beneath: bool = False
    named: bool = False


PEAK: Final = "peak-memory"
OF_MEMORY: Final = (
    PEAK, "worker-copies", "memory-grows", "idle-gradients", "memory-at-line", "held-weights", "fragmentation",
    "startup-peak",
)  # fmt: skip
"""Findings about memory, which take no time, and are shown always."""
LEAST_NAMED: Final = 0.1
"""Of the step, from which a cause comes before what only says where the time is."""


OF_THE_MODEL: Final = frozenset({"compute", "bandwidth", "launch"})
TWICE: Final = 2
ABOUT: Final = 0.75


BESIDE_THE_REST: Final = ("cpu-crowded", "long-steps", "late-mallocs")
"""Causes whose time is in no phase's work: that without a core, in the driver, and that of few steps."""
OUTSIDE: Final = ("loader-hangs", "evaluation", "workers-restart")
"""Causes whose time lies outside of the steps that others are shares of: each takes its share of what the one before
leaves of the loop's time (`verdict`)."""
IN_NO_PHASE: Final = BESIDE_THE_REST + OUTSIDE
MUCH: Final = 0.25
"""Of the loop's time, from which what lies outside of its steps is named before what these are made of."""


def left_beside(findings: Iterable[Finding]) -> float:
    """Share of the step that these leave to all others, by phases, looks or a trace: what the command itself ran."""
    return max(0.0, 1 - sum(one.share for one in findings if one.id in BESIDE_THE_REST))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Those that cost most first: causes that take a notable share, or an unknown one, before what only says where.
    Waiting for batches, which is in none of the model's phases, comes before a cause in these that takes half of it."""
    found = list(findings)
    waiting = max((one.share for one in found if one.bound == "input"), default=0.0)
    causes = [one for one in found if one.named and (one.share >= LEAST_NAMED or one.cost_ms is None)]
    less = any(one.bound in OF_THE_MODEL and 0 < TWICE * one.share <= waiting for one in causes)
    return sorted(found, key=lambda one: (one not in causes and not (less and one.bound == "input"), -one.share))


def bound_of(findings: Sequence[Finding]) -> Bound:
    """What limits the step: the bound of the first of the ordered findings where it is a cause that costs about as much
    as the dearest one, else of that. A cause in the model is part of what the model takes."""
    if not findings:
        return "unknown"
    shares: dict[str, float] = {}  # one may be divided into a cause and the rest
    for one in findings:
        shares[one.id] = shares.get(one.id, 0.0) + one.share
    first, dearest = findings[0], max(findings, key=lambda one: shares[one.id])
    took, most = shares[first.id], shares[dearest.id]
    inside = first.id != dearest.id and {first.bound, dearest.bound} <= OF_THE_MODEL and not dearest.named
    return first.bound if first.named and took >= ABOUT * (most - took if inside else most) else dearest.bound


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of single steady steps, ms.

    p10, p50, p90: ms. of: the quantiles are of means over so many consecutive steps: 1, or more where the step time
    lies outside of p10 to p90 of single steps.
    """

    p10: float
    p50: float
    p90: float
    of: int = 1


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`diagnosis.json`: what the time of a run is lost to.

    mode: whether it trains. bound: what limits the step. step_ms: ms of a steady step; it, spread and clock are the
    slowest rank's. clock: whose step_ms, spread and throughput are: the device's where the host ran ahead of it, so
    that its own clock shows only how long issuing takes. throughput: rows a second over all ranks, each at its step
    time, in throughput_unit; tokens_s: tokens a second, where the rows are sequences of them; None where unknown.
    throughput_unit: the unit of throughput. utilisation: MFU, of a profiled run.

    phases: host ms a step (they sum to the mean of the steps that were looked at; on the CPU, where that is more than
    25% above step_ms, to that, and `unknown` says so). gpu_ms: device ms a step. gpu_phases: phases on the device, ms a
    step; gpu_paced: of gpu_phases, ms in which the device was done as soon as the host had issued the work, so that it
    waited for the host. gpu_busy: share (0 to 1) of the steady steps in which a kernel of anybody's ran on the GPU;
    gpu_watts: W that the command's GPUs drew together, by NVML; gpu_shared: another process was on one of them, so that
    watts are of both and gpu_busy is not known. unseen_ms: by how much the mean step is longer than
    those that were looked at, where that is much: the time may be any phase's.

    steps: number seen; steady_steps: number that the numbers here rest on; phase_steps: number of steady steps that the
    phases rest on (None: of an older hotlap, all); warmup_steps: number before the steady ones; evaluations: steps
    after warm-up that are left out since an evaluation ran inside; evaluating: the share (0 to 1) of the time since
    warm-up that evaluations took; compiling: the share that steps took in which something was compiled, both without
    steps in which hotlap itself looked; settled:
    whether a steady state was recognised. ranks: number that was observed.
    peak_bytes: in use at the peak, memory_bytes: that there are: of the first rank's GPU, as its allocator holds them,
    without one of the machine; None unknown. memory: of the steps that `--memory` looked at, of the first rank.
    unknown: what could not be told, and what the numbers do not hold for, each in a sentence. next: what to do now, in
    words.
    """

    version: int = 1
    mode: Literal["train", "inference", "none"]
    bound: Bound
    step_ms: float
    spread: Spread
    throughput: float | None = None
    throughput_unit: str = "samples/s"
    tokens_s: float | None = None
    phases: Phases
    unseen_ms: float = 0.0
    clock: Clock = "host"
    gpu_ms: float | None = None
    gpu_phases: Phases | None = None
    gpu_paced: Phases | None = None
    gpu_busy: float | None = None
    gpu_watts: float | None = None
    gpu_shared: bool = False
    utilisation: Utilisation | None = None
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    steady_steps: int = 0
    phase_steps: int | None = None
    warmup_steps: int = 0
    evaluations: int = 0
    evaluating: float = 0.0
    compiling: float = 0.0
    settled: bool = True
    ranks: int = 1
    device: str = "cpu"
    device_name: str | None = None
    peak_bytes: float | None = None
    memory_bytes: float | None = None
    memory: MemoryUsage | None = None
    unknown: tuple[str, ...] = ()
    next: str = ""


def with_findings(diagnosis: Diagnosis, findings: Iterable[Finding]) -> Diagnosis:
    """The verdict with these, in their order, and with the bound that follows from them."""
    ordered = tuple(in_order(findings))
    return msgspec.structs.replace(diagnosis, findings=ordered, bound=bound_of(ordered))
