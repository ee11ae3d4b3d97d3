"""Collectives over ranks: exact numbers on hand-made ranks, and calls that are found again whatever the clocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.records.trace import Collective
from hotlap.trace.analyses import collectives as analysis
from hotlap.trace.analyses.breakdown import breakdown
from hotlap.trace.analyses.collectives import bus_factor, clock_offset, talks_at
from hotlap.trace.analyses.shares import collective_name
from hotlap.trace.view import View

from .build import call, kernel, make, match, note, op, view

US = 1000
MS = 1000 * US
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def said(name: str = "allreduce", elements: int = 1_000_000, outputs: int | None = None, **more: Any) -> dict[str, Any]:
    """A row of `collectives`."""
    given_ = {"name": name, "dtype": "Float", "in_elements": elements, "out_elements": outputs or elements}
    group = {"group": "0", "group_description": "default_pg", "group_size": 2, "group_ranks": "[0, 1]"}
    return {**given_, **group, **more}


def rank(
    number: int | None,
    calls: list[tuple[int, int]],
    compute: list[tuple[int, int]] = (),  # type: ignore[assignment]
    window: tuple[int, int] = (0, 100 * MS),
    rows: list[dict[str, Any]] | None = None,
    which: list[int] | None = None,
    base: int = 10**18,
) -> View:
    """A rank with communication kernels (start, end) on stream 19 and compute (start, end) on stream 7."""
    kernels = [
        kernel(RING, start, end - start, stream=19, collective=which[i] if which else 0)
        for i, (start, end) in enumerate(calls)
    ]
    work = [kernel("gemm", start, end - start) for start, end in compute]
    trace = make([], kernels + work, collectives=rows or [said()], base_ns=base, rank=number)
    return view(trace, *window)


def collectives(views: Sequence[View]) -> tuple[Collective, ...]:
    return analysis.collectives(match(views))


def only(found: tuple[Collective, ...]) -> Collective:
    assert len(found) == 1, found
    return found[0]


def test_two_ranks() -> None:
    early = rank(0, [(10 * MS, 14 * MS)], compute=[(9 * MS, 11 * MS)])
    late = rank(1, [(12 * MS, 14 * MS)])
    found = only(collectives([early, late]))
    assert (found.name, found.group, found.dtype, found.bytes) == ("all_reduce", "0 default_pg", "Float", 4_000_000)
    assert (found.ranks, found.group_size, found.count) == (2, 2, 1)
    assert found.ns == 6 * MS
    assert found.exposed_ns == 5 * MS  # of the first rank's 4 ms one is under compute
    assert (found.skew_ns, found.wait_ns, found.transfer_ns) == (2 * MS, 1 * MS, 2 * MS)
    assert found.algorithm_gbs == pytest.approx(2.0)  # 4 MB in 2 ms
    assert found.bus_gbs == pytest.approx(2.0)  # times 2(n-1)/n, which is 1 for two


def test_one_rank_says_nothing_of_the_others() -> None:
    found = only(collectives([rank(0, [(10 * MS, 14 * MS)], compute=[(9 * MS, 11 * MS)])]))
    assert (found.count, found.ns, found.exposed_ns, found.ranks) == (1, 4 * MS, 3 * MS, 1)
    assert (found.skew_ns, found.wait_ns, found.transfer_ns) == (None, None, None)
    assert (found.algorithm_gbs, found.bus_gbs) == (None, None)


def test_not_all_ranks_of_the_group_are_known() -> None:
    rows = [said(group_size=4, group_ranks="[0, 1, 2, 3]")]
    found = only(collectives([rank(0, [(10, 5000)], rows=rows), rank(1, [(1010, 5000)], rows=rows)]))
    assert (found.ranks, found.group_size, found.skew_ns, found.wait_ns) == (2, 4, 1000, 500)
    assert found.transfer_ns is None  # another rank may have come last
    assert found.bus_gbs is None


def test_nothing_and_no_views() -> None:
    assert collectives([]) == ()
    assert collectives([rank(0, [])]) == ()
    assert collectives([view(make())]) == ()


def test_a_rank_that_lacks_a_record_is_matched_by_time_not_by_number() -> None:
    times = [(i * 10 * MS, i * 10 * MS + 2 * MS) for i in range(1, 6)]
    other = [(start + MS, end) for start, end in times if start != 30 * MS]
    calls = match([rank(0, times), rank(1, other)])
    assert len(calls.complete) == 4
    assert calls.complete["last"].sort().to_list() == [10**18 + start for start, _ in other]
    assert only(collectives([rank(0, times), rank(1, other)])).skew_ns == MS
    assert only(collectives([rank(0, times), rank(1, other)])).count == 5


def test_windows_cut_what_is_counted_but_not_what_is_matched() -> None:
    times = [(i * 10 * MS, i * 10 * MS + 2 * MS) for i in range(1, 6)]
    found = only(collectives([rank(0, times, window=(15 * MS, 31 * MS)), rank(1, times, window=(15 * MS, 31 * MS))]))
    assert (found.count, found.ns) == (2, 6 * MS)  # the second call is cut in half
    assert found.transfer_ns == 2 * MS


@pytest.mark.parametrize("offset", [3_700_000_000, -7 * MS, 60 * US, 0])
def test_clocks_of_two_hosts(offset: int) -> None:
    ends = np.cumsum([10 * MS, 11 * MS, 9 * MS, 12 * MS, 10 * MS])
    here = rank(0, [(int(end) - 3 * MS, int(end)) for end in ends])
    there = rank(1, [(int(end) - MS, int(end)) for end in ends], base=10**18 + offset)
    found = only(collectives([here, there]))
    assert (found.skew_ns, found.wait_ns, found.transfer_ns) == (2 * MS, MS, MS)
    assert match([here, there]).lanes[1].clock_ns == 10**18


def test_clocks_are_found_over_groups_that_share_a_rank() -> None:
    """Ranks 0 and 1 share a group, 1 and 2 another; 2 is on another host."""
    ends = [10 * MS, 21 * MS, 30 * MS]
    a, b = said(group="1", group_ranks="[0, 1]"), said(group="2", group_ranks="[1, 2]", name="_allgather_base")
    first = rank(0, [(e - MS, e) for e in ends], rows=[a])
    both = rank(
        1, [(e - MS, e) for e in ends] + [(e + 4 * MS, e + 5 * MS) for e in ends], rows=[a, b], which=[0] * 3 + [1] * 3
    )
    third = rank(2, [(e + 4 * MS, e + 5 * MS) for e in ends], rows=[b], base=10**18 + 500 * MS)
    lanes = match([first, third, both]).lanes
    assert [lane.clock_ns - 10**18 for lane in lanes] == [0, 0, 0]


def test_ranks_without_a_common_group_keep_their_clocks() -> None:
    one = rank(0, [(10, 20)], rows=[said(group="1", group_ranks="[0]")])
    other = rank(1, [(10, 20)], rows=[said(group="2", group_ranks="[1]")], base=10**18 + 5)
    assert [lane.clock_ns for lane in match([one, other]).lanes] == [10**18, 10**18 + 5]
    assert len(match([one, other]).complete) == 0


def test_kernels_without_a_description_belong_to_the_group_of_their_stream() -> None:
    times = [(10 * MS, 12 * MS), (20 * MS, 22 * MS)]
    found = collectives([rank(r, times, which=[-1, 0]) for r in (0, 1)])
    assert {(row.name, row.group, row.bytes, row.bus_gbs is None) for row in found} == {
        ("all_reduce", "0 default_pg", 4_000_000, False),
        ("all_reduce", "0 default_pg", 0, True),
    }
    assert [row.transfer_ns for row in found] == [2 * MS, 2 * MS]


def test_a_size_that_only_one_rank_knows_is_the_calls() -> None:
    times = [(10 * MS, 12 * MS), (20 * MS, 22 * MS)]
    found = only(collectives([rank(0, times, which=[-1, 0]), rank(1, times)]))
    assert (found.count, found.bytes) == (2, 4_000_000)


def test_all_to_all_may_have_another_size_on_each_rank() -> None:
    ranks = [rank(r, [(10, 5000)], rows=[said("all_to_allv", elements=n)]) for r, n in enumerate((100, 300))]
    found = only(collectives(ranks))
    assert (found.name, found.bytes, found.ranks, found.transfer_ns) == ("all_to_all", 800, 2, 4990)


def test_sends_are_matched_with_receives_in_pairs_only() -> None:
    pair = [rank(0, [(10, 5000)], rows=[said("send")]), rank(1, [(1010, 5000)], rows=[said("recv")])]
    assert [(row.name, row.transfer_ns, row.bus_gbs) for row in collectives(pair)] == [
        ("send", 3990, pytest.approx(4_000_000 / 3990)),
        ("recv", 3990, pytest.approx(4_000_000 / 3990)),
    ]
    four = {"group_size": 4, "group_ranks": "[0, 1, 2, 3]"}
    many = [rank(r, [(10, 5000)], rows=[said("send", **four)]) for r in range(4)]
    assert only(collectives(many)).transfer_ns is None


def test_bytes_are_of_the_whole_array() -> None:
    gather = [rank(r, [(0, 1000)], rows=[said("_allgather_base", 500, 1000, dtype="BFloat16")]) for r in (0, 1)]
    found = only(collectives(gather))
    assert (found.name, found.bytes) == ("all_gather", 2000)
    assert found.algorithm_gbs == pytest.approx(2.0)
    assert found.bus_gbs == pytest.approx(1.0)  # (n-1)/n
    scatter = [rank(r, [(0, 1000)], rows=[said("_reduce_scatter_base", 1000, 500)]) for r in (0, 1)]
    assert only(collectives(scatter)).bytes == 4000


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")] == [
        1.75,
        0.875,
        0.875,
        0.875,
    ]
    assert [bus_factor(name, 8) for name in ("broadcast", "reduce", "send", "recv")] == [1.0] * 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (RING, "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclKernel_ReduceScatter_Sum_bf16", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("send", "send"),
        ("recv", "recv"),
        ("nvshmem_put_kernel", "nvshmem_put_kernel"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert collective_name(text) == name


def test_several_devices_of_one_process_are_ranks_of_their_own() -> None:
    kernels = [kernel(RING, 10 + d * 1000, 5000 - d * 1000, device=d, stream=19, collective=0) for d in (0, 1)]
    found = only(collectives([view(make([], kernels, collectives=[said()]))]))
    assert (found.ranks, found.skew_ns, found.wait_ns) == (2, 1000, 500)


def test_the_sum_of_exposed_times_is_the_breakdowns() -> None:
    one = rank(0, [(10, 50), (60, 90), (95, 300)], compute=[(0, 20), (40, 70), (200, 310)], window=(15, 250))
    assert sum(row.exposed_ns for row in collectives([one])) == breakdown(one)[0].exposed_communication_ns > 0


@given(st.data())
@settings(max_examples=40)
def test_calls_are_found_again_under_any_clock(data: st.DataObject) -> None:
    """Ranks arrive when they like and end together but for jitter; some records are lost. Brute force: we know them."""
    count, world = data.draw(st.integers(6, 14)), data.draw(st.integers(2, 4))
    seed = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    ends = np.cumsum(seed.integers(5 * MS, 15 * MS, count))
    rows = [said(group_size=world, group_ranks=str(list(range(world))))]
    views, kept = [], []
    for number in range(world):
        keep = np.ones(count, bool)
        keep[seed.choice(count, seed.integers(0, 2), replace=False)] = False
        done = ends + seed.integers(0, 20 * US, count)
        start = ends - seed.integers(US, 4 * MS, count)
        clock = int(seed.integers(-(10**10), 10**10)) if number else 0
        calls = list(zip(start[keep].tolist(), done[keep].tolist(), strict=True))
        views.append(rank(number, calls, window=(0, 10**9), rows=rows, base=10**18 + clock))
        kept.append(keep)
    calls = match(views)
    assert len(calls.complete) == int(np.logical_and.reduce(kept).sum())
    assert all(abs(lane.clock_ns - 10**18) <= 50 * US for lane in calls.lanes)
    ordered = calls.parts.filter(calls.parts["lane"] == 0).sort("end")["call"].to_list()
    assert len(set(ordered)) == len(ordered)  # no call has two kernels of one rank


@given(st.lists(st.integers(MS, 20 * MS), min_size=1, max_size=30), st.integers(-(10**12), 10**12))
@settings(max_examples=100)
def test_an_offset_puts_ends_together_at_least_half_as_well_as_any_other(gaps: list[int], offset: int) -> None:
    """Brute force: every difference of two ends is tried."""
    ends = np.cumsum(np.array(gaps, np.int64))

    def together(shift: int) -> int:
        return int((np.abs((ends - offset + shift)[:, None] - ends[None, :]).min(axis=1) <= 200 * US).sum())

    best = max(together(int(shift)) for shift in np.unique(ends[:, None] - (ends - offset)[None, :]))
    assert 2 * together(clock_offset(ends, ends - offset)) >= best == len(ends)


def test_many_alike_calls_keep_the_clock_that_fits() -> None:
    """A step has the same calls as the one before; what fits without an offset has none, else the most calls decide."""
    ends = np.cumsum(np.tile(np.array([5, 7, 11]) * MS, 20))
    assert clock_offset(ends, ends[3:-3]) == 0
    assert clock_offset(ends, ends - 10**9) == 10**9


def test_windows_a_few_steps_apart_are_no_clock_offset() -> None:
    """Seven of ten calls fit as they are; ten would if three steps were taken for an offset."""
    ends = np.arange(1, 14, dtype=np.int64) * 10 * MS
    assert clock_offset(ends[:10], ends[3:]) == 0


def test_short_calls_in_quick_succession_are_not_mixed_up() -> None:
    """Ten calls of 10 us, 50 us apart, of which each rank lacks one: within the grace for ends, but no one else's."""
    times = [(i * 50 * US, i * 50 * US + 10 * US) for i in range(1, 11)]
    calls = match([rank(0, times[:4] + times[5:]), rank(1, times[:7] + times[8:])])
    assert len(calls.complete) == 8
    assert calls.parts.group_by("call", "lane").len()["len"].max() == 1
    assert (calls.complete["first"] == calls.complete["last"]).all()


def test_the_line_that_issues_most_of_the_exposed_communication() -> None:
    """By hand after the backward, and from autograd's thread within it, where compute hides more."""
    host = [
        note("ProfilerStep#0", 0, 40 * MS),
        op("c10d::allreduce_", 20 * MS, MS),
        call("cudaLaunchKernelExC", 20 * MS + US, 10 * US, 2),
        note("hotlap:backward", 5 * MS, 10 * MS),
        op("c10d::allreduce_", 6 * MS, MS, tid=2),
        call("cudaLaunchKernelExC", 6 * MS + US, 10 * US, 1, tid=2),
    ]
    device = [
        kernel(RING, 7 * MS, 10 * MS, 1, stream=19, collective=0),
        kernel("gemm", 7 * MS, 8 * MS),
        kernel(RING, 21 * MS, 4 * MS, 2, stream=19, collective=0),
        kernel(RING, 30 * MS, 9 * MS, stream=19, collective=0),  # launched before the recording
    ]
    trace = make(host, device, collectives=[said()], rank=0)
    by_hand, backward = Place(file="t.py", line=40), Place(file="t.py", line=38)
    rows = {name: i for i, name in enumerate(trace.host["name"].to_list()) if trace.host["tid"][i] == 1}
    lines = {rows["c10d::allreduce_"]: by_hand, rows["hotlap:backward"]: backward}
    whole = View(trace, view(trace).window, lines)
    assert talks_at(whole) == by_hand
    assert talks_at(View(trace, view(trace, end=20 * MS).window, lines)) == backward
    assert talks_at(view(trace)) is None and talks_at(view(make())) is None
