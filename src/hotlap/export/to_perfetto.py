"""The traces of all ranks in one file for Perfetto, or, of a run that was not profiled, its steps.

Traces are read in small parts, so memory does not grow with them. Of each only what would clash between ranks is
changed: the process (ranks may have the same, and a GPU is process 0 in each), the number that joins the two ends of a
flow, and the time, to the clock of the first rank. Names of processes begin with the rank.
"""

import gzip
import re
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, Final

import msgspec

from hotlap.records.errors import unable
from hotlap.records.files import to_json
from hotlap.trace import source
from hotlap.trace.decode import repair

from ._base import Target
from .series import Series, scalars

BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})\b')
FLOWS: Final = frozenset(b'"%c"' % phase for phase in b"stfbne")
"""Phases of events that belong together by their `id`."""
STRIDE: Final = 1 << 30
"""Between the sort indices of two ranks; Kineto's own go to 536,870,912."""
LEVEL: Final = 3
"""Of compression: a third of the time of the usual one, and a tenth more bytes."""
PART: Final = 128 << 10
"""Bytes of events that are decoded together."""

Event = dict[str, Any]
"""Fields as they are written, decoded only where they are looked at."""


def write(series: Series, path: Path) -> list[str]:
    """One file for ui.perfetto.dev."""
    found = [(rank.number, rank.trace) for rank in series.folder.ranks if rank.trace.is_file()]
    lost = merge(found, path) if found else _write(path, _steps(series))
    said = [f"hotlap open {path}   (or drag it into https://ui.perfetto.dev)"]
    return [*said, f"{lost} events could not be read and are left out"] if lost else said


def merge(traces: list[tuple[int, Path]], path: Path) -> int:
    """Write the traces of some ranks as one; returns how many events could not be read. Raises RecordError."""
    merged = _Merged([rank for rank, _ in traces])
    _write(path, (event for rank, trace in traces for event in merged.events(rank, trace)))
    return merged.lost


def _write(path: Path, events: Iterator[bytes]) -> int:
    """Write events as a trace, in place only when it is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        with unable(f"write {path}"):
            with gzip.open(part, "wb", compresslevel=LEVEL) as file:
                file.write(b'{"traceEvents":[\n')
                for number, event in enumerate(events):
                    file.write(b",\n" + event if number else event)
                file.write(b"\n]}\n")
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return 0


class _Merged:
    """What has to be known of the ranks before while the next one is read."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        self.base_ns: int | None = None
        self.processes: dict[tuple[int, bytes], int] = {}
        self.named: list[tuple[int, str]] = []
        self.lost = 0

    def events(self, rank: int, path: Path) -> Iterator[bytes]:
        """One rank's events as JSON, many at a time with commas between."""
        found = source.Source(str(path))
        shift: Decimal | None = None
        with unable(f"read {path}"), path.open("rb") as file:
            for block in source.blocks(file, found):
                shift = self._shift(found.head) if shift is None else shift
                for part in source.split(block, PART, found.separator):
                    made = [self._changed(event, rank, shift) for event in self._decoded(part, found)]
                    if made := [*self._new(), *made]:
                        yield msgspec.json.encode(made)[1:-1]

    def _shift(self, head: bytes) -> Decimal:
        """What to add to a rank's times, in µs. Files without a base have absolute times."""
        match = BASE.search(head)
        base = int(match[1]) if match else 0
        self.base_ns = base if self.base_ns is None else self.base_ns
        return Decimal(base - self.base_ns) / 1000

    def _decoded(self, part: bytes, found: source.Source) -> list[Event]:
        """The events of a part: all at once, or one by one where they are not as they should be."""
        try:
            return msgspec.json.decode(b"[" + part + b"]", type=list[dict[str, msgspec.Raw]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events: list[Event] = []
            self.lost += sum(1 for _ in source.untaken(part, found.separator, lambda text: _take(text, events)))
            return events

    def _changed(self, event: Event, rank: int, shift: Decimal) -> Event:
        """The event with what would clash between ranks changed."""
        phase, process = bytes(event.get("ph", b"")), bytes(event.get("pid", b"0"))
        event["pid"] = self._process(rank, process)
        if shift and "ts" in event:
            event["ts"] = _later(event["ts"], shift)
        if phase in FLOWS and "id" in event:
            event["id"] = _flow(event["id"], self.ranks.index(rank), len(self.ranks))
        if phase == b'"M"':
            event["args"] = self._told(_text(event.get("name")), event.get("args"), rank)
        return event

    def _process(self, rank: int, process: bytes) -> int:
        """A number for a process of a rank that no other has. One that is a text (Kineto's `Spans`) gets it as name."""
        found = self.processes.get((rank, process))
        if found is None:
            found = self.processes[rank, process] = len(self.processes) + 1
            if text := _text(msgspec.Raw(process)):
                self.named.append((found, f"rank {rank}: {text}"))
        return found

    def _new(self) -> list[Event]:
        """Names of the processes that have come up since the last call."""
        told = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in self.named]
        self.named.clear()
        return told

    def _told(self, name: str, args: Any, rank: int) -> dict[str, Any]:
        """What is told of a process, with its rank."""
        found = msgspec.json.decode(args) if args is not None else {}
        told: dict[str, Any] = found if isinstance(found, dict) else {}
        if name == "process_name":
            return {**told, "name": f"rank {rank}: {told.get('name') or 'process'}"}
        if name == "process_sort_index" and isinstance(told.get("sort_index"), int):
            return {**told, "sort_index": told["sort_index"] % STRIDE + self.ranks.index(rank) * STRIDE}
        return told


def _take(text: bytes, events: list[Event]) -> bool:
    """Add an event with its fields undecoded; False where it is none."""
    try:
        events.append(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
        return True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        repaired = repair(text)
    if isinstance(repaired, dict):
        events.append({name: msgspec.Raw(to_json(value)) for name, value in repaired.items()})
    return isinstance(repaired, dict)


def _text(raw: Any) -> str:
    """The text in a field; "" where it is none."""
    try:
        found = msgspec.json.decode(raw) if raw is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _later(raw: Any, shift: Decimal) -> Any:
    """A time with something added, exactly: a double would lose nanoseconds."""
    try:
        time = Decimal(bytes(raw).strip(b'" ').decode())
        return msgspec.Raw(f"{time + shift:f}".encode())
    except (DecimalException, UnicodeDecodeError):
        return raw


def _flow(raw: Any, index: int, ranks: int) -> Any:
    """A flow's number that no other rank has. Texts are hexadecimal, as Perfetto reads them."""
    text = bytes(raw)
    try:
        number = int(text.strip(b'"'), 16) if text.startswith(b'"') else int(text)
    except ValueError:
        return raw
    return (number * ranks + index) % (1 << 63)


def _steps(series: Series) -> Iterator[bytes]:
    """The steps of all ranks as slices, their losses as counters. Phases are arguments: a step knows how long each
    took, not when."""
    begin: float | None = None
    for rank in series.folder.ranks:
        pid, name = rank.number + 1, f"rank {rank.number}: steps"
        yield to_json({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        for step in rank.steps:
            start = step.time * 1e6 - step.wall_ms * 1000
            begin = start if begin is None else begin
            at, args = round(start - begin, 3), {**scalars(step, series.clock), "kind": step.kind, "probe": step.probe}
            same = {"pid": pid, "tid": 1, "ts": at}
            yield to_json({"ph": "X", "name": f"step {step.step}", "dur": step.wall_ms * 1000, "args": args, **same})
            if step.loss is not None:
                yield to_json({"ph": "C", "name": "loss", "args": {"loss": step.loss}, **same})


TARGET = Target("perfetto", ".json.gz", write)
