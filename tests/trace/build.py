"""Small traces made by hand: rows as dicts, everything else filled in; links as the reader makes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from hotlap.records.trace import Window
from hotlap.trace.analyses import collectives as analysis
from hotlap.trace.analyses.collectives import Calls
from hotlap.trace.analyses.shares import share_of
from hotlap.trace.links import enclosing, first_match, nesting
from hotlap.trace.tables import COLLECTIVES, DEVICE, HOST, MEMORY, SHAPES, THREADS, Trace
from hotlap.trace.view import View


def op(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "op", "start": start, "dur": dur, **more}


def call(name: str, start: int, dur: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "runtime", "start": start, "dur": dur, "correlation": correlation, **more}


def note(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "annotation", "start": start, "dur": dur, **more}


def python(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "python", "start": start, "dur": dur, **more}


def kernel(name: str, start: int, dur: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "kernel", "start": start, "dur": dur, "correlation": correlation, **more}


def table(schema: dict[str, Any], rows: list[dict[str, Any]], defaults: dict[str, Any]) -> pl.DataFrame:
    filled = []
    for row in rows:
        unknown = set(row) - set(schema)
        assert not unknown, unknown
        filled.append({c: row.get(c, defaults.get(c, "" if t is pl.String else -1)) for c, t in schema.items()})
    return pl.DataFrame(filled, schema=schema, orient="row") if filled else pl.DataFrame(schema=schema)


def make(
    host: list[dict[str, Any]] = (),  # type: ignore[assignment]
    device: list[dict[str, Any]] = (),  # type: ignore[assignment]
    shapes: list[dict[str, Any]] = (),  # type: ignore[assignment]
    collectives: list[dict[str, Any]] = (),  # type: ignore[assignment]
    memory: list[dict[str, Any]] = (),  # type: ignore[assignment]
    **more: Any,
) -> Trace:
    """A trace of these rows (sorted here); pid 1, tid 1, device 0, stream 7 unless a row says otherwise."""
    host = sorted(host, key=lambda r: (r["start"], -r["dur"]))
    device = sorted(device, key=lambda r: r["start"])
    h = table(HOST, list(host), {"pid": 1, "tid": 1})
    d = table(DEVICE, list(device), {"device": 0, "stream": 7, "context": 1})
    start = h["start"].to_numpy()
    parent, depth = nesting(h["tid"].to_numpy(), start, start + h["dur"].to_numpy())
    cat = h["cat"].to_numpy()
    calls = np.nonzero(cat == "runtime")[0]
    found = first_match(h["correlation"].to_numpy()[calls], d["correlation"].to_numpy())
    launch = np.where(found >= 0, calls[np.maximum(found, 0)] if len(calls) else -1, -1)
    ops = enclosing(launch.copy(), parent, cat == "op") if len(h) else launch
    return Trace(
        source="made by hand",
        host=h.with_columns(pl.Series("parent", parent, pl.Int32), pl.Series("depth", depth, pl.Int16)),
        device=d.with_columns(pl.Series("launch", launch, pl.Int32), pl.Series("op", ops, pl.Int32)),
        memory=table(MEMORY, list(memory), {}),
        shapes=table(SHAPES, list(shapes), {}),
        collectives=table(COLLECTIVES, list(collectives), {}),
        threads=table(THREADS, [], {}),
        **more,
    )


def view(trace: Trace, start: int = 0, end: int | None = None, steps: tuple[tuple[int, int], ...] = ()) -> View:
    """The trace over a window; its own span by default."""
    ends = [int((t["start"] + t["dur"]).max()) for t in (trace.host, trace.device) if len(t)]  # type: ignore[arg-type]
    last = end if end is not None else max(ends, default=0)
    return View(trace, Window(start_ns=start, end_ns=last, found_by="ProfilerStep" if steps else "none", steps=steps))


def match(views: Sequence[View]) -> Calls:
    """The collectives of ranks, which are numbered as they come."""
    return analysis.match([share_of(one, number) for number, one in enumerate(views)])
