"""An export of Nsight Systems (`nsys export --type sqlite`) into the tables of a trace, one process at a time.

Tables and columns are those of Nvidia's "SQLite Export Schema Reference"; any of them may be missing. Times are ns from
the start of the session. A `globalTid` is `machine << 48 | process << 24 | thread`, a `globalPid` the same with thread
0; correlation ids count within a process. Names are those that Kineto gives to the same things, so that all analyses
read them: calls without their version (`_v7000`), copies as `Memcpy HtoD (Pageable -> Device)`, the ranges of
`torch.autograd.profiler.emit_nvtx` as ops.

Files are not trusted: they are opened read-only, only real tables are read (no views), every cell is checked by SQLite
for its type, and no table has more rows than its file has room for.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from hotlap.records.errors import RecordError, unable

from .build import build
from .decode import Columns, piece
from .source import Source
from .tables import Trace

Ints = npt.NDArray[np.int64]
Cells = dict[str, Ints | int]

MAGIC: Final = b"SQLite format 3\0"
REPORTS: Final = (".nsys-rep", ".qdrep")
CHUNK: Final = 50_000
"""Rows held as Python objects at a time."""
MAX_ROWS: Final = 100_000_000
"""As `read.MAX_EVENTS`."""
LEAST_ROW: Final = 6
"""Bytes that SQLite needs for a row: the smallest cell and its pointer."""
MAX_TEXT: Final = 16 << 20
MAX_NAME: Final = 20_000
MAX_PROCESSES: Final = 4096
NO: Final = -(1 << 63)
"""Stands for a cell that is missing, or is no integer."""
FAR: Final = 1 << 61
"""Times beyond it are none: their differences would not fit 64 bits."""
KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES: Final = "NVTX_EVENTS"
WORK: Final = (KERNELS, COPIES, FILLS, GRAPHS)
WHERE: Final = ("deviceId", "contextId", "streamId", "correlationId")
RANGE_TYPES: Final = (59, 60)
"""Pushed and popped, started and ended: NVTX_EVENTS.eventType of ranges; the others are marks and names."""
DIRECTIONS: Final = dict(
    enumerate(["Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"])
)
"""CUpti_ActivityMemcpyKind."""
KINDS: Final = dict(enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")))
"""ENUM_CUDA_MEM_KIND where an export lacks it."""
VERSION: Final = re.compile(r"(_ptsz|_ptds)?_v\d{4,}$")
NO_OPS: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "nccl:", "hotlap:")
"""Ranges that Kineto has as annotations."""
EMITTED: Final = re.compile(r", (?:seq = (?P<seq>\d{1,18})|op_id = |sizes = )")
"""What torch's emit_nvtx adds to the name of an op (torch/csrc/profiler/util.cpp, getNvtxStr)."""
GRAPH: Final = "CUDA graph "


def is_export(path: Path) -> bool:
    """Whether a file is an SQLite database. Raises RecordError for a report that was not exported."""
    if path.suffix in REPORTS:
        raise RecordError(f"{path} is a report of Nsight Systems; export it: nsys export --type sqlite {path}")
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def processes(path: Path) -> list[int | None]:
    """`globalPid` of the processes with device work, by device; None stands for all of them, where work does not say
    whose it is. Raises RecordError."""
    first: dict[int, int] = {}
    with _opened(path) as export:
        for table in WORK:
            for rows in export.numbers(table, ("globalPid", "deviceId")):
                for process in np.unique(rows[:, 0]).tolist():
                    if len(first) > MAX_PROCESSES:
                        raise RecordError(f"{path} holds work of more than {MAX_PROCESSES} processes; it is damaged")
                    device = int(rows[rows[:, 0] == process, 1].min())
                    first[process] = min(first.get(process, device), device)
    first.pop(NO, None)
    found = sorted((device, process) for process, device in first.items())
    return [process for _, process in found] or [None]


def read_export(path: Path, process: int | None, progress: Callable[[int], None] = lambda at: None) -> Trace:
    """The trace of one process (`globalPid`), or of all together. Raises RecordError."""
    with _opened(path) as export:
        reader = _Reader(export, process)
        trace = build([reader.columns()], export.head())
    progress(path.stat().st_size)
    return trace


@contextlib.contextmanager
def _opened(path: Path) -> Iterator["_Export"]:
    try:
        with unable(f"read {path}"), contextlib.closing(_connect(path)) as database:
            yield _Export(path, database)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # the last: SQLite's message quotes the file
        raise RecordError(f"cannot read {path} ({error}); is it whole? Export it again with nsys") from error
    except MemoryError as error:
        raise RecordError(f"{path} needs more memory than there is") from error


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
    for pragma in ("trusted_schema = off", "query_only = on", "cell_size_check = on", "mmap_size = 0"):
        database.execute(f"pragma {pragma}")
    return database


class _Export:
    """An open export: its tables' columns, and their cells in chunks."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        self.most_rows = min(MAX_ROWS, path.stat().st_size // LEAST_ROW)
        names = database.execute("select name from sqlite_master where type = 'table' and rootpage > 0").fetchmany(5000)
        self.tables = {name: self._columns(name) for (name,) in names if isinstance(name, str)}
        if not self.tables.keys() & {*WORK, CALLS, RANGES}:
            raise RecordError(f"{path} is an SQLite database, but not an nsys export with CUDA or NVTX events")

    def _columns(self, table: str) -> set[str]:
        found = self.database.execute("select name from pragma_table_xinfo(?) where hidden = 0", (table,))
        return {name for (name,) in found.fetchmany(2000)}

    def has(self, table: str, column: str) -> bool:
        return column in self.tables.get(table, ())

    def numbers(self, table: str, columns: Sequence[str], where: str = "", text: str = "") -> Iterator[Any]:
        """Integer columns as arrays [rows, columns], NO where a cell is none; with `text` pairs of that and texts."""
        if table not in self.tables:
            return
        cells = [self._integer(table, column) for column in columns]
        if text:
            cells.append(f'substr("{text}", 1, {MAX_NAME})' if self.has(table, text) else "null")
        for rows in self._rows(table, f'select {", ".join(cells)} from "{table}" {where}'):
            numbers = np.array([row[: len(columns)] for row in rows] if text else rows, np.int64)
            yield (numbers, [row[-1] for row in rows]) if text else numbers

    def _integer(self, table: str, column: str) -> str:
        # SQLite has no literal for the smallest integer
        if not self.has(table, column):
            return f"({NO + 1} - 1)"
        return f'case typeof("{column}") when \'integer\' then "{column}" else ({NO + 1} - 1) end'

    def _rows(self, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
        count = 0
        cursor = self.database.execute(query)
        while rows := cursor.fetchmany(CHUNK):
            count += len(rows)
            if count > self.most_rows:
                raise RecordError(f"{self.path}: {table} holds more rows than can be read; it is damaged or too large")
            yield rows

    def texts(self, table: str, column: str) -> dict[int, str]:
        """Texts by `id`, of StringIds or an ENUM table."""
        found: dict[int, str] = {}
        for rows, texts in self.numbers(table, ("id",), text=column):
            said = zip(rows[:, 0].tolist(), texts, strict=True)
            found.update((number, text) for number, text in said if isinstance(text, str))
        return found

    def head(self) -> Source:
        """What Kineto would write around the events."""
        epoch = [row for rows in self.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)) for row in rows.flat]
        head = {
            "schemaVersion": "nsys",
            "deviceProperties": self._gpus(),
            "baseTimeNanoseconds": int(epoch[0]) if epoch and abs(int(epoch[0])) < FAR else 0,
        }
        return Source(str(self.path), head=msgspec.json.encode(head)[:-1] + b",", tail=b"}")

    def _gpus(self) -> list[dict[str, Any]]:
        return [
            {"id": number, "name": name if isinstance(name, str) else ""}
            for rows, names in self.numbers("TARGET_INFO_GPU", ("id",), text="name")
            for (number,), name in zip(rows.tolist(), names, strict=True)
        ][:64]


class _Reader:
    """Fills the columns of one process. Names are codes of `out.names`."""

    def __init__(self, export: _Export, process: int | None) -> None:
        self.export, self.process = export, process
        self.out = Columns()
        self.strings = export.texts("StringIds", "value")

    def columns(self) -> Columns:
        self._calls()
        self._ranges()
        self._kernels()
        kinds = {**KINDS, **self.export.texts("ENUM_CUDA_MEM_KIND", "label")}
        self._copies(kinds)
        self._fills(kinds)
        self._graphs()
        self._threads()
        return self.out

    # cells

    def _rows(self, table: str, *columns: str, text: str = "") -> Iterator[Any]:
        """Of this process: start, length, and the columns; rows without times are counted as lost."""
        for found in self.export.numbers(table, ("start", "end", *columns), self._mine(table), text):
            rows, texts = found if text else (found, [])
            timed = (np.abs(rows[:, :2]) < FAR).all(axis=1) & (rows[:, :2] > -FAR).all(axis=1)  # |NO| is NO itself
            if table != RANGES:  # marks, and ranges that were open at the end, have no end
                self.out.lost += int((~timed).sum())
            rows = rows[timed]
            cells = [rows[:, 0], rows[:, 1] - rows[:, 0], *(rows[:, at] for at in range(2, rows.shape[1]))]
            yield (*cells, [texts[at] for at in np.nonzero(timed)[0].tolist()]) if text else tuple(cells)

    def _mine(self, table: str) -> str:
        if self.process is None:
            return ""
        if self.export.has(table, "globalPid"):
            return f'where "globalPid" = {self.process}'
        return f'where "globalTid" >> 24 = {self.process >> 24}' if self.export.has(table, "globalTid") else ""

    def _named(self, keys: Ints, name: Callable[[int], str]) -> Ints:
        """Codes of the names of keys."""
        values, back = np.unique(keys, return_inverse=True)
        codes = [self.out.names[name(value)] for value in values.tolist()]
        return np.array(codes, np.int64)[back] if codes else np.empty(0, np.int64)

    def _string(self, number: int) -> str:
        return self.strings.get(number, "(no name)")

    def _of_host(self, cat: str, start: Ints, dur: Ints, tid: Ints, name: Ints, **more: Ints) -> None:
        pid, thread = (tid >> 24) & 0xFFFFFF, tid & 0xFFFFFF
        given: Cells = {"cat": self.out.cats[cat], "start": start, "dur": dur, "pid": pid, "tid": thread, "name": name}
        self.out.host.append(piece("host", len(start), {**given, **more}))

    def _of_device(self, cat: str, cells: Sequence[Ints], name: Ints, **more: Ints) -> None:
        start, dur, *rest = cells
        where = dict(zip(("device", "context", "stream", "correlation"), map(_or_none, rest), strict=True))
        given: Cells = {"cat": self.out.cats[cat], "start": start, "dur": dur, "name": name, **where, **more}
        self.out.device.append(piece("device", len(start), given))

    # tables

    def _calls(self) -> None:
        for start, dur, tid, correlation, name in self._rows(CALLS, "globalTid", "correlationId", "nameId"):
            codes = self._named(name, lambda number: VERSION.sub("", self._string(number)))
            self._of_host("runtime", start, dur, tid, codes, correlation=_or_none(correlation))

    def _ranges(self) -> None:
        wanted = ("eventType", "globalTid", "endGlobalTid", "textId")
        for start, dur, kind, tid, end_tid, text_id, texts in self._rows(RANGES, *wanted, text="text"):
            across = (end_tid != NO) & (end_tid > 0) & (end_tid != tid)
            chosen = np.nonzero(np.isin(kind, (*RANGE_TYPES, NO)) & (dur >= 0) & ~across)[0]
            names = [texts[at] or self._string(int(text_id[at])) for at in chosen.tolist()]
            ops = [_op(str(name)) for name in names]
            number = np.array([self.out.names[name] for name, _, _ in ops], np.int64)
            sequence = np.array([seq for _, seq, _ in ops], np.int64)
            is_op = np.array([op for _, _, op in ops], np.bool_)
            for cat, mine in (("op", is_op), ("annotation", ~is_op)):
                at = chosen[mine]
                self._of_host(cat, start[at], dur[at], tid[at], number[mine], sequence=sequence[mine])

    def _kernels(self) -> None:
        sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        more = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId")
        name = "demangledName" if self.export.has(KERNELS, "demangledName") else "shortName"
        for found in self._rows(KERNELS, *WHERE, name, *sizes, *more):
            number, (registers, static, dynamic, node) = found[6], found[13:]
            self._of_device(
                "kernel", found[:6], self._named(number, self._string), blocks=_product(found[7:10]),
                threads=_product(found[10:13]), registers=_or_none(registers), graph_node=_or_none(node),
                shared_memory=np.where(static != NO, np.maximum(static, 0) + np.maximum(dynamic, 0), -1),
            )  # fmt: skip

    def _copies(self, kinds: dict[int, str]) -> None:
        def said(key: int) -> str:
            way, source, target = key >> 16, (key >> 8) & 255, key & 255
            ends = f"{kinds.get(source, 'Unknown')} -> {kinds.get(target, 'Unknown')}"
            return f"Memcpy {DIRECTIONS.get(way, 'Unknown')} ({ends})"

        wanted = ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId")
        for found in self._rows(COPIES, *WHERE, *wanted):
            size, way, source, target, node = found[6:]
            key = _byte(way) << 16 | _byte(source) << 8 | _byte(target)
            sized = {"bytes": _or_none(size), "graph_node": _or_none(node)}
            self._of_device("memcpy", found[:6], self._named(key, said), **sized)

    def _fills(self, kinds: dict[int, str]) -> None:
        for found in self._rows(FILLS, *WHERE, "bytes", "memKind", "graphNodeId"):
            size, kind, node = found[6:]
            names = self._named(_byte(kind), lambda key: f"Memset ({kinds.get(key, 'Unknown')})")
            self._of_device("memset", found[:6], names, bytes=_or_none(size), graph_node=_or_none(node))

    def _graphs(self) -> None:
        """Graphs recorded whole (`--cuda-graph-trace=graph`, which is nsys' default): a row a launch."""
        for *cells, graph in self._rows(GRAPHS, *WHERE, "graphId"):
            names = self._named(_or_none(graph), lambda number: f"{GRAPH}{number}")
            self._of_device("kernel", cells, names, graph=_or_none(graph))

    def _threads(self) -> None:
        for rows in self.export.numbers("ThreadNames", ("globalTid", "nameId"), self._mine("ThreadNames")):
            for tid, name in rows.tolist():
                self.out.threads.append(((tid >> 24) & 0xFFFFFF, tid & 0xFFFFFF, "thread", self._string(name)[:200]))


def _or_none(cells: Ints) -> Ints:
    return np.maximum(cells, -1)


def _byte(cells: Ints) -> Ints:
    return np.where((cells >= 0) & (cells < 255), cells, 255)


def _product(sizes: Sequence[Ints]) -> Ints:
    """Of three dimensions, as large as CUDA allows; -1 where the first is unknown."""
    limits = ((1 << 31) - 1, 65535, 65535)
    x, y, z = (np.clip(size, 1, limit) for size, limit in zip(sizes, limits, strict=True))
    return np.where(sizes[0] > 0, x * y * z, -1)


def _op(name: str) -> tuple[str, int, bool]:
    """(name, sequence number or -1, whether torch's emit_nvtx wrote it) of a range."""
    match = EMITTED.search(name)
    short = name[: match.start()] if match else name
    written = match is not None or name.startswith(("aten::", "autograd::"))
    sequence = int(match["seq"] or -1) if match else -1
    return short, sequence, written and not name.startswith(NO_OPS)
