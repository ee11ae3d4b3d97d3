"""Changes to a graph: each says what its tasks and edges would cost if a cause were removed.

A change takes costs and returns new ones, or None where there is nothing to change; changes compose. None makes a task
longer. Each leaves the order of work in streams and threads, and everything that it does not name, as it was.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.peaks import Peaks

from ..analyses.roofline import MATRIX, call_of, claimed, needs, tensor_cores
from ..intervals import covered, union
from ..peaks import peaks_of
from ..view import COMMUNICATION, View
from .graph import Bools, Edge, Graph, Ints, Kind
from .simulate import NEVER, Costs

GRAPH_GAP_NS: Final = 450
"""From a kernel's end to the next one's start inside a CUDA graph; 417 in the median of gpt2-124m-bf16-cudagraphs."""
PRODUCT_NS: Final = 2_400
CAST_NS: Final = 1_600
"""A matrix product on tensor cores takes no less, however small, and a cast with the gap before it no less: 2.2 to 2.8
µs, and 0.96 to 1.3 and GRAPH_GAP_NS, in the medians of a compiled GPT of 128 channels in bf16 (H200, torch 2.11)."""
OF_BANDWIDTH: Final = 0.8
"""Of the data sheet's memory bandwidth, what kernels that only move data reach."""
INPUT: Final = re.compile(r"^enumerate\(DataLoader\)|DataLoader.*__next__|train_dataloader_next|fetch_next")
STEPPING: Final = re.compile(r"^Optimizer\.step#")
BACKWARD: Final = r"^autograd::engine::|^hotlap:backward$"
FUSED: Final = re.compile(r"fused.?(adam|sgd|adagrad|optimizer)", re.I)
UPDATE_BYTES: Final = {"adam": 28, "": 20}
"""A parameter of an optimizer step in one pass, fp32: Adam reads it, its gradient and two moments and writes three of
them; others as SGD with momentum: reads three, writes two."""
FUSED_HOST: Final = 0.25
"""Host time of a fused optimizer's step in that of a foreach one: 0.84 of 3.84 ms in the 124M-parameter traces."""


@dataclass(frozen=True)
class Facts:
    """A graph with what changes ask of its traces, found once."""

    graph: Graph

    @cached_property
    def peaks(self) -> tuple[Peaks | None, ...]:
        """Of the ranks' devices, from their data sheets."""
        gpus = (span.view.trace.gpus for span in self.graph.spans)
        return tuple(peaks_of(found[0].name) if found else None for found in gpus)

    @cached_property
    def device(self) -> Bools:
        """Tasks of device work."""
        return np.equal(self.graph.kind, int(Kind.DEVICE))

    @cached_property
    def names(self) -> list[str]:
        """Names of device work, "" for other tasks."""
        found = np.full(len(self.graph), "", dtype=object)
        for tasks, view in self._device_of_ranks():
            found[tasks] = view.trace.device["name"].gather(self.graph.row[tasks]).to_list()
        return [str(name) for name in found]

    def _device_of_ranks(self) -> Iterable[tuple[Ints, View]]:
        for rank, span in enumerate(self.graph.spans):
            yield np.nonzero(self.device & (self.graph.rank == rank))[0], span.view

    def named(self, pattern: str) -> Bools:
        """Tasks of device work whose name matches."""
        return pl.Series(self.names, dtype=pl.String).str.contains(pattern).to_numpy() & self.device

    def launched_by(self, work: Bools) -> Bools:
        """CALL tasks that launch any of the work."""
        edges = (self.graph.edge == Edge.LAUNCH) & work[self.graph.dst]
        return np.bincount(self.graph.src[edges], minlength=len(self.graph)) > 0

    @cached_property
    def communication(self) -> Bools:
        """Tasks of kernels that talk to other ranks."""
        return self.named(f"(?i){COMMUNICATION.pattern}") & ~self.named("^Mem(cpy|set) ")

    def within(self, pattern: re.Pattern[str]) -> Ints:
        """How much of each HOST and CALL task lies in annotations (or Python functions) with such names, in ns."""
        found = np.zeros(len(self.graph), np.int64)
        for rank, span in enumerate(self.graph.spans):
            mine = np.nonzero((self.graph.rank == rank) & (self.graph.kind <= int(Kind.CALL)))[0]
            starts = self.graph.start[mine] - span.offset
            ends = starts + self.graph.dur[mine]
            found[mine] = covered(union(*annotated(span.view, pattern)), starts, ends)
        return found

    def launched_within(self, pattern: re.Pattern[str]) -> Bools:
        """Tasks of device work whose call lies in such an annotation."""
        inside = (self.within(pattern) > 0) & (self.graph.kind == int(Kind.CALL))
        edges = (self.graph.edge == Edge.LAUNCH) & inside[self.graph.src]
        return (np.bincount(self.graph.dst[edges], minlength=len(self.graph)) > 0) & self.device


def annotated(view: View, pattern: re.Pattern[str]) -> tuple[Ints, Ints]:
    """Starts and ends of annotations with such names on the main thread."""
    main = (pl.col("pid") == view.main_thread[0]) & (pl.col("tid") == view.main_thread[1])
    rows = view.trace.host.filter(main & (pl.col("cat") == "annotation"))
    rows = rows.filter(pl.Series([bool(pattern.search(name)) for name in rows["name"].to_list()], dtype=pl.Boolean))
    start = rows["start"].to_numpy()
    return start, start + rows["dur"].to_numpy()


Change = Callable[[Facts, Costs], Costs | None]


def _lowered(values: Ints, where: Bools, most: int | Ints) -> Ints:
    return np.where(where, np.minimum(values, most), values)


def no_syncs(of: Facts, costs: Costs) -> Costs | None:
    """The host waits for no device work (`.item()`, copies, synchronize)."""
    waits = of.graph.edge == Edge.SYNC
    return Costs(costs.dur, np.where(waits, NEVER, costs.lag)) if waits.any() else None


def free_input(of: Facts, costs: Costs) -> Costs | None:
    """Batches are on the device at once: no time in the DataLoader, no copies to the device, no waits for them."""
    graph, loading = of.graph, of.within(INPUT)
    copies = of.named("HtoD")
    if not loading.any() and not copies.any():
        return None
    dur = np.maximum(np.minimum(costs.dur, graph.dur - loading), 0)
    dur = np.where(copies | of.launched_by(copies), 0, dur)
    lag = _lowered(costs.lag, (graph.edge == Edge.LAUNCH) & copies[graph.dst], 0)
    waits = (graph.edge == Edge.SYNC) & copies[graph.src]
    return Costs(dur, np.where(waits, NEVER, lag))


def no_launch_cost(of: Facts, costs: Costs) -> Costs | None:
    """The device never waits for the host but for input, as if steps were CUDA graphs."""
    graph = of.graph
    host = (graph.kind == int(Kind.HOST)) | (graph.kind == int(Kind.CALL))
    keep = np.minimum(of.within(INPUT), costs.dur)
    lag = _lowered(costs.lag, np.isin(graph.edge, [Edge.LAUNCH, Edge.HANDOVER]), 0)
    return Costs(np.where(host, keep, costs.dur), _lowered(lag, graph.edge == Edge.STREAM, GRAPH_GAP_NS))


def device_infinitely_fast(of: Facts, costs: Costs) -> Costs | None:
    """Device work takes no time: what is left is the host's."""
    device = np.isin(of.graph.edge, [Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.SYNC, Edge.COLLECTIVE])
    return Costs(np.where(of.device, 0, costs.dur), _lowered(costs.lag, device, 0))


def matmuls_in(dtype: str) -> Change:
    """Matrix products that run in plain fp32 as `tf32` or `bf16`: the same share of the new peak, but no faster than
    their operands move or than PRODUCT_NS, and in bf16 with a cast of CAST_NS each (autocast casts each weight forward
    and its gradient backward; what compilers merge of it makes up for what else it casts). What else bf16 makes smaller
    is not counted."""
    casts = CAST_NS if dtype == "bf16" else 0

    def change(of: Facts, costs: Costs) -> Costs | None:
        mine, moved = _fp32_products(of)
        dur = costs.dur.copy()
        for rank, peaks in enumerate(of.peaks):
            peak = peaks.tflops(dtype, True) if peaks and dtype != "tf32" else peaks.tf32 if peaks else None
            if peaks is None or peak is None:
                continue
            tasks = mine & (of.graph.rank == rank)
            bytes_moved = moved[tasks] // (2 if dtype == "bf16" else 1)
            least = bytes_moved / (peaks.memory_gbs * OF_BANDWIDTH)  # GB/s are bytes a ns
            faster = np.maximum(costs.dur[tasks] * (peaks.fp32 / peak), np.maximum(least, PRODUCT_NS)) + casts
            dur[tasks] = np.minimum(costs.dur[tasks], faster.astype(np.int64))
        return Costs(dur, costs.lag) if (dur != costs.dur).any() else None

    return change


def _fp32_products(of: Facts) -> tuple[Bools, Ints]:
    """Kernels of fp32 products without tensor cores, and the bytes that each one's operator has to move (0 unknown)."""
    known: dict[str, bool] = {name: tensor_cores([name]) is False for name in set(of.names) if name}
    plain = np.array([known.get(name, False) for name in of.names], bool)
    moved = np.zeros(len(of.graph), np.int64)
    for tasks, view in of._device_of_ranks():
        tasks = tasks[plain[tasks]]  # noqa: PLW2901
        rows = claimed(view, view.trace.device["op"].to_numpy()[of.graph.row[tasks]].astype(np.int64))
        host = view.trace.host.select("name", "shapes")
        wanted: dict[tuple[str, int], tuple[str, int]] = {}
        for at, row in zip(tasks.tolist(), rows.tolist(), strict=True):
            key = (str(host["name"][row]), int(host["shapes"][row])) if row >= 0 else ("", -1)
            if key not in wanted:
                wanted[key] = _operands(view, *key)
            dtype, moved[at] = wanted[key]
            plain[at] = dtype == "fp32"
    return plain, moved


def _operands(view: View, op: str, shapes: int) -> tuple[str, int]:
    """(dtype, bytes) of a product; fp32 and 0 where its shapes were not recorded."""
    if op not in MATRIX or shapes < 0:
        return ("fp32" if op in MATRIX or not op else ""), 0
    call = call_of(view, op, shapes)
    need = needs(call) if call is not None else None
    return (call.dtype, need[1]) if call is not None and need is not None else ("fp32", 0)


def perfect_overlap(of: Facts, costs: Costs) -> Costs | None:
    """Nothing waits for communication; see `hidden_ns` for the bound."""
    return Costs(np.where(of.communication, 0, costs.dur), costs.lag) if of.communication.any() else None


def hidden_ns(of: Facts, costs: Costs) -> float:
    """Communication of a step of one rank in the mean: hidden or not, a step takes no less."""
    mine = of.communication & ~np.isin(np.arange(len(of.graph)), np.concatenate([s.prior for s in of.graph.spans]))
    return float(costs.dur[mine].sum()) / sum(s.steps for s in of.graph.spans)


def no_straggler(of: Facts, costs: Costs) -> Costs | None:
    """No rank waits for another: the step is the median rank's at its own pace."""
    hubs = (of.graph.edge == Edge.COLLECTIVE) & (of.graph.kind[of.graph.src] == int(Kind.HUB))
    return Costs(costs.dur, np.where(hubs, NEVER, costs.lag)) if hubs.any() else None


def fused_optimizer(of: Facts, costs: Costs) -> Costs | None:
    """The optimizer's step as one pass over the parameters. Not where it calls a closure that runs the backward (LBFGS,
    Lightning's loops): its annotation then holds all of the step."""
    if any(_in_closures(span.view) for span in of.graph.spans):
        return None
    graph, work = of.graph, of.launched_within(STEPPING)
    dur, stepping = costs.dur.copy(), of.within(STEPPING)
    for rank, span in enumerate(graph.spans):
        mine = np.nonzero(work & (graph.rank == rank))[0]
        if not len(mine) or any(FUSED.search(of.names[task]) for task in mine.tolist()):
            continue
        now, least = int(costs.dur[mine].sum()), _one_pass_ns(span.view, of.peaks[rank]) * span.steps
        dur[mine] = (costs.dur[mine] * min(1.0, least / now if least and now else FOREACH_SHARE)).astype(np.int64)
        host = (graph.kind <= int(Kind.CALL)) & (graph.rank == rank) & (stepping > 0)
        saved = (np.minimum(stepping, costs.dur) * (1 - FUSED_HOST)).astype(np.int64)
        dur[host] = np.maximum(costs.dur - saved, 0)[host]
    return Costs(dur, costs.lag) if (dur != costs.dur).any() else None


FOREACH_SHARE: Final = 0.3
"""A fused step's bytes in those of foreach AdamW (7 passes of about 22), for when the parameters are not known."""


def _in_closures(view: View) -> bool:
    """Whether a backward runs inside of an optimizer's step."""
    starts, ends = annotated(view, STEPPING)
    named = view.trace.host.filter(pl.col("name").str.contains(BACKWARD))["start"].to_numpy()
    before = np.searchsorted(np.sort(named), starts), np.searchsorted(np.sort(named), ends)
    return bool((before[1] > before[0]).any())


def _one_pass_ns(view: View, peaks: Peaks | None) -> float:
    """Time of one pass over the parameters, from the shapes of accumulated gradients; 0 unknown."""
    if peaks is None or not view.window.steps:
        return 0.0
    host = view.trace.host
    inside = (pl.col("start") >= view.window.start_ns) & (pl.col("start") < view.window.end_ns)
    gradients = host.filter(inside & (pl.col("name") == "torch::autograd::AccumulateGrad") & (pl.col("shapes") >= 0))
    elements = sum(n * _elements(view, shapes) for shapes, n in gradients.group_by("shapes").len().rows())
    stepping = host.filter((pl.col("cat") == "annotation") & pl.col("name").str.contains(STEPPING.pattern))
    adam = stepping["name"].str.contains("Adam").any()
    moved = elements / view.window.count * UPDATE_BYTES["adam" if adam else ""]
    return float(moved / (peaks.memory_gbs * OF_BANDWIDTH))


def _elements(view: View, shapes: int) -> int:
    """Of the first tensor."""
    call = call_of(view, "", shapes)
    size = call.dims[0] if call is not None and call.dims else None
    return prod(n for n in size if isinstance(n, int)) if isinstance(size, list) and size else 0
