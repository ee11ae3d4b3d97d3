"""Allocated memory over a window, for a chart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.memory import timeline as timeline_module
from hotlap.memory.timeline import timeline
from hotlap.memory.usage import usage
from hotlap.records.memory import MemoryTimeline, MemoryWindow

from .windows import Recorded, steps


def told(window: MemoryWindow) -> MemoryTimeline:
    found = timeline(window)
    assert found is not None
    return found


def totals(found: MemoryTimeline) -> list[int]:
    return [sum(point) for point in zip(*found.bytes, strict=True)]


def test_categories_add_up_at_each_event() -> None:
    recorded = steps()
    found = told(recorded.window())
    assert found.times[0] == 0 and list(found.times) == sorted(found.times)
    assert len(found.times) == len(recorded.rows) + 1 and max(totals(found)) == recorded.most
    assert (totals(found)[0], totals(found)[-1]) == (300, sum(size for size, _ in recorded.live.values()))
    assert found.categories[:2] == ("optimizer state", "parameters")  # what is always there lies at the bottom
    assert min(found.bytes[0]) == max(found.bytes[0]) == 200
    assert [(mark.phase, mark.step) for mark in found.marks[:3]] == [("data", 5), ("forward", 5), ("backward", 5)]
    assert found.marks[0].time == 0


def test_times_never_go_back() -> None:
    recorded = steps()
    recorded.rows = [(*row[:3], 50 if at == 4 else row[3], row[4]) for at, row in enumerate(recorded.rows)]
    found = told(recorded.window())
    assert list(found.times) == sorted(found.times)


def test_nothing_is_told_where_no_time_is_known() -> None:
    assert timeline(Recorded().window()) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 999), min_size=1, max_size=120), st.integers(2, 30))
def test_of_many_events_the_highest_and_lowest_points_stay(sizes: list[int], points: int) -> None:
    recorded = Recorded()
    recorded.phase("forward")
    for at, size in enumerate(sizes):
        recorded.alloc(at, size)
        if size % 2:
            recorded.free(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_module, "POINTS", points)
        found = told(recorded.window())
    assert max(totals(found)) == usage(recorded.window()).peak_bytes
    assert min(totals(found)) == 0 and len(found.times) <= points + 3


def test_of_many_marks_the_ends_of_steps_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "MARKS", 5)
    assert [mark.phase for mark in told(steps(3).window()).marks] == ["step end"] * 3
