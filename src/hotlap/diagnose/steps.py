"""Numbers from the steps of a rank: which are steady, how long one takes, where its time goes."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Literal, TypeVar

import numpy as np

from hotlap.records.diagnosis import Clock, Spread
from hotlap.records.phases import PHASES
from hotlap.records.run import Facts, Phases, Step
from hotlap.records.steady import counted, own_pace, steady_start

T = TypeVar("T")
BLOCKS = 8
SIXTHS, LEAST_OF_A_SIXTH, GROWN, AGAINST, JUMP = 6, 5, 4 / 3, 2, 0.3
LEAST_BLOCK = 8
MOST_WITHOUT = 0.1
"""Of the steps that take no batch of a loader that the loop reads ahead of."""
KEEPS_UP = 0.9
"""Where the host's time is less than this of the device's over the same steps, the host runs ahead of the device."""
BURST, EVEN = 0.5, 0.9
"""So does a host whose typical step takes less than BURST of its mean, where the device's takes EVEN of its mean: it
issues many steps at once, which are then queued, and waits for a value of the last."""
MOSTLY = 0.9
"""Of the steps must be known what they took on the device. (Of the last few of a run it never is.)"""


@dataclass(frozen=True)
class SteadySteps:
    """The steps that numbers rest on. steps: steady ones; warmup: how many came before; settled: the rule held;
    evaluations: how many steps after warm-up are not among them since an evaluation ran inside, and evaluating: what
    share of the time since warm-up these took; compiling: what share those in which something was compiled did. Steps
    in which hotlap itself looked count in neither."""

    steps: tuple[Step, ...]
    seen: int
    warmup: int
    settled: bool
    mode: str
    period: int
    evaluations: int = 0
    evaluating: float = 0.0
    compiling: float = 0.0

    @property
    def host_ahead(self) -> bool:
        """Whether the host issued these steps faster than the device did them, as it can until its queue is full.

        Its clock then shows how long issuing takes, and only the device's how long a step does. Where the two keep pace
        they show the same over many steps.
        """
        known = [step.gpu_ms for step in self.steps if step.gpu_ms is not None]
        if not known or len(known) < MOSTLY * len(self.steps):
            return False
        walls = [step.wall_ms for step in self.steps]
        return fmean(walls) < KEEPS_UP * fmean(known) or self._bursts(walls, known)

    def _bursts(self, walls: list[float], device: list[float]) -> bool:
        queued = [step.backlog_ms for step in self.steps if step.backlog_ms is not None]
        if not queued or median(queued) <= median(device):
            return False
        return median(walls) < BURST * fmean(walls) and median(device) >= EVEN * fmean(device)

    @property
    def times(self) -> list[float]:
        """Ms of the steps: on the host's clock, on the device's where the host runs ahead, of those that know it."""
        return [ms for _, ms in self.numbered]

    @property
    def numbered(self) -> list[tuple[int, float]]:
        """The number of each such step, and its ms."""
        clock = self.clock
        return [(step.step, ms) for step in self.steps if (ms := on_clock(step, clock)) is not None]

    @property
    def clock(self) -> Clock:
        """Whose clock shows the steps' true pace."""
        return "device" if self.host_ahead else "host"


def on_clock(step: Step, clock: Clock) -> float | None:
    """Ms of a step on that clock; None where that is the device's, and it is not known. The host's may then be that of
    a wait for many steps."""
    return step.gpu_ms if clock == "device" else step.wall_ms


def of_mode(steps: Sequence[Step]) -> tuple[str, list[Step]]:
    """Training steps if there are any, else inference steps: a script may run its model before it trains it."""
    training = [step for step in steps if step.kind == "train"]
    if training:
        return "train", training
    return ("inference", list(steps)) if steps else ("none", [])


def steady_steps(steps: Sequence[Step], facts: Facts | None) -> SteadySteps:
    """Choose the steady steps: after warm-up, without those that compiled, were probed, or held an evaluation, unless
    most do (`records.steady.counted`)."""
    mode, chosen = of_mode(steps)
    in_flight = facts.in_flight if facts else 0
    walls = [step.wall_ms for step in chosen]
    disturbed = [bool(step.compiles or step.probe) for step in chosen]
    start = steady_start(walls, disturbed, in_flight)
    starved = [step.starved for step in chosen]
    if start:
        first = own_pace(walls, disturbed, starved, start.start, in_flight)
    else:
        first = min(len(chosen) - 1, max(1, len(chosen) // 2)) if chosen else 0
    later = chosen[first:]
    looked_at = [step.phases is not None for step in later]
    counts = counted(disturbed[first:], [step.evaluation for step in later], looked_at)
    kept = [step for step, counts_too in zip(later, counts, strict=True) if counts_too] or later
    own = [step for step in later if not step.probe]  # others hold what hotlap did, as writing a trace
    evaluations = [] if any(step.evaluation for step in kept) else [step for step in own if step.evaluation]
    fed = [loader for loader in facts.loaders if loader.training or mode == "inference"] if facts else []
    period = max((loader.workers for loader in fed), default=1)
    whole = max(sum(step.wall_ms for step in own), 1e-9)
    share = sum(step.wall_ms for step in evaluations) / whole
    compiling = sum(step.wall_ms for step in own if step.compiles) / whole
    settled = bool(start and start.settled) and not (facts and facts.draining)
    return SteadySteps(
        tuple(kept), len(chosen), first, settled, mode, max(1, period), len(evaluations), share, compiling
    )


def step_time(walls: Sequence[float], period: int = 1) -> float:
    """Ms a step: the median over blocks of consecutive steps of the block's mean.

    A plain median would lie where steps come in bursts (a loader with w workers delivers w batches at once, then
    none, and some loops do heavy work every few steps), so a block is never shorter than `period` or LEAST_BLOCK where
    there are steps enough; a plain mean would let one hiccup of a shared machine decide.
    """
    return median(block_means(walls, period)) if walls else math.nan


def block_means(walls: Sequence[float], period: int = 1) -> list[float]:
    """Ms a step in each block of consecutive steps."""
    length = block_length(len(walls), period)
    return [fmean(walls[at : at + length]) for at in range(0, len(walls) - length + 1, length)]


def growth(steps: Sequence[tuple[int, float]], known: bool = False) -> tuple[float, float, int] | None:
    """Of steps that take longer and longer, each with its number and ms: ms of the first and of the last sixth, and how
    many steps lie between their middles. None where they do not: the last sixth is the longest, a third longer than the
    first; of the pairs of sixths two at most are in the other order, as chance has them once in fifty times; and no
    single jump is larger by JUMP of the growth than the steps that lie between, of which a profile may hold many,
    account for, as where layers are unfrozen. known: something is seen to grow; then the last sixth may not be the
    longest, one more pair in the other order, and a jump larger, as on a machine whose pace varies."""
    size = len(steps) // SIXTHS
    if size < LEAST_OF_A_SIXTH:
        return None
    sixths = [steps[at * size : (at + 1) * size] for at in range(SIXTHS)]
    middles = [median(ms for _, ms in sixth) for sixth in sixths]
    numbers = [median(number for number, _ in sixth) for sixth in sixths]
    against = sum(two <= one for one, two in itertools.combinations(middles, 2))
    grown, passed = middles[-1] - middles[0], numbers[-1] - numbers[0]
    if middles[-1] < GROWN * middles[0] or against > AGAINST + known or (middles[-1] < max(middles) and not known):
        return None
    jumps = ((two - one) / grown for one, two in itertools.pairwise(middles))
    waits = ((two - one) / passed for one, two in itertools.pairwise(numbers))
    if not known and any(jump - wait > JUMP for jump, wait in zip(jumps, waits, strict=True)):
        return None
    return middles[0], middles[-1], round(passed)


def block_length(steps: int, period: int = 1) -> int:
    """Steps in a block."""
    return max(1, steps // BLOCKS, min(max(period, LEAST_BLOCK), steps // 3))


def micro_batches(steps: Sequence[Step]) -> tuple[float, float] | None:
    """Losses that go backward in a step, where there are several, and rows of each; medians."""
    known = [(len(step.losses), step.samples / len(step.losses)) for step in steps if step.losses and step.samples]
    return (median(times for times, _ in known), median(rows for _, rows in known)) if known else None


def rows_of(steps: Sequence[Step]) -> float | None:
    """Rows of a step, median."""
    known = [step.samples for step in steps if step.samples]
    return median(known) if known else None


def spread(walls: Sequence[float]) -> Spread:
    """Deciles of the step times, ms."""
    low, middle, high = (float(x) for x in np.quantile(walls, (0.1, 0.5, 0.9)))
    return Spread(p10=low, p50=middle, p90=high)


def mean_phases(steps: Sequence[Step], of: Literal["phases", "gpu_phases", "gpu_paced"]) -> Phases | None:
    """Mean ms in each phase over the steps that know them, by how many each stands for; None where no step does."""
    known = standing([getattr(step, of) for step in steps])
    if not known:
        return None
    total = sum(times for _, times in known)
    sums = {name: sum(times * (getattr(row, name) or 0.0) for row, times in known) for name in PHASES}
    return Phases(**{name: value / total for name, value in sums.items()})


def longer_in(sides: Sequence[Sequence[Step]]) -> tuple[str, float]:
    """The phase that is longer by most in the second of two stretches of steps, and by how many ms; "" not known."""
    before, after = (mean_phases(side, "gpu_phases") or mean_phases(side, "phases") for side in sides)
    if before is None or after is None:
        return "", 0.0
    more = {name: (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0) for name in PHASES}
    phase = max(more, key=lambda name: more[name])
    return phase, more[phase]


def phases_of_all(steps: Sequence[Step], step_ms: float) -> Phases:
    """A step's host time as that of all steps is divided: each that was looked at stands with its shares for the time
    of those that it stands for, so that one long step among them is not taken for many."""
    sums, passed = dict.fromkeys(PHASES, 0.0), 0.0
    known = standing([step.phases for step in steps])
    walls = iter(step.wall_ms for step in steps)
    for row, times in known:
        stood, whole = sum(islice(walls, times)), sum(getattr(row, name) or 0.0 for name in PHASES)
        for name in PHASES if whole else ():
            sums[name] += stood * (getattr(row, name) or 0.0) / whole
        passed += stood if whole else 0.0
    return Phases(**{name: step_ms * value / passed if passed else 0.0 for name, value in sums.items()})


def standing(rows: Sequence[T | None]) -> list[tuple[T, int]]:
    """What is known, each with how many steps it stands for: its own and those before it of which it is not known, the
    last one for those after it too. So steps that were all looked at weigh no more than those of which one in many was.
    """
    known: list[tuple[T, int]] = []
    before = 0
    for row in rows:
        before += 1
        if row is not None:
            known.append((row, before))
            before = 0
    if known and before:
        known[-1] = known[-1][0], known[-1][1] + before
    return known


def mean_known(values: Sequence[float | None]) -> float | None:
    """Mean of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def throughput(steady: SteadySteps, from_loader: bool = False) -> float | None:
    """Rows a second, None unless every step that was looked at knows its rows.

    from_loader: rows are of the batches that a loader delivers. Then a step now and then may have none: a loop that
    takes its batches ahead takes none in an epoch's last step and two in the next one's first.
    """
    return _rate([(step.phases, step.samples) for step in steady.steps], steady, MOST_WITHOUT if from_loader else 0)


def token_rate(steady: SteadySteps) -> float | None:
    """Tokens a second, None unless every step that was looked at knows its tokens."""
    return _rate([(step.phases, step.tokens) for step in steady.steps], steady, 0)


def _rate(told: Sequence[tuple[Phases | None, int | None]], steady: SteadySteps, most_without: float) -> float | None:
    """What the steps do a second at the pace that is told of them, by phases and number of each. most_without: share of
    them that need not know it."""
    looked_at = standing([one if one[0] is not None else None for one in told])
    missing = sum(one[1] is None for one, _ in looked_at)
    if not looked_at or missing > most_without * len(looked_at):
        return None
    took_ms = len(steady.steps) * step_time(steady.times, steady.period)
    return 1000 * sum(times * (one[1] or 0) for one, times in looked_at) / took_ms if took_ms else None
