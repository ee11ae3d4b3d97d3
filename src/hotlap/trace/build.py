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
from .tables import COLLECTIVES, DEVICE, HOST, MEMORY, SHAPES, THREADS, Gpu, Losses, Trace

Ints = npt.NDArray[np.int64]


def build(parts: list[Columns], src: source.Source) -> Trace:
    head = {**_object(src.head + b'"traceEvents":[]}'), **_tail(src)}
    base = head.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < 1 << 62 else 0
    _, tids = _merged([part.tids for part in parts])
    host = _host(parts, tids)
    device = _device(parts)
    if not len(host) and not len(device) and not sum(len(part.memory["time"]) for part in parts):
        lost = sum(part.lost for part in parts)
        raise RecordError(f"{src.name} holds no events" + (f"; {lost} could not be read" if lost else ""))
    host, device = _linked(host, device)
    distributed = head.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return Trace(
        source=src.name,
        host=host,
        device=device,
        memory=_memory(parts),
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


def _columns(parts: list[Columns], table: str, name: str) -> list[Ints]:
    return [np.frombuffer(getattr(part, table)[name], np.int64) for part in parts]


def _column(parts: list[Columns], table: str, name: str) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *_columns(parts, table, name)])


def _recoded(columns: list[Ints], maps: list[Ints]) -> Ints:
    """Parts of a column of codes in the common numbering; what is no code stays."""
    made = [np.empty(0, np.int64)]
    for own, codes in zip(columns, maps, strict=True):
        known = (own >= 0) & (own < len(codes))
        made.append(np.where(known, np.append(codes, -1)[np.where(known, own, -1)], own))
    return np.concatenate(made)


def _words(things: list[Any], codes: Ints) -> pl.Series:
    """Texts by code; equal ones share their memory."""
    return pl.Series(things, dtype=pl.String).gather(codes) if things else pl.Series([], dtype=pl.String)


def _table(parts: list[Columns], table: str, schema: dict[str, type[pl.DataType]], order: Any) -> dict[str, Any]:
    names, name_maps = _merged([part.names for part in parts])
    cats, cat_maps = _merged([part.cats for part in parts])
    made: dict[str, Any] = {
        "name": _words(names, _recoded(_columns(parts, table, "name"), name_maps)[order]),
        "cat": _words(cats, _recoded(_columns(parts, table, "cat"), cat_maps)[order]),
    }
    for name in getattr(Columns(), table):
        if name not in made:
            made[name] = pl.Series(name, _column(parts, table, name)[order]).cast(schema[name])
    return made


def _host(parts: list[Columns], tids: list[Ints]) -> pl.DataFrame:
    start, dur = _column(parts, "host", "start"), _column(parts, "host", "dur")
    order = np.lexsort((-dur, start))
    made = _table(parts, "host", HOST, order)
    _, maps = _merged_shapes(parts)
    made["shapes"] = pl.Series(_recoded(_columns(parts, "host", "shapes"), maps)[order]).cast(pl.Int32)
    for name in ("pid", "tid"):  # a thread that is named by a text has -2 - its code
        made[name] = pl.Series(-2 - _recoded([-2 - own for own in _columns(parts, "host", name)], tids)[order])
    made["dur"] = made["dur"].clip(lower_bound=0)
    parent, depth = nesting(
        _thread_numbers(made["pid"].to_numpy(), made["tid"].to_numpy()),
        made["start"].to_numpy(),
        made["start"].to_numpy() + made["dur"].to_numpy(),
    )
    made["parent"] = pl.Series(parent).cast(pl.Int32)
    made["depth"] = pl.Series(np.minimum(depth, 32767)).cast(pl.Int16)
    return pl.DataFrame(made, schema_overrides=HOST).select(list(HOST))


def _thread_numbers(pid: Any, tid: Any) -> Any:
    _, one = np.unique(pid, return_inverse=True)
    _, two = np.unique(tid, return_inverse=True)
    return one * (int(two.max()) + 1 if len(two) else 1) + two


def _device(parts: list[Columns]) -> pl.DataFrame:
    start = _column(parts, "device", "start")
    order = np.argsort(start, kind="stable")
    made = _table(parts, "device", DEVICE, order)
    _, maps = _merged([part.collectives for part in parts])
    made["collective"] = pl.Series(_recoded(_columns(parts, "device", "collective"), maps)[order]).cast(pl.Int32)
    made["dur"] = made["dur"].clip(lower_bound=0)
    none = pl.Series(np.full(len(start), -1)).cast(pl.Int32)
    return pl.DataFrame({**made, "launch": none, "op": none}, schema_overrides=DEVICE).select(list(DEVICE))


def _linked(host: pl.DataFrame, device: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
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
    return host, device.with_columns(
        pl.Series("launch", np.where(annotation, -1, launch)).cast(pl.Int32),
        pl.Series("op", np.where(annotation, -1, op)).cast(pl.Int32),
    )


def _memory(parts: list[Columns]) -> pl.DataFrame:
    order = np.argsort(_column(parts, "memory", "time"), kind="stable")
    return pl.DataFrame(
        {name: _column(parts, "memory", name)[order] for name in decode.MEMORY_COLUMNS}, schema_overrides=MEMORY
    ).select(list(MEMORY))


def _shapes(parts: list[Columns]) -> pl.DataFrame:
    rows, _ = _merged_shapes(parts)
    return pl.DataFrame(rows, schema=SHAPES, orient="row") if rows else pl.DataFrame(schema=SHAPES)


def _on_one_line(text: bytes) -> str:
    try:
        return msgspec.json.format(text, indent=0).decode() if text else ""
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return text.decode("utf-8", "replace")


def _merged_shapes(parts: list[Columns]) -> tuple[list[Any], list[Ints]]:
    """As `_merged`, of shapes' texts on one line each, however the file is indented."""
    seen: dict[bytes, tuple[str, ...]] = {}
    for part in parts:
        for key in part.shapes:
            if key not in seen:
                seen[key] = tuple(map(_on_one_line, key.split(decode.BETWEEN)))
    rows = {text: code for code, text in enumerate(dict.fromkeys(seen.values()))}
    return list(rows), [np.array([rows[seen[key]] for key in part.shapes], np.int64) for part in parts]


def _collectives(parts: list[Columns]) -> pl.DataFrame:
    rows, _ = _merged([part.collectives for part in parts])
    return pl.DataFrame(rows, schema=COLLECTIVES, orient="row") if rows else pl.DataFrame(schema=COLLECTIVES)


def _threads(parts: list[Columns]) -> pl.DataFrame:
    _, maps = _merged([part.tids for part in parts])
    found: dict[tuple[int, int], dict[str, str]] = {}
    for part, codes in zip(parts, maps, strict=True):
        for pid, tid, kind, value in part.threads:
            key = tuple(-2 - int(codes[-2 - n]) if n <= -2 and -2 - n < len(codes) else n for n in (pid, tid))
            found.setdefault((key[0], key[1]), {})[kind] = value
    rows = [
        (pid, tid, said.get("process", ""), said.get("thread", ""), said.get("labels", ""))
        for (pid, tid), said in found.items()
    ]
    return pl.DataFrame(rows, schema=THREADS, orient="row") if rows else pl.DataFrame(schema=THREADS)
