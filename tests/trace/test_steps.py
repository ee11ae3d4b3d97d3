"""Where steps are found, on hand-made traces."""

import pytest

from hotlap.trace.steps import find_windows
from hotlap.trace.tables import Trace

from .build import call, kernel, make, note, op

STEP = 1000


def loop(turns: int, *, late: int = 0, marks: bool = True) -> Trace:
    """A loop of two ops and a kernel a turn; late: how long after its launch a kernel of the last turn starts."""
    host, device = [], []
    for turn in range(turns):
        at = turn * STEP
        if marks:
            host.append(note(f"ProfilerStep#{turn}", at, STEP - 10))
        host += [op("a", at + 100, 200), call("cudaLaunchKernel", at + 150, 10, turn + 1), op("b", at + 400, 300)]
        device.append(kernel("k", at + 200 + late * (turn + 1) // turns, 500, turn + 1))
    return make(host, device)


def test_profiler_steps_end_where_the_next_begins() -> None:
    window, host = find_windows(loop(3))
    assert window == host
    assert window.found_by == "ProfilerStep"
    assert window.steps == ((0, 1000), (1000, 2000), (2000, 2990))
    assert (window.start_ns, window.end_ns, window.count) == (0, 2990, 3)


def test_a_long_pause_belongs_to_no_step() -> None:
    trace = make([note("ProfilerStep#0", 0, 100), note("ProfilerStep#1", 150, 100), note("ProfilerStep#2", 900, 100)])
    assert find_windows(trace)[0].steps == ((0, 150), (150, 250), (900, 1000))


def test_a_host_that_runs_ahead_is_read_on_the_clock_of_the_device() -> None:
    window, host = find_windows(loop(3, late=3000))
    assert host.steps == ((0, 1000), (1000, 2000), (2000, 2990))
    assert window.steps == ((1200, 3200), (3200, 5200), (5200, 5700))
    assert window.found_by == "ProfilerStep"


def test_a_little_ahead_is_not_ahead() -> None:
    window, host = find_windows(loop(3, late=400))  # the last kernel ends at 3100, 110 after the steps: under 5 percent
    assert window == host


def test_a_step_without_linked_work_keeps_the_clock_of_the_host() -> None:
    trace = loop(3, late=3000)
    assert find_windows(make(trace.host.drop("parent", "depth").rows(named=True), []))[0].steps[0] == (0, 1000)


def optimizers(names: list[str]) -> Trace:
    return make([note(f"Optimizer.step#{name}.step", 100 + i * STEP, 50) for i, name in enumerate(names)])


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["SGD"] * 4, ((150, 1150), (1150, 2150), (2150, 3150))),
        (["D", "G"] * 3, ((150, 2150), (2150, 4150))),
        (["D", "D", "G"] * 3, ((150, 3150), (3150, 6150))),
    ],
)
def test_optimizer_steps_in_cycles(names: list[str], steps: tuple[tuple[int, int], ...]) -> None:
    window = find_windows(optimizers(names))[0]
    assert window.found_by == "optimizer"
    assert window.steps == steps


def test_an_optimizer_inside_another_is_one_step() -> None:
    rows = []
    for turn in range(3):
        rows += [
            note("Optimizer.step#Sub.step", turn * STEP, 100),
            note("Optimizer.step#Adam.step", turn * STEP + 10, 50),
        ]
    assert find_windows(make(rows))[0].steps == ((100, 1100), (1100, 2100))


def test_one_optimizer_step_is_no_loop() -> None:
    assert find_windows(optimizers(["SGD"]))[0].found_by == "none"


def test_no_steps() -> None:
    window = find_windows(make([op(f"op{i}", i * 10, 8) for i in range(40)], [kernel("k", 500, 30)]))[0]
    assert (window.found_by, window.steps, window.start_ns, window.end_ns, window.count) == ("none", (), 0, 530, 1)


def test_a_trace_of_memory_events_only_and_an_empty_one() -> None:
    window = find_windows(make(memory=[{"time": 5, "bytes": 1}, {"time": 9, "bytes": -1}]))[0]
    assert (window.start_ns, window.end_ns) == (5, 10)
    assert find_windows(make())[0].span_ns == 0
