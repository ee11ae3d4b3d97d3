"""The screen of memory that ran out."""

import io
from typing import Any

import msgspec
from rich.console import Console

from hotlap.records.memory import MemoryLine, MemoryPart, MemoryUsage
from hotlap.records.ran_out import MemoryChange, RanOut
from hotlap.report.oom_screen import oom_screen
from made_runs import RUN

GIB = 1 << 30
USAGE = MemoryUsage(
    device="cuda:0", source="allocator", peak_bytes=70 * GIB, step=3, phase="forward", reserved_bytes=74 * GIB,
    free_bytes=GIB,
    parts=(
        MemoryPart(category="activations", bytes=50 * GIB), MemoryPart(category="parameters", bytes=19 * GIB),
        MemoryPart(category="held", bytes=GIB),
    ),
    lines=(
        MemoryLine(
            where=("/w/net.py", 9, "Net.forward"), category="activations", bytes=40 * GIB, blocks=8, names=("h",)
        ),
    ),
)  # fmt: skip
CHANGES = (
    MemoryChange(
        what="blocks again", lever="a-lever", gives_bytes=40 * GIB, bound="at most", costs="time", code="x = y\nz",
        enough=True,
    ),
    MemoryChange(what="batches of 1/2 of the rows", gives_bytes=26 * GIB, risk="semantic", enough=True),
)  # fmt: skip
TOLD = RanOut(
    rank=0, ranks=1, device="cuda:0", asked_bytes=2 * GIB, lacks_bytes=2 * GIB, where=("/w/net.py", 12, "Net.forward"),
    phase="forward", step=3, usage=USAGE, total_bytes=80 * GIB, free_bytes=GIB // 2, outside_bytes=3 * GIB,
    before_bytes=2 * GIB, changes=CHANGES,
)  # fmt: skip


def text(width: int = 140, **changes: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    command = ("python", "train.py", "--out", "a b")
    console.print(oom_screen(msgspec.structs.replace(TOLD, **changes), msgspec.structs.replace(RUN, command=command)))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_whole_screen() -> None:
    told = text()
    lines = told.splitlines()
    assert lines[0] == (
        "memory ran out (cuda:0): 2 GiB more were asked for at net.py:12 in Net.forward · in the forward of step 3"
    )
    assert "70 GiB of 80 GiB allocated · 4 GiB held free in pieces, the largest 1 GiB" in told
    assert "3 GiB outside of torch (CUDA itself, other processes) · 2 GiB were in use before the command began" in told
    assert any(line.startswith("activations ") and "71%" in line for line in lines)
    assert not any(line.startswith("held ") for line in lines), "next to nothing"
    assert "   40 GiB  activations, as h at net.py:9 in Net.forward" in lines
    assert "1 a-lever: blocks again" in lines and "  gives at most 40 GiB · costs time · exact · x = y" in lines
    assert "  gives about 26 GiB · semantic" in lines
    assert lines[-1] == "hotlap tune --objective memory python train.py --out 'a b'"
    assert len(lines) < 25


def test_one_line_where_the_script_went_on() -> None:
    told = text(went_on=True)
    assert told == (
        "memory ran out (cuda:0): 2 GiB more were asked for at net.py:12 in Net.forward, and the script went on\n"
    )


def test_what_is_not_known_is_not_told() -> None:
    told = text(distinct=False, rank=1, ranks=3)
    assert "activations and temporaries" in told and "rank 1, and 2 others" in told
    bare = text(usage=None, asked_bytes=None, lacks_bytes=None, where=None, changes=(), phase="before the loop", step=1,
                before_bytes=5, outside_bytes=None)  # fmt: skip
    assert bare.splitlines()[0] == "memory ran out (cuda:0) · before the loop"
    assert "no change is known" in bare and "before the command began" not in bare


def test_changes_that_give_too_little() -> None:
    few = tuple(msgspec.structs.replace(one, enough=False) for one in CHANGES)
    assert "each gives only a part of the 2 GiB that lacked; together they may do)" in text(changes=few, together=True)
    assert "together they do not do)" in text(changes=few)


def test_what_the_kernel_killed() -> None:
    killed = {"killed": True, "device": "cpu", "usage": None, "asked_bytes": None, "lacks_bytes": None, "where": None}
    told = text(**killed, resident_bytes=7 * GIB, total_bytes=8 * GIB)
    assert told.splitlines()[:2] == [
        "host memory ran out: the kernel killed a process of the command · after 3 steps",
        "7 GiB of 8 GiB resident at the most",
    ]
    assert "the kernel probably killed" in text(**killed, certain=False)


def test_text_from_outside_steers_nothing() -> None:
    told = text(where=("/w/\x1b[31m.py", 1, "[red]f\n"))
    assert "\x1b" not in told and "[red]f" in told
