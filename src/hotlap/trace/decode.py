"""Events as text into columns.

The fast way decodes a few hundred events at a time into one type per category (msgspec checks every field) and takes
columns from them; types that hold nothing for the tables (flows) have no fields. Where a part does not decode so, its
events are taken one by one: as any JSON, then as JSON after repairs of what torch and others are known to write
wrongly, and what is still unreadable is counted.
"""

import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import attrgetter, or_
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Raw, Struct

from . import source
from .intervals import Ints
from .tables import DEVICE, HOST, MEMORY

PART: Final = 128 << 10
"""Bytes decoded at a time: what is made of them stays in the processor's cache."""
LONGEST: Final = (1 << 62) // 1000
"""Microseconds: with them the end of an event is still within 64 bits of nanoseconds."""
NONE: Final = Raw(b"")
BETWEEN: Final = b"\0"
"""Between the texts of one row of `shapes`; JSON can't hold it."""


class OpArgs(Struct, gc=False, frozen=True):
    """Of an op on the host: the numbers that link it to calls and to its forward; of its inputs dims, types, strides
    (in elements) and values, as they are written."""

    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    fwd_tid: int = msgspec.field(default=-1, name="Fwd thread id")
    dims: Raw = msgspec.field(default=NONE, name="Input Dims")
    types: Raw = msgspec.field(default=NONE, name="Input type")
    strides: Raw = msgspec.field(default=NONE, name="Input Strides")
    inputs: Raw = msgspec.field(default=NONE, name="Concrete Inputs")


class CallArgs(Struct, gc=False, frozen=True):
    """Of a call of the runtime or a function: the op around it, and the number that it shares with its work."""

    external: int = msgspec.field(default=-1, name="External id")
    correlation: int = -1


class WorkArgs(Struct, gc=False, frozen=True):
    """Of work on the device: whose, where, and its size in bytes; -1 where that is not told."""

    external: int = msgspec.field(default=-1, name="External id")
    correlation: int = -1
    device: int = -1
    context: int = -1
    stream: int = -1
    bytes: int = -1


class KernelArgs(WorkArgs, gc=False, frozen=True):
    """Of a kernel: blocks and threads, registers a thread, shared memory in bytes, its place in a CUDA graph; of a
    collective its name, elements each way and group."""

    grid: tuple[int, int, int] = (-1, 1, 1)
    block: tuple[int, int, int] = (-1, 1, 1)
    registers: int = msgspec.field(default=-1, name="registers per thread")
    shared_memory: int = msgspec.field(default=-1, name="shared memory")
    graph_node: int = msgspec.field(default=-1, name="graph node id")
    graph: int = msgspec.field(default=-1, name="graph id")
    collective: str = msgspec.field(default="", name="Collective name")
    dtype: str = ""
    in_elements: int = msgspec.field(default=-1, name="In msg nelems")
    out_elements: int = msgspec.field(default=-1, name="Out msg nelems")
    group_size: int = msgspec.field(default=-1, name="Group size")
    group_ranks: str = msgspec.field(default="", name="Process Group Ranks")
    group: str = msgspec.field(default="", name="Process Group Name")
    group_description: str = msgspec.field(default="", name="Process Group Description")
    comms_id: Raw = msgspec.field(default=NONE, name="Comms Id")


class MemoryArgs(Struct, gc=False, frozen=True):
    """Of an allocation or, with bytes below zero, a release: its address, and bytes allocated and reserved after it."""

    address: int = msgspec.field(default=-1, name="Addr")
    bytes: int = msgspec.field(default=0, name="Bytes")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device: int = msgspec.field(default=-1, name="Device Id")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")


FLOWS: Final = tuple(
    msgspec.defstruct(f"Flow_{category}", [], tag=category, tag_field="cat", gc=False)
    for category in ("ac2g", "fwdbwd", "async_gpu", "async_cpu_to_gpu")
)
"""Their facts are in correlation and sequence numbers too."""
Kinds = dict[str, tuple[str, type[Any]]]
"""Torch's categories, our word for each, and its arguments."""
HOST_KINDS: Final[Kinds] = {
    "cpu_op": ("op", OpArgs),
    "user_annotation": ("annotation", OpArgs),
    "cuda_runtime": ("runtime", CallArgs),
    "cuda_driver": ("runtime", CallArgs),
    "python_function": ("python", CallArgs),
    "overhead": ("overhead", CallArgs),
}
DEVICE_KINDS: Final[Kinds] = {
    "kernel": ("kernel", KernelArgs),
    "gpu_memcpy": ("memcpy", WorkArgs),
    "gpu_memset": ("memset", WorkArgs),
    "gpu_user_annotation": ("annotation", WorkArgs),
    "cuda_sync": ("sync", WorkArgs),
}
KINDS: Final[dict[str, Kinds]] = {
    "host": HOST_KINDS,
    "device": DEVICE_KINDS,
    "memory": {"cpu_instant_event": ("memory", MemoryArgs)},
}
"""By table."""
OTHER_DEVICES: Final = {"hip_runtime": "cuda_runtime", "hip_driver": "cuda_driver", "xpu_runtime": "cuda_runtime"}
"""Categories by the names that Kineto gives them on other devices."""
ARGS: Final[tuple[type[Any], ...]] = (OpArgs, CallArgs, KernelArgs, WorkArgs, MemoryArgs)
FIELDS: Final[dict[type[Any], tuple[msgspec.structs.FieldInfo, ...]]] = {
    kind: msgspec.structs.fields(kind) for kind in ARGS
}
NO_ARGS: Final[dict[type[Any], Any]] = {kind: kind() for kind in ARGS}


TYPES: Final[dict[str, type[Any]]] = {
    category: msgspec.defstruct(
        f"Event_{category}",
        [
            ("name", str),
            ("ts", float),
            ("ph", Literal["i", "I"] if args is MemoryArgs else Literal["X"]),
            ("dur", float, 0.0),
            ("pid", int | str, 0),
            ("tid", int | str, 0),
            ("args", args, NO_ARGS[args]),
        ],
        tag=category,
        tag_field="cat",
        gc=False,
    )
    for kinds in KINDS.values()
    for category, (_, args) in kinds.items()
}
"""One type for each category."""


class _Codes(dict[Any, int]):
    """Numbers things in the order they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


COLUMNS: Final = {
    "host": tuple(name for name in HOST if name not in {"parent", "depth"}),
    "device": tuple(name for name in DEVICE if name not in {"launch", "op"}),
    "memory": tuple(MEMORY),
}
"""What events hold of the tables; the rest is found when all are read."""


Piece = dict[str, Ints]
"""Some rows of a table, column by column."""


def piece(table: str, count: int, given: Mapping[str, Sequence[int] | Ints | int]) -> Piece:
    """Rows of `host`, `device` or `memory`; columns that are not given are -1. Raises OverflowError beyond 64 bits."""
    columns = {name: given.get(name, -1) for name in COLUMNS[table]}
    return {
        name: np.full(count, cells, np.int64) if isinstance(cells, int) else np.fromiter(cells, np.int64, count)
        for name, cells in columns.items()
    }


@dataclass
class Columns:
    """What some events hold, as columns of integers; `names`, `cats`, `shapes`, `collectives` say what codes stand for.
    shapes: four texts, BETWEEN them. lost: events; lost_bytes: their text."""

    host: list[Piece] = field(default_factory=list)
    device: list[Piece] = field(default_factory=list)
    memory: list[Piece] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=_Codes)
    cats: dict[str, int] = field(default_factory=_Codes)
    shapes: dict[bytes, int] = field(default_factory=_Codes)
    collectives: dict[tuple[Any, ...], int] = field(default_factory=_Codes)
    threads: list[tuple[int, int, str, str]] = field(default_factory=list)
    lost: int = 0
    lost_bytes: int = 0
    repaired: int = 0
    events: int = 0


class Decoder:
    """Decodes blocks of events."""

    def __init__(self, separator: re.Pattern[bytes]) -> None:
        self.separator = separator
        self.decoder = msgspec.json.Decoder(list[reduce(or_, (*FLOWS, *TYPES.values()))])  # type: ignore[misc]
        takers = {"host": self._host, "device": self._device, "memory": self._memory}
        self.kinds = {
            TYPES[name]: (table, takers[table], category)
            for table, kinds in KINDS.items()
            for name, (category, _) in kinds.items()
        }

    def block(self, text: bytes) -> Columns:
        """The columns of a block."""
        out = Columns()
        for part in source.split(text, PART, self.separator):
            if not self._typed(part, out):
                self._one_by_one(part, out)
        for pieces in (out.host, out.device, out.memory):  # one is sent to another process faster than many
            pieces[:] = [_joined(pieces)] if pieces else []
        return out

    # the fast way

    def _typed(self, text: bytes, out: Columns) -> bool:
        """Take events that are written as today's torch does; False, and nothing taken, where one is not."""
        try:
            events = self.decoder.decode(b"[%b]" % text)
            self._take(events, out)
        except (msgspec.DecodeError, OverflowError, RecursionError, UnicodeDecodeError):
            return False
        out.events += len(events)
        return True

    def _take(self, events: Sequence[Any], out: Columns) -> None:
        """All of the events or, where one has a number beyond 64 bits, none."""
        by_type: defaultdict[type[Any], list[Any]] = defaultdict(list)
        for event in events:
            by_type[type(event)].append(event)
        made: dict[str, list[Piece]] = {"host": [], "device": [], "memory": []}
        for kind, rows in by_type.items():
            if kind in self.kinds:
                table, take, category = self.kinds[kind]
                made[table].append(take(rows, category, out))
        for table, pieces in made.items():
            getattr(out, table).extend(pieces)

    def _common(self, rows: list[Any], category: str, out: Columns) -> dict[str, Any]:
        return {
            "name": [out.names[row.name] for row in rows],
            "cat": out.cats[category],
            "start": _ns([row.ts for row in rows]),
            "dur": _ns([row.dur for row in rows]),
        }

    def _host(self, rows: list[Any], category: str, out: Columns) -> Piece:
        args = [row.args for row in rows]
        given = self._common(rows, category, out)
        given["pid"], given["tid"] = (_threads([getattr(row, name) for row in rows]) for name in ("pid", "tid"))
        for name in type(args[0]).__struct_fields__:
            given[name] = list(map(attrgetter(name), args))
        if isinstance(args[0], OpArgs):
            codes = out.shapes
            given["shapes"] = [
                -1 if a.dims is NONE else codes[BETWEEN.join((a.dims, a.types, a.strides, a.inputs))] for a in args
            ]
        return piece("host", len(rows), given)

    def _device(self, rows: list[Any], category: str, out: Columns) -> Piece:
        args = [row.args for row in rows]
        both = list(zip(args, rows, strict=True))
        given = self._common(rows, category, out)
        for name in type(args[0]).__struct_fields__:
            given[name] = list(map(attrgetter(name), args))
        given["device"] = [a.device if a.device >= 0 else _number(row.pid) for a, row in both]
        given["stream"] = [a.stream if a.stream >= 0 else _number(row.tid) for a, row in both]
        if isinstance(args[0], KernelArgs):
            given["blocks"] = [math.prod(a.grid) for a in args]
            given["threads"] = [math.prod(a.block) for a in args]
            given["collective"] = [_collective(a, out) if a.collective or a.group_size > 0 else -1 for a in args]
        return piece("device", len(rows), given)

    def _memory(self, rows: list[Any], category: str, out: Columns) -> Piece:
        rows = [row for row in rows if row.name == "[memory]"]
        given: dict[str, Any] = {
            name: [_wrapped(getattr(row.args, name)) for row in rows] for name in COLUMNS["memory"][1:]
        }
        return piece("memory", len(rows), {**given, "time": _ns([row.ts for row in rows])})

    # the slow way

    def _one_by_one(self, text: bytes, out: Columns) -> None:
        for lost in source.untaken(text, self.separator, lambda piece: self._any(piece, out)):
            out.lost += 1
            out.lost_bytes += len(lost)

    def _any(self, text: bytes, out: Columns) -> bool:
        """Take one event however it is written; False where it is no event."""
        if self._typed(text, out):
            return True
        repaired = False
        try:
            event = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            event, repaired = repair(text), True
        if not isinstance(event, dict) or not self._sort(event, out):
            return False
        out.events += 1
        out.repaired += repaired
        return True

    def _sort(self, event: dict[str, Any], out: Columns) -> bool:
        """Put an event where it belongs; False where its fields make no sense."""
        phase, category = (word if isinstance(word, str) else "" for word in (event.get("ph"), event.get("cat")))
        category = OTHER_DEVICES.get(category, category)
        if phase == "M":
            _metadata(event, out)
        elif phase in {"i", "I"} and event.get("name") == "[memory]":
            return self._convert(event, "cpu_instant_event", out)
        elif phase == "X" and category in (*HOST_KINDS, *DEVICE_KINDS):
            return self._convert(event, category, out)
        return True

    def _convert(self, event: dict[str, Any], category: str, out: Columns) -> bool:
        """An event whose fields may have other types than today's; what does not convert counts as absent."""
        args = event.get("args")
        name = event.get("name", "")
        kept: dict[str, Any] = {"cat": category, "name": name if isinstance(name, str) else "", "ph": event["ph"]}
        for name in ("ts", "dur"):
            kept[name] = _microseconds(event.get(name, 0 if name == "dur" else None))
            if kept[name] is None:
                return False
        for name in ("pid", "tid"):
            kept[name] = _thread(event.get(name, 0))
        made = msgspec.convert(kept, TYPES[category], strict=False)
        if isinstance(args, dict):
            made.args = _lenient(args, type(made.args))
        try:
            self._take([made], out)
        except OverflowError:
            return False
        return True


def _ns(times: list[float]) -> Ints:
    """Microseconds as nanoseconds: the fraction is split off first, so that nothing is rounded but it. Exact for 101
    days; times since the epoch, as torch wrote them before it gave a base, to 0.25 µs. Raises OverflowError beyond 146
    years."""
    us = np.array(times, np.float64)
    if not (np.abs(us) < LONGEST).all():
        raise OverflowError("a time beyond 146 years")
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _joined(pieces: list[Piece]) -> Piece:
    return {name: np.concatenate([one[name] for one in pieces]) for name in pieces[0]}


def _microseconds(value: Any) -> float | None:
    """The time in a number, or in the text of one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        made = float(value)
    except (ValueError, OverflowError):
        return None
    return made if abs(made) < LONGEST else None


def _threads(values: list[int | str]) -> list[int]:
    """Processes or threads by number; one named by a text gets a negative number, the same in every block."""
    return [value if isinstance(value, int) else -2 - zlib.crc32(value.encode("utf-8", "replace")) for value in values]


def _number(value: int | str) -> int:
    """The number in `7`, `"7"` or `"stream 7"`."""
    if isinstance(value, int):
        return value
    digits = re.search(r"\d{1,9}", value)
    return int(digits[0]) if digits else -1


def _wrapped(value: int) -> int:
    """An address as the signed integer with the same bits."""
    return value - (1 << 64) if 1 << 63 <= value < 1 << 64 else value


def _collective(args: KernelArgs, out: Columns) -> int:
    comms = bytes(args.comms_id).decode("utf-8", "replace").strip('"')
    sizes = (args.in_elements, args.out_elements, args.group_size)
    known = (number if -(1 << 63) <= number < 1 << 63 else -1 for number in sizes)
    group = (args.group_ranks, args.group, args.group_description)
    return out.collectives[args.collective, args.dtype, *known, *group, comms]


def _lenient(args: dict[str, Any], kind: type[Any]) -> Any:
    """Args of which only what has the right type, or can be read as it, is taken."""
    made: dict[str, Any] = {}
    for spec in FIELDS[kind]:
        if spec.encode_name in args:
            value = args[spec.encode_name]
            try:
                if spec.type is Raw:
                    made[spec.name] = Raw(msgspec.json.encode(value))
                else:
                    made[spec.name] = msgspec.convert(value, spec.type, strict=False)
            except (msgspec.ValidationError, UnicodeEncodeError, RecursionError):
                continue
    for name, value in list(made.items()):
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            del made[name]
    return kind(**made)


def _metadata(event: dict[str, Any], out: Columns) -> None:
    args = event.get("args")
    value = args.get("name", args.get("labels")) if isinstance(args, dict) else None
    if isinstance(value, str) and len(out.threads) < 100_000:
        kind = {"process_name": "process", "thread_name": "thread", "process_labels": "labels"}.get(
            str(event.get("name"))
        )
        if kind:
            pid, tid = (_thread(event.get(name, 0)) for name in ("pid", "tid"))
            out.threads.append((*_threads([pid, tid]), kind, value[:1000]))  # type: ignore[arg-type]


def _thread(value: Any) -> int | str:
    """A process or thread: a number or a text."""
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 62 else "beyond 62 bits"
    return value if isinstance(value, str) else ""


# repairs

NAME_BEGINS: Final = re.compile(r'"name":\s*"')
NAME_ENDS: Final = re.compile(r'"\s*,\s*"(?:pid|cat|ph|tid|ts|args)":')
BARE: Final = re.compile(r'(":\s*)(N/A|-?nan|-?inf|undefined)(?=\s*[,}\]])', re.I)
SURROGATE: Final = re.compile(r"\\ud[89a-f]", re.I)


def repair(text: bytes) -> Any:
    """An event as JSON after repair, None where it can't be: quotes inside names (torch 2.13 writes
    `record_function('a "b"')` unescaped), bare N/A and nan, control characters, bytes that are no UTF-8, halves of
    surrogate pairs."""
    words = text.decode("utf-8", "replace")
    for attempt in (words, BARE.sub(r"\1null", _with_escaped_name(words))):
        try:
            found = _loads(attempt)
            if SURROGATE.search(attempt):
                found = _loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode())
            return found
        except (ValueError, RecursionError):
            continue
    return None


def _loads(text: str) -> Any:
    return json.loads(text, strict=False, parse_constant=lambda name: None, parse_int=_int, parse_float=_float)


def _with_escaped_name(words: str) -> str:
    begins = NAME_BEGINS.search(words)
    ends = NAME_ENDS.search(words, begins.end()) if begins else None
    if begins is None or ends is None:
        return words
    name = re.sub(r'(?<!\\)"', r"\"", words[begins.end() : ends.start()])
    return f"{words[: begins.end()]}{name}{words[ends.start() :]}"


def _int(text: str) -> int | None:
    return int(text) if len(text) < 40 else None


def _float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
