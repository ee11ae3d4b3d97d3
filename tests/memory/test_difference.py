"""What made the difference in memory between two runs."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.memory.difference import difference
from hotlap.memory.usage import usage
from hotlap.records.memory import MemoryLine, MemoryPart, MemoryUsage

from .windows import Recorded, steps


def used(*lines: tuple[str, int, str, int], **parts: int) -> MemoryUsage:
    """lines: file, line, category and bytes."""
    sizes: dict[Any, int] = {name.replace("_", " "): size for name, size in parts.items()}
    return MemoryUsage(
        device="cpu",
        source="operations",
        peak_bytes=sum(sizes.values()),
        step=1,
        phase="forward",
        parts=tuple(MemoryPart(category=name, bytes=size) for name, size in sizes.items()),
        lines=tuple(
            MemoryLine(where=(file, line, "main"), category=kind, bytes=size, blocks=1)  # type: ignore[arg-type]
            for file, line, kind, size in lines
        ),
    )


def test_categories_that_differ_add_up_to_the_difference() -> None:
    found = difference(used(parameters=10, activations=50, inputs=5), used(parameters=10, activations=20, gradients=7))
    assert (found.before_bytes, found.after_bytes) == (65, 37)
    assert [(one.category, one.before_bytes, one.after_bytes) for one in found.categories] == [
        ("activations", 50, 20), ("gradients", 0, 7), ("inputs", 5, 0),
    ]  # fmt: skip
    assert sum(one.more for one in found.categories) == 37 - 65


def test_lines_are_compared_from_the_folder_of_the_command_on() -> None:
    before = used(("/a/train.py", 3, "activations", 50), ("/a/net.py", 9, "activations", 5))
    after = used(("/b/train.py", 3, "activations", 80), ("/b/net.py", 9, "activations", 5))
    (one,) = difference(before, after, "/a", "/b/").lines
    assert (one.where, one.before_bytes, one.after_bytes) == (("train.py", 3, "main"), 50, 80)
    assert len(difference(before, after).lines) == 4


def test_a_line_that_was_moved_is_the_same() -> None:
    (one,) = difference(used(("t.py", 3, "activations", 50)), used(("t.py", 8, "activations", 70))).lines
    assert (one.where, one.before_bytes, one.after_bytes) == (("t.py", 8, "main"), 50, 70)
    assert difference(used(("t.py", 3, "activations", 50)), used(("t.py", 8, "activations", 50))).lines == ()


def test_lines_of_which_several_went_or_came_are_told_one_by_one() -> None:
    before = used(("t.py", 3, "activations", 50), ("t.py", 4, "activations", 1), ("t.py", 5, "outputs", 2))
    found = difference(before, used(("t.py", 8, "activations", 70)))
    assert [(one.where and one.where[1], one.more) for one in found.lines] == [(8, 70), (3, -50), (5, -2), (4, -1)]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 900))
def test_of_whole_windows_the_total_is_exact(one: int, two: int, more: int) -> None:
    def window(count: int, extra: int) -> Recorded:
        made = steps(count, leaks=True)
        made.phase("forward")
        if extra:
            made.alloc(77, extra, line=60)
        return made

    before, after = usage(window(one, 0).window()), usage(window(two, more).window())
    found = difference(before, after)
    assert sum(change.more for change in found.categories) == after.peak_bytes - before.peak_bytes
