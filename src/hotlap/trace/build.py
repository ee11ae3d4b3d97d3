"""The columns that the parts of a trace were decoded to, into its tables: one numbering, in order of start, linked."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from hotlap.records.errors import RecordError

from . import decode, source
from .decode import Columns
from .links import enclosing, first_match, nesting
from .tables import COLLECTIVES, DEVICE, HOST, MEMORY, SHAPES, THREADS, Gpu, Losses, Schema, Trace

Ints = npt.NDArray[np.int64]


def build(parts: list[Columns], src: source.Source) -> Trace:
    """The tables of a trace from its decoded parts. Raises RecordError where it holds no event."""
    head = {**_object(src.head + b'"traceEvents":[]}'), **_tail(src)}
    base = head.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < 1 << 62 else 0
    host, device, memory = _host(parts), _device(parts), _frame(parts, "memory", MEMORY)
    if not len(host) and not len(device) and not len(memory):
        lost = sum(part.lost for part in parts)
        raise RecordError(f"{src.name} holds no events" + (f"; {lost} could not be read" if lost else ""))
    distributed = head.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return Trace(
        source=src.name,
        host=host,
        device=_linked(host, device),
        memory=memory.sort("time", maintain_order=True),
        shapes=_shapes(parts),
        collectives=_collectives(parts),
        threads=_threads(parts),
        base_ns=base_ns,
        rank=_whole(distributed.get("rank")),
        gpus=_gpus(head.get("deviceProperties")),
        schema_version=str(head.get("schemaVersion", ""))[:20],
        losses=_losses(parts, src),
    )


def _tail(src: source.Source) -> dict[str, Any]:
    """What follows the events."""
    text = src.tail.strip(b", \t\r\n")
    if text and not (found := _object(b"{" + text)) and text != b"}":
        src.why.append("what follows the events is broken")
    elif not text and src.head and src.closed:
        src.why.append("the file ends right after its events")
    return found if text else {}


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        found = decode.repair(text)
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else None


def _gpus(properties: Any) -> tuple[Gpu, ...]:
    items = [item for item in properties if isinstance(item, dict)] if isinstance(properties, list) else []
    return tuple(Gpu(_whole(item.get("id")) or 0, str(item.get("name", ""))[:200]) for item in items)


def _losses(parts: list[Columns], src: source.Source) -> Losses:
    lost, repaired = sum(part.lost for part in parts), sum(part.repaired for part in parts)
    why = list(src.why)
    if not src.closed and (lost or why or src.head):  # a bare array may end without its bracket
        why.append("the file ends within its events")
    if lost and src.closed:
        why.append("some events are not JSON")
    return Losses(lost, repaired, sum(part.lost_bytes for part in parts), tuple(why))


def _merged(codes: list[dict[Any, int]]) -> tuple[list[Any], list[Ints]]:
    """One numbering for what each part numbered on its own: the things, and each part's codes in it."""
    whole: dict[Any, int] = {}
    maps = [np.array([whole.setdefault(key, len(whole)) for key in part], np.int64) for part in codes]
    return list(whole), maps


def _frame(parts: list[Columns], table: str, schema: Schema, **maps: list[Ints]) -> pl.DataFrame:
    """What events hold of a table, as they came. maps: for a column of codes, each part's in the common numbering."""
    empty = pl.DataFrame(schema={name: schema[name] for name in decode.COLUMNS[table]})
    frames = [empty]
    for at, part in enumerate(parts):
        for piece in getattr(part, table):
            cells: dict[str, Any] = dict(piece)
            for name, codes in maps.items():
                cells[name] = np.append(codes[at], -1)[cells[name]]
            for name, texts in (("name", part.names), ("cat", part.cats)):
                if name in cells:
                    cells[name] = pl.Series(list(texts), dtype=pl.String).gather(cells[name])
            frames.append(pl.DataFrame(cells).cast(dict(empty.schema)))  # type: ignore[arg-type]
    return pl.concat(frames)


def _host(parts: list[Columns]) -> pl.DataFrame:
    _, shapes = _merged([part.shapes for part in parts])
    host = _frame(parts, "host", HOST, shapes=shapes).with_columns(pl.col("dur").clip(lower_bound=0))
    host = host.sort("start", "dur", descending=[False, True], maintain_order=True)
    start, dur = host["start"].to_numpy(), host["dur"].to_numpy()
    parent, depth = nesting(zip(host["pid"].to_list(), host["tid"].to_list(), strict=True), start, start + dur)
    depth = np.minimum(depth, 32767)
    return host.with_columns(parent=pl.Series(parent), depth=pl.Series(depth)).select(list(HOST)).cast(HOST)  # type: ignore[arg-type]


def _device(parts: list[Columns]) -> pl.DataFrame:
    _, collectives = _merged([part.collectives for part in parts])
    device = _frame(parts, "device", DEVICE, collective=collectives).with_columns(pl.col("dur").clip(lower_bound=0))
    return device.sort("start", maintain_order=True)


def _linked(host: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """Device work with the call that launched it, by correlation, and the op around that, or the one of its
    External id."""
    cat, parent = host["cat"].to_numpy(), host["parent"].to_numpy().astype(np.int64)
    calls = np.nonzero(cat == "runtime")[0]
    found = first_match(host["correlation"].to_numpy()[calls], device["correlation"].to_numpy())
    launch = np.where(found >= 0, calls[np.maximum(found, 0)], -1) if len(calls) else found
    is_op = cat == "op"
    op = enclosing(launch, parent, is_op)
    ops = np.nonzero(is_op)[0]
    external = first_match(host["external"].to_numpy()[ops], device["external"].to_numpy())
    op = np.where((op < 0) & (external >= 0), ops[np.maximum(external, 0)], op) if len(ops) else op
    annotation = device["cat"].to_numpy() == "annotation"
    return device.with_columns(
        pl.Series("launch", np.where(annotation, -1, launch)).cast(pl.Int32),
        pl.Series("op", np.where(annotation, -1, op)).cast(pl.Int32),
    ).select(list(DEVICE))


def _shapes(parts: list[Columns]) -> pl.DataFrame:
    texts, _ = _merged([part.shapes for part in parts])
    rows = [[text.decode("utf-8", "replace") for text in row.split(decode.BETWEEN)] for row in texts]
    return pl.DataFrame(rows, schema=SHAPES, orient="row")


def _collectives(parts: list[Columns]) -> pl.DataFrame:
    rows, _ = _merged([part.collectives for part in parts])
    return pl.DataFrame(rows, schema=COLLECTIVES, orient="row")


def _threads(parts: list[Columns]) -> pl.DataFrame:
    found: dict[tuple[int, int], dict[str, str]] = {}
    for part in parts:
        for pid, tid, kind, value in part.threads:
            found.setdefault((pid, tid), {})[kind] = value
    rows = [
        (pid, tid, said.get("process", ""), said.get("thread", ""), said.get("labels", ""))
        for (pid, tid), said in found.items()
    ]
    return pl.DataFrame(rows, schema=THREADS, orient="row")
