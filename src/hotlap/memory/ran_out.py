"""A run in which memory ran out, from its folder: what was asked for, what was live, and what leaves more memory."""

import contextlib
import signal
from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.records.errors import RecordError
from hotlap.records.files import read_record
from hotlap.records.memory import BACKWARD, FORWARD, MemoryPart, MemoryUsage, MemoryWindow
from hotlap.records.memory import OutOfMemory as Record
from hotlap.records.ran_out import MemoryChange, RanOut
from hotlap.records.run import Environment, Facts, Run
from hotlap.records.telemetry import TelemetrySample
from hotlap.runs.folder import RankFolder, RunFolder

from .changes import changes, few, lacking, not_told
from .usage import usage

FULL: Final = 0.8
"""Of the limit of host memory, from which on a SIGKILL that nobody explains is put down to the kernel."""
KILLED: Final = 128 + signal.SIGKILL
"""As a shell or a launcher tells of it."""


def ran_out(run: RunFolder, record: Run) -> RanOut | None:
    """None where memory did not run out. record: the run as it ended. Raises RecordError where a record can't be
    read."""
    found = [(rank, window) for rank in run.ranks if (window := rank.memory("oom")) is not None and window.ran_out]
    samples = run.telemetry
    if not found:
        return _killed(run, record, samples)
    ended = [one for one in found if not _went_on(*one, record)]
    rank, window = (ended or found)[0]
    told = _limited(window, record)
    shown, facts = _usage(window, told), facts_of(run, rank)
    every = changes(_all_named(shown, told), told, facts, record.environment)
    chosen, together = few(every, lacking(told))
    cuda = window.source == "allocator"
    reserved = sum(other.reserved_bytes for _, other in found if other.device == window.device)
    return RanOut(
        rank=rank.number,
        ranks=len(found),
        went_on=not ended,
        device=window.device,
        asked_bytes=told.asked_bytes,
        lacks_bytes=lacking(told) if told.asked_bytes else None,
        where=next(iter(told.frames), None),
        phase=told.phase,
        step=told.step,
        usage=shown,
        distinct=told.began is not None and bool(window.events.times),
        total_bytes=told.total_bytes,
        free_bytes=told.free_bytes,
        outside_bytes=max(0, window.used_bytes - reserved) if cuda and window.used_bytes is not None else None,
        before_bytes=_before(samples, facts) if cuda else None,
        resident_bytes=told.resident_bytes,
        changes=chosen,
        together=together,
    )


def every_change(run: RunFolder, environment: Environment) -> tuple[tuple[MemoryChange, ...], int]:
    """All changes that leave more memory where it ran out in a run, and the bytes that lacked; none where it has no
    record of that, or one that can't be read."""
    with contextlib.suppress(RecordError):
        for rank in run.ranks:
            window = rank.memory("oom")
            if window is not None and (told := window.ran_out) is not None:
                shown = _all_named(_usage(window, told), told)
                return changes(shown, told, facts_of(run, rank), environment), lacking(told)
    return (), 0


def _limited(window: MemoryWindow, record: Run) -> Record:
    """How memory ran out; on the host with the limit that the parent knows, where the process has none of its own."""
    told = window.ran_out or Record()
    if window.source == "allocator" or told.total_bytes is not None:
        return told
    return msgspec.structs.replace(told, total_bytes=record.memory_limit_bytes)


def facts_of(run: RunFolder, rank: RankFolder | None = None) -> Facts | None:
    """What was seen of the script before it died, None where nothing was."""
    for one in [rank, *run.ranks] if rank is not None else run.ranks:
        if one is not None and (facts := one.facts) is not None:
            return facts
    for path in run.seen:
        try:
            return read_record(path, Facts)
        except RecordError:
            continue
    return None


def _went_on(rank: RankFolder, window: MemoryWindow, record: Run) -> bool:
    """Whether the script caught it: the command ended well, or the process made this step and another."""
    step = window.ran_out.step if window.ran_out is not None else 0
    if not record.failed_itself:
        return True
    return sum(1 for _ in rank.steps) > step  # the one in which it ran out may be told of as it ended


def _usage(window: MemoryWindow, told: Record) -> MemoryUsage:
    """What was allocated; on the host with what no object of the script's holds."""
    found = usage(window)
    rest = max(0, (told.resident_bytes or 0) - found.peak_bytes)
    if window.source == "allocator" or not rest:
        return found
    parts = sorted((*found.parts, MemoryPart(category="unknown", bytes=rest)), key=lambda one: -one.bytes)
    return msgspec.structs.replace(found, parts=tuple(parts), peak_bytes=found.peak_bytes + rest)


def _all_named(shown: MemoryUsage, told: Record) -> MemoryUsage:
    """On the host activations are part of what no object holds: a bound of what they take."""
    if shown.source == "allocator" or told.phase not in {FORWARD, BACKWARD}:
        return shown
    parts = [
        msgspec.structs.replace(one, category="activations") if one.category == "unknown" else one
        for one in shown.parts
    ]
    return msgspec.structs.replace(shown, parts=tuple(parts))


def _before(samples: Sequence[TelemetrySample], facts: Facts | None) -> int | None:
    """In use on the device by anyone, before the command had begun to use it."""
    if not samples or facts is None or facts.device_uuid is None:
        return None
    return next((one.memory_bytes for one in samples[0].gpus if one.uuid == facts.device_uuid), None)


def _killed(run: RunFolder, record: Run, samples: Sequence[TelemetrySample]) -> RanOut | None:
    """The kernel ended a process for lack of host memory: it counted that, or a SIGKILL came as memory was full."""
    if not record.failed_itself:
        return None
    resident = max((one.rss_bytes for one in samples if one.rss_bytes is not None), default=None)
    last = next((one.rss_bytes for one in reversed(samples) if one.rss_bytes is not None), None)
    limit = record.memory_limit_bytes
    by_signal = record.signal == signal.SIGKILL or record.exit_code == KILLED
    full = by_signal and last is not None and limit is not None and last >= FULL * limit
    if not record.oom_kills and not full:
        return None
    facts = facts_of(run)
    steps = max((sum(1 for _ in rank.steps) for rank in run.observed), default=0)
    workers = facts.feeding.workers if facts is not None and facts.feeding is not None else 0
    fewer = MemoryChange(what=f"fewer than {workers} loader workers, each of which has memory of its own", costs="time")
    return RanOut(
        killed=True,
        certain=bool(record.oom_kills),
        step=steps,
        total_bytes=limit,
        resident_bytes=resident,
        changes=(*([fewer] if workers else []), *not_told(facts, record.environment))[:3],
    )
