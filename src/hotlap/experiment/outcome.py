"""What came of a run with some levers: measured, or why not, by its folder and by how it ended."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from hotlap.diagnose.diagnose import Rank, diagnose, read_ranks
from hotlap.diagnose.steps import step_time
from hotlap.launch.supervise import Ended
from hotlap.records.diagnosis import Place
from hotlap.records.errors import NothingMeasured
from hotlap.records.run import REFUSED, Lever, Step
from hotlap.records.tune import Outcome
from hotlap.records.whose import users
from hotlap.runs.folder import RunFolder
from hotlap.runs.plan import PACKAGE

from .watch import NONE, Spare, lacks_memory, left_out

EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(:|$)")
WITHIN: Final = re.compile(r"\): got (\w+\(.+\))$", re.MULTILINE)
"""The error that an op raised as it was traced by the compiler, whose own says nothing."""
CAUGHT: Final = re.compile(r"Caught \w+ in (DataLoader worker process \d+)\.$")
"""How torch raises again in the process that trains what was raised in a worker."""
FRAME: Final = re.compile(r'\s*File "(.+)", line (\d+), in (.+)')
CHILD: Final = re.compile(r"Process \S+:$")
"""What `multiprocessing` says of a process that an exception ended; the command itself may end with 0."""
STANDARD: Final = f"{Path(os.__file__).parent}{os.sep}"
HEAD: Final = "Traceback (most recent call last):"
MOST_LINES: Final = 400
"""Of output that are looked through for a traceback; those of the compiler are long."""
RANK: Final = re.compile(r"^\[(rank)?\d+\]:\s?")
"""What torchrun and torch put before the lines of a process."""
MOST_BELOW: Final = 40
"""Lines at the end of the output among which the error is that the command ended with."""
LEAST_STEADY: Final = 5
Reading = tuple[Outcome, str, dict[str, Any]]
"""What came of a run: outcome, why, and fields of its record."""


def read_outcome(folder: Path, ended: Ended | None, timeout_s: float, spare: Spare = NONE) -> Reading:
    """What came of a run: the numbers where it was measured, the lever that could not be put in where one was not.

    ended: None while it stands still after its steps. spare: levers that may leave themselves out. Raises RecordError.
    """
    refused = refusal_in(folder, left_out(folder, spare))
    if refused and refused[2]:  # whatever came of the rest, it was not run with that lever
        return refused
    if ended is not None and ended.timed_out:
        return "timeout", f"made too few steps within {timeout_s:.0f} s", {}
    failed = crash(folder, ended) if ended is not None else None
    if failed is not None:
        return failed
    if refused:
        return refused
    try:
        diagnose(folder)
    except NothingMeasured as error:
        return "too few steps", str(error), {}
    return _measure(folder)


def crash(folder: Path, ended: Ended) -> Reading | None:
    """Why a command ended that was not told to; None where it ended well."""
    if ended.out_of_memory:
        return "memory", "the machine ran out of host memory", {}
    output = _of_the_processes(RunFolder(folder).output_tail(MOST_LINES))
    if not (ended.code or ended.signal):
        # Processes that were in the middle of an exchange may raise once hotlap has ended the command.
        stopped = any(rank.facts is not None and rank.facts.stopped for rank in RunFolder(folder).ranks)
        if stopped or not any(map(CHILD.match, output)):
            return None
    tail = output[-MOST_BELOW:]
    last = error_in(tail)
    if any(lacks_memory(line) for line in tail):
        return "memory", last[:300], {}
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
    if not (ended.code or ended.signal):
        how = "a process that it started failed"
    where = raised_at(output)
    return "crashed", f"{how}: {last[:300]}" if last else how, {"where": where} if where else {}


def _of_the_processes(lines: Sequence[str]) -> Sequence[str]:
    """Without torchrun's own traceback, some 40 lines that say that one of them failed."""
    end = next((at for at, line in enumerate(lines) if "ChildFailedError" in line), 0)
    heads = [at for at, line in enumerate(lines[:end]) if line == HEAD]
    return lines[: heads[-1]] if heads else lines


def error_in(tail: Sequence[str]) -> str:
    """What the end of a command's output says of its error: the exception below the last traceback, with the one that
    it names in turn, and the loader worker that it is of; else the last line. torchrun's own, that a process failed,
    comes after those of the processes."""
    lines = [RANK.sub("", line) for line in tail]
    at = _exception(lines)
    if at is None:
        return next((line for line in reversed(lines) if line.strip()), "")
    said = lines[at].strip()
    within = WITHIN.search("\n".join(lines[at:]))
    if within:
        return f"{said.partition(':')[0]}: {within[1]}"
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    said = f"{said} {below}" if said.endswith(":") and below else said
    caught = [found[1] for line in lines[:at] if (found := CAUGHT.search(line))]
    return f"{said} (in {caught[-1]})" if caught else said


def raised_at(tail: Sequence[str]) -> Place | None:
    """The user's innermost line in the traceback of that exception, and in what the compiler says below it of the code
    that it compiled; None where there is none."""
    lines = [RANK.sub("", line) for line in tail]
    at = _exception(lines)
    heads = [number for number, line in enumerate(lines[:at]) if line.endswith(HEAD)]
    if at is None or at < len(lines) - MOST_BELOW or not heads:
        return None
    frames = [frame for line in lines[heads[-1] :] if (frame := FRAME.match(line))]
    own = [frame for frame in frames if users(frame[1], (f"{PACKAGE}{os.sep}",), (STANDARD,), "")]
    return Place(file=own[-1][1], line=int(own[-1][2]), function=own[-1][3]) if own else None


def _exception(lines: Sequence[str]) -> int | None:
    """Where the last exception below a traceback stands."""
    found = [
        at
        for at, (above, line) in enumerate(zip(["", *lines], lines, strict=False))
        if above.startswith("  ") and EXCEPTION.match(line) and "ChildFailedError" not in line
    ]
    return found[-1] if found else None


def refusal_in(folder: Path, left: Mapping[str, object] = MappingProxyType({})) -> Reading | None:
    """A lever that could not be put in, in any rank, or lacked memory for it, or another problem of hotlap's: why, and
    the lever. left: levers that left themselves out, which is none."""
    problems = [problem for problem in RunFolder(folder).problems if problem.lever not in left]
    for problem in problems:
        if problem.lever is not None:
            why = problem.what.removeprefix(REFUSED)[:300]
            outcome: Outcome = "memory" if lacks_memory(problem.what) else "refused"
            return outcome, f"{problem.lever} could not be put in: {why}", {"lever": problem.lever}
    return next((("refused", f"hotlap's own problem in {one.where}: {one.what[:300]}", {}) for one in problems), None)


def _measure(folder: Path) -> Reading:
    ranks = read_ranks(folder)
    times = [step_time(rank.steady.times, rank.steady.period) for rank in ranks]
    steady = ranks[0].steady
    if (
        len(steady.steps) < LEAST_STEADY
        or all(step.probe for step in steady.steps)
        or not all(math.isfinite(t) for t in times)
    ):
        return "too few steps", _too_few(ranks[0]), {}
    warmup = sum(step.wall_ms for step in ranks[0].steps[: steady.warmup]) / 1000
    facts = [rank.facts for rank in ranks if rank.facts]
    rows = [_rows(rank.steady.steps) for rank in ranks]
    measured = {
        "step_ms": max(times),
        "mean_ms": max(fmean(rank.steady.times) for rank in ranks),
        "warmup_s": warmup,
        "peak_memory_bytes": max((one.peak_memory_bytes or 0 for one in facts), default=0) or None,
        "peak_rss_bytes": max((one.peak_rss_bytes or 0 for one in facts), default=0) or None,
        "rows": sum(one for one in rows if one) if all(rows) else None,
    }
    return "measured", "" if steady.settled else "no steady state was reached", measured


def _too_few(rank: Rank) -> str:
    """Why the steps of a trial can't be measured, who ended it, and what to do."""
    steady = rank.steady
    note = f"; {steady.evaluations} with an evaluation are left out" if steady.evaluations else ""
    if rank.facts is not None and rank.facts.stopped:
        ended = "hotlap ended the command; a larger --budget lets it run longer"
    else:
        rarer = ", or evaluate less often" if note else ""
        ended = f"the command ended by itself; let it run more steps{rarer}"
    return f"only {len(steady.steps)} steady steps of {steady.seen}{note}; {ended}"


def _rows(steps: Sequence[Step]) -> float | None:
    """Mean rows of a step, None unless all are known."""
    known = [step.samples for step in steps if step.samples is not None]
    return fmean(known) if known and len(known) == len(steps) else None


def same_levers(one: Sequence[Lever], other: Sequence[Lever]) -> bool:
    """Whether both say the same: in which order levers are named says nothing."""
    return sorted(one, key=lambda lever: lever.name) == sorted(other, key=lambda lever: lever.name)


def names(levers: Sequence[Lever]) -> str:
    """Lever names for a line of text."""
    return " + ".join(lever.name for lever in levers) or "bare command"
