"""One step as bars: phases, host threads, device streams, and the device's idle time by cause.

The step is the one whose length is nearest the median. Where the host runs ahead of the device, what is shown reaches
from the step's begin on the host to its end on the device.

Rows are small whatever the trace: bars shorter than a `RESOLUTION`-th of what is shown are joined with their
neighbours if these are as short and nearer than that, in cells of twice that length. A joined bar has the kind and the
name of its longest event, and says how many there are and how long they last together. Nothing else is left out but
threads and streams beyond the busiest few and devices beyond the first few, whose number is said.

Phases are hotlap's labels; other traces have no row of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.phases import PHASES
from hotlap.records.timeline import KINDS, Bars, Timeline

from ..view import Ints, View
from .gaps import pieces
from .grouping import outermost_op, packed_places, unpacked
from .memory import CALLS
from .waits import CAUSES, waiting_calls

RESOLUTION: Final = 1500
MOST_THREADS: Final = 4
MOST_STREAMS: Final = 8
MOST_DEVICES: Final = 4
LONGEST_NAME: Final = 160
LABEL: Final = "hotlap:"
ENGINE: Final = "autograd::engine"
NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}
IDLE: Final = {at: NUMBER[f"idle: {cause}"] for at, cause in enumerate(CAUSES)}


Events = pl.DataFrame
"""Events to draw, in order of start: start, end, kind, and row (of `host` or `device`), what the bars are named for."""
END: Final = (pl.col("start") + pl.col("dur")).alias("end")


def _touching(start: int, end: int) -> pl.Expr:
    """Rows of a table that have a part within [start, end)."""
    return (pl.col("start") < end) & (pl.col("start") + pl.col("dur") > start)


def _cut(events: Events, start: int, end: int) -> Events:
    """The part within [start, end)."""
    inside = events.with_columns(pl.col("start").clip(lower_bound=start), pl.col("end").clip(upper_bound=end))
    return inside.filter(pl.col("end") > pl.col("start"))


def timeline(view: View) -> Timeline | None:
    """The median step; None where the trace has no events."""
    host, device = _steps(view)
    start, end = min(host[0], device[0]), max(host[1], device[1])
    if end <= start:
        return None
    draw = _Drawing(view, start, max(1, (end - start) // RESOLUTION))
    phases = _phases(view, start, end)
    rows = [draw.bars("phases", "phases", phases, _of_phases, 1)] if len(phases) else []
    threads, (streams, undrawn) = list(_threads(view, start, end)), _streams(view, start, end)
    rows += [draw.bars(label, "host", row, _of_host) for label, row in threads[: 2 * MOST_THREADS]]
    for number in view.devices[:MOST_DEVICES]:
        idle = pieces(view, number).with_columns(kind=pl.col("cause").replace_strict(IDLE, return_dtype=pl.Int64))
        idle_row = _cut(idle, start, end)
        rows.append(draw.bars(f"device {number}, idle", "idle", idle_row, _of_idle))
        rows += [draw.bars(label, "device", row, _of_device) for on, label, row in streams if on == number]
    return Timeline(
        step=_median_step(view),
        start_ns=start,
        span_ns=end - start,
        host=(host[0] - start, host[1] - start),
        device=(device[0] - start, device[1] - start),
        shortest_ns=draw.least,
        texts=tuple(draw.texts),
        rows=tuple(row for row in rows if row.start),
        left_out=max(0, len(threads) - 2 * MOST_THREADS) + undrawn + max(0, len(view.devices) - MOST_DEVICES),
    )


def _median_step(view: View) -> int:
    lengths = np.array([end - start for start, end in view.window.steps], np.int64)
    return int(np.argmin(np.abs(lengths - np.median(lengths)))) if len(lengths) else 0


def _steps(view: View) -> tuple[tuple[int, int], tuple[int, int]]:
    """The step on the host's clock and on the device's."""
    chosen, window, ahead = _median_step(view), view.window, view.on_host.window
    if not window.steps:
        whole = (window.start_ns, window.end_ns)
        return whole, whole
    device = window.steps[chosen]
    return (ahead.steps[chosen] if chosen < len(ahead.steps) else device), device


def joined(events: Events, least: int) -> pl.DataFrame:
    """Neighbours that are shorter than `least` and nearer than that, in cells of twice that length, as one bar, with
    kind and row of its longest event; count: of events; busy: their lengths."""
    start, end, cell = pl.col("start"), pl.col("end"), pl.col("start") // (2 * least)
    small, near = end - start < least, start - end.shift(1) < least
    separate = ~(small & small.shift(1) & near & (cell == cell.shift(1)))
    return (
        events.group_by(separate.fill_null(True).cum_sum().alias("bar"), maintain_order=True)
        .agg(
            start.first(),
            end.max(),
            pl.col("kind", "row").sort_by(end - start, maintain_order=True).last(),
            pl.len().alias("count"),
            (end - start).sum().alias("busy"),
        )
        .with_columns(dur=end - start)
    )


Said = Callable[[View, Ints], tuple[list[str], list[str]]]
"""Of rows, what bars that are named for them say: name and `file:line`, "" for none."""


@dataclass
class _Drawing:
    """What is the same for all rows. start: of what is shown; least: the shortest bar, where not joined; texts: by
    number, 0 is none."""

    view: View
    start: int
    least: int
    texts: dict[str, int] = field(default_factory=lambda: {"": 0})

    def bars(self, label: str, group: str, events: Events, said: Said, least: int | None = None) -> Bars:
        found = joined(events, least or self.least)
        names, at = said(self.view, found["row"].to_numpy())
        return Bars(
            label=label,
            group=group,  # type: ignore[arg-type]
            start=tuple((found["start"] - self.start).to_list()),
            dur=tuple(found["dur"].to_list()),
            kind=tuple(found["kind"].to_list()),
            name=self._numbers(names),
            at=self._numbers(at),
            count=tuple(found["count"].to_list()),
            busy=tuple(found.select(pl.min_horizontal("busy", "dur")).to_series().to_list()),
        )

    def _numbers(self, texts: list[str]) -> tuple[int, ...]:
        return tuple(self.texts.setdefault(text[:LONGEST_NAME], len(self.texts)) for text in texts)


def _places(view: View, rows: Ints) -> list[str]:
    """`file:line` of host rows, "" for none."""
    if not len(view.trace.host) or not len(rows):
        return [""] * len(rows)
    said = []
    for text in packed_places(view, rows).to_list():
        place = unpacked(text)
        line = "" if place is None or place.line is None else f":{place.line}"
        said.append("" if place is None else f"{place.file}{line}")
    return said


# phases


def _phases(view: View, start: int, end: int) -> Events:
    """The phases in [start, end)."""
    labels = view.trace.host.filter(
        _touching(start, end) & (pl.col("cat") == "annotation") & pl.col("name").str.starts_with(LABEL)
    )
    found = labels.select("start", END, pl.col("name").str.strip_prefix(LABEL)).filter(pl.col("name").is_in(PHASES))
    return _cut(found.with_columns(kind=_number("name"), row=_number("name")), start, end)


def _number(kind: str) -> pl.Expr:
    return pl.col(kind).replace_strict(NUMBER, return_dtype=pl.Int64)


def _of_phases(view: View, kinds: Ints) -> tuple[list[str], list[str]]:
    return [KINDS[kind] for kind in kinds.tolist()], [""] * len(kinds)


# the host


def _threads(view: View, start: int, end: int) -> Iterator[tuple[str, Events]]:
    """Ops and calls of the busiest threads, two rows each, the one that trains first."""
    host = view.trace.host.with_row_index("row").filter(
        _touching(start, end) & (pl.col("dur") > 0) & pl.col("cat").is_in(["op", "runtime"])
    )
    main = view.main_thread
    sizes = host.group_by("pid", "tid").agg(pl.col("dur").sum()).sort("dur", descending=True)
    threads = sorted(((pid, tid) for pid, tid, _ in sizes.iter_rows()), key=lambda one: one != main)
    for number, (pid, tid) in enumerate(threads):
        mine = host.filter((pl.col("pid") == pid) & (pl.col("tid") == tid))
        engine = mine["name"].str.starts_with(ENGINE).any()
        name = "training thread" if (pid, tid) == main else "autograd thread" if engine else f"thread {number}"
        for said, cat in (("ops", "op"), ("calls to the driver", "runtime")):
            events = mine.filter(pl.col("cat") == cat).select("start", END, pl.col("row").cast(pl.Int64))
            outer = events.filter(pl.col("start") >= pl.col("end").cum_max().shift(1, fill_value=-(2**62)))
            if len(outer):
                kind = _host_kinds(view, outer["row"].to_numpy())
                yield f"{name}: {said}", _cut(outer.with_columns(kind=kind), start, end)


def _host_kinds(view: View, rows: Ints) -> Ints:
    events = view.trace.host.select("name", "cat")[rows]
    kind = np.where((events["cat"] == "op").to_numpy(), NUMBER["op"], NUMBER["host call"])
    names = events["name"]
    launching = [name for name in names.unique() if "Launch" in name or "Memcpy" in name or "Memset" in name]
    kind[names.is_in(launching).to_numpy() & (kind != NUMBER["op"])] = NUMBER["launch call"]
    kind[names.is_in([name for name in names.unique() if CALLS.match(name)]).to_numpy()] = NUMBER["allocation"]
    kind[np.isin(rows, waiting_calls(view))] = NUMBER["wait"]
    return kind.astype(np.int64)


def _of_host(view: View, rows: Ints) -> tuple[list[str], list[str]]:
    return view.trace.host["name"].gather(rows).to_list(), _places(view, rows)


# the device


def _streams(view: View, start: int, end: int) -> tuple[list[tuple[int, str, Events]], int]:
    """Work of the busiest streams of each device, in order of stream; how many streams are not among them."""
    events = view.trace.device.with_row_index("row").filter(_touching(start, end) & (pl.col("dur") > 0))
    work = events.join(view.work.select("row", "kind"), on="row", how="inner")
    found, undrawn = [], 0
    for device in view.devices[:MOST_DEVICES]:
        mine = work.filter(pl.col("device") == device)
        busiest = mine.group_by("stream").agg(pl.col("dur").sum()).sort("dur", descending=True)["stream"]
        undrawn += max(0, len(busiest) - MOST_STREAMS)
        for stream in sorted(busiest.head(MOST_STREAMS).to_list()):
            rows = mine.filter(pl.col("stream") == stream).sort("start")
            drawn = rows.select("start", END, _number("kind"), pl.col("row").cast(pl.Int64))
            found.append((device, f"device {device}, stream {stream}", _cut(drawn, start, end)))
    return found, undrawn


def _of_device(view: View, rows: Ints) -> tuple[list[str], list[str]]:
    work = view.trace.device.select("name", "op", "launch")[rows]
    called = work.select(pl.when(pl.col("op") >= 0).then("op").otherwise("launch")).to_series().to_numpy()
    return work["name"].to_list(), _places(view, called.astype(np.int64))


def _of_idle(view: View, rows: Ints) -> tuple[list[str], list[str]]:
    said = outermost_op(view, rows) if len(view.trace.host) else rows
    names = view.trace.host["name"]
    return [names[at] if at >= 0 else "" for at in said.tolist()], _places(view, rows)
