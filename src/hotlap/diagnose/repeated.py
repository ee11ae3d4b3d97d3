"""What a step computes several times, though its input is the same each time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Lines

LEAST: Final = 0.2
"""Of what the machine leaves of the step, what all but the first take."""
Line = tuple[str, int | None]


class Repeated(NamedTuple):
    """A line at which the same is made several times. part: of what it makes, what was there before. call: the
    outermost call all of which is repeated."""

    line: Line
    times: int
    part: float
    call: Place


def of_lines(lines: Lines) -> Iterator[Repeated]:
    """As a profiled step has shown them."""
    for file, line, _, times, part, call, at, function in lines.repeats:
        if max(file, call) < len(lines.files):
            place = Place(file=lines.files[call], line=at, function=function)
            yield Repeated((lines.files[file], line), times, part, place)


def computed_again(
    costs: Mapping[Line, float], again: Sequence[Repeated], step_ms: float, left: float
) -> Iterator[Finding]:
    """By function. costs: share of the step that each line takes, its backward with it. left: share of the step that
    the model could have."""
    functions: defaultdict[tuple[str, str | None], dict[tuple[int, Place], float]] = defaultdict(dict)
    for one in again:
        calls = functions[one.call.file, one.call.function]
        at = one.times, one.call
        calls[at] = calls.get(at, 0.0) + costs.get(one.line, 0.0) * one.part
    for calls in functions.values():
        times, where = max(calls, key=lambda at: calls[at])
        if (took := min(1.0, sum(calls.values()))) >= LEAST * left:
            yield Finding(
                id="computed-again",
                bound="compute",
                share=took,
                cost_ms=took * step_ms,
                title="the same input goes through the same layers several times a step",
                where=where,
                evidence=f"{times:,} times a step with the same input and weights; all but the first take "
                f"{ms(took * step_ms)} a step, as far as a line's time goes by the numbers that it makes",
                why="what comes out is the same each time, and where it has a backward, that runs as often",
                instead="compute it once, before the loop, and pass the result on: keys and values of a memory once a "
                "sequence, an encoded set once a batch; what has gradients serves as `.detach()` where none are "
                "wanted; running averages of a BatchNorm then count it once",
                named=True,
            )
