"""Idle time by cause: exact on small traces, and against a plain walk over every nanosecond."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.records.run import Phases
from hotlap.trace.analyses.breakdown import breakdown
from hotlap.trace.analyses.gaps import gaps, pieces
from hotlap.trace.analyses.grouping import packed, unpacked
from hotlap.trace.analyses.waits import CAUSES
from hotlap.trace.read import read
from hotlap.trace.view import View

from .build import call, kernel, make, op, python, view

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def causes(of: View) -> dict[str, int]:
    """Idle time by cause; checks that it sums to the idle time of the breakdown."""
    found: Counter[str] = Counter()
    for gap in gaps(of):
        found[gap.cause] += gap.idle_ns
    assert found.total() == sum(b.idle_ns for b in breakdown(of))
    return dict(found)


def annotation(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "cat": "annotation", "start": start, "dur": dur, **more}


def launch(start: int, correlation: int, **more: Any) -> dict[str, Any]:
    return call("cudaLaunchKernel", start, 5, correlation, **more)


def test_work_queued_before_the_gap_is_the_devices_own_pause() -> None:
    trace = make([launch(0, 1), launch(10, 2), op("aten::mm", 8, 10)], [kernel("a", 20, 30, 1), kernel("b", 53, 10, 2)])
    (gap,) = gaps(view(trace, 20, 63))
    assert (gap.cause, gap.idle_ns, gap.count, gap.longest_ns, gap.doing) == ("between kernels", 3, 1, 3, "aten::mm")


@pytest.mark.parametrize(("begin", "cause"), [(34, "between kernels"), (35, "between kernels"), (36, "launch")])
def test_a_call_that_returns_as_the_gap_begins_has_queued_its_work(begin: int, cause: str) -> None:
    of = view(make([launch(0, 1), launch(begin, 2)], [kernel("a", 5, 35, 1), kernel("b", 50, 10, 2)]), 5, 60)
    assert causes(of) == {cause: 10}


def test_a_call_that_began_before_the_gap_is_launch() -> None:
    trace = make([launch(0, 1), call("cudaLaunchKernel", 30, 20, 2)], [kernel("a", 5, 35, 1), kernel("b", 52, 10, 2)])
    assert causes(view(trace, 5, 62)) == {"launch": 12}


def test_the_loader_allocator_and_profiler_by_what_was_open() -> None:
    trace = make(
        [
            launch(0, 1),
            annotation("ProfilerStep#3", 0, 400),
            annotation(LOADER, 20, 50),
            op("aten::stack", 30, 20),
            op("aten::empty", 80, 20),
            call("cudaMalloc", 85, 10, 7),
            {"name": "Activity Buffer Request", "cat": "overhead", "start": 100, "dur": 15, "pid": -1, "tid": 0},
            launch(120, 2),
        ],
        [kernel("a", 5, 5, 1), kernel("b", 130, 10, 2)],
    )
    of = view(trace, 5, 140)
    # python, loader from 20, python from 70, op from 80, malloc from 85, op from 95, profiler from 100, python from 115
    assert causes(of) == {
        "python": 25,
        "input": 50,
        "launch": 20,
        "allocator": 10,
        "profiler": 15,
    }
    assert {g.doing for g in gaps(of) if g.cause == "input"} == {LOADER}
    assert {g.doing for g in gaps(of) if g.cause == "python"} == {""}


@pytest.mark.parametrize(("name", "sync"), [("aten::item", 40), ("aten::softmax", 5)])
def test_what_is_left_of_an_op_that_is_there_for_a_wait_is_the_waits(name: str, sync: int) -> None:
    """A value is read from a device that has nothing to do: the call is short, and the op would not be there."""
    host = [launch(0, 1), op(name, 20, 40), call("cudaStreamSynchronize", 40, 5, 2), launch(100, 3)]
    trace = make(host, [kernel("a", 10, 5, 1), kernel("b", 110, 10, 3)])
    found = causes(view(trace, 10, 120))  # idle from 15 to 110, from 20 to 60 in the op
    assert found["sync"] == sync and sum(found.values()) == 95


@pytest.mark.parametrize(
    ("begin", "forward_ms", "sync"),
    [
        (2, None, 12),  # nothing is known of the steps without the profiler
        (2, 100e-6, 12),  # they were as slow
        (2, 40e-6, 12 + 60 - 2),  # the host would come to the wait 60 ns earlier, the device begin 2 earlier
        (52, 40e-6, 12 + 60 - 52),  # the device stood still for 52, since nothing was launched
        (2, 0.0, 12),
    ],
)
def test_a_wait_is_longer_by_what_the_profiler_took_before_it(begin: int, forward_ms: float | None, sync: int) -> None:
    trace = make(
        [
            annotation("hotlap:forward", 0, 100),
            launch(begin - 2, 1),
            call("cudaStreamSynchronize", 100, 12, 2),
            python("train.py(10): main", 112, 200),
            launch(300, 3),
        ],
        [kernel("a", begin, 112 - begin, 1), kernel("b", 302, 10, 3)],
    )
    of = view(trace, 0, 312)
    of = of if forward_ms is None else replace(of, unprofiled=Phases(forward=forward_ms))
    idle = causes(of)
    assert idle["sync"] == sync
    assert sum(idle.values()) == 312 - (112 - begin) - 10


def test_a_phase_in_which_the_host_waits_says_nothing_of_the_profiler() -> None:
    trace = make(
        [
            annotation("hotlap:forward", 0, 112),
            launch(0, 1),
            call("cudaStreamSynchronize", 100, 12, 2),
            launch(300, 3),
        ],
        [kernel("a", 2, 110, 1), kernel("b", 302, 10, 3)],
    )
    assert causes(replace(view(trace, 0, 312), unprofiled=Phases(forward=1e-6)))["sync"] == 12


def test_waits_without_kernels_between_share_their_time() -> None:
    def host(kernels: bool, first: int = 10) -> list[dict[str, Any]]:
        more = [launch(115, 9)] if kernels else []
        return [
            launch(0, 1),
            call("cudaStreamSynchronize", first, 112 - first, 2),
            call("cudaStreamSynchronize", 125, 5, 3),
            *more,
            launch(150, 4),
        ]

    device = [kernel("a", 10, 100, 1), kernel("b", 160, 10, 4)]
    assert causes(view(make(host(False), device), 10, 170)) == {"sync": 50}
    # with a kernel launched between them, and the second short beside the first: it found the device drained
    with_kernel = [*device, kernel("c", 121, 1, 9)]
    assert causes(view(make(host(True), with_kernel), 10, 170)) == {"sync": 49}
    # and not short: what follows the second is its own; 110..130 sync, 130..160 the rest
    split = causes(view(make(host(True, first=80), with_kernel), 10, 170))
    # 110..112 in the call, 112..121 after it, 122..125 after it, 125..130 in the second, which has nothing left
    assert split == {"sync": 2 + 9 + 3 + 5, "python": 20, "launch": 10}


def test_the_loader_is_named_even_after_a_wait() -> None:
    trace = make(
        [launch(0, 1), call("cudaStreamSynchronize", 10, 100, 2), annotation(LOADER, 112, 30), launch(150, 3)],
        [kernel("a", 10, 100, 1), kernel("b", 160, 10, 3)],
    )
    assert causes(view(trace, 10, 170)) == {"sync": 20, "input": 30}


def test_waiting_for_other_ranks_and_staging_pageable_memory() -> None:
    trace = make(
        [
            launch(0, 1),
            op("c10d::barrier", 20, 40),
            call("cudaStreamSynchronize", 30, 20, 2),
            op("aten::copy_", 70, 40),
            call("cudaMemcpyAsync", 75, 20, 3),
        ],
        [kernel("a", 10, 10, 1), kernel("Memcpy HtoD (Pageable -> Device)", 90, 10, 3, cat="memcpy")],
    )
    # 20..60 the barrier; then its wait of 20 was idle throughout in the op: charged to communication, not again after
    found = causes(view(trace, 10, 100))
    assert found["communication"] == 40
    assert found["copy"] == 15
    assert found == {"communication": 40, "copy": 15, "sync": 15}


def test_kernels_of_a_running_graph_are_queued() -> None:
    trace = make([call("cudaGraphLaunch", 0, 100, 1)], [kernel("n", 20, 10, 1), kernel("n", 35, 10, 1)])
    assert causes(view(trace, 20, 45)) == {"between kernels": 5}


def test_work_without_a_known_launch() -> None:
    host = [op("aten::add", 0, 40), launch(10, 50), op("aten::mul", 60, 20), launch(70, 51)]
    lost = make(host, [kernel("a", 30, 5, 50), kernel("b", 90, 5, 60)])
    assert causes(view(lost, 30, 95)) == {"unknown": 55}


def test_each_device_has_its_own_gaps() -> None:
    host = [launch(0, 1), launch(6, 2), op("aten::add", 20, 30), launch(40, 3), launch(60, 4)]
    device = [
        kernel("a", 10, 10, 1, device=0),
        kernel("b", 10, 30, 2, device=1),
        kernel("c", 46, 14, 3, device=0),
        kernel("d", 66, 4, 4, device=1),
    ]
    of = view(make(host, device), 10, 70)
    assert [b.idle_ns for b in breakdown(of)] == [26 + 10, 26]
    # 0: the op from 20, to its own launch at 40 and to 46; its end from 60. 1: the op 40..50, Python, launch 60..66
    assert causes(of) == {"launch": 26 + 5 + 10 + 6, "python": 5 + 10}
    (add,) = (g for g in gaps(of) if (g.cause, g.doing) == ("launch", "aten::add"))
    assert (add.idle_ns, add.count, add.longest_ns) == (26 + 10, 2, 26)


def test_the_windows_end_without_further_work() -> None:
    trace = make([launch(0, 1), op("aten::add", 50, 30)], [kernel("a", 10, 10, 1)])
    assert causes(view(trace, 10, 100)) == {"python": 50, "launch": 30}


def test_devices_without_host_events() -> None:
    assert causes(view(make([], [kernel("a", 0, 10), kernel("b", 20, 10)]), 0, 30)) == {"unknown": 10}
    assert gaps(view(make(), 0, 30)) == ()
    assert gaps(view(make([], [kernel("a", 0, 10)]), 0, 10)) == ()


def test_autograd_time_has_the_line_of_its_forward() -> None:
    trace = make(
        [
            annotation("ProfilerStep#1", 0, 300),
            python("gpt.py(9): forward", 0, 30),
            op("aten::linear", 5, 20, sequence=4),
            launch(10, 1),
            python("gpt.py(65): main", 40, 200),
            op("autograd::engine::evaluate_function: AddmmBackward0", 60, 40, tid=2, sequence=4),
            launch(90, 2, tid=2),
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 120, 30, tid=2),
            launch(140, 3, tid=2),
        ],
        [kernel("a", 20, 40, 1), kernel("b", 95, 25, 2), kernel("c", 150, 5, 3)],
    )
    found = {g.doing: g.where for g in gaps(view(trace, 20, 155))}
    assert found["autograd::engine::evaluate_function: AddmmBackward0"] == Place(
        file="gpt.py", line=9, function="forward"
    )
    assert found["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"] == Place(
        file="gpt.py", line=65, function="main"
    )


def test_known_lines_come_first() -> None:
    trace = make(
        [launch(0, 1), python("a.py(1): f", 0, 90), op("aten::add", 30, 60), launch(70, 2)],
        [kernel("a", 5, 25, 1), kernel("b", 80, 5, 2)],
    )
    plain = view(trace, 5, 85)
    row = trace.host["name"].to_list().index("aten::add")
    known = View(trace, plain.window, {row: Place(file="a.py", line=3, function="f")})
    assert {g.where for g in gaps(known)} == {Place(file="a.py", line=3, function="f")}


@pytest.mark.parametrize(
    "place", [None, Place(file="a b.py"), Place(file="x", line=0), Place(file="x", function="<f>")]
)
def test_places_survive_packing(place: Place | None) -> None:
    assert unpacked(packed(place)) == place


# a real trace


def test_after_item_in_a_real_trace() -> None:
    """3 ms of gpt2-124m-fp32-eager-h100: `.item()`, the loader, the next batch's copies."""
    path = Path(__file__).parent / "data" / "item-wait.json.gz"
    trace = read(path)
    raw = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    wait = max((e for e in raw if e["name"] == "cudaStreamSynchronize"), key=lambda e: e["dur"])
    loader = next(e for e in raw if e["name"].startswith("enumerate(DataLoader)"))
    name = trace.host["name"]
    row = trace.host.filter(name == "cudaStreamSynchronize").sort("dur").tail(1)
    until = int((row["start"] + row["dur"])[0])
    of = view(trace, until - 200_000, until + 2_500_000)
    found = {(g.cause, g.doing): g.idle_ns for g in gaps(of)}
    # all of the loader's call lies in one gap, and the device is done 24,997 ns before the wait returns
    assert found["input", loader["name"]] == round(loader["dur"] * 1000)
    last = max(e["ts"] + e["dur"] for e in raw if e["cat"] == "gpu_memcpy" and e["ts"] < wait["ts"] + wait["dur"])
    within = round((wait["ts"] + wait["dur"] - last) * 1000)
    assert within == pytest.approx(24_997, abs=2)  # the text has ns, a double of it nearly
    after = list(zip(*(pieces(of, 0)[f].to_list() for f in ("start", "end", "cause")), strict=True))
    assert any((a, b, CAUSES[c]) == (until - 24_997, until, "sync") for a, b, c in after)
    assert max(found, key=lambda key: found[key]) == ("sync", "aten::item")
    assert sum(found.values()) == breakdown(of)[0].idle_ns


# the walk

NAMES = {
    "op": ("aten::mm", "c10d::allreduce_"),
    "runtime": ("cudaLaunchKernel", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"),
    "python": ("a.py(3): f", "<built-in method x>"),
    "annotation": (LOADER, "Optimizer.step#A", "ProfilerStep#1"),
}
KINDS = [(cat, name) for cat, names in NAMES.items() for name in names]


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Properly nested host events on two threads; calls that launch kernels, some of them unlinked."""
    host, correlation = [call("cudaLaunchKernel", 0, 1, 10)], 10
    device = [kernel("first", draw(st.integers(1, 30)), draw(st.integers(1, 15)), 10)]
    for tid in (1, 2):
        now, stack = draw(st.integers(1, 20)), []
        for opens, step, kind, delay, dur in draw(
            st.lists(
                st.tuples(
                    st.booleans(), st.integers(1, 9), st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 15)
                ),
                min_size=3,
                max_size=9,
            )
        ):
            now += step
            if stack and (not opens or stack[-1]["cat"] == "runtime"):
                stack.pop()["dur"] += now
            else:
                row = {"cat": kind[0], "name": kind[1], "start": now, "dur": -now, "tid": tid}
                if kind[0] == "runtime":
                    correlation += 1
                    row["correlation"] = correlation
                if kind[1] == "cudaLaunchKernel":
                    linked = correlation if delay % 5 else draw(st.sampled_from([-1, 2, 99]))
                    device.append(kernel("k", now + delay, dur, linked, stream=7 + delay % 2))
                host.append(row)
                stack.append(row)
        for row in reversed(stack):
            now += 1
            row["dur"] += now
    return host, device


class Walk:
    """The same answer by a walk over the idle nanoseconds, straight from the words of the module's docstring."""

    def __init__(self, of: View) -> None:
        self.view = of
        self.host = of.trace.host.with_row_index("row").to_dicts()
        self.device = [d for d in of.trace.device.to_dicts() if d["dur"] > 0]
        asked = {self.host[d["launch"]]["tid"] for d in self.device if d["launch"] >= 0 and self.overlaps(d)}
        end = of.window.end_ns
        running = any(d["start"] < end <= d["start"] + d["dur"] for d in self.device)
        last = [] if running else [d for d in self.device if d["start"] >= end][:1]  # ends the window's last gap
        asked |= {self.host[d["launch"]]["tid"] for d in last if d["launch"] >= 0}
        self.main = of.main_thread[1]
        self.threads = [self.main, *sorted(asked - {self.main})]
        self.waits = [h for h in self.host if "Synchronize" in h["name"] and h["tid"] in self.threads]
        self.waits.sort(key=lambda h: h["start"] + h["dur"])
        self.groups()

    def overlaps(self, work: dict[str, Any]) -> bool:
        window = self.view.window
        return bool(work["start"] < window.end_ns and work["start"] + work["dur"] > window.start_ns)

    def groups(self) -> None:
        issued = [self.host[d["launch"]]["start"] for d in self.device if d["launch"] >= 0]
        self.group: dict[int, int] = {}
        before = [sum(s < wait["start"] for s in issued) for wait in self.waits]
        number = 0
        for i, wait in enumerate(self.waits):
            number += i > 0 and before[i] != before[i - 1]
            self.group[wait["row"]] = number

    def inner(self, tid: int, t: int) -> int:
        open_ = [h["row"] for h in self.host if h["tid"] == tid and h["start"] <= t < h["start"] + h["dur"]]
        return max(open_, key=lambda r: self.host[r]["start"], default=-1)

    def chain(self, row: int) -> list[dict[str, Any]]:
        found = []
        while row >= 0:
            found.append(self.host[row])
            row = found[-1]["parent"]
        return found

    def cause(self, row: int) -> str:
        chain = self.chain(row)
        if any(h["name"] == LOADER for h in chain):
            return "input"
        if any(h["name"].startswith("c10d::") for h in chain):
            return "communication"
        if not chain or chain[0]["cat"] in ("python", "annotation"):
            return "python"
        return {"cudaMalloc": "allocator", "cudaStreamSynchronize": "sync"}.get(chain[0]["name"], "launch")

    def busy(self, row: int) -> bool:
        return row >= 0 and (self.host[row]["cat"] in ("op", "runtime") or self.host[row]["name"] == LOADER)

    def engine(self, t: int) -> bool:
        working = [h for h in self.host if h["cat"] in ("op", "runtime") and h["tid"] in self.threads]
        order = {tid: i for i, tid in enumerate(self.threads)}
        past = [(-(h["start"] + h["dur"]), order[h["tid"]]) for h in working if h["start"] <= t]
        coming = [(h["start"], order[h["tid"]]) for h in working if h["start"] > t]
        return bool(past and coming) and min(past)[1] == min(coming)[1] > 0

    def asked(self, t: int, first: int) -> tuple[str, int]:
        order = [first, *(tid for tid in self.threads if tid != first)]
        rows = [self.inner(tid, t) for tid in order]
        row = next((r for r in rows if self.busy(r)), None)
        if row is None:
            said = [r for r in rows if r >= 0 and not self.host[r]["name"].startswith("ProfilerStep")]
            row = said[0] if said else -1
        cause = self.cause(row)
        return ("launch", row) if cause == "python" and self.engine(t) else (cause, row)

    def idle(self) -> list[tuple[int, str, int]]:
        """(time, cause, reference time for waits) of each idle ns, before waits are charged."""
        window, found = self.view.window, []
        running = {t for d in self.device for t in range(d["start"], d["start"] + d["dur"])}
        self.rows: dict[int, int] = {}
        start = None
        for t in range(window.start_ns, window.end_ns):
            if t in running:
                start = None
                continue
            start = t if start is None else start
            end = next((e for e in range(t, window.end_ns) if e in running), window.end_ns)
            found.append((t, *self.one(t, start, end)))
        return found

    def one(self, t: int, start: int, end: int) -> tuple[str, int]:
        following = [d for d in self.device if d["start"] >= end]
        nxt = min(following, key=lambda d: d["start"], default=None)  # the first of those that start together
        if nxt is None or nxt["launch"] < 0:
            cause, self.rows[t] = self.asked(t, self.main)
            return ("unknown" if nxt is not None and cause in ("python", "launch") else cause), t
        by = self.host[nxt["launch"]]
        if by["start"] + by["dur"] <= start:
            return "between kernels", start
        if t >= by["start"]:
            return "launch", max(by["start"], start)
        cause, self.rows[t] = self.asked(t, by["tid"])
        return cause, t

    def causes(self) -> dict[str, int]:
        idle = self.idle()
        within = Counter(self.rows[t] for t, cause, _ in idle if cause == "sync")
        left: Counter[int] = Counter()
        for wait in self.waits:
            left[self.group[wait["row"]]] += wait["dur"] - within[wait["row"]]
        found: Counter[str] = Counter()
        for _, cause, reference in idle:
            before = [w for w in self.waits if w["start"] + w["dur"] <= reference]
            if cause in ("python", "launch") and before and left[self.group[before[-1]["row"]]] > 0:
                left[self.group[before[-1]["row"]]] -= 1
                found["sync"] += 1
            else:
                found[cause] += 1
        return dict(found)


@settings(max_examples=100)
@given(traces(), st.integers(0, 15), st.integers(10, 90))
def test_equals_a_walk_over_every_nanosecond(
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]], start: int, span: int
) -> None:
    of = view(make(*rows), start, start + span)
    if not of.devices:
        assert gaps(of) == ()
        return
    assert causes(of) == Walk(of).causes()
    found = pieces(of, 0)
    assert (found["end"] > found["start"]).all()
    assert (found["start"][1:] >= found["end"][:-1]).all()
    assert len(np.unique(found["cause"])) <= len(CAUSES)
