"""Memory on the screen of a run, and what made the difference between two."""

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console, Group

from hotlap.records.compare import RunDiff
from hotlap.records.memory import MemoryDiff, MemoryDifference, MemoryPart, MemoryUsage, ModuleMemory
from hotlap.report.compare_screen import compare_screen
from hotlap.report.memory_screen import memory_block

from .pages import HOSTILE, USAGE, hostile

MIB = 1 << 20


def shown(*blocks: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(Group(*blocks))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def block(width: int = 100, **changes: Any) -> list[str]:
    usage = msgspec.structs.replace(USAGE, **changes)
    return [line.rstrip() for line in shown(*memory_block(usage, "/home/u/proj"), width=width).splitlines()]


def test_the_peak_by_category_line_module_and_variable() -> None:
    lines = block()
    assert lines[0] == "memory: 0.977 GiB at the peak, in the backward of step 23"
    text = "\n".join(lines)
    assert "cuda:0 · 300 MiB at the end · the allocator holds 1.46 GiB" in text
    assert "500 MiB of it outside of the allocator" in text.replace("\n", " ")
    (row,) = [line.split() for line in lines if line.startswith("activations")]
    assert row[1:4] == ["700", "MiB", "70%"]
    assert not any(line.startswith("rounding") for line in lines)  # 1% of it
    assert "  650 MiB  activations at net.py:7 in Net.forward, inside of it /venv/lib/attend.py:9" in lines
    assert "   90 MiB  held, as best[…] at /lib/x.py:1 in f" in lines
    assert lines[lines.index("modules") + 1 :][:2] == [
        "  150 MiB  net.body: parameters 150 MiB", "   50 MiB  net.head: parameters 50 MiB",
    ]  # fmt: skip
    assert lines[-2:] == ["variables that hold some of it", "   90 MiB  best[…], 3 tensors"]


def test_of_many_modules_the_first_are_shown() -> None:
    many = tuple(ModuleMemory(name=f"layers.{at}", bytes=MIB, parts=()) for at in range(6))
    assert sum("layers." in line for line in block(modules=many)) == 5
    assert not any("modules" in line for line in block(modules=many[:1]))


def test_where_little_is_known_little_is_shown() -> None:
    host = {"device": "cpu", "source": "operations", "phase": "", "lines": (), "holders": (), "modules": ()}
    lines = block(**host)
    assert lines[0].endswith("at the peak")
    assert "what one takes inside is not seen" in " ".join(lines) and "allocator" not in " ".join(lines)
    assert not any("lines that" in line or "variables" in line for line in lines)
    empty = MemoryUsage(device="cpu", source="operations", peak_bytes=0, step=0, phase="")
    assert "0 bytes at the peak" in shown(*memory_block(empty, ""))
    nothing = msgspec.structs.replace(empty, parts=(MemoryPart(category="held", bytes=0),))
    assert "0 bytes at the peak" in shown(*memory_block(nothing, ""))


@pytest.mark.parametrize("width", [40, 100])
def test_names_from_outside_are_plain_text(width: int) -> None:
    text = shown(*memory_block(hostile(USAGE), ""), width=width)
    assert "\x00" not in text and "\u202e" not in text
    assert "alert(1)" in text.replace("\n", "") and max(map(len, text.splitlines())) <= width


DIFFERENCE = MemoryDiff(
    before_bytes=100 * MIB,
    after_bytes=60 * MIB,
    categories=(
        MemoryDifference(category="activations", before_bytes=80 * MIB, after_bytes=30 * MIB),
        MemoryDifference(category="held", before_bytes=0, after_bytes=10 * MIB),
    ),
    lines=tuple(
        MemoryDifference(
            category="activations", before_bytes=at * MIB, after_bytes=0, where=("net.py", at, "Net.forward")
        )
        for at in (9, 8, 7, 6, 5, 4)
    ),
)


def diff_text(memory: MemoryDiff | None) -> str:
    found = RunDiff(before="a", after="b", before_step=None, after_step=None, differs=(), memory=memory)
    return shown(compare_screen(found))


def test_what_made_the_difference_between_two_runs() -> None:
    lines = [line.rstrip() for line in diff_text(DIFFERENCE).splitlines()]
    assert "memory at the peak: 100 MiB before, 60 MiB after, 41,943,040 bytes less" in lines
    rows = [line.split() for line in lines]
    assert ["activations", "80", "MiB", "30", "MiB", "−50", "MiB"] in rows
    assert ["held", "0", "bytes", "10", "MiB", "+10", "MiB"] in rows
    assert [row[0] for row in rows if row[0:1] and row[0].startswith("net.py")] == [
        f"net.py:{at}" for at in (9, 8, 7, 6, 5)
    ]
    assert "memory" not in diff_text(None).replace("memory, ", "")


def test_two_runs_that_use_as_much() -> None:
    same = msgspec.structs.replace(DIFFERENCE, after_bytes=100 * MIB, categories=(), lines=())
    assert "the same to the byte" in diff_text(same)
    more = msgspec.structs.replace(DIFFERENCE, after_bytes=100 * MIB + 1)
    assert "1 bytes more" in diff_text(more)
    assert "alert(1)" in diff_text(hostile(DIFFERENCE)) and HOSTILE not in diff_text(hostile(DIFFERENCE))
