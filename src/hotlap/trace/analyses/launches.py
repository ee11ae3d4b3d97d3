"""How the host issues device work, and how far it is ahead of the device.

Calls. A launch is a runtime or driver call that begins in the window and has device work (the trace links them by
correlation). A CUDA graph launch is one call with much work; it counts once. `host_ns` is the time inside these calls.

Latency of a call: from its start to the start of its first work. Ahead: from its end to the start of its first work;
negative where the work starts before the call returns. Both are large when the host runs ahead and the work waits its
turn; when `ahead` is near zero the device waits for the host. Quantiles are of calls, by the nearest rank.

Queue depth at an instant: pieces of work that are launched and not finished, on all devices. A piece counts from the
end of its call (from its own start where that is earlier or the call is unknown) to its own end; each piece of a graph
counts. Mean and median are over the time of the window.

Tiny kernels (that start in the window) are shorter than `TINY_NS`: about what it takes the host to issue one from eager
PyTorch, so a device fed with such kernels cannot be kept busy.
"""

from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Launches
from hotlap.trace.tables import WORK
from hotlap.trace.view import Ints, View

TINY_NS: Final = 5_000


def launches(view: View) -> Launches:
    """Over all devices and launching threads."""
    columns = ("cat", "start", "dur", "launch")
    work = view.trace.device.lazy().filter(pl.col("cat").is_in(WORK)).select(columns).collect()
    window = view.window
    calls = work.filter(pl.col("launch") >= 0).group_by("launch").agg(pl.col("start").first().alias("first"), pl.len())
    issued = view.trace.host.select("name", "start", "dur")[calls["launch"]]
    calls = pl.concat([calls, issued], how="horizontal")
    calls = calls.filter(pl.col("start").is_between(window.start_ns, window.end_ns, closed="left"))
    latency, host_ns = calls["first"] - calls["start"], calls["dur"]
    graphs = calls.filter(pl.col("name").str.contains("GraphLaunch"))
    begun = work.filter(pl.col("start").is_between(window.start_ns, window.end_ns, closed="left"))
    tiny = begun.filter((pl.col("cat") == "kernel") & (pl.col("dur") < TINY_NS))
    mean, median = _queue(view, work)
    return Launches(
        count=len(calls),
        unlinked=int((begun["launch"] < 0).sum()),
        host_ns=int(host_ns.sum()),
        latency_p50_ns=_quantile(latency.to_numpy(), 0.5),
        latency_p90_ns=_quantile(latency.to_numpy(), 0.9),
        ahead_p50_ns=_quantile((latency - host_ns).to_numpy(), 0.5),
        queue_depth_mean=mean,
        queue_depth_p50=median,
        tiny=len(tiny),
        tiny_ns=int(tiny["dur"].sum()),
        tiny_below_ns=TINY_NS,
        graph_launches=len(graphs),
        graph_kernels=int(graphs["len"].sum()),
    )


def _quantile(values: Ints, share: float) -> int:
    """The value of nearest rank; 0 of nothing."""
    return int(np.quantile(values, share, method="inverted_cdf")) if len(values) else 0


def _queue(view: View, work: pl.DataFrame) -> tuple[float, float]:
    """Queue depth over the window's time: (mean, median), by a sweep over arrivals and ends."""
    start, end = view.window.start_ns, view.window.end_ns
    if end <= start:
        return 0.0, 0.0
    begins, launch = work["start"].to_numpy(), work["launch"].to_numpy()
    ends = begins + work["dur"].to_numpy()
    linked = launch >= 0
    arrivals = begins.copy()
    called = (view.host("start") + view.host("dur"))[launch[linked]]
    arrivals[linked] = np.minimum(called, begins[linked])
    arrivals, ends = np.clip(arrivals, start, end), np.clip(ends, start, end)
    times = np.concatenate([np.array([start], np.int64), arrivals, ends])
    steps = np.concatenate([np.zeros(1, np.int64), np.ones(len(arrivals), np.int64), -np.ones(len(ends), np.int64)])
    order = np.argsort(times, kind="stable")
    lengths = np.diff(times[order], append=end)
    depths = np.cumsum(steps[order])
    by_depth = np.bincount(np.maximum(depths, 0), weights=lengths)
    median = int(np.searchsorted(np.cumsum(by_depth), (end - start) / 2))
    return int((ends - arrivals).sum()) / (end - start), float(median)
