"""The screen and the comma-separated values of a bench."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotlap.records.diagnosis import NOT_STEADY, Finding, Place, Spread
from hotlap.records.suite import Middle, Suite, SuiteRow, SuiteStart
from hotlap.report.bench_screen import bench_csv, bench_screen
from made_runs import ENVIRONMENT

HOSTILE = 'ValueError: [bold]odd[/bold] \x1b[31m"a",\nb \ud800'


def start(step_ms: float | None = 10.0, **more: Any) -> SuiteStart:
    return SuiteStart(**{"folder": "a-1", "outcome": "measured", "step_ms": step_ms, **more})


def middle(value: float, wide: float = 0.0) -> Middle:
    return Middle(median=value, low=value - wide, high=value + wide)


GOOD = SuiteRow(
    name="gpt", words=("python", "my train.py"), cwd="/w", outcome="measured", starts=(start(),) * 3,
    step_ms=middle(10.0, 1.0), throughput=middle(800.0), tokens_s=middle(25600.0), peak_bytes=middle(2.0**30),
    peak_of="device", startup_s=middle(4.0), bound="input", spread=Spread(p10=8.0, p50=10.0, p90=20.0),
    finding=Finding(id="input", bound="input", share=0.42, title="waits", where=Place(file="/w/a.py", line=3)),
    left_out={"channels-last": "no convolutions"},
)  # fmt: skip
ONE = SuiteRow(
    name="one", words=("python", "b.py"), cwd="/w", outcome="interrupted", why="Ctrl-C",
    starts=(start(), start(None, outcome="interrupted")),
    unknown=(f"{NOT_STEADY}: 8 ms early, 20 ms late", "another"),
    step_ms=middle(10.0), throughput=middle(800.0), throughput_unit="rows/s", bound="unknown",
    spread=Spread(p10=8.0, p50=10.0, p90=20.0),
)  # fmt: skip
BAD = SuiteRow(name="bad", words=("x",), cwd="/w", outcome="crashed", why=HOSTILE, starts=(start(None),))
SUITE = Suite(suite="s.toml", rows=(GOOD, ONE, BAD), complete=False, started=0.0, seconds=61.0, environment=ENVIRONMENT)


def text(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(bench_screen(SUITE, Path("out")))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_each_command_has_a_row_and_what_limits_it() -> None:
    said = text(120)
    assert said.startswith("3 commands · 1 measured · 01:01 · interrupted")
    rows = {line.split()[0]: " ".join(line.split()) for line in reversed(said.splitlines()) if line.strip()}
    assert rows["gpt"].startswith("gpt 10.0 ms 9.00–11.0 ms 3 25,600 tokens input 1 GiB 4.00 s")
    assert rows["one"].startswith("one 10.0 ms 8.00–20.0 ms")  # of one start that of its steps
    assert "800 rows" in rows["one"]
    assert rows["bad"] == "bad crashed"
    for told in (
        "waits (42% of the time) at a.py:3",
        "not in: channels-last: no convolutions",
        "interrupted: Ctrl-C",
        "8 ms early",
    ):
        assert told in said


@pytest.mark.parametrize("width", [30, 60, 120])
def test_text_from_outside_steers_no_terminal_at_any_width(width: int) -> None:
    said = text(width)
    assert "\x1b" not in said and "[bold]odd[/bold]" in said.replace("\n", "").replace(" ", "")
    assert max(map(len, said.splitlines())) <= width


def test_the_values_are_read_back() -> None:
    good, one, bad = csv.DictReader(io.StringIO(bench_csv(SUITE).decode()))
    assert [float(good[name]) for name in ("step_ms", "step_ms_low", "step_ms_high")] == [10.0, 9.0, 11.0]
    assert (good["peak_of"], good["finding"], good["command"]) == ("device", "waits", "python 'my train.py'")
    assert (one["throughput"], one["throughput_unit"], one["tokens_s"]) == ("800.0", "rows/s", "")
    assert (bad["step_ms"], bad["outcome"], bad["bound"]) == ("", "crashed", "")
    assert bad["why"] == HOSTILE.replace("\ud800", "?")
