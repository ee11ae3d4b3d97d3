"""A trace as the analyses see it: arrays of the tables, the window, and the user's lines."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.run import Phases
from hotlap.records.trace import Window

from .intervals import Intervals, union
from .tables import WORK, Trace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COMMUNICATION: Final = re.compile(r"nccl|rccl|gloo|all_?reduce|all_?gather|reduce_?scatter|sendrecv|nvshmem", re.I)
"""Kernels that talk to other ranks, by name."""
WITH_HOST: Final = "HtoD|DtoH"
"""Copies between host and device. All others, and memsets, are traffic of the device's own memory."""
PYTHON_NAME: Final = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
"""How the profiler names a Python function: file(line): function; the line is where the function begins."""
NOT_USERS: Final = re.compile(
    r"^<|(^|/)(torch|torchvision|numpy|transformers|lightning|pytorch_lightning|accelerate|hotlap)/"
    r"|(^|/)(site|dist)-packages/|(^|/)lib/python3[^/]*/|^(threading|runpy|contextlib|functools|typing)\.py$"
)
"""Files whose lines users did not write."""


@dataclass(frozen=True, eq=False)
class View:
    """One rank's trace over a window. `lines` maps rows of `host` to a place, where something better than the
    profiler's stacks is known (see `lines.py`). host_window: the same steps on the host's clock, where it is ahead.
    unprofiled: host ms a step by phase without the profiler, where they are known."""

    trace: Trace
    window: Window
    lines: dict[int, Place] | None = None
    host_window: Window | None = None
    unprofiled: Phases | None = None

    @cached_property
    def on_host(self) -> "View":
        """The same over the host's steps, for questions about host time."""
        if self.host_window is None:
            return self
        return View(self.trace, self.host_window, self.lines, unprofiled=self.unprofiled)

    def host(self, column: str) -> Ints:
        """An integer column of `host`, whole."""
        return self.trace.host[column].to_numpy()

    @cached_property
    def work(self) -> pl.DataFrame:
        """Work on devices that overlaps the window: `device` rows with `row`, clipped `from` and `to`, and `kind`:
        `compute`, `communication` or `copy`."""
        names = self.trace.device["name"].unique()
        talks = [name for name in names if COMMUNICATION.search(name)]
        start, end = pl.col("start"), pl.col("start") + pl.col("dur")
        return (
            self.trace.device.with_row_index("row")
            .filter(pl.col("cat").is_in(WORK) & (end > self.window.start_ns) & (start < self.window.end_ns))
            .with_columns(
                pl.max_horizontal(start, pl.lit(self.window.start_ns)).alias("from"),
                pl.min_horizontal(end, pl.lit(self.window.end_ns)).alias("to"),
                pl.when(pl.col("cat") != "kernel")
                .then(pl.lit("copy"))
                .when(pl.col("name").is_in(talks))
                .then(pl.lit("communication"))
                .otherwise(pl.lit("compute"))
                .alias("kind"),
            )
        )

    @cached_property
    def devices(self) -> list[int]:
        """Devices with work in the window."""
        return sorted(self.work["device"].unique().to_list())

    def busy(self, device: int, kind: str | None = None) -> Intervals:
        """When a device works, within the window."""
        rows = self.work.filter(pl.col("device") == device)
        if kind is not None:
            rows = rows.filter(pl.col("kind") == kind)
        return union(rows["from"].to_numpy(), rows["to"].to_numpy())

    @cached_property
    def main_thread(self) -> tuple[int, int]:
        """(pid, tid) of the thread that trains: the one that launches most, else the one with most host time."""
        host = self.trace.host
        if not len(host):
            return (0, 0)
        steps = host.filter(pl.col("name").str.starts_with("ProfilerStep#"))
        if len(steps):
            return int(steps["pid"][0]), int(steps["tid"][0])
        stepping = host.filter(pl.col("name").str.starts_with("Optimizer.step#"))
        ops = stepping if len(stepping) else host.filter(pl.col("cat") == "op")
        backward = ops.filter(pl.col("name").str.starts_with("autograd::engine")).select("pid", "tid").unique()
        own = ops.join(backward, on=["pid", "tid"], how="anti")  # on a CPU the backward runs on the thread that trains
        ops = own if len(own) else ops
        busiest = (ops if len(ops) else host).group_by("pid", "tid").agg(pl.col("dur").sum()).sort("dur")
        return int(busiest["pid"][-1]), int(busiest["tid"][-1])

    @cached_property
    def _ends(self) -> Ints:
        return self.host("start") + self.host("dur")

    def in_window(self, starts: Ints) -> Bools:
        """Which of these begin in the window."""
        return (starts >= self.window.start_ns) & (starts < self.window.end_ns)

    def at(self, times: Ints, thread: tuple[int, int] | None = None) -> Ints:
        """Row of the innermost host event of a thread (default: the main one) open at each time, -1 where none is."""
        rows, starts, _ = self.thread(thread or self.main_thread)
        found = np.full(len(times), -1, np.int64)
        if not len(rows):
            return found
        index = np.searchsorted(starts, times, side="right") - 1
        row = np.where(index >= 0, rows[np.maximum(index, 0)], -1)
        open_ = row >= 0
        while True:  # climb until the event encloses the time; at most as many turns as the stack is deep
            over = open_ & (self._ends[np.maximum(row, 0)] <= times)
            if not over.any():
                break
            row = np.where(over, self.host("parent")[np.maximum(row, 0)], row)
            open_ = row >= 0
        return row

    @cached_property
    def _threads(self) -> dict[tuple[int, int], tuple[Ints, Ints, Ints]]:
        return {}

    def thread(self, thread: tuple[int, int]) -> tuple[Ints, Ints, Ints]:
        """Rows, starts and ends of a thread's events."""
        if thread not in self._threads:
            mine = (self.host("pid") == thread[0]) & (self.host("tid") == thread[1])
            rows = np.nonzero(mine)[0].astype(np.int64)
            self._threads[thread] = rows, self.host("start")[rows], self._ends[rows]
        return self._threads[thread]


def place_of(name: str) -> Place | None:
    """The place in a Python function's name, None where it is not the user's code."""
    match = PYTHON_NAME.match(name)
    if match is None or NOT_USERS.search(match["file"]):
        return None
    return Place(file=match["file"], line=int(match["line"]), function=match["function"])
