"""What is run one by one in a Python loop though none needs what the others make, small operations in place of large
ones: modules of one shape, as the members of an ensemble; a recurrent net, for one time after another."""

import ast
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import FramedLine, Lines, place_in
from hotlap.records.trace import RankTrace
from hotlap.trace.findings._base import idle, total

from .causes import Cause
from .source import COMPREHENSIONS, called_in, loops_at, statement_at
from .statements import of_all_times, with_text

FEWEST: Final = 4
"""Of them that need nothing that the others make."""
MOSTLY: Final = 0.9
"""Of the time of such products below the loop, that of those of which so many don't."""
LEAST: Final = 0.1
"""Of the step."""
SMALL_NS: Final = 50_000
"""Of an op on the CPU, in the mean, up to which to issue it takes a notable part."""
WAITS: Final = (("launch", "launch"), ("host-code", "python"))
"""Findings of a device that waits, and their causes of idle time."""
TRAINS: Final = {"backward", "step"}
SIBLINGS: Final = Cause(
    "one-by-one",
    "modules of one shape run one by one in a Python loop",
    "none needs the others' results, yet each layer of each one is separate small operations, which take longer "
    "to issue than to compute",
    "stack their weights and use one batched product a layer: `torch.baddbmm(b, x, w)` with w of (n, in, out), "
    "b of (n, 1, out) and x of (n, rows, in) (for the same input `x.expand(n, -1, -1)`); without rewriting: "
    "`params, buffers = torch.func.stack_module_state(models)` for the optimizer too, and `torch.vmap` of "
    "`torch.func.functional_call`; heads with the same input: one layer n times as wide; convolutions: "
    "`groups=n`",
    "launch",
)
STEPWISE: Final = Cause(
    "time-by-time",
    "a recurrent net is called once for each time of a sequence",
    "all inputs are there before the first call; each call is small operations of its own, forward and backward, and "
    "so is what comes before and after it for one time",
    "once with all times, `{it}`, in place of the loop: an `nn.LSTM`, `nn.GRU` or `nn.RNN` goes through them by "
    "itself, and heads and losses of all times are one call each, as `F.cross_entropy(scores.flatten(0, 1), "
    "targets.flatten())`; keep the loop only for steps whose input is made of the last output",
    "launch",
)
SAMPLEWISE: Final = Cause(
    "sample-by-sample",
    "a model is run sample by sample in a Python loop",
    "none of these calls needs what another made; each is small operations of its own, forward and backward, which "
    "take longer to issue than to compute",
    "the whole batch in one call: drop the loop where samples have one shape; pad others, "
    "`pad_sequence(samples, batch_first=True)`, and mask what was padded in means and sums; graphs and sets also as "
    "one long batch of all their rows, `torch.cat(samples)`, summed back with `index_add_` by the sample's number",
    "launch",
)
OF_INPUTS: Final = Cause(
    "inputs-one-by-one",
    "products that no other turn needs are made turn by turn in a loop",
    "they need nothing that the loop makes, or the loop nothing that they make; each is small operations of its own, "
    "forward and backward",
    "of inputs one Linear before the loop, `rows = layer(x)`, and `rows[:, t]` in it; of scores one after it, "
    "`layer(torch.stack(states))`; the loop keeps what needs its last turn's result. An `nn.LSTM` or `nn.GRU` does so "
    "by itself",
    "launch",
)


class Loop(NamedTuple):
    """At a line, with the first and last of its lines. inline: a comprehension, whose statement holds more."""

    where: Place
    first: int
    last: int
    inline: bool = False

    @property
    def lines(self) -> tuple[str, int, int]:
        """By which it is known, whichever of them leads to what is called."""
        return self.where.file, self.first, self.last


class Products(NamedTuple):
    """At a line: how many at once, their part of the line's, and the frames below the loop."""

    where: Place
    times: int
    part: float
    below: Sequence[Place]

    def holds(self, at: Place) -> bool:
        """Whether a line is in a function that is called for them."""
        return any((at.file, at.function) == (one.file, one.function) for one in self.below)


def one_by_one(rank: RankTrace, findings: Sequence[Finding], lines: Lines | None, step_ms: float) -> Iterator[Finding]:
    """The loop that takes most: over times, else over samples, else over members; with its part of those findings that
    only say where this time goes."""
    if lines is None:
        return
    on_device, known = rank.device_name != "cpu", set[tuple[str, int, int]]()
    kinds = (
        (STEPWISE, lines.stepwise, "calls a step, each for one time"),
        (SAMPLEWISE, lines.samplewise, "calls a step with the same weights"),
        (SIBLINGS, lines.siblings, "products of one shape, each with its own weights, called from this loop"),
    )
    of_inputs: list[Products] = []
    for cause, rows, what in kinds:
        found = []
        for loop, products in _loops(lines, rows).items():
            wide = [one for one in products if one.times >= FEWEST]
            took = [sum(one.part * _ns(rank, one.where) for one in those) for those in (wide, products)]
            if not wide or took[0] < MOSTLY * took[1] or loop.lines in known:
                of_inputs += wide if cause is SAMPLEWISE and loop.lines not in known else ()
                continue
            # On the CPU a net's cells are computed one after another in one call too.
            cells = {(one.where.file, one.where.line) for one in wide} if cause is STEPWISE and not on_device else set()
            inside = functools.partial(_inside, loop, wide, cells)
            share = _waits(rank, findings, inside) if on_device else _computes(rank, findings, inside)
            found.append((share, max(one.times for one in wide), loop))
        most = max(found, key=lambda one: one[0], default=None)
        if most is not None and most[0] >= LEAST:
            share, times, loop = most
            told = with_text(cause, of_all_times(loop.where)) if cause is STEPWISE else cause
            said = f"{times} {what}; {_took(share * step_ms, cause, on_device)}"
            yield told.finding(share, loop.where, said, share * step_ms)
            return
        known |= {one.lines for _, _, one in found}
    yield from _of_inputs(rank, findings, of_inputs, on_device, step_ms)


def _of_inputs(
    rank: RankTrace, findings: Sequence[Finding], products: Sequence[Products], on_device: bool, step_ms: float
) -> Iterator[Finding]:
    """Those of a loop whose other products need its last turn, at the line that takes most."""
    parts: defaultdict[tuple[str, int | None], float] = defaultdict(float)
    for one in products:
        parts[one.where.file, one.where.line] += one.part

    def inside(at: Place | None) -> float:
        return min(1.0, parts.get((at.file, at.line), 0.0)) if at is not None else 0.0

    share = _waits(rank, findings, inside) if on_device else _computes(rank, findings, inside)
    if products and share >= LEAST:
        most = max(products, key=lambda one: one.part * _ns(rank, one.where))
        said = f"{most.times} calls a step with the same weights, none of which needs another"
        yield OF_INPUTS.finding(
            share, most.where, f"{said}; {_took(share * step_ms, OF_INPUTS, on_device)}", share * step_ms
        )


def _took(took_ms: float, cause: Cause, on_device: bool) -> str:
    if on_device:
        return f"the device waits {ms(took_ms)} of the step for what it calls"
    if cause is STEPWISE:
        return f"one call of all times saves at most {ms(took_ms)} of the step"
    return f"{ms(took_ms)} of the step goes to what it calls"


def _inside(
    loop: Loop, products: Sequence[Products], but: Collection[tuple[str, int | None]], at: Place | None
) -> float:
    """Of what a line does, the part that is called from a loop, as far as its products tell. but: lines that aren't."""
    if at is None or (at.file, at.line) in but:
        return 0.0
    if at.file == loop.where.file and loop.first <= (at.line or 0) <= loop.last:
        return 1.0
    parts = {one.where.line: one.part for one in products if one.holds(at)}
    return parts.get(at.line, min(parts.values(), default=0.0))


def _waits(rank: RankTrace, findings: Sequence[Finding], inside: Callable[[Place | None], float]) -> float:
    """Share of the step that a device waits for launches, or for Python, of what lies inside."""
    share = 0.0
    for id_, cause in WAITS:
        gaps = idle(rank, cause)
        general = sum(one.share for one in findings if one.id == id_ and not one.named)
        share += general * sum(inside(one.where) * one.idle_ns for one in gaps) / max(1, total(gaps))
    return share


def _computes(rank: RankTrace, findings: Sequence[Finding], inside: Callable[[Place | None], float]) -> float:
    """Share of the step on the CPU, 0 of operations that are too large to be limited by being issued."""
    rows = [(inside(row.where) * row.ns, row) for row in rank.model if row.where is not None]
    count = sum(row.count for ns, row in rows if ns and "::" in row.name)
    general = sum(one.share for one in findings if one.id == "compute" and not one.named)
    ns = sum(ns for ns, _ in rows)
    return general * ns / max(1, sum(row.ns for row in rank.model)) if ns <= SMALL_NS * count else 0.0


def _ns(rank: RankTrace, at: Place) -> int:
    return sum(row.ns for row in rank.model if row.where and (row.where.file, row.where.line) == (at.file, at.line))


def _loops(lines: Lines, rows: Sequence[FramedLine]) -> dict[Loop, list[Products]]:
    """By loop, the products, or calls, that it leads to."""
    found: defaultdict[Loop, list[Products]] = defaultdict(list)
    ends = [lines.places[one] for one in ("backward", "optimizer") if one in lines.places]
    trains = TRAINS | {function.rpartition(".")[2] for *_, function in ends}
    of_the_step = {(lines.files[file], function) for file, _, function in ends if file < len(lines.files)}
    for *_, times, part, of in rows:
        if not of or max(frame[0] for frame in of) >= len(lines.files):
            continue
        frames = [place_in(lines.files, frame) for frame in of]
        begin = max((at for at, one in enumerate(frames) if (one.file, one.function) in of_the_step), default=0)
        for at, frame in enumerate(frames[begin:], begin):
            if (loop := _loop(frame, trains)) is not None:
                below = frames[at + 1 :]
                if below or times >= FEWEST or not loop.inline:
                    found[loop].append(Products(frames[-1], times, part, below))
                break
    return found


def _loop(place: Place, trains: set[str]) -> Loop | None:
    """The outermost loop around a line, in its function, that is none over steps. trains: names of calls in these."""
    own = statement_at(place)
    around = [one for one in loops_at(place) if not called_in(one) & trains]
    if around:
        return Loop(place, around[-1].lineno, around[-1].end_lineno or around[-1].lineno)
    if own is None or hasattr(own, "body") or not any(isinstance(one, COMPREHENSIONS) for one in ast.walk(own)):
        return None
    return Loop(place, own.lineno, own.end_lineno or own.lineno, inline=True)
