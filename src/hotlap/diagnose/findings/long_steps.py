"""Some steps take much longer than the others, in the loop's own code."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import Step
from hotlap.records.steady import FAR_LONGER

from ._base import LongSteps, Measured
from .host_code import WITHOUT_A_PROFILE

LEAST = 0.1
"""Of all steps' time, what long ones take beyond that of the others."""
MOST = 0.2
"""Of the steps: where more of them are long, they are not the exception."""
REGULAR = 0.8


def find(measured: Measured) -> Finding | None:
    """Share: what the long steps take beyond the others' time, of all steps' time."""
    long = measured.long
    if long is None:
        return None
    which = f"one step in {long.every}" if long.every else "a step now and then"
    return Finding(
        id="long-steps",
        bound="unknown",
        share=long.share,
        cost_ms=long.share * measured.step_ms,
        title=f"{which} takes {long.long_ms / long.usual_ms:.0f} times as long",
        evidence=f"{len(long.steps)} steps take {ms(long.long_ms)} on average, the others {ms(long.usual_ms)}: "
        f"{long.share:.0%} of the time; phases and other findings leave them out",
        why=f"the loop does something only then, such as an evaluation, a checkpoint or a rollout; {WITHOUT_A_PROFILE}",
        instead="make it cheaper, do it less often, or run it in another thread or process",
        named=True,
    )


def _took_ms(step: Step, clock: str) -> float | None:
    """On the host's clock no more than on the device's: what the host waits for in one step, it was ahead by before."""
    known = [took for took in (step.gpu_ms, step.wall_ms if clock == "host" else None) if took is not None]
    return min(known, default=None)


def long_of(steps: Sequence[Step], clock: str) -> LongSteps | None:
    """The long ones among steady steps; None where they take little, or where what they take more is not of the loop's
    own code, as far as that is known."""
    times = {one.step: took for one in steps if (took := _took_ms(one, clock)) is not None}
    usual = median(times.values()) if times else 0.0
    longer, least_ms = FAR_LONGER
    long = [one for one in steps if times.get(one.step, 0.0) > max(longer * usual, least_ms)]
    if not 2 <= len(long) <= MOST * len(times):
        return None
    numbers = frozenset(one.step for one in long)
    known = [one for one in long if one.phases is not None]
    others = [one.phases.other or 0.0 for one in steps if one.phases is not None and one.step not in numbers]
    more = [(one.phases.other or 0.0) - fmean(others) for one in known if one.phases is not None] if others else []
    beyond = sum(times[one.step] - usual for one in long)
    if beyond < LEAST * sum(times.values()) or not more:
        return None
    if sum(more) < sum(times[one.step] - usual for one in known) / 2:
        return None
    gap, count = Counter(two.step - one.step for one, two in pairwise(long)).most_common(1)[0]
    return LongSteps(
        steps=numbers,
        usual_ms=usual,
        long_ms=fmean(times[one.step] for one in long),
        share=beyond / sum(times.values()),
        every=gap if count >= REGULAR * (len(long) - 1) and len(long) > 2 else None,
    )
