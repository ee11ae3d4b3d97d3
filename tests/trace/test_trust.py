"""What stands against a trace: each doubt from a trace made to deserve it, and their order."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.records.trace import Window
from hotlap.trace.analyses.trust import trust, under_recorded
from hotlap.trace.tables import Losses
from hotlap.trace.view import View

from .build import call, kernel, make, op, python, view

MS = 1_000_000
STEPS = ((0, 10 * MS), (10 * MS, 20 * MS))
NO_SHAPES = "no shapes (record_shapes=True): no FLOPs, no roofline"
NO_STACKS = "no stacks (with_stack=True): lines of your code are unknown"
NO_OVERHEAD = "the profiler's overhead is unknown, as no step time without it is known"


def sound(**more: Any) -> View:
    """Two steps of 10 ms, in each a linked kernel, with shapes and stacks: nothing to say but the overhead."""
    host = [python("train.py(1): main", 0, 20 * MS)]
    device = []
    for step in range(2):
        host.append(call("cudaLaunchKernel", step * 10 * MS + 100, 50, step + 1))
        device.append(kernel("gemm", step * 10 * MS + 200, 100, step + 1))
    return view(make(host, device, shapes=[{"dims": "[[1]]"}], **more), 0, 20 * MS, STEPS)


def test_a_sound_trace() -> None:
    found = trust(sound(), 10.0)
    assert (found.overhead, found.unlinked, found.graph_under_recorded) == (1.0, 0.0, 0)
    assert (found.lost_events, found.repaired_events, found.said) == (0, 0, ())
    assert trust(sound(), 9.6).said == ()


def test_overhead() -> None:
    found = trust(sound(), 5.0)
    assert found.overhead == 2.0
    assert found.said == ("the profiler makes steps 2.00 times as long: 10.0 ms against 5.00 ms without it",)
    assert trust(sound(), 20.0).said == (
        "steps are shorter under the profiler (10.0 ms against 20.0 ms without it); was it the same work?",
    )
    unknown = trust(sound())
    assert (unknown.overhead, unknown.said) == (None, (NO_OVERHEAD,))


def test_unlinked_work() -> None:
    one = sound()
    lost = make([], [kernel("early", 5, 10), kernel("late", 15 * MS, 10)])
    both = one.trace.device.vstack(lost.device).sort("start")
    found = trust(replace(one, trace=replace(one.trace, device=both)), 10.0)
    assert found.unlinked == 0.5
    assert found.said == (
        "2 of 4 pieces of device work (50%) have no launch in the trace; they were launched before the "
        "recording, or lost. Their ops and lines are unknown",
    )


def test_losses() -> None:
    losses = Losses(events=7, repaired=2, bytes=100, why=("torn at byte 900",))
    found = trust(sound(losses=losses), 10.0)
    assert (found.lost_events, found.repaired_events) == (7, 2)
    assert found.said == ("7 events could not be read (torn at byte 900)", "2 events were read after a repair")
    assert trust(sound(losses=Losses(bytes=100)), 10.0).said == ("100 bytes at the end could not be read",)
    assert trust(sound(losses=Losses(repaired=1, why=("a quote",))), 10.0).said == (
        "1 events were read after a repair (a quote)",
    )


def test_launches_without_work_are_worst() -> None:
    host = [call("cudaLaunchKernel", 10, 5, 1), call("cuLaunchKernelEx", 20, 5, 2), call("cudaGraphLaunch", 30, 5, 3)]
    found = trust(view(make(host), 0, 20 * MS, STEPS))
    assert found.said == (
        "no device work was recorded, though there are 3 launches: device times are unknown",
        NO_SHAPES,
        NO_STACKS,
        NO_OVERHEAD,
    )


def test_a_trace_of_the_host_alone_lacks_nothing_of_the_device() -> None:
    found = trust(view(make([op("aten::mm", 0, 10)]), 0, 20 * MS, STEPS))
    assert found.said == (NO_SHAPES, NO_STACKS, NO_OVERHEAD)
    assert found.unlinked == 0.0


def test_steps_that_were_guessed_or_not_found() -> None:
    guessed = replace(sound(), window=Window(start_ns=0, end_ns=20 * MS, found_by="optimizer", steps=STEPS))
    assert trust(guessed, 10.0).said == (
        "no ProfilerStep ranges (no profiler.step() in the loop): steps are taken from optimizer",
    )
    none = replace(sound(), window=Window(start_ns=0, end_ns=20 * MS, found_by="none"))
    assert trust(none, 20.0).said == ("no steps were found, so the whole trace counts as one step",)


def test_worst_first() -> None:
    """2.5 times is 60% of the step, unlinked work half as bad as its share, open questions last."""
    early = [kernel("early", 5, 10), kernel("gemm", 100, 10, 1)]
    trace = make([call("cudaLaunchKernel", 50, 5, 1)], early, losses=Losses(repaired=1))
    said = trust(view(trace, 0, 20 * MS, STEPS), 4.0).said
    assert [line.split()[0] for line in said] == ["the", "1", "1", "no", "no"]
    assert "pieces" in said[1] and "repair" in said[2]


# graphs


def graphs(counts: list[list[int]], names: list[str] | None = None) -> View:
    """Launches by step: how many kernels each shows; names: the op of each launch of a step."""
    host, device, correlation = [], [], 0
    for step, launches in enumerate(counts):
        for place, pieces in enumerate(launches):
            correlation += 1
            at = step * 10 * MS + place * MS
            host.append(op(names[place] if names else "replay", at, 1000))
            host.append(call("cudaGraphLaunch", at + 10, 100, correlation))
            device += [kernel("k", at + 200 + 10 * i, 5, correlation) for i in range(pieces)]
    steps = tuple((s * 10 * MS, (s + 1) * 10 * MS) for s in range(len(counts)))
    return view(make(host, device), 0, len(counts) * 10 * MS, steps)


@pytest.mark.parametrize(
    ("counts", "short"),
    [
        ([[5], [5], [5]], 0),
        ([[5], [4], [5]], 1),
        ([[5], [0], [0]], 2),  # nothing at all is always short
        ([[3, 5], [3, 5]], 0),  # two graphs a step
        ([[3, 5], [3, 4]], 1),
        ([[5], [3], [5], [3]], 0),  # another graph every second step
        ([[5, 3], [5, 0]], 1),  # the launch that shows nothing is of the graph at its place
        ([[5]], 0),
        ([], 0),
    ],
)
def test_graphs(counts: list[list[int]], short: int) -> None:
    one = graphs(counts)
    assert under_recorded(one) == (short, sum(map(len, counts)))
    assert trust(one).graph_under_recorded == short


def test_graphs_of_other_ops_are_no_fellows() -> None:
    assert under_recorded(graphs([[5, 3], [5, 3]], names=["forward", "backward"])) == (0, 4)
    found = trust(graphs([[5, 3], [5, 2]], names=["forward", "backward"]))
    assert (
        found.said[0]
        == "1 of 4 CUDA graph launches show less work than others of the same graph: some was not recorded"
    )


def test_graph_launches_outside_of_the_window_do_not_count() -> None:
    one = graphs([[5], [5], [2]])
    assert under_recorded(replace(one, window=Window(start_ns=0, end_ns=20 * MS, found_by="x", steps=STEPS))) == (0, 2)
