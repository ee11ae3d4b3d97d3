"""What comparisons between ranks need of one rank's trace, small enough to keep for every rank at once: a row for each
communication kernel, when each device computed, and sums by name.

A communication kernel's group, name, sizes and dtype come from its metadata. One without (its launch came before the
profiler) has its name from the kernel's name, and its group from the others on its stream where these are of one group.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.trace import RankLoad, Window
from hotlap.trace.intervals import Intervals, covered, difference
from hotlap.trace.view import COMMUNICATION, View

from . import totals
from .grouping import places

NAMES: Final = {
    name.replace("_", ""): name
    for name in (
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "send", "recv"),
        *("barrier", "gather", "scatter", "reduce"),
    )
}
"""What a name holds, letters only, and the collective that it is; the first that fits."""
CALLS: Final[dict[str, type[pl.DataType]]] = {
    "name": pl.String,
    "group": pl.String,
    "label": pl.String,
    "dtype": pl.String,
    "elements": pl.Int64,
    "size": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "ns": pl.Int64,
    "exposed": pl.Int64,
}
MOST_NAMES: Final = 200
MOST_PLACES: Final = 20


@dataclass(frozen=True)
class DeviceShare:
    """One device. compute: when it computed, within the window; calls: a row for each communication kernel of the whole
    trace, in order of start: name of the collective, group, its label, dtype, elements of the whole array (0 unknown),
    size of the group (0 unknown), start and end (the trace's clock), ns and exposed: inside the window, in all and
    without compute."""

    device: int
    compute: Intervals
    calls: pl.DataFrame


@dataclass(frozen=True)
class Share:
    """One rank. Times are per step. copies_ns: copies outside compute; kernels: that are not communication; host: self
    time of functions of the thread that trains, by plain name, the largest; places: lines of the largest of them
    and of loaders."""

    rank: int
    base_ns: int
    window: Window
    devices: tuple[DeviceShare, ...]
    load: RankLoad
    copies_ns: int
    kernels: float
    host: dict[str, int]
    places: dict[str, Place]


def share_of(view: View, rank: int) -> Share:
    """Of one rank."""
    host, inputs = _host(view.on_host), totals.inputs(view.on_host)
    return Share(
        rank=rank,
        base_ns=view.trace.base_ns,
        window=view.window,
        devices=tuple(DeviceShare(d, view.busy(d, "compute"), _calls(view, d)) for d in view.devices),
        load=_load(view, rank),
        copies_ns=sum(difference(view.busy(d, "copy"), view.busy(d, "compute")).total for d in view.devices)
        // view.window.count,
        kernels=int((view.work["kind"] == "compute").sum()) / view.window.count,
        host=host,
        places=_places(view.on_host, [*inputs, *list(host)[:MOST_PLACES]]),
    )


def _load(view: View, rank: int) -> RankLoad:
    count, devices = view.window.count, max(1, len(view.devices))

    def per_step(kind: str | None) -> int:
        return sum(view.busy(device, kind).total for device in view.devices) // devices // count

    return RankLoad(
        rank=rank,
        step_ns=view.window.span_ns // count,
        compute_ns=per_step("compute"),
        communication_ns=per_step("communication"),
        idle_ns=view.window.span_ns // count - per_step(None),
        input_ns=sum(ns for ns, _ in totals.inputs(view.on_host).values()) // view.on_host.window.count,
    )


def _host(view: View) -> dict[str, int]:
    """Self time a step by plain name, the largest first; waits for input are not among them."""
    found: dict[str, int] = {}
    for name, (ns, _) in totals.host(view).items():
        if not re.search(totals.INPUT, name):
            plain = totals.unnumbered(name)
            found[plain] = found.get(plain, 0) + ns
    largest = sorted(found, key=lambda name: (-found[name], name))[:MOST_NAMES]
    return {name: found[name] // view.window.count for name in largest}


def _places(view: View, names: list[str]) -> dict[str, Place]:
    """The user's line of the longest event of each plain name, where lines are known at all."""
    if not view.lines and not (view.trace.host["cat"] == "python").any():
        return {}
    spelled = {name: totals.unnumbered(name) for name in view.trace.host["name"].unique().to_list()}
    wanted = [name for name, plain in spelled.items() if plain in names]
    host = view.trace.host.lazy().with_row_index("row").filter(pl.col("name").is_in(wanted))
    longest = host.group_by("name").agg(pl.col("row", "dur").sort_by("dur").last()).sort("dur").collect()
    where, number = places(view, longest["row"].to_numpy().astype(np.int64))
    found = {spelled[name]: where[at] for name, at in zip(longest["name"].to_list(), number.tolist(), strict=True)}
    return {name: place for name, place in found.items() if place is not None}


# communication kernels


def _calls(view: View, index: int) -> pl.DataFrame:
    """Communication kernels of a device."""
    device, window = view.trace.device, view.window
    talks = [name for name in device["name"].unique().to_list() if COMMUNICATION.search(name)]
    kernels = device.filter((pl.col("device") == index) & (pl.col("cat") == "kernel") & pl.col("name").is_in(talks))
    starts = kernels["start"].to_numpy()
    ends = starts + kernels["dur"].to_numpy()
    first, last = np.clip(starts, window.start_ns, window.end_ns), np.clip(ends, window.start_ns, window.end_ns)
    computing = covered(view.busy(index, "compute"), first, last)
    times = {"start": starts, "end": ends, "ns": last - first, "exposed": last - first - computing}
    return _described(kernels, view.trace.collectives).with_columns(
        pl.Series(name, values, pl.Int64) for name, values in times.items()
    )


def _described(kernels: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Name (of the collective), group, label, dtype, elements and size of each kernel."""
    texts = collectives.select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("collective"),
        pl.col("name").alias("said"),
        (pl.col("group") + " " + pl.col("group_ranks")).alias("group"),
        pl.concat_str("group", "group_description", separator=" ").str.strip_chars().alias("label"),
        "dtype",
        pl.max_horizontal("in_elements", "out_elements", 0).alias("elements"),
        pl.max_horizontal("group_size", 0).alias("size"),
    )
    rows = kernels.select("name", "stream", "collective").join(
        texts, on="collective", how="left", maintain_order="left"
    )
    alone = pl.col("group").drop_nulls().n_unique().over("stream") == 1  # one group on the stream: all are its calls
    fill = [
        pl.when(alone)
        .then(pl.col(c).drop_nulls().first().over("stream"))
        .otherwise(pl.lit(default))
        .alias(f"{c}_alone")
        for c, default in (("group", ""), ("label", ""), ("size", 0))
    ]
    named = pl.coalesce("said", "name")
    spelled = {text: collective_name(text) for text in rows.select(named.unique())["said"].to_list()}
    return rows.with_columns(*fill).select(
        named.replace_strict(spelled, return_dtype=pl.String).alias("name"),
        *(pl.coalesce(c, f"{c}_alone").alias(c) for c in ("group", "label", "size")),
        pl.col("dtype").fill_null(""),
        pl.col("elements").fill_null(0),
    )


def collective_name(text: str) -> str:
    """The collective in a name of torch's or a kernel's: `_allgather_base` and `ncclDevKernel_AllGather_RING_LL` are
    `all_gather`; unknown ones keep theirs."""
    letters = re.sub(r"[^a-z]", "", text.lower())
    return next((name for holds, name in NAMES.items() if holds in letters), text)
