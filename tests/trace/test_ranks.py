"""Who is slow: hand-made ranks with one known cause each, and a real straggler.

`data/ranks/straggler_rank*.json.gz` are excerpts of traces of small-gpt-ddp-straggler-4xh200: steps, loaders and device
work only, names of kernels that are not communication replaced. The loader of rank 3 does three times the work.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.records.trace import Ranks
from hotlap.trace.analyses import ranks as analysis
from hotlap.trace.analyses.ranks import step_costs, waited
from hotlap.trace.read import read
from hotlap.trace.steps import find_windows
from hotlap.trace.view import View

from .build import kernel, make, match, op, python, view

US = 1000
MS = 1000 * US
DATA = Path(__file__).parent / "data" / "ranks"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def ranks(views: list[View]) -> Ranks:
    return analysis.ranks(match(views))


def world(
    steps: int = 5,
    size: int = 4,
    input_ms: dict[int, float] | None = None,
    compute_ms: dict[int, float] | None = None,
    host_ms: dict[int, float] | None = None,
    copy_ms: dict[int, float] | None = None,
    clocks: dict[int, int] | None = None,
    kernels: dict[int, int] | None = None,
    jitter: np.ndarray | None = None,
) -> list[View]:
    """Ranks that load, run Python, copy, compute, and all_reduce, step by step: 10, 5, 1 and 20 ms where nothing else
    is said, and 2 ms of transfer. jitter: ms of compute more, by step and rank."""
    rows = [_row(size)]
    host: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    device: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    begin, edges = 0, [0]
    for step in range(steps):
        arrivals = []
        for rank in range(size):
            loading = round((input_ms or {}).get(rank, 10.0) * MS)
            thinking = round((host_ms or {}).get(rank, 5.0) * MS)
            copying = round((copy_ms or {}).get(rank, 1.0) * MS)
            computing = round(((compute_ms or {}).get(rank, 20.0) + (0 if jitter is None else jitter[step, rank])) * MS)
            pieces = (kernels or {}).get(rank, 10)
            host[rank].append({"name": LOADER, "cat": "annotation", "start": begin, "dur": loading})
            host[rank].append(python("train.py(7): augment", begin + loading, thinking))
            at = begin + loading + thinking
            device[rank].append({**kernel("Memcpy HtoD", at, copying), "cat": "memcpy"})
            at += copying
            cuts = np.linspace(at, at + computing, pieces + 1).astype(int)
            device[rank] += [kernel("gemm", a, b - a) for a, b in pairwise(cuts.tolist())]
            arrivals.append(at + computing)
        end = max(arrivals) + 2 * MS
        for rank, arrival in enumerate(arrivals):
            device[rank].append(kernel("ncclDevKernel_AllReduce", arrival, end - arrival, stream=19, collective=0))
        for rank in range(size):
            host[rank].append({"name": f"ProfilerStep#{step}", "cat": "annotation", "start": begin, "dur": end - begin})
        begin = end
        edges.append(end)
    return [
        view(
            make(host[r], device[r], collectives=rows, rank=r, base_ns=10**18 + (clocks or {}).get(r, 0)),
            0,
            edges[-1],
            tuple(pairwise(edges)),
        )
        for r in range(size)
    ]


def _row(size: int) -> dict[str, Any]:
    given_ = {"name": "allreduce", "dtype": "Float", "in_elements": 1000, "out_elements": 1000}
    return {**given_, "group": "0", "group_size": size, "group_ranks": str(list(range(size)))}


def test_alike_ranks_have_no_straggler() -> None:
    found = ranks(world())
    assert (found.straggler, found.cost_ns, found.imbalance) == (None, 0, 0.0)
    assert found.why == "no rank is late: rank 0 costs most, 0.00 ms a step (0.0%)"
    assert [load.late_ns for load in found.loads] == [0, 0, 0, 0]
    load = found.loads[2]
    assert (load.rank, load.step_ns, load.compute_ns, load.communication_ns) == (2, 38 * MS, 20 * MS, 2 * MS)
    assert (load.input_ns, load.idle_ns) == (10 * MS, 15 * MS)


def test_slow_input() -> None:
    found = ranks(world(input_ms={3: 30.0}))
    assert (found.straggler, found.cost_ns) == (3, 20 * MS)
    assert (found.cause, found.why) == ("input", "its input takes 30.0 ms a step against 10.0 ms")
    assert [load.late_ns for load in found.loads] == [0, 0, 0, 20 * MS]
    assert found.imbalance == 0.0


def test_slow_compute_with_as_many_kernels() -> None:
    found = ranks(world(compute_ms={1: 28.0}))
    assert (found.straggler, found.cost_ns) == (1, 8 * MS)
    assert "its compute takes 28.0 ms a step against 20.0 ms, with as many kernels" in found.why
    assert found.imbalance == pytest.approx(28 / 22 - 1)


def test_slow_compute_with_more_kernels() -> None:
    found = ranks(world(compute_ms={1: 28.0}, kernels={1: 14}))
    assert found.straggler == 1
    assert found.why.endswith("its compute takes 28.0 ms a step against 20.0 ms, with 14 kernels, not 10")


def test_slow_host_names_function_and_line() -> None:
    found = ranks(world(host_ms={2: 25.0}))
    assert (found.straggler, found.cost_ns) == (2, 20 * MS)
    assert found.why.endswith("its host is in train.py: augment for 25.0 ms a step against 5.00 ms")
    assert (found.cause, found.where) == ("host", Place(file="train.py", line=7, function="augment"))


def test_python_outside_of_any_op_is_a_cause_of_its_own() -> None:
    """The function of each step's Python is unknown; after it the host is in one op until the step's end."""
    found = ranks([_without_functions(view) for view in world(host_ms={2: 25.0})])
    assert (found.straggler, found.cause, found.where) == (2, "python", None)
    assert found.why == "its host is in Python outside of any op for 25.0 ms a step against 5.00 ms"


def _without_functions(view: View) -> View:
    rows = view.trace.host.select("name", "cat", "start", "dur").to_dicts()
    functions = [row["start"] + row["dur"] for row in rows if row["cat"] == "python"]
    ops = [op("aten::rest", at, end - at) for at, (_, end) in zip(functions, view.window.steps, strict=True)]
    host = make([row for row in rows if row["cat"] != "python"] + ops).host
    return replace(view, trace=replace(view.trace, host=host))


def test_slow_input_names_the_line_that_loads() -> None:
    """A loader's place is the user's function around it."""
    views = world(input_ms={3: 30.0})
    around = [python("train.py(3): main", 0, views[3].window.end_ns)]
    host = views[3].trace.host.select("name", "cat", "start", "dur").to_dicts()
    trace = replace(views[3].trace, host=make(host + around).host)
    found = ranks([*views[:3], replace(views[3], trace=trace)])
    assert (found.straggler, found.where) == (3, Place(file="train.py", line=3, function="main"))


def test_what_each_rank_waits_is_told_from_the_transfer() -> None:
    """Ranks whose compute ends 20 and 4 ms before that of rank 3, for 5 steps; clocks differ."""
    views = world(input_ms={3: 30.0, 1: 26.0}, clocks={2: 7 * MS})
    assert waited(match(views)) == {0: 100 * MS, 1: 20 * MS, 2: 100 * MS, 3: 0}
    assert all(
        load.communication_ns == wait * MS + 2 * MS
        for load, wait in zip(ranks(views).loads, (20, 4, 20, 0), strict=True)
    )


def test_of_a_wait_counts_what_nothing_computes_in_and_the_window_holds() -> None:
    views = world(input_ms={1: 30.0}, size=2)
    device = views[0].trace.device.select("name", "cat", "start", "dur", "stream", "collective").to_dicts()
    more = [*device, kernel("gemm", 36 * MS, 10 * MS)]  # the first wait is from 36 to 56 ms
    trace = make(device=more, collectives=[_row(2)], rank=0, base_ns=10**18)
    window = replace(views[0], trace=trace)
    assert waited(match([window, views[1]])) == {0: 90 * MS, 1: 0}
    assert waited(match(views[:1])) == {}


def test_slow_copies() -> None:
    found = ranks(world(copy_ms={0: 6.0}))
    assert (found.straggler, found.cost_ns) == (0, 5 * MS)
    assert found.why.endswith("its copies take 6.00 ms a step against 1.00 ms")


def test_many_small_causes_are_said_to_be() -> None:
    late = {0: 6.0}
    found = ranks(world(input_ms={0: 15.0}, host_ms={0: 10.0}, copy_ms=late, compute_ms={0: 25.0}))
    assert found.straggler == 0
    assert found.why.startswith("no single cause explains half of it")
    assert (found.where, found.cause) == (None, None)


@pytest.mark.parametrize("clocks", [{2: 3_000_000_000, 3: 3_000_000_000}, {1: -9 * MS}])
def test_two_hosts_with_other_clocks(clocks: dict[int, int]) -> None:
    even = np.random.default_rng(0).uniform(0, 0.5, (5, 1)).repeat(4, axis=1)  # steps differ, ranks do not
    found = ranks(world(input_ms={3: 30.0}, clocks=clocks, jitter=even))
    assert (found.straggler, found.cost_ns) == (3, 20 * MS)
    assert ranks(world(clocks=clocks, jitter=even)).straggler is None


def test_another_rank_late_each_step_is_no_straggler() -> None:
    jitter = np.zeros((8, 4))
    jitter[np.arange(8), np.arange(8) % 4] = 10.0
    found = ranks(world(8, jitter=jitter))
    assert (found.straggler, found.cost_ns) == (None, 0)
    assert "but only in 2 of 8 steps" in found.why


def test_late_once_is_no_straggler() -> None:
    jitter = np.zeros((6, 4))
    jitter[2, 1] = 60.0
    assert ranks(world(6, jitter=jitter)).straggler is None


def test_below_two_percent_is_no_straggler() -> None:
    assert ranks(world(compute_ms={1: 20.7})).straggler is None
    assert ranks(world(compute_ms={1: 20.9})).straggler == 1


def test_one_step_is_not_enough() -> None:
    found = ranks(world(1, input_ms={3: 30.0}))
    assert found.straggler is None
    assert "in one step" in found.why


def test_a_slow_host_of_two_ranks_is_said_but_none_is_named() -> None:
    found = ranks(world(input_ms={2: 30.0, 3: 30.0}))
    assert found.straggler is None
    assert found.why == "some ranks wait 20.0 ms a step, but not for one rank alone: 2, 3 are late together"


def test_what_others_hide_behind_compute_costs_nothing() -> None:
    """Rank 1 arrives 20 ms later, but rank 0 computes on another stream meanwhile, save for 4 ms."""

    def side(number: int, arrival: int, aside: int) -> View:
        work = []
        for step in range(4):
            at = step * 100 * MS
            work.append(kernel("ncclDevKernel_AllReduce", at + arrival, 50 * MS - arrival, stream=19, collective=0))
            if aside:
                work.append(kernel("gemm", at + 10 * MS, aside))
        trace = make([], work, collectives=[_row(2)], rank=number, base_ns=10**18)
        return view(trace, 0, 400 * MS, tuple((s * 100 * MS, (s + 1) * 100 * MS) for s in range(4)))

    costs = step_costs(match([side(0, 10 * MS, 16 * MS), side(1, 30 * MS, 0)]))
    assert costs.tolist() == [[0.0, 4.0 * MS]] * 4


def test_one_rank_and_no_collectives() -> None:
    assert ranks(world(size=1)).why == "one rank only"
    alone = [view(make([op("aten::mm", 0, 10)], [kernel("gemm", 0, 10)], rank=r)) for r in (0, 1)]
    assert ranks(alone).why == "no collective is known on two ranks"
    assert ranks([view(make([op("aten::mm", 0, 10)]))]).imbalance == 0.0


@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(0, 4), st.floats(3.0, 30.0))
@settings(max_examples=25)
def test_a_late_rank_is_named_and_its_cost_is_what_was_planted(seed: int, size: int, who: int, more: float) -> None:
    """Small noise on every rank; the cost is the planted lateness, less than the noise away from it."""
    late = who % size
    jitter = np.random.default_rng(seed).uniform(0, 0.2, (4, size))
    found = ranks(world(4, size, input_ms={late: 10 + more}, jitter=jitter))
    assert found.straggler == late
    assert abs(found.cost_ns - more * MS) <= 0.21 * MS
    assert "its input takes" in found.why


@given(st.integers(0, 2**31), st.integers(2, 5))
@settings(max_examples=25)
def test_noise_below_two_percent_names_nobody(seed: int, size: int) -> None:
    jitter = np.random.default_rng(seed).uniform(0, 0.7, (4, size))
    assert ranks(world(4, size, jitter=jitter)).straggler is None


def test_costs_against_brute_force() -> None:
    jitter = np.random.default_rng(5).uniform(0, 9, (6, 4))
    costs = step_costs(match(world(6, jitter=jitter)))
    for step, row in enumerate(jitter):
        ordered = np.sort(np.round(row * MS))
        assert costs[step, row.argmax()] == pytest.approx(ordered[-1] - ordered[-2], abs=2)
        assert np.count_nonzero(costs[step]) == 1


def _real(number: int) -> View:
    trace = read(DATA / f"straggler_rank{number}.json.gz", processes=0)
    window, host = find_windows(trace)
    return View(trace, window, None, host)


def test_a_real_straggler() -> None:
    """By hand, from the files: last minus second arrival is 40.2, 23.3 and 35.8 ms at the first call of the steps and
    6.9 ms at the second; the others still compute for some of the first."""
    views = [_real(number) for number in range(4)]
    calls = match(views)
    gaps = (calls.complete.sort("last")["last"] - calls.complete.sort("last")["second"]).to_numpy() / 1e6
    assert np.round(gaps, 1).tolist() == [40.2, 6.9, 23.3, 6.9, 35.8, 6.9]
    found = ranks(views)
    assert found.straggler == 3
    assert found.cost_ns == 32_529_167
    assert (found.cause, found.why) == ("input", "its input takes 58.6 ms a step against 20.0 ms")
    assert ranks(views[:3]).straggler is None  # without it, rank 2 is late in one step of three
