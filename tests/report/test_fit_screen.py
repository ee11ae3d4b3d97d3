"""The screen of a fit: measured and predicted values, ranges, what fits which card."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from hotlap.records.fit import Fit, FitCard, FitRun, FitValue, Range
from hotlap.report.fit_screen import fit_screen, range_text, size
from made_runs import ENVIRONMENT

GIB = float(1 << 30)


def exactly(gib: float) -> Range:
    return Range(low=gib * GIB, likely=gib * GIB, high=gib * GIB)


NINE = Range(low=9, likely=9, high=9)
FIT = Fit(
    command=("python", "t.py", "--bs", "8"), option="--bs", own=8, device="cuda", shape="linear", predicted_to=256,
    runs=(
        FitRun(value=8, outcome="measured", folder="runs/000", peak_bytes=int(GIB)),
        FitRun(value=3, outcome="crashed", why="AssertionError: [bold]odd[/bold]", folder="runs/001"),
        FitRun(value=64, outcome="memory", folder="runs/002"),
    ),
    values=(
        FitValue(value=3, measured=False, peak=Range(low=0.0, high=GIB)),
        FitValue(value=8, measured=True, peak=exactly(1), reserved=exactly(1.25), step_ms=NINE),
        FitValue(value=16, measured=False, peak=Range(low=1.8 * GIB, likely=2 * GIB, high=2.3 * GIB), fits="yes"),
        FitValue(value=64, measured=False, peak=Range(low=5 * GIB), fits="no"),
    ),
    device_card=FitCard(
        name="NVIDIA X", memory_bytes=8 << 30, usable_bytes=7 << 30, largest=40, at_most=63,
        fits=("maybe", "yes", "yes", "no"),
    ),
    cards=(FitCard(name="big", memory_bytes=80 << 30, usable_bytes=79 << 30, largest=256, fits=("yes",) * 4),),
    notes=("a note",), environment=ENVIRONMENT,
)  # fmt: skip


def text(found: Fit, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(fit_screen(found, Path("out")))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_each_value_says_whether_it_was_measured_and_where_it_fits() -> None:
    said = text(FIT)
    rows = {line.split()[0]: line for line in said.splitlines() if line.split() and line.split()[0].isdigit()}
    assert "measured" in rows["8"] and "1.00 GiB" in rows["8"] and "9.00 ms" in rows["8"]
    assert "predicted" in rows["16"] and "2.00 (1.80–2.30) GiB" in rows["16"]
    assert "ran out of memory" in rows["64"] and "at least 5.00 GiB" in rows["64"] and "too large" in rows["64"]
    assert "the run failed" in rows["3"] and "may fit" in rows["3"]


def test_the_largest_is_told_of_each_card() -> None:
    said = text(FIT)
    assert said.startswith("--bs 40: fits · above 63 too large")
    assert "big" in said and "--bs 256: fits · more is not predicted · 79.0 GiB of 80.0 GiB for tensors" in said
    assert "failed   --bs 3: AssertionError: [bold]odd[/bold]" in said and "note     a note" in said


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminals_cut_no_number(width: int) -> None:
    said = text(FIT, width)
    assert "2.00 (1.80–2.30) GiB" in " ".join(said.split()) and max(map(len, said.splitlines())) <= width


def test_a_range_is_said_as_far_as_it_is_known() -> None:
    assert range_text(None, size) == "-"
    assert range_text(Range(low=GIB), size) == "at least 1.00 GiB"
    assert range_text(Range(low=GIB, high=2 * GIB), size) == "1.00–2.00 GiB"
    assert range_text(Range(low=GIB / 4, likely=GIB, high=GIB), size) == "1.00 GiB (256 MiB–1.00 GiB)"
    assert range_text(Range(low=0.995 * GIB, likely=GIB, high=1.005 * GIB), size) == "1.00 GiB"
    assert [size(one) for one in (0.0, 999.0, 2048.0, 5e6)] == ["0 B", "999 B", "2.00 KiB", "4.77 MiB"]
