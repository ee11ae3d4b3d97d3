"""Whether a command fits at other values of one option: a few short runs, and what they let one predict."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Final

from hotlap.experiment.alone import run_alone
from hotlap.experiment.outcome import read_outcome
from hotlap.experiment.side import SEED
from hotlap.experiment.watch import Listener
from hotlap.launch.command import find_program
from hotlap.launch.environment import environment
from hotlap.launch.supervise import adopt_orphans
from hotlap.memory.moments import moments, most, varies
from hotlap.memory.predict import FARTHEST, PEAK, RESERVED, RESIDENT, TIME, Above, Curve, Highest
from hotlap.memory.usage import usage
from hotlap.records.durations import ms
from hotlap.records.errors import CommandFailed, Interrupted, NothingMeasured
from hotlap.records.files import new_folder, write_record
from hotlap.records.fit import FIT_FILE, Fit, FitCard, FitRun, FitValue, Moments, Range, Verdict
from hotlap.records.memory import MemoryWindow
from hotlap.records.run import Environment, Facts
from hotlap.runs.folder import RankFolder, RunFolder
from hotlap.runs.plan import RunPlan

from .option import LARGEST, Option

STEPS: Final = 20
LEAST_STEPS: Final = 10
SECONDS: Final = 3.0
"""Of steady steps in a run: LEAST_STEPS at least, then for so long, at most STEPS."""
LEAST_UPDATES: Final = 2
"""Steps of the optimizer from which the peak is known: the first makes its state beside the gradients."""
ENOUGH: Final = 3
"""Runs that were measured: the third says whether the line through two holds."""
MOST: Final = 6
"""Runs in all, those that failed too."""
FARTHER: Final = 4
"""Times the largest value that was measured, that another run has where much larger ones are asked for."""
NEAR: Final = 8
"""Times the largest value that was measured: a prediction farther away is worth a run more."""
MANY_ROWS: Final = 2
"""Times the rows of a typical step."""
NOTABLE: Final = 0.02
"""Of the peak, by which those of the steps of one run differ, from which that is told."""
MARGIN: Final = 1.5
"""On the seconds that the longest run took, when another is planned."""
LEAST_TIMEOUT_S: Final = 60.0
CONTEXT_BYTES: Final = 3 << 28
"""Of a GPU's memory, what CUDA, its libraries and their kernels take beside torch's allocator: about 0.5 to 0.7 GiB."""
HOST_BYTES: Final = 1 << 29
"""Of a machine's memory, that is left to others: with less free, hotlap ends what it runs."""
INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True)
class FitRequest:
    """What is asked. values: to predict, () for doublings of the command's own; measured: values of the runs, () to
    choose them; cards: name and bytes; steps: steady ones of a run, at most."""

    command: tuple[str, ...]
    option: Option
    values: tuple[int, ...] = ()
    measured: tuple[int, ...] = ()
    cards: tuple[tuple[str, int], ...] = ()
    budget_s: float = 300.0
    steps: int = STEPS
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def wanted(self) -> tuple[int, ...]:
        """The values to predict."""
        own = self.option.value
        return self.values or tuple(own * factor for factor in (2, 4, 8) if own * factor <= LARGEST)


@dataclass
class Known:
    """What the runs have shown so far."""

    runs: list[FitRun] = field(default_factory=list)
    device: str = ""
    device_name: str = ""
    total_bytes: int = 0

    @property
    def measured(self) -> list[FitRun]:
        """Runs whose peak is known, by value."""
        return sorted((one for one in self.runs if one.peak_bytes is not None), key=lambda one: one.value)

    @property
    def usual(self) -> list[FitRun]:
        """Those of them whose peak is a training step's; all where none is."""
        return [one for one in self.measured if not one.unusual] or self.measured

    @property
    def too_large(self) -> int | None:
        """The smallest value with which memory ran out."""
        return min((one.value for one in self.runs if one.outcome == "memory"), default=None)

    @property
    def varies(self) -> float:
        """Share of the peak by which those of steps of one run differ, at most."""
        return max((one.varies for one in self.usual), default=0.0)

    def peaks(self) -> Curve:
        """Of bytes in tensors."""
        measured = {one.value: float(one.peak_bytes or 0) for one in self.usual}
        told = {one.value: one.moments for one in self.usual if one.moments}
        noise = PEAK._replace(miss=max(PEAK.miss, self.varies))
        return Highest(measured, noise, moments=told, varies=self.varies)

    def reserved(self) -> Curve:
        """Of bytes that the allocator, or the process, reserved."""
        noise = RESERVED if self.device == "cuda" else RESIDENT
        measured = {one.value: float(one.reserved_bytes) for one in self.usual if one.reserved_bytes}
        return Above(measured, noise, below=self.peaks())

    def times(self) -> Curve:
        """Of ms a step."""
        return Curve({one.value: one.step_ms for one in self.measured if one.step_ms}, TIME)


def fit(folder: Path, request: FitRequest, listener: Listener) -> Fit:
    """Make the runs in a new folder, and write `fit.json` there.

    On Ctrl-C what is known is returned, with `complete` false. Raises CommandError, CommandFailed where the command
    itself fails, NothingMeasured, RecordError, Interrupted where nothing is known yet.
    """
    find_program(request.command, request.cwd)
    new_folder(folder)
    new_folder(folder / "runs")
    adopt_orphans()
    search = _Search(folder, request, listener, environment(request.cwd))
    search.go()
    if not search.known.measured:
        raise search.failure()
    found = search.result()
    write_record(folder / FIT_FILE, found)
    return found


class _Search:
    """Runs, one after another, until enough is known or the budget is spent."""

    def __init__(self, folder: Path, request: FitRequest, listener: Listener, machine: Environment) -> None:
        self.folder, self.request, self.listener, self.machine = folder, request, listener, machine
        self.known = Known()
        self.begun = time.monotonic()
        self.incomplete = ""

    def go(self) -> None:
        """Make the runs."""
        try:
            while (value := next_value(self.request, self.known)) is not None:
                longest = max((one.wall_s for one in self.known.runs), default=0.0)
                if self.known.runs and self._left() < MARGIN * longest:
                    self.incomplete = f"the budget left no run with {self.request.option.name} {value}"
                    break
                self._run(value)
                if len(self.known.runs) == 1 and self.known.runs[0].outcome not in ("measured", "memory"):
                    break
        except KeyboardInterrupt:
            self.incomplete = INTERRUPTED

    def _left(self) -> float:
        return self.request.budget_s - (time.monotonic() - self.begun)

    def _run(self, value: int) -> None:
        request, number = self.request, len(self.known.runs)
        name = f"{request.option.name} {value}"
        plan = RunPlan(
            command=request.option.put(request.command, value),
            folder=new_folder(self.folder / "runs" / f"{number:03d}"),
            environment=self.machine,
            steps=request.steps,
            seconds=SECONDS,
            least_steps=min(request.steps, LEAST_STEPS),
            seed=SEED,
            memory=True,
            every_step=False,
            cwd=request.cwd,
        )
        self.listener.trial("fit", name)
        timeout_s = max(LEAST_TIMEOUT_S, self._left())
        begun = time.monotonic()
        ended = run_alone(plan, self.listener, timeout_s)
        outcome, why, told = read_outcome(plan.folder, ended, timeout_s)
        run = RunFolder(plan.folder)
        peak, reserved = (None, None) if outcome in ("memory", "crashed", "timeout") else peak_of(run)
        if peak is None and outcome in ("measured", "too few steps"):
            outcome, why = "too few steps", why or "no memory was recorded of a step"
        self._learn(run.facts if peak is not None else None)
        made = FitRun(
            value=value,
            outcome="measured" if peak is not None else outcome,
            why=why,
            folder=str(plan.folder.relative_to(self.folder)),
            peak_bytes=peak,
            reserved_bytes=reserved,
            step_ms=told.get("step_ms"),
            moments=moments_of(run),
            varies=max((varies(window) for window in windows_of(run)), default=0.0),
            unusual=unusual(run) if peak is not None else "",
            wall_s=time.monotonic() - begun,
        )
        self.known.runs.append(made)
        took = f"  {peak / 2**30:.2f} GiB  {ms(made.step_ms)} a step" if peak is not None else f"  {outcome}: {why}"
        self.listener.result(f"{name}{took}")

    def _learn(self, facts: Facts | None) -> None:
        if facts is None:
            return
        known = self.known
        known.device = "cuda" if facts.memory is not None else "cpu"
        known.device_name = (facts.device_name if facts.memory is not None else None) or "this machine's memory"
        memory = facts.memory.total_bytes if facts.memory is not None else int(self.machine.memory_gib * 2**30)
        known.total_bytes = memory

    def failure(self) -> Exception:
        """Why nothing is known."""
        if self.incomplete == INTERRUPTED:
            return Interrupted("interrupted before anything was measured")
        last = self.known.runs[-1]
        tail = f" (see {RunFolder(self.folder / last.folder).output})"
        name = self.request.option.name
        if last.outcome == "memory":
            return CommandFailed(f"the command runs out of memory with {name} {last.value} too: {last.why}{tail}")
        if last.outcome in ("crashed", "timeout", "refused"):
            return CommandFailed(f"the command fails with {name} {last.value}: {last.why}{tail}")
        return NothingMeasured(f"{name} {last.value}: {last.why}{tail}")

    def result(self) -> Fit:
        """What the runs let one say."""
        request, known = self.request, self.known
        return fit_of(known, request, self.machine, self.incomplete, time.monotonic() - self.begun)


def peak_of(run: RunFolder) -> tuple[int | None, int | None]:
    """Bytes in tensors at the peak, and bytes that were reserved, of the rank with the most; None where not known.

    On CUDA both are torch's allocator's since the process began. On a CPU the first is of what operations returned, in
    a steady step; the second the process's resident memory. Raises RecordError.
    """
    found = [_rank_peak(rank, facts) for rank in run.observed if (facts := rank.facts) is not None]
    peaks = [peak for peak, _ in found if peak]
    return max(peaks, default=None), max((reserved for _, reserved in found if reserved), default=None)


def _rank_peak(rank: RankFolder, facts: Facts) -> tuple[int | None, int | None]:
    if facts.mode == "train" and facts.optimizers and facts.optimizer_steps < LEAST_UPDATES:
        return None, None
    if facts.memory is not None:
        return facts.memory.peak_bytes, facts.memory.peak_reserved_bytes
    window = rank.memory("steady")
    return (usage(window).peak_bytes if window is not None else None), facts.peak_rss_bytes


def moments_of(run: RunFolder) -> dict[str, Moments]:
    """The most bytes at each moment of a steady step, of the rank with the most. Raises RecordError."""
    return max(map(moments, windows_of(run)), key=most, default={})


def windows_of(run: RunFolder) -> list[MemoryWindow]:
    """Of the ranks, the steady steps. Raises RecordError."""
    return [window for rank in run.observed if (window := rank.memory("steady")) is not None]


def unusual(run: RunFolder) -> str:
    """Why the peak of a run may not be a training step's: an evaluation ran in one that was looked at; "" where it is.

    One without `eval` and `no_grad` shows by the rows of its step. Raises RecordError."""
    for rank in run.observed:
        facts, steps = rank.facts, list(rank.steps)
        window = None if facts is not None and facts.memory is not None else rank.memory("steady")
        seen = [one for one in steps if window is None or 0 <= one.step - window.first_step < window.steps]
        if window is None and facts is not None:
            raised = [one for one in facts.raised if one.kind == "evaluation" and one.memory == "device"]
            if raised:
                return f"an evaluation raised it by {max(one.peak_bytes - one.training_bytes for one in raised)} bytes"
        elif any(one.evaluation for one in seen) and not all(one.evaluation for one in steps):
            return "an evaluation ran in a step that was looked at"
        rows = [one.samples for one in steps if one.samples]
        most = max((one.samples or 0 for one in seen), default=0)
        if rows and most > MANY_ROWS * median(rows):
            return f"a step had {most} rows, others {median(rows):.0f}: an evaluation may have run in it"
    return ""


def next_value(request: FitRequest, known: Known) -> int | None:
    """The value of the next run; None where the runs tell enough, or no other would tell more."""
    tried = {one.value for one in known.runs}
    if request.measured:
        return next((one for one in request.measured if one not in tried), None)
    own, measured = request.option.value, [one.value for one in known.measured]
    limit = known.too_large or math.inf
    if len(tried) >= MOST:
        return None
    if not tried:
        return own
    if not measured:
        return min(tried) // 2 or None
    top = min(max(*request.wanted, own), limit - 1)
    base = max((one for one in measured if one <= own), default=measured[-1])
    if len(measured) < ENOUGH:
        smaller = [base // 2, base // 4, base * 3 // 4]
        wanted = [base * 2, *smaller, base * 4, base * 3 // 2]
    else:
        last = measured[-1]
        if known.peaks().settled and top <= NEAR * last:
            return None
        wanted = [one for one in (last * FARTHER,) if one <= top / 2] + [last * 2, (measured[-2] + last) // 2]
    return next((one for one in wanted if 0 < one <= top and one not in tried), None)


def fit_of(known: Known, request: FitRequest, machine: Environment, incomplete: str, wall_s: float) -> Fit:
    """What is predicted from what is known."""
    own, peaks, reserved, times = request.option.value, known.peaks(), known.reserved(), known.times()
    values = sorted({*(one.value for one in known.runs), *request.wanted})
    cuda = known.device == "cuda"
    outside = CONTEXT_BYTES if cuda else HOST_BYTES
    here = _Card(known.device_name, known.total_bytes, outside, peaks, reserved, known.too_large)
    others = [_Card(name, size, CONTEXT_BYTES, peaks, reserved if cuda else None) for name, size in request.cards]
    exact = {one.value: one for one in known.measured}
    return Fit(
        command=request.command,
        option=request.option.name,
        own=own,
        device=known.device,
        shape=peaks.shape,
        runs=tuple(known.runs),
        values=tuple(
            FitValue(
                value=value,
                measured=value in exact,
                peak=_exactly(exact[value].peak_bytes) if value in exact else peaks.at(value),
                reserved=_exactly(exact[value].reserved_bytes) if value in exact else reserved.at(value),
                step_ms=times.at(value),
                fits="yes" if value in exact else here.verdict(value),
            )
            for value in values
        ),
        device_card=here.told(values, max(exact)),
        cards=tuple(card.told(values) for card in others),
        predicted_to=FARTHEST * peaks.last,
        notes=tuple(_notes(known, request)),
        complete=not incomplete,
        why_incomplete=incomplete,
        wall_s=wall_s,
        environment=machine,
    )


def _exactly(measured: int | None) -> Range | None:
    return None if measured is None else Range(low=measured, likely=measured, high=measured)


@dataclass(frozen=True)
class _Card:
    """A device. outside: bytes that tensors can't have. reserved: None where runs on another kind of device don't tell.
    too_large: with this value and larger ones memory ran out here."""

    name: str
    total: int
    outside: int
    peaks: Curve
    reserved: Curve | None
    too_large: int | None = None

    @cached_property
    def usable(self) -> int:
        """Bytes."""
        return max(0, self.total - self.outside)

    def verdict(self, value: int) -> Verdict:
        """Whether a value fits."""
        if self.too_large is not None and value >= self.too_large:
            return "no"
        peak, reserved = self.peaks.at(value), self.reserved.at(value) if self.reserved is not None else None
        if peak is not None and peak.low > self.usable:
            return "no"
        most = peak if self.reserved is None else reserved
        if most is None or most.high is None or most.high > self.usable:
            return "maybe"
        return "tensors" if self.reserved is None else "yes"

    def told(self, values: Sequence[int], fitted: int = 0) -> FitCard:
        """What fits. fitted: a value that was run here."""
        _, most = self.peaks.largest(self.usable)
        sure, _ = (self.reserved or self.peaks).largest(self.usable)
        if self.too_large is not None:
            most = min(self.too_large - 1, most or self.too_large - 1)
        if sure is not None:
            sure = max(sure, fitted) if most is None else max(min(sure, most), fitted)
        return FitCard(
            name=self.name,
            memory_bytes=self.total,
            usable_bytes=self.usable,
            largest=sure,
            at_most=most if most is None else max(most, fitted),
            tensors_only=self.reserved is None,
            fits=tuple("yes" if fitted and value == fitted else self.verdict(value) for value in values),
        )


def _notes(known: Known, request: FitRequest) -> list[str]:
    """What the numbers do not tell."""
    name, peaks = request.option.name, known.peaks()
    notes: list[str] = []
    span = f"between {name} {min(peaks.measured)} and {peaks.last}" if peaks.measured else ""
    notes += [
        f"the peak of {name} {one.value} is left out of what is predicted: {one.unusual}"
        for one in known.measured
        if one not in known.usual
    ]
    if known.varies >= NOTABLE:
        notes.append(
            f"peaks of steps differ by {known.varies:.0%} in one run, as where lengths do: longer ones take more"
        )
    if known.device != "cuda":
        notes.append(
            "of a run on the CPU: the results of operations. What a GPU's kernels take as workspace is not in it, nor "
            "CUDA's context"
        )
    if peaks.shape == "flat":
        notes.append(
            f"{name} did not change the peak {span}: either it has no effect, or something else sets the peak so far, "
            "as the optimizer's update does. Larger values take at least as much; run one with --measure"
        )
    elif peaks.shape == "falling":
        notes.append(f"memory falls with {name} {span}: smaller values take more")
    elif peaks.shape == "unclear":
        notes.append(
            f"memory grows along no line {span}, and no model predicted the last run; give more of them with --measure"
        )
    elif peaks.shape == "unknown":
        notes.append("fewer than three runs were measured, so nothing shows that memory grows along a line")
    if any(one > FARTHEST * peaks.last for one in request.wanted):
        notes.append(
            f"beyond {FARTHEST} times the largest value that was measured, {peaks.last}, only `at least` is said"
        )
    notes.append("evaluations, checkpoints and larger batches that come later than these steps may take more")
    return notes
